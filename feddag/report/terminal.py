"""What the terminal shows: the closing table of runs, the essentials of one, and which client holds what."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from feddag.console import print_line, show_table
from feddag.experiment import Experiment
from feddag.records import ResultRecord
from feddag.report.clients import accuracies_by_client
from feddag.report.events import events_by_round
from feddag.report.personal import chosen_accuracy, show_personal
from feddag.report.recorded import RecordedRun
from feddag.runner.level import span
from feddag.runner.paired import MEANING, against_last, own_scores

BARS = "▁▂▃▄▅▆▇█"
EVENTS_SHOWN = 8
SHADES = " ·░▒▓█"
RESULT_COLUMNS = (
    *("method", "accuracy", "worst decile", "tuned", "groups", "true", "ARI"),
    *("MB up", "MB down", "sec", "TFLOP"),
)


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


def result_row(results: Sequence[ResultRecord]) -> list[str]:
    """One method's line of the closing table, over the seeds it was run with."""
    counted = [result["training_flops"] / 1e12 for result in results if "training_flops" in result]  # older have none

    def groups(name: Literal["clusters", "truth"]) -> str:
        counts = [len(set(known) - {None}) for result in results if (known := result[name]) is not None]
        return "/".join(str(count) for count in sorted(set(counts))) if counts else "-"

    return [
        results[0]["method"],
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
    """The closing table: a line a method."""
    by_method: dict[str, list[ResultRecord]] = {}
    for result in results:
        by_method.setdefault(result["method"], []).append(result)
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
        [*result_row(own), *(cells[number] for cells in extra.values())]
        for number, own in enumerate(by_method.values())
    ]
    seeds = ", ".join(map(str, sorted({result["seed"] for result in results})))
    what = f"{Path(experiment.dataset).name}, {experiment.partition}, {results[0]['clients']} clients"
    title = f"{what}, {span(result['rounds'] for result in results)} rounds, seed {seeds} (MB: per client)"
    show_table(console, title, [*RESULT_COLUMNS, *extra], rows)
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
    named = {
        **{"ARI": scores["ari"], "Rand": scores["rand"], "silhouette by classes": scores["silhouette_classes"]},
        **{"WAS": scores["was"], "WADB": scores["wadb"]},
    }
    shown = [f"{name} {'-' if value is None else format(value, '.3f')}" for name, value in named.items()]
    true = "true unknown" if scores["true"] is None else f"{scores['true']} true"
    print_line(console, f"groups: {scores['found']} found, {true}; {', '.join(shown)}")


def show_changes(console: Console, result: ResultRecord) -> None:
    """A line on the clients that joined last, and one on those that drifted, if there were any."""
    placed = result.get("unseen_placed_right")
    right = [f"{placed:.0%} placed in the cluster of their true group"] if placed is not None else []
    if unseen := result.get("accuracy_unseen"):
        tuned = result.get("accuracy_unseen_finetuned")
        shown = [f"accuracy {unseen['mean']:.3f}", *([f"tuned {tuned['mean']:.3f}"] if tuned else []), *right]
        print_line(console, f"joined last: {_clients(len(result['held_out']))}; {', '.join(shown)}")
    if joined := result.get("accuracy_joined"):
        shown = [f"accuracy {joined['mean']:.3f}", *right]
        print_line(console, f"joined on the way: {_clients(len(result['joined']))}; {', '.join(shown)}")
    if drift := result.get("drift"):
        known = {stage: mean for stage, mean in drift["accuracy_drifting"].items() if mean is not None}
        curve = ", ".join(f"{stage} {mean:.3f}" for stage, mean in known.items())
        alarms = f"{drift['noticed']} noticed, {drift['missed']} missed, {drift['false_alarms']} false alarms"
        print_line(console, f"drifted: {_clients(drift['clients'])}; {alarms}; their accuracy: {curve}")


def _clients(number: int) -> str:
    return "1 client" if number == 1 else f"{number} clients"


def sparkline(values: list[float], width: int = 60) -> str:
    """Numbers from 0 to 1 as a row of bars; neighbours are averaged where there are too many.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    parts = np.array_split(values, min(width, len(values)))
    return "".join(BARS[min(len(BARS) - 1, int(np.mean(part) * len(BARS)))] for part in parts)


def show_run(console: Console, run: RecordedRun) -> None:
    """Headline, curve, clusters, the clients that fare worst, and what happened."""
    said, result = run.experiment, run.result
    what = f"{said.get('method')} on {said.get('dataset')}, {said.get('partition')}, seed {said.get('seed')}"
    print_line(console, f"{run.name}: {what}; {run.rounds} of {said.get('rounds')} rounds")
    if result:
        show_table(console, "", RESULT_COLUMNS, [result_row([result])])
        show_clustering(console, result)
        show_changes(console, result)
        show_personal(console, result)
    if not run.history:
        return
    means = [record["accuracy"]["mean"] for record in run.history]
    print_line(console, f"accuracy by round: {sparkline(means)} {means[-1]:.3f}")
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
