"""What the terminal shows: the closing table of runs, the essentials of one, and which client holds what."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from feddag.console import print_line, show_table
from feddag.errors import counted
from feddag.experiment import Experiment
from feddag.records import ResultRecord
from feddag.report.best import say_best, shown_names
from feddag.report.clients import accuracies_by_client
from feddag.report.events import events_by_round
from feddag.report.personal import chosen_accuracy, show_personal
from feddag.report.recorded import RecordedRun
from feddag.runner.level import span
from feddag.runner.paired import MEANING, against_last, own_scores
from feddag.runner.verdict import method_name

BARS = "▁▂▃▄▅▆▇█"
EVENTS_SHOWN = 8
SHADES = " ·░▒▓█"
RESULT_COLUMNS = (
    *("method", "accuracy", "worst decile", "tuned", "groups", "true", "ARI"),
    *("MB up", "MB down", "sec", "TFLOP"),
)
COSTS = 4  # columns at the right end, which make room where a terminal is narrow


def over_seeds(values: Sequence[float | None], digits: int = 3) -> str:
    """The mean over runs, with its spread where there are several.

    >>> over_seeds([0.5, 0.7]), over_seeds([2.0], 1), over_seeds([None])
    ('0.600 ± 0.141', '2.0', '-')
    """
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    spread = f" ± {np.std(known, ddof=1):.{digits}f}" if len(known) > 1 and digits == 3 else ""
    return f"{np.mean(known):.{digits}f}{spread}"


def result_row(results: Sequence[ResultRecord], name: str = "") -> list[str]:
    """One method's line of the closing table, over the seeds it was run with."""
    counted = [result["training_flops"] / 1e12 for result in results if "training_flops" in result]  # older have none

    def groups(name: Literal["clusters", "truth"]) -> str:
        counts = [len(set(known) - {None}) for result in results if (known := result[name]) is not None]
        return "/".join(str(count) for count in sorted(set(counts))) if counts else "-"

    return [
        name or method_name(results[0]),
        over_seeds([result["accuracy"]["mean"] for result in results]),
        over_seeds([result["accuracy"]["worst_decile"] for result in results]),
        over_seeds([result["accuracy_finetuned"] and result["accuracy_finetuned"]["mean"] for result in results]),
        groups("clusters"),
        groups("truth"),
        over_seeds([result["ari"] for result in results]),
        over_seeds([result["bytes_up"] / result["clients"] / 1e6 for result in results], 2),
        over_seeds([result["bytes_down"] / result["clients"] / 1e6 for result in results], 2),
        over_seeds([result["seconds"] for result in results], 1),
        f"{np.mean(counted):.3g}" if counted else "-",
    ]


def show_results(console: Console, results: Sequence[ResultRecord], experiment: Experiment) -> None:
    """The closing table: a line a method; of several methods first which is best."""
    by_method: dict[str, list[ResultRecord]] = {}
    names = shown_names(results)
    for result in results:
        by_method.setdefault(names[result["method"]], []).append(result)
    if len(by_method) > 1:
        print_line(console, say_best(by_method))
    extra = {}
    taken = [span(result["rounds"] for result in own) for own in by_method.values()]
    if len(set(taken)) > 1:
        extra["rounds"] = taken
    if any("personal" in result for result in results):
        chosen = [[chosen_accuracy(result) for result in own] for own in by_method.values()]
        extra["chosen"] = [over_seeds(values) for values in chosen]
    differences = against_last([own_scores(own) for own in by_method.values()])
    reference = f"vs {[*by_method][-1]}"
    if any(differences):
        extra[reference] = [str(difference or "-") for difference in differences]
    rows = [
        [*(row := result_row(own, name))[:-COSTS], *(cells[number] for cells in extra.values()), *row[-COSTS:]]
        for number, (name, own) in enumerate(by_method.items())
    ]
    seeds = ", ".join(map(str, sorted({result["seed"] for result in results})))
    what = f"{Path(experiment.dataset).name}, {experiment.partition}, {results[0]['clients']} clients"
    title = f"{what}, {span(result['rounds'] for result in results)} rounds, seed {seeds} (MB: per client)"
    show_table(console, title, [*RESULT_COLUMNS[:-COSTS], *extra, *RESULT_COLUMNS[-COSTS:]], rows, spare=COSTS)
    if any(differences):
        print_line(console, f"{reference}: {MEANING}")
    dropped = [result["method"] for result in results if result["answers_missing"]]
    if dropped:
        print_line(console, f"some answers of clients were missing in: {', '.join(dropped)}; history.jsonl says why")


def show_clustering(console: Console, result: ResultRecord) -> None:
    """One line on the groups that the method made, if it made any."""
    scores = result.get("clustering")  # older results have none
    if scores is None:
        return
    named = {"ARI": scores["ari"], "Rand": scores["rand"], "silhouette by classes": scores["silhouette_classes"]}
    if asks_how_uneven(result):
        named |= {"WAS": scores["was"], "WADB": scores["wadb"]}
    shown = [f"{name} {'-' if value is None else format(value, '.3f')}" for name, value in named.items()]
    true = "true unknown" if result["truth"] is None else f"{len(set(result['truth']))} true"
    print_line(console, f"groups: {scores['found']} found, {true}; {', '.join(shown)}")


def asks_how_uneven(result: ResultRecord) -> bool:
    """Whether WAS and WADB say something: where groups are of clients whose classes are equally uneven."""
    return result["method"].startswith("fedgwc") or result["partition"] == "heterogeneity-mix"


def show_changes(console: Console, result: ResultRecord) -> None:
    """A line on the clients that joined last, and one on those that drifted, if there were any."""
    placed = result.get("unseen_placed_right")
    right = [f"{placed:.0%} placed in the cluster of their true group"] if placed is not None else []
    if unseen := result.get("accuracy_unseen"):
        tuned = result.get("accuracy_unseen_finetuned")
        shown = [f"accuracy {unseen['mean']:.3f}", *([f"tuned {tuned['mean']:.3f}"] if tuned else []), *right]
        print_line(console, f"joined last: {counted(len(result['held_out']), 'client')}; {', '.join(shown)}")
    if joined := result.get("accuracy_joined"):
        shown = [f"accuracy {joined['mean']:.3f}", *right]
        print_line(console, f"joined on the way: {counted(len(result['joined']), 'client')}; {', '.join(shown)}")
    if drift := result.get("drift"):
        known = {stage: mean for stage, mean in drift["accuracy_drifting"].items() if mean is not None}
        curve = ", ".join(f"{stage} {mean:.3f}" for stage, mean in known.items())
        alarms = f"{drift['noticed']} noticed, {drift['missed']} missed, {drift['false_alarms']} false alarms"
        print_line(console, f"drifted: {counted(drift['clients'], 'client')}; {alarms}; their accuracy: {curve}")


def sparkline(values: list[float], width: int = 60) -> str:
    """Numbers as a row of bars, from the least to the largest; neighbours are averaged where there are too many.

    >>> sparkline([0.0, 0.5, 1.0]), sparkline([0.97, 0.98, 0.99]), sparkline([0.5, 0.5])
    ('▁▅█', '▁▅█', '▅▅')
    """
    means = np.array([np.mean(part) for part in np.array_split(values, min(width, len(values)))])
    span = float(np.ptp(means))
    heights = (means - means.min()) / span if span > 1e-9 else np.full(len(means), 0.5)
    return "".join(BARS[min(len(BARS) - 1, int(height * len(BARS)))] for height in heights)


def show_run(console: Console, run: RecordedRun) -> None:
    """Headline, curve, clusters, the clients that fare worst, and what happened."""
    said, result = run.experiment, run.result
    what = f"{said.get('method')} on {said.get('dataset')}, {said.get('partition')}, seed {said.get('seed')}"
    if result:
        print_line(console, str(run.verdict()))
    print_line(console, f"{run.name}: {what}; {run.rounds} of {said.get('rounds')} rounds")
    if result:
        show_table(console, "", RESULT_COLUMNS, [result_row([result])], spare=COSTS)
        show_clustering(console, result)
        show_changes(console, result)
        show_personal(console, result)
    if not run.history:
        return
    means = [record["accuracy"]["mean"] for record in run.history]
    between = f"{min(means):.3f} to {max(means):.3f}, last {means[-1]:.3f}"
    print_line(console, f"accuracy by round: {sparkline(means)} {between}")
    groups = run.clusters()
    scores = {c: score for c, score in next(iter(accuracies_by_client(run).values())).items() if score is not None}
    if groups:
        rows = []
        for group, size in sorted(Counter(groups.values()).items()):
            own = [scores[client] for client in groups if groups[client] == group and client in scores]
            rows.append([str(group), str(size), f"{np.mean(own):.3f}" if own else "-"])
        show_table(console, "clusters", ("cluster", "clients", "accuracy"), rows)
    worst = sorted(scores, key=lambda client: scores[client])[:3]
    print_line(console, "lowest accuracy: " + ", ".join(f"{run.client_name(c)} {scores[c]:.3f}" for c in worst))
    told = [f"round {n}: {event.text}" for n, events in events_by_round(run).items() for event in events]
    for line in told[-EVENTS_SHOWN:]:
        print_line(console, line)
    if len(told) > EVENTS_SHOWN:
        print_line(console, f"... and {len(told) - EVENTS_SHOWN} earlier events; history.jsonl has all")


def show_clients(
    console: Console, counts: NDArray[np.int64], groups: Sequence[str], classes: Sequence[str], most: int = 100
) -> None:
    """The clients x classes picture: the darker, the more samples (on a logarithmic scale)."""
    top = np.log1p(counts.max())
    width = max(2, min(6, max(map(len, classes))))
    header = " ".join(name[:width].ljust(width) for name in classes)
    print_line(console, f"{'client':>7} {'group':>6} {'samples':>8}  {header}")
    for client, row in enumerate(counts[:most]):
        shade = [SHADES[int(np.ceil(np.log1p(n) / top * (len(SHADES) - 1)))] for n in row]
        cells = " ".join(mark * width for mark in shade)
        print_line(console, f"{client:>7} {groups[client]:>6} {row.sum():>8}  {cells}".rstrip())
    if len(counts) > most:
        print_line(console, f"... and {len(counts) - most} more clients")
