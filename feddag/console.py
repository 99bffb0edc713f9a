"""Lines, tables and progress in the terminal: rich where there is one, plain and whole lines where output is piped."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from feddag.errors import harmless
from feddag.records import RoundRecord

if TYPE_CHECKING:  # it loads PyTorch, which help and a mistake in typing must not wait for
    from feddag.runner.loop import Observer

PLAIN_PROGRESS_LINES = 10


def show_table(
    console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1
) -> None:
    """A table whose first `texts` columns are text and whose others are numbers. Never cut off when piped."""
    if console.is_terminal:
        table = Table(
            title=Text(harmless(title), "bold") if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )
        for number, column in enumerate(columns):
            table.add_column(column, justify="left" if number < texts else "right", overflow="fold")
        for row in rows:
            table.add_row(*(Text(harmless(cell)) for cell in row))
        console.print(table)
        return
    widths = [max(len(row[number]) for row in [columns, *rows]) for number in range(len(columns))]
    if title:
        print_line(console, title)
    for row in [columns, *rows]:
        left = map(str.ljust, row[:texts], widths)
        cells = [*left, *map(str.rjust, row[texts:], widths[texts:])]
        print_line(console, "  ".join(cells).rstrip())


def print_line(console: Console, text: str = "") -> None:
    """A line of plain text: nothing in it is markup, and a pipe gets it unwrapped."""
    console.print(Text(harmless(text)), soft_wrap=True)


@contextlib.contextmanager
def progress(console: Console, title: str, rounds: int, flops: int = 0) -> "Iterator[Observer]":
    """A live bar with round, accuracy and time left; a line now and then when piped.

    Where rounds go on until training has taken so many FLOPs, their number is reckoned from what they took so far.
    """

    def expected(record: RoundRecord) -> int:
        taken = record.get("training_flops", 0)
        return max(rounds, -(-record["round"] * flops // taken)) if flops and taken else rounds

    if not console.is_terminal:

        def report(record: RoundRecord) -> None:
            number, all_of_them = record["round"], expected(record)
            if number % max(1, all_of_them // PLAIN_PROGRESS_LINES) == 0 or number == all_of_them:
                accuracy = f"accuracy {record['accuracy']['mean']:.3f}"
                print_line(console, f"{title}: round {number}/{all_of_them}, {accuracy}")

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
        task = bar.add_task(harmless(title), total=rounds, accuracy="  -  ")
        yield lambda record: bar.update(
            task,
            completed=record["round"],
            total=expected(record),
            accuracy=f"{record['accuracy']['mean']:.3f}",
        )
