"""What a person sees in the terminal: rich where there is one, plain and whole lines where output is piped."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from feddag.experiment import Experiment
from feddag.records import ResultRecord, RoundRecord
from feddag.runner.loop import Observer

SHADES = " ·░▒▓█"
PLAIN_PROGRESS_LINES = 10
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def show_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1
) -> None:
    """A table whose first `texts` columns are text and whose others are numbers. Never cut off when piped."""
    if console.is_terminal:
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number < texts else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        console.print(table)
        return
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    say(console, title)
    for row in [columns, *rows]:
        left = map(str.ljust, row[:texts], widths)
        cells = [*left, *map(str.rjust, row[texts:], widths[texts:])]
        say(console, "  ".join(cells).rstrip())


def say(console: Console, text: str = "") -> None:
    """A line of plain text: nothing in it is markup, and a pipe gets it unwrapped."""
    console.print(Text(harmless(text)), soft_wrap=True)


def harmless(text: str) -> str:
    """Text without what a terminal would obey: control characters, and those that turn the writing direction.

    >>> harmless("\\x1b[2J\\u202e[red] שלום 🦊")
    '�[2J�[red] שלום 🦊'
    """
    return OBEYED.sub("\N{REPLACEMENT CHARACTER}", text)


@contextlib.contextmanager
def progress(console: Console, title: str, rounds: int) -> Iterator[Observer]:
    """A live bar with round, accuracy and time left; a line now and then when piped."""
    if not console.is_terminal:
        every = max(1, rounds // PLAIN_PROGRESS_LINES)

        def report(record: RoundRecord) -> None:
            if record["round"] % every == 0 or record["round"] == rounds:
                say(console, f"{title}: round {record['round']}/{rounds}, accuracy {record['accuracy']['mean']:.3f}")

        yield report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("accuracy {task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(title, total=rounds, accuracy="  -  ")
        yield lambda record: bar.update(task, completed=record["round"], accuracy=f"{record['accuracy']['mean']:.3f}")


RESULT_COLUMNS = (
    *("method", "accuracy", "worst decile", "tuned", "groups", "true", "ARI"),
    *("MB up", "MB down", "sec"),
)


def result_row(results: Sequence[ResultRecord]) -> list[str]:
    """One method's line of the closing table, over the seeds it was run with."""

    def over_seeds(values: Sequence[float | None], digits: int = 3) -> str:
        known = [value for value in values if value is not None]
        if not known:
            return "-"
        spread = f" ± {np.std(known, ddof=1):.{digits}f}" if len(known) > 1 and digits == 3 else ""
        return f"{np.mean(known):.{digits}f}{spread}"

    def groups(name: Literal["clusters", "truth"]) -> str:
        counts = [len(set(known)) for result in results if (known := result[name]) is not None]
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
    ]


def show_results(console: Console, results: Sequence[ResultRecord], experiment: Experiment) -> None:
    """The closing table: a line a method."""
    methods = list(dict.fromkeys(result["method"] for result in results))
    rows = [result_row([result for result in results if result["method"] == method]) for method in methods]
    seeds = ", ".join(map(str, sorted({result["seed"] for result in results})))
    what = f"{Path(experiment.dataset).name}, {experiment.partition}, {results[0]['clients']} clients"
    title = f"{what}, {experiment.rounds} rounds, seed {seeds} (MB: per client)"
    show_table(console, title, RESULT_COLUMNS, rows)
    dropped = [result["method"] for result in results if result["answers_missing"]]
    if dropped:
        say(console, f"some answers of clients were missing in: {', '.join(dropped)}; history.jsonl says why")


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
    say(console, f"groups: {scores['found']} found, {true}; {', '.join(shown)}")


def show_changes(console: Console, result: ResultRecord) -> None:
    """A line on the clients that joined last, and one on those that drifted, if there were any."""
    if unseen := result.get("accuracy_unseen"):
        tuned, placed = result.get("accuracy_unseen_finetuned"), result.get("unseen_placed_right")
        shown = [f"accuracy {unseen['mean']:.3f}"]
        shown += [f"tuned {tuned['mean']:.3f}"] if tuned else []
        shown += [f"{placed:.0%} placed with their like"] if placed is not None else []
        say(console, f"joined last: {len(result['held_out'])} clients; {', '.join(shown)}")
    if drift := result.get("drift"):
        known = {stage: mean for stage, mean in drift["accuracy_drifting"].items() if mean is not None}
        curve = ", ".join(f"{stage} {mean:.3f}" for stage, mean in known.items())
        alarms = f"{drift['noticed']} noticed, {drift['missed']} missed, {drift['false_alarms']} false alarms"
        say(console, f"drifted: {drift['clients']} clients; {alarms}; their accuracy: {curve}")


def show_clients(
    console: Console, counts: NDArray[np.int64], groups: Sequence[str], classes: Sequence[str], most: int = 100
) -> None:
    """The clients x classes picture: the darker, the more samples (on a logarithmic scale)."""
    top = np.log1p(counts.max())
    width = max(2, min(6, max(map(len, classes))))
    header = " ".join(name[:width].ljust(width) for name in classes)
    say(console, f"{'client':>7} {'group':>6} {'samples':>8}  {header}")
    for client, row in enumerate(counts[:most]):
        shade = [SHADES[int(np.ceil(np.log1p(n) / top * (len(SHADES) - 1)))] for n in row]
        cells = " ".join(mark * width for mark in shade)
        say(console, f"{client:>7} {groups[client]:>6} {row.sum():>8}  {cells}".rstrip())
    if len(counts) > most:
        say(console, f"... and {len(counts) - most} more clients")
