"""The `feddag` program: every command is a thin layer over the Python functions."""

import errno
import gc
import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console

from feddag import __version__, native
from feddag.client.signature import Signature, signature
from feddag.data import obtain
from feddag.data.clients import count_classes
from feddag.data.datasets import load as load_dataset
from feddag.data.readers import read_npz
from feddag.deploy.commands import app as flower_app
from feddag.errors import FeddagError
from feddag.experiment import DEFAULT_METHOD, Experiment, parse_setting, read_experiment, read_experiments
from feddag.files import free_directory, write_atomically
from feddag.methods import all_methods
from feddag.records import RoundRecord
from feddag.runner.compare import compare_methods
from feddag.runner.directory import RunDirectory
from feddag.runner.loop import Observer
from feddag.runner.run import run as run_experiment
from feddag.screen import progress, say, show_changes, show_clients, show_clustering, show_results, show_table
from feddag.server.grouping import FUSIONS, group

app = typer.Typer(
    help="Clustered federated learning for clients whose data differ.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
data_app = typer.Typer(help="What data is available; obtain it; see how clients share it.", no_args_is_help=True)
app.add_typer(data_app, name="data")
bench_app = typer.Typer(help="How fast it is on this machine, beside others.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
app.add_typer(flower_app, name="flower")
console = Console(highlight=False)
UsageError: Any = typer.BadParameter.__base__  # typer brings its own click, or uses the installed one

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
YARDSTICKS = ("local", "fedavg", "oracle")

ExperimentFile = Annotated[Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="defaults for every field")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any field; `feddag fields`")]
DatasetOption = Annotated[str | None, typer.Option(help="a name, an .npz file or a folder of images")]
PartitionOption = Annotated[str | None, typer.Option(help="how clients get their samples")]
ClientsOption = Annotated[int | None, typer.Option(help="number of clients")]
RoundsOption = Annotated[int | None, typer.Option(help="communication rounds")]
SeedOption = Annotated[int | None, typer.Option(help="everything random follows from it")]
NoReport = Annotated[bool, typer.Option("--no-report", help="leave out the page to look at")]
RunsOption = Annotated[Path, typer.Option(help="folder of run directories")]


def say_trainer(experiment: Experiment) -> None:
    """One line where the fast trainer is missing."""
    if experiment.trainer == "auto" and not native.available():
        say(console, f"training with PyTorch: {native.reason()}")


def given(settings: list[str] | None, **flags: Any) -> dict[str, Any]:
    """What the command line sets."""
    return {name: value for name, value in flags.items() if value is not None} | dict(
        map(parse_setting, settings or [])
    )


def read(file: Path | None, settings: list[str] | None, **flags: Any) -> Experiment:
    """CLI over file over default."""
    return read_experiment(file, given(settings, **flags))


def all_of(observers: Sequence[Observer]) -> Observer:
    """One observer that tells several."""

    def tell(record: RoundRecord) -> None:
        for observer in observers:
            observer(record)

    return tell


def show_version(wanted: bool) -> None:
    """Say the version and end."""
    if wanted:
        say(console, f"feddag {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="say the version")
    ] = False,
) -> None:
    """Clustered federated learning for clients whose data differ."""


@app.command()
def run(
    experiment: ExperimentFile = None,
    dataset: DatasetOption = None,
    partition: PartitionOption = None,
    method: Annotated[str | None, typer.Option(help="the algorithm")] = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="run directory to make")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN_DIR", help="go on with an unfinished run")] = None,
    no_report: NoReport = False,
    log: Annotated[str, typer.Option(metavar="NAMES", help="also write tensorboard, mlflow or both")] = "",
) -> None:
    """Run one experiment and leave everything in a run directory."""
    flags = {"dataset": dataset, "partition": partition, "method": method, "clients": clients}
    flags |= {"rounds": rounds, "seed": seed}
    if resume is not None:
        if experiment or settings or out or any(value is not None for value in flags.values()):
            raise FeddagError("--resume goes on with the run's own experiment and takes no other option")
        if not RunDirectory(resume).experiment.exists():
            raise FeddagError(f"--resume '{resume}' is not a run directory: it has no experiment.toml")
        chosen, directory = read_experiment(RunDirectory(resume).experiment, {}), resume
    else:
        chosen = read(experiment, settings, **flags)
        directory = out or free_directory(Path("runs") / chosen.title())
    say_trainer(chosen)
    observers: list[Observer] = []
    if log:
        from feddag.report.loggers import loggers

        observers += loggers(log, directory, chosen)
    try:
        with progress(console, chosen.method, chosen.rounds) as bar:
            observers.append(bar)
            finished = run_experiment(chosen, directory, resume=resume is not None, observer=all_of(observers))
    except KeyboardInterrupt:
        begun = RunDirectory(directory).experiment.exists()
        stop(f"stopped; go on with: feddag run --resume {directory}" if begun else "stopped before it began", 130)
    except OSError as error:
        if error.errno not in FULL:
            raise
        stop(f"the disk is full; make room and go on with: feddag run --resume {directory}", 1)
    show_results(console, [finished.result], chosen)
    show_clustering(console, finished.result)
    show_changes(console, finished.result)
    say(console, f"run directory: {directory}")
    if not no_report:
        from feddag.report import write_report

        say(console, f"report: {write_report(directory)}")


@app.command()
def compare(
    experiment: ExperimentFile = None,
    methods: Annotated[str | None, typer.Option(help="comma-separated; default: feddag and the yardsticks")] = None,
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0",
    dataset: DatasetOption = None,
    partition: PartitionOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    settings: Settings = None,
    runs: RunsOption = Path("runs"),
    results: Annotated[Path, typer.Option(help="folder of kept results")] = Path("results"),
    keep: Annotated[bool, typer.Option("--keep", help="also keep each result in --results")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="run even what has a result")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="also write all results here")] = None,
    no_report: NoReport = False,
) -> None:
    """Run several methods on identical partitions: one table, mean ± std over seeds.

    Finished results are taken from --runs and --results, and unfinished runs go on where they stopped, so a long
    comparison can be stopped, continued, and extended by a method or a seed.
    """
    flags = {"dataset": dataset, "partition": partition, "clients": clients, "rounds": rounds}
    overrides = given(settings, **flags)
    names = [name.strip() for name in methods.split(",")] if methods else [*YARDSTICKS, DEFAULT_METHOD]
    numbers = whole_numbers("--seeds", seeds)
    experiments = read_experiments(experiment, overrides, list(dict.fromkeys(names)), list(dict.fromkeys(numbers)))
    if not methods:
        first = experiments[0]
        if first.divide(load_dataset(first.dataset)).truth is None:
            say(console, f"without oracle: partition = '{first.partition}' has no true groups")
            experiments = [item for item in experiments if not item.method_class.needs_truth]
    say_trainer(experiments[0])

    def watching(chosen: Experiment) -> AbstractContextManager[Observer]:
        return progress(console, f"{chosen.method} seed {chosen.seed}", chosen.rounds)

    compared = []
    try:
        for each in compare_methods(experiments, runs, results, watching, keep=keep, fresh=fresh):
            compared.append(each)
            if each.directory is None:
                chosen = each.experiment
                say(console, f"{chosen.method} seed {chosen.seed}: kept result {chosen.key()}")
    except KeyboardInterrupt:
        stop("stopped; the same command goes on where it was", 130)
    except OSError as error:
        if error.errno not in FULL:
            raise
        stop("the disk is full; make room, and the same command goes on where it was", 1)
    found = [each.result for each in compared]
    show_results(console, found, experiments[0])
    for each in compared:
        if each.directory is not None:
            chosen = each.experiment
            say(console, f"run directory of {chosen.method} seed {chosen.seed}: {each.directory}")
    if json_file:
        write_atomically(json_file, json.dumps(found, indent=1) + "\n")
    if not no_report:
        from feddag.report import left_of, write_comparison

        pairs = zip(experiments, found, strict=True)
        written = write_comparison([left_of(*pair, runs) for pair in pairs], runs / "comparison.html")
        say(console, f"report: {written}")


@app.command()
def report(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="one run, or several to compare")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="RUN_DIR/report.html, or comparison.html")] = None,
) -> None:
    """Write one page to look at: of a run, or of several side by side."""
    from feddag.report import read_left, write_comparison, write_report

    if len(directories) == 1:
        written = write_report(directories[0], out)
    else:
        written = write_comparison([read_left(each) for each in directories], out or Path("comparison.html"))
    say(console, f"report: {written}")


@app.command()
def show(directory: Annotated[Path, typer.Argument(metavar="RUN_DIR")]) -> None:
    """Print the essentials of a run, finished or under way."""
    from feddag.report import read_left
    from feddag.report.terminal import show_run

    show_run(console, read_left(directory))


@app.command()
def watch(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 0,
) -> None:
    """Serve a live page of a run under way to a browser on this machine, until the run ends."""
    from feddag.report.watch import Watch

    watched = Watch(directory, port)
    say(console, f"watching {directory}: {watched.address} (Ctrl-C ends it, not the run)")
    try:
        say(console, f"the run has {watched.serve_to_end().said}")
    except KeyboardInterrupt:
        stop("no longer watching", 130)


@app.command()
def fields() -> None:
    """List every field of an experiment: for TOML files, --set and Python alike."""
    rows = list(Experiment.model_fields.items())
    show_table(console, "every experiment", ("field", "default", "meaning"), [_field_row(*row) for row in rows], 3)
    for method in all_methods().values():
        if method.Settings.model_fields:
            own = [_field_row(*row) for row in method.Settings.model_fields.items()]
            show_table(console, f"\nmethod = {method.name}", ("field", "default", "meaning"), own, 3)


def _field_row(name: str, field: Any) -> tuple[str, str, str]:
    return name, "" if field.default is None else str(field.default), field.description or ""


@app.command()
def sign(
    data: Annotated[Path, typer.Argument(metavar="DATA.npz", help="x: samples of any shape; y: whole numbers")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="default: DATA.sig")] = None,
    classes: Annotated[int | None, typer.Option(help="of all clients together; default: those in y")] = None,
    vectors: Annotated[int, typer.Option(help="principal vectors per class")] = 3,
    inputs: Annotated[str, typer.Option(help="standardised (sample by sample) or raw")] = "standardised",
) -> None:
    """Sign a client's data: one small file to be grouped by, beside the data, without samples or labels."""
    samples, _ = read_npz(data)
    try:
        made = signature(samples.x, samples.y, classes, vectors=vectors, inputs=inputs)  # type: ignore[arg-type]
    except FeddagError as error:
        raise FeddagError(f"{data}: {error}") from None
    target = out or data.with_suffix(".sig")
    made.save(target)
    kinds, kept, features = made.vectors.shape
    content = f"{kinds} classes x {kept} vectors x {features} features, counts and reliabilities"
    say(console, f"{target}: {target.stat().st_size:,} bytes; {content}")


@app.command("group")
def group_signatures(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE.sig...", help="what `feddag sign` wrote, one per client")
    ],
    fusion: Annotated[str, typer.Option(help=" | ".join(FUSIONS))] = FUSIONS[0],
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="also write the groups here")] = None,
) -> None:
    """Group clients by their signatures: who belongs together, and which group can teach which."""
    names = [str(file) for file in files]
    found = group([Signature.load(file) for file in files], fusion=fusion, names=names)  # type: ignore[arg-type]
    assert found.graph_ is not None
    sources = [found.graph_.sources_of(learner) for learner in range(found.clusters_)]
    groups: list[int] = found.labels_.tolist()
    rows = [[name, str(number)] for name, number in zip(names, groups, strict=True)]
    show_table(console, "groups", ("file", "group"), rows)
    say(console, f"{found.clusters_} groups of {len(files)} clients, cut at distance {found.threshold_:.3f}")
    for learner, teachers in enumerate(sources):
        if teachers:
            say(console, f"group {learner} can learn from {', '.join(map(str, teachers))}")
    if json_file:
        kept = {"fusion": fusion, "clusters": found.clusters_, "threshold": found.threshold_, "noise": found.noise_}
        content = {**kept, "groups": dict(zip(names, groups, strict=True)), "sources": sources}
        write_atomically(json_file, json.dumps(content, indent=1) + "\n")


@data_app.command("list")
def data_list() -> None:
    """What datasets there are, and which are here."""
    rows = [
        (item.name, item.content, "here" if item.path else "absent", item.how if not item.path else _near(item.path))
        for item in obtain.available()
    ]
    show_table(console, "datasets", ("name", "content", "", "where, or how to get it"), rows, texts=4)


def _near(path: Path) -> str:
    """A path as a person would write it; data inside an installed package need no path."""
    if "site-packages" in path.parts:
        return "inside an installed package"
    return str(path).replace(str(Path.home()), "~", 1)


@data_app.command("get")
def data_get(name: str) -> None:
    """Obtain a dataset and verify it."""
    say(console, f"{name}: {obtain.get(name)}")


@data_app.command("show")
def data_show(
    experiment: ExperimentFile = None,
    dataset: DatasetOption = None,
    partition: PartitionOption = None,
    clients: ClientsOption = None,
    seed: SeedOption = None,
    settings: Settings = None,
) -> None:
    """Draw the clients x classes picture."""
    chosen = read(experiment, settings, dataset=dataset, partition=partition, clients=clients, seed=seed)
    loaded = load_dataset(chosen.dataset)
    division = chosen.divide(loaded)
    groups = ["-"] * len(division.train) if division.truth is None else [str(group) for group in division.truth]
    classes = loaded.classes or tuple(map(str, range(loaded.num_classes)))
    say(console, f"{chosen.dataset}, {chosen.partition}, seed {chosen.seed}")
    show_clients(console, count_classes(loaded, division), groups, classes)


JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="also write every number here")]


@bench_app.command("train")
def bench_train(
    models: Annotated[str, typer.Option(help="comma-separated")] = "M1,lenet5,M2,cnn,mlp",
    batches: Annotated[str, typer.Option(help="comma-separated batch sizes")] = "10,32,64",
    repeat: Annotated[int, typer.Option(min=1, help="interleaved repetitions; medians are shown")] = 3,
    json_file: JsonOption = None,
) -> None:
    """Local training: the usual loop, feddag on PyTorch, feddag's native trainer, central training."""
    from feddag.bench import train

    rows = train.measure(models.split(","), whole_numbers("--batches", batches), repeat)
    show_bench(
        "local training, samples per second and ratio to naive", train.COLUMNS, train.table(rows), rows, json_file
    )


@bench_app.command("round")
def bench_round(json_file: JsonOption = None) -> None:
    """A whole round beside Flower, pfl and FedLab, where they are installed (FEDDAG_PEER_PYTHON names their Python)."""
    from feddag.bench import round

    rows = round.measure()
    show_bench("one federated round", round.COLUMNS, round.table(rows), rows, json_file)


@bench_app.command("scale")
def bench_scale(json_file: JsonOption = None) -> None:
    """Rounds per second and memory from 100 to 10,000 clients; the share of time outside local training."""
    from feddag.bench import scale

    rows = scale.measure()
    show_bench("many clients", scale.COLUMNS, scale.table(rows), rows, json_file)


@bench_app.command("feddag")
def bench_feddag(
    repeat: Annotated[int, typer.Option(min=1, help="interleaved repetitions; medians are shown")] = 3,
    json_file: JsonOption = None,
) -> None:
    """A whole FedDAG round with two encoders, beside the same round in the usual PyTorch loop."""
    from feddag.bench import dual

    rows = dual.measure(repeat=repeat)
    show_bench("one FedDAG round, lenet5, 20 clients of 600 samples", dual.COLUMNS, dual.table(rows), rows, json_file)


@bench_app.command("groups")
def bench_groups(
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0,1,2,3,4",
    settings: Annotated[str, typer.Option(help="semicolon-separated; all if empty")] = "",
    datasets: Annotated[str, typer.Option(help="comma-separated; all if empty")] = "",
    json_file: JsonOption = None,
) -> None:
    """Are the groups right? Ours, the paper's and PACFL's; in brackets at the best threshold. Goes on from FILE."""
    from feddag.bench import groups

    wanted = [name.strip() for name in settings.split(";") if name.strip()]
    for name in wanted:
        if name not in groups.SETTINGS:
            raise FeddagError(f"--settings '{name}' is not one of {'; '.join(groups.SETTINGS)}")
    sets = [name for name in datasets.split(",") if name]
    rows = groups.measure(json_file, whole_numbers("--seeds", seeds), wanted, sets)
    show_table(console, "adjusted Rand index (at the best threshold)", groups.COLUMNS, groups.table(rows), texts=2)


@bench_app.command("flower")
def bench_flower(json_file: JsonOption = None) -> None:
    """A round by the local engine, by Flower's programs and by Flower's simulation: seconds and bytes per client."""
    from feddag.bench import flower

    rows = flower.measure()
    show_bench("the same round on three engines, bytes per client", flower.COLUMNS, flower.table(rows), rows, json_file)


@bench_app.command("clustering")
def bench_clustering(
    clients: Annotated[str, typer.Option(help="comma-separated numbers of clients")] = "100,1000,5000,10000",
    json_file: JsonOption = None,
) -> None:
    """What grouping costs: seconds and memory as clients grow, and a client's part beside IFCA's."""
    from feddag.bench import clustering

    rows, beside = clustering.measure(whole_numbers("--clients", clients)), clustering.measure_client()
    show_table(console, "one client's part", clustering.CLIENT_COLUMNS, clustering.client_table(beside))
    title, columns = "the server's part: views, fusion, threshold, graph", clustering.COLUMNS
    show_bench(title, columns, clustering.table(rows), {"server": rows, "client": beside}, json_file)


def show_bench(title: str, columns: Sequence[str], table: list[list[str]], rows: Any, json_file: Path | None) -> None:
    """Print what was measured, and where; keep every number if a file is named."""
    from feddag.bench.common import machine

    show_table(console, title, columns, table)
    say(console, ", ".join(f"{name} {value}" for name, value in machine().items()))
    if json_file:
        write_atomically(json_file, json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def whole_numbers(option: str, text: str) -> list[int]:
    """A comma-separated list of whole numbers."""
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise FeddagError(f"{option} '{text}' is not a comma-separated list of whole numbers") from None


def stop(sentence: str, code: int) -> NoReturn:
    """End at once with one sentence. Every finished round is on disk; threads in the native trainer cannot be asked."""
    print(f"feddag: {sentence}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """The `feddag` program: a mistake of the user's is one sentence and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being told to stop is as clean as Ctrl-C
    gc.freeze()  # what is imported never becomes garbage: without this, leaving takes a second
    try:
        code = app(standalone_mode=False)
    except (FeddagError, UsageError) as error:
        said = error.format_message() if isinstance(error, UsageError) else str(error)
        if said.startswith("Usage:"):  # nothing was asked for: that is no mistake
            print(said)
            sys.exit(0)
        print(f"feddag: {said}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"feddag: '{error.filename}' cannot be used: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code)
