"""feddag bench ...: measurements of speed, and of whether groups are right."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from feddag.cli.common import JsonOption, console, whole_numbers
from feddag.cli.help import Command, new_app
from feddag.console import print_line, show_table
from feddag.errors import FeddagError, nearest
from feddag.files import write_atomically

app = new_app("How fast it is on this machine, and whether groups are right.")
RepeatOption = Annotated[int, typer.Option(metavar="N", min=1, help="interleaved repetitions; medians are shown")]


@app.command("train", cls=Command)
def bench_train(
    models: Annotated[str, typer.Option(help="comma-separated")] = "M1,lenet5,M2,cnn,mlp,cnn1d",
    batches: Annotated[str, typer.Option(help="comma-separated batch sizes")] = "10,32,64",
    repeat: RepeatOption = 3,
    json_file: JsonOption = None,
) -> None:
    """Local training in C++, in PyTorch and in the usual loop.

    Central training on the same samples is measured too.
    """
    from feddag.bench import train

    rows = train.measure(models.split(","), whole_numbers("--batches", batches), repeat)
    title = "local training, samples per second and ratio to naive"
    show_bench(title, train.COLUMNS, train.table(rows), rows, json_file)


@app.command("attacks", cls=Command)
def bench_attacks(
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    data: Annotated[str, typer.Option(help="alike, differing or both, comma-separated")] = "alike,differing",
    json_file: JsonOption = None,
) -> None:
    """What lying clients cost, and what each robust mean saves.

    Accuracy of the honest clients on digits, one in ten lying in every round.
    """
    from feddag.bench import attacks

    kinds = [name.strip() for name in data.split(",")]
    for name in kinds:
        if name not in attacks.DATA:
            raise FeddagError(f"--data '{name}' is not one of {', '.join(attacks.DATA)}")
    rows = attacks.measure(whole_numbers("--seeds", seeds), data=kinds)
    title = "accuracy of honest clients by attack and by the field robust"
    show_bench(title, attacks.COLUMNS, attacks.table(rows), rows, json_file, texts=3)


@app.command("alike", cls=Command)
def bench_alike(
    datasets: Annotated[str, typer.Option(help="comma-separated")] = "digits,fmnist",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    most: Annotated[int, typer.Option(metavar="N", min=10, help="clients, at most")] = 1000,
    json_file: JsonOption = None,
) -> None:
    """Whether clients that are alike are left together.

    From 10 to 1,000 clients of 20 to 600 samples; rows in the JSON file are not measured again.
    """
    from feddag.bench import alike

    names = [name.strip() for name in datasets.split(",")]
    rows = alike.measure(json_file, names, whole_numbers("--seeds", seeds), most)
    show_table(console, "clients that are alike", alike.COLUMNS, alike.table(rows), texts=1)


@app.command("mixed", cls=Command)
def bench_mixed(
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    settings: Annotated[str, typer.Option(help="semicolon-separated; all if empty")] = "",
    json_file: JsonOption = None,
) -> None:
    """Groups of clients that differ in several ways, and rare ones.

    "Level above": the same tree cut into the coarser true groups.
    """
    from feddag.bench import mixed

    chosen = named_settings(settings, mixed.SETTINGS)
    rows = mixed.measure(json_file, whole_numbers("--seeds", seeds), chosen)
    show_table(console, "mixed differences and rare groups", mixed.COLUMNS, mixed.table(rows), texts=2)


@app.command("power", cls=Command)
def bench_power(
    dataset: Annotated[str, typer.Option(help="of images")] = "fmnist",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    json_file: JsonOption = None,
) -> None:
    """How small a difference between groups is still seen."""
    from feddag.bench import power

    rows = power.measure(json_file, dataset, whole_numbers("--seeds", seeds))
    show_table(console, "two groups, one thing varied", power.COLUMNS, power.table(rows), texts=3)


@app.command("released", cls=Command)
def bench_released(
    datasets: Annotated[str, typer.Option(help="comma-separated")] = "digits,fmnist",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2",
    json_file: JsonOption = None,
) -> None:
    """What signatures of small classes give away.

    And what leaving them out costs the groups.
    """
    from feddag.bench import released

    found = released.measure([name.strip() for name in datasets.split(",")], whole_numbers("--seeds", seeds))
    title = "the nearest of a released vector and a sample of its class, |cosine|"
    show_table(console, title, released.LIKENESS_COLUMNS, released.likeness_table(found["likeness"]), texts=1)
    title, columns = "adjusted Rand index with small classes left out", released.GROUP_COLUMNS
    show_bench(title, columns, released.group_table(found["groups"]), found, json_file, texts=2)


@app.command("round", cls=Command)
def bench_round(json_file: JsonOption = None) -> None:
    """A whole round, compared with Flower, pfl and FedLab.

    Those that are installed take part; FEDDAG_PEER_PYTHON names their Python.
    """
    from feddag.bench import round

    rows = round.measure()
    show_bench("one federated round", round.COLUMNS, round.table(rows), rows, json_file)


@app.command("scale", cls=Command)
def bench_scale(json_file: JsonOption = None) -> None:
    """Rounds per second and memory from 100 to 100,000 clients.

    It also shows the share of time outside local training.
    """
    from feddag.bench import scale

    rows = scale.measure()
    show_bench("many clients", scale.COLUMNS, scale.table(rows), rows, json_file)


@app.command("feddag", cls=Command)
def bench_feddag(repeat: RepeatOption = 3, json_file: JsonOption = None) -> None:
    """A whole FedDAG round with two encoders.

    It is compared with the same round in the usual PyTorch loop.
    """
    from feddag.bench import dual

    rows = dual.measure(repeat=repeat)
    show_bench("one FedDAG round, lenet5, 20 clients of 600 samples", dual.COLUMNS, dual.table(rows), rows, json_file)


@app.command("groups", cls=Command)
def bench_groups(
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2,3,4",
    settings: Annotated[str, typer.Option(help="semicolon-separated; all if empty")] = "",
    datasets: Annotated[str, typer.Option(help="comma-separated; all if empty")] = "",
    signed: Annotated[
        str, typer.Option(help="how clients sign: samples, updates, printed, released")
    ] = "samples,updates,printed,released",
    json_file: JsonOption = None,
) -> None:
    """Are the groups right? Ours, the paper's and PACFL's.

    In brackets: at the best threshold. It goes on from what the file of --json holds.
    """
    from feddag.bench import groups

    wanted = named_settings(settings, groups.SETTINGS)
    sets = [name for name in datasets.split(",") if name]
    signing = signed.split(",")
    if unknown := set(signing) - set(groups.SIGNED):
        raise FeddagError(f"--signed '{unknown.pop()}' is not one of {', '.join(groups.SIGNED)}")
    rows = groups.measure(json_file, whole_numbers("--seeds", seeds), wanted, sets, signing)
    show_table(console, "adjusted Rand index (at the best threshold)", groups.COLUMNS, groups.table(rows), texts=2)


@app.command("flower", cls=Command)
def bench_flower(json_file: JsonOption = None) -> None:
    """A round by the local engine, by Flower and by its simulation.

    It shows seconds, and bytes per client.
    """
    from feddag.bench import flower

    rows = flower.measure()
    show_bench("the same round on three engines, bytes per client", flower.COLUMNS, flower.table(rows), rows, json_file)


@app.command("clustering", cls=Command)
def bench_clustering(
    clients: Annotated[str, typer.Option(help="comma-separated numbers of clients")] = "100,1000,10000,30000,100000",
    json_file: JsonOption = None,
) -> None:
    """What grouping costs in seconds and memory as clients grow.

    A client's part is compared with IFCA's.
    """
    from feddag.bench import clustering

    rows, beside = clustering.measure(whole_numbers("--clients", clients)), clustering.measure_client()
    show_table(console, "one client's part", clustering.CLIENT_COLUMNS, clustering.client_table(beside))
    title, columns = "the server's part: views, fusion, threshold, graph", clustering.COLUMNS
    show_bench(title, columns, clustering.table(rows), {"server": rows, "client": beside}, json_file)


@app.command("landmarks", cls=Command)
def bench_landmarks(
    datasets: Annotated[str, typer.Option(help="comma-separated")] = "fmnist,cifar10,svhn",
    clients: Annotated[str, typer.Option(help="comma-separated numbers of clients")] = "1000",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0",
    settings: Annotated[str, typer.Option(help="semicolon-separated; default: all")] = "",
    json_file: JsonOption = None,
) -> None:
    """Groups by landmarks beside those by all pairs, on real data.

    Adjusted Rand index and processor seconds; rows in the JSON file are not measured again.
    """
    from feddag.bench import landmarks

    names = named_settings(settings, landmarks.SETTINGS) or list(landmarks.SETTINGS)
    many = whole_numbers("--seeds", seeds), whole_numbers("--clients", clients)
    rows = landmarks.measure(json_file, datasets.split(","), *many, names)
    show_table(console, "all pairs and landmarks", landmarks.COLUMNS, landmarks.table(rows), texts=2)


def named_settings(text: str, known: Iterable[str]) -> list[str]:
    """Names of settings, some of which have a comma in them.

    >>> named_settings("iid; 20 clients", ["iid", "20 clients"])
    ['iid', '20 clients']
    """
    names = [name.strip() for name in text.split(";") if name.strip()]
    for name in names:
        if name not in known:
            raise FeddagError(f"--settings '{name}' is not one of {'; '.join(known)}{nearest(name, known)}")
    return names


def show_bench(
    title: str,
    columns: Sequence[str],
    table: list[list[str]],
    rows: Any,
    json_file: Path | None,
    texts: int = 1,
) -> None:
    """Print what was measured, and where; keep every number if a file is named."""
    from feddag.bench.common import machine

    show_table(console, title, columns, table, texts)
    print_line(console, ", ".join(f"{name} {value}" for name, value in machine().items()))
    if json_file:
        write_atomically(json_file, json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
