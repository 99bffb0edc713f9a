"""Lines, tables and progress in the terminal: rich where there is one, plain and whole lines where output is piped."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from feddag.errors import counted, harmless
from feddag.records import RoundRecord

if TYPE_CHECKING:  # it loads PyTorch, which help and a mistake in typing must not wait for
    from feddag.runner.loop import Observer

PLAIN_PROGRESS_LINES = 10
GAP = 2  # between columns of a table
SILENT_SECONDS = 10.0  # after which a line tells how far things are


def show_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1, spare: int = 0
) -> None:
    """A table whose first `texts` columns are text and whose others are numbers. Never cut off when piped.

    In a terminal that is too narrow, the last `spare` columns are left out one by one.
    """
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    if console.is_terminal:
        while spare and sum(widths) + GAP * len(widths) > console.width:
            spare, widths, columns = spare - 1, widths[:-1], columns[:-1]
        rows = [row[: len(columns)] for row in rows]
        if title:  # not the table's own, which would be folded to its width
            console.print(Text(harmless(title), "bold"), soft_wrap=True)
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number < texts else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        console.print(table)
        return
    if title:
        print_line(console, title)
    for row in [columns, *rows]:
        left = map(str.ljust, row[:texts], widths)
        cells = [*left, *map(str.rjust, row[texts:], widths[texts:])]
        print_line(console, "  ".join(cells).rstrip())


def print_line(console: Console, text: str = "") -> None:
    """A line of plain text: nothing in it is markup, and a pipe gets it unwrapped."""
    console.print(Text(harmless(text)), soft_wrap=True)


class _Lines:
    """Progress where output is piped: whole lines, now and then."""

    def __init__(self, console: Console, title: str, rounds: int, flops: int) -> None:
        self._console, self._title, self._rounds, self._flops = console, title, rounds, flops
        self._said = time.monotonic()

    def __call__(self, record: RoundRecord) -> None:
        number, of = record["round"], expected_rounds(record, self._rounds, self._flops)
        if number % max(1, of // PLAIN_PROGRESS_LINES) == 0 or number == of:
            accuracy = f"accuracy {record['accuracy']['mean']:.3f}"
            print_line(self._console, f"{self._title}: round {number}/{of}, {accuracy}")
        self._said = time.monotonic()

    def answered(self, phase: str, round: int, done: int, of: int) -> None:
        """A line where nothing was said for long."""
        if time.monotonic() > self._said + SILENT_SECONDS:
            print_line(self._console, f"{self._title}: {phase}, {done} of {counted(of, 'client')}")
            self._said = time.monotonic()


class _Bars:
    """Progress in a terminal: a bar of rounds, and one of clients before the first round and after the last."""

    def __init__(self, bar: Progress, title: str, rounds: int, flops: int) -> None:
        self._bar, self._title, self._rounds, self._flops = bar, harmless(title), rounds, flops
        self._task = bar.add_task(self._title, total=rounds, said="accuracy   -  ")
        self._clients: TaskID | None = None
        self._last = rounds

    def __call__(self, record: RoundRecord) -> None:
        self._last = expected_rounds(record, self._rounds, self._flops)
        said = f"accuracy {record['accuracy']['mean']:.3f}"
        self._bar.update(self._task, completed=record["round"], total=self._last, said=said)
        self._hide_clients()

    def answered(self, phase: str, round: int, done: int, of: int) -> None:
        """How far what comes before the first round and after the last one is; rounds have a bar of their own."""
        if 0 < round <= self._last:
            return self._hide_clients()
        if self._clients is None:
            self._clients = self._bar.add_task(f"{self._title} {harmless(phase)}", total=of, said="clients")
        self._bar.update(self._clients, completed=done, total=of)
        return self._hide_clients() if done == of else None

    def _hide_clients(self) -> None:
        if self._clients is not None:
            self._bar.remove_task(self._clients)
            self._clients = None


def expected_rounds(record: RoundRecord, rounds: int, flops: int) -> int:
    """How many rounds there will be: where they go on until training has taken so many FLOPs, from those so far."""
    taken = record.get("training_flops", 0)
    return max(rounds, -(-record["round"] * flops // taken)) if flops and taken else rounds


@contextlib.contextmanager
def progress(console: Console, title: str, rounds: int, flops: int = 0) -> "Iterator[Observer]":
    """A live bar with round, accuracy and time left; a line now and then when piped."""
    if not console.is_terminal:
        yield _Lines(console, title, rounds, flops)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[said]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        yield _Bars(bar, title, rounds, flops)
