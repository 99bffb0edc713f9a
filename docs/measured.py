"""Tables of what benchmarks have measured, from the files in which they kept it."""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from kept import ROOT, Row, read

from feddag.bench import clustering as bench_clustering
from feddag.bench import groups as bench_groups
from feddag.bench import released as bench_released
from feddag.runner.level import span
from feddag.runner.paired import paired_difference

BYTES = ("bytes_up", "bytes_down")


def accuracies(row: Row, part: str = "mean") -> dict[int, float]:
    """The headline of a row's results, or its worst decile, by seed."""
    return {seed: read(path)["accuracy"][part] for seed, path in row.files.items()}


def paired(row: Row, other: Row, part: str = "mean") -> str:
    """How far one row is from another, seed by seed, with the 95 % interval of the mean."""
    return str(paired_difference(accuracies(row, part), accuracies(other, part)) or "")


def drawn_across(rows: Sequence[Row], files: Mapping[str, str], part: str = "mean") -> str:
    """Rows by label, settings side by side: the accuracy of the first row, and differences to it of all others."""
    table = _by_label(rows)
    first, *others = table
    said = {file: accuracies(row, part) for file, row in table[first].items()}
    body = [[first, *(f"{statistics.mean(said[file].values()):.3f}" if said[file] else "" for file in files)]]
    body += [[label, *(paired(table[label][file], table[first][file], part) for file in files)] for label in others]
    return lined(["", *files.values()], [line for line in body if any(line[1:])])


def drawn_prices(rows: Sequence[Row], files: Mapping[str, str]) -> str:
    """Rows by label, settings side by side: megabytes up and down per client, teraflops of training, and rounds."""

    def price(row: Row) -> str:
        results = list(map(read, row.files.values()))
        if not results:
            return ""
        up, down = (statistics.mean(one[name] / one["clients"] for one in results) / 1e6 for name in BYTES)
        flops = statistics.mean(one["training_flops"] for one in results) / 1e12
        return f"{up:.2f} / {down:.2f}, {flops:.3g}, {span(one['rounds'] for one in results)}"

    body = [[label, *(price(by_file[file]) for file in files)] for label, by_file in _by_label(rows).items()]
    return lined(["", *files.values()], [line for line in body if any(line[1:])])


def drawn_rates(rows: Sequence[Row], rates: Sequence[float]) -> str:
    """Rows by label, learning rates side by side: the mean accuracy, the best of each label in bold."""
    means: dict[str, list[float]] = {}
    for row in rows:
        found = accuracies(row)
        means.setdefault(row.label, []).append(statistics.mean(found.values()) if found else math.nan)
    body = [
        [label, *(f"**{value:.3f}**" if value == max(values) else f"{value:.3f}" for value in values)]
        for label, values in means.items()
    ]
    return lined(["", *(f"lr = {rate:g}" for rate in rates)], body)


def _by_label(rows: Sequence[Row]) -> dict[str, dict[str, Row]]:
    table: dict[str, dict[str, Row]] = {}
    for row in rows:
        table.setdefault(row.label, {})[row.file] = row
    return table


def drawn_groups(file: str) -> str:
    """What `feddag bench groups` measured, in the order of its settings."""
    measured = read(ROOT / "results" / file)["rows"]
    rows = [
        row
        for setting, datasets in bench_groups.WANTED.items()
        for dataset in datasets
        for row in measured
        if (row["setting"], row["dataset"]) == (setting, dataset)
    ]
    table = [bench_groups.COLUMNS, *bench_groups.table(rows)]
    measured_ways = [column for column in zip(*table, strict=True) if set(column[1:]) != {"-"}]
    head, *body = zip(*measured_ways, strict=True)
    return lined(head, body)


def drawn_clustering() -> str:
    """What the server's part of grouping costs."""
    rows = json.loads((ROOT / "results" / "bench-clustering.json").read_text(encoding="utf-8"))["rows"]["server"]
    return lined(bench_clustering.COLUMNS, bench_clustering.table(rows))


def drawn_alike() -> str:
    """How often alike clients were split, by dataset, as `feddag bench alike` has kept it."""
    rows = read(ROOT / "results" / "bench-alike.json")["rows"]
    body = []
    for dataset in [*dict.fromkeys(row["dataset"] for row in rows), "all"]:
        these = [row for row in rows if dataset in (row["dataset"], "all")]
        spans = [span(row[name] for row in these) for name in ("clients", "samples")]
        split = sum(row["clusters"] > 1 for row in these)
        body.append([dataset, str(len(these)), *spans, str(split)])
    return lined(["dataset", "trials", "clients", "samples of the largest", "split"], body)


def drawn_rows(bench: Any, file: str) -> str:
    """What a benchmark has kept in rows, as it prints them itself."""
    return lined(bench.COLUMNS, bench.table(read(ROOT / "results" / file)["rows"]))


def drawn_released(part: str) -> str:
    """What signatures of small classes give away, or what leaving them out costs: kept by `feddag bench released`."""
    rows = json.loads((ROOT / "results" / "bench-released.json").read_text(encoding="utf-8"))["rows"][part]
    if part == "likeness":
        return lined(bench_released.LIKENESS_COLUMNS, bench_released.likeness_table(rows))
    return lined(bench_released.GROUP_COLUMNS, bench_released.group_table(rows))


PERSONAL = ("group", "full", "alone", "common", "chosen")
BASELINES = {  # whom what a client chose is held against, and its standard error
    "alone": ("alone", ""),
    "common": ("common", ""),
    "`local`": ("local", "error of the difference to local"),
    "`fedavg`": ("fedavg", "error of the difference to fedavg"),
}


def drawn_personal(part: str) -> str:
    """What clients chose, as `experiments/personal.py` has kept it: accuracies, or the gain over other models."""
    measured = read(ROOT / "results" / "bench-personal.json")
    body = []
    for setting, by_seed in measured.items():
        lists = [name for name, values in by_seed["0"].items() if isinstance(values, list)]
        clients = {name: [value for one in by_seed.values() for value in one[name]] for name in lists}
        if part == "accuracy":
            cells = [f"{statistics.mean(clients[name]):.3f}" for name in PERSONAL]
            body.append([setting, ", ".join(by_seed), str(len(clients["chosen"])), *cells])
        else:
            body.append([setting, *(gain(clients, *baseline) for baseline in BASELINES.values())])
    if part == "accuracy":
        return lined(["setting", "seeds", "clients", *PERSONAL], body)
    return lined(["mean, worst, worse for certain", *BASELINES], body)


def gain(clients: Mapping[str, Any], name: str, error: str) -> str:
    """Mean and worst difference to what was chosen, and how many clients lose more than two standard errors.

    >>> gain({"chosen": [0.5, 1.0], "local": [0.6, 0.5], "e": [0.01, 0.01]}, "local", "e")
    '+0.200, -0.100, 1'
    """
    pairs = list(zip(clients["chosen"], clients[name], strict=True))
    gains = [chosen - other for chosen, other in pairs]
    if error:
        errors = clients[error]
    else:  # of the difference of two accuracies, each on that many samples
        tested = zip(pairs, clients["test samples"], strict=True)
        errors = [math.sqrt((one * (1 - one) + other * (1 - other)) / count) for (one, other), count in tested]
    certain = sum(difference < -2 * error for difference, error in zip(gains, errors, strict=True))
    return f"{statistics.mean(gains):+.3f}, {min(gains):+.3f}, {certain}"


def lined(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in [head, ["---"] * len(head), *body])
