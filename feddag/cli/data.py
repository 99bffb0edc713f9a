"""feddag data list | get | show."""

import textwrap
from pathlib import Path
from typing import Annotated

import typer

from feddag.cli.common import (
    ClientsOption,
    ColumnsOption,
    DatasetOption,
    ExperimentFile,
    PartitionOption,
    SeedOption,
    Settings,
    console,
    experiment_of,
)
from feddag.cli.help import Command, new_app
from feddag.console import print_line

NARROW = 80  # columns of an ordinary terminal

app = new_app("What data is available; obtain it; see how clients share it.")


@app.command("list", cls=Command)
def list_datasets() -> None:
    """What datasets there are, and which are here."""
    from feddag.data import obtain

    for item in obtain.available():
        where = _near(item.path) if item.path else item.how
        words = f"{item.name:<18}{'here' if item.path else 'absent':<8}"
        for text in (item.content, where):
            for line in textwrap.wrap(text, NARROW - len(words), break_long_words=False, break_on_hyphens=False):
                print_line(console, words + line)
                words = " " * len(words)


def _near(path: Path) -> str:
    """A path as a person would write it; data inside an installed package need no path."""
    if "site-packages" in path.parts:
        return "inside an installed package"
    return str(path).replace(str(Path.home()), "~", 1)


@app.command("get", cls=Command)
def get(name: Annotated[str, typer.Argument(help="as `feddag data list` has it")]) -> None:
    """Obtain a dataset and verify it."""
    from feddag.data import obtain

    print_line(console, f"{name}: {obtain.get(name)}")


@app.command("show", cls=Command)
def show(
    experiment: ExperimentFile = None,
    dataset: DatasetOption = None,
    columns: ColumnsOption = None,
    partition: PartitionOption = None,
    clients: ClientsOption = None,
    seed: SeedOption = None,
    settings: Settings = None,
) -> None:
    """Draw which client holds how much of which class."""
    from feddag.data.clients import count_classes
    from feddag.report.terminal import show_clients

    flags = {"dataset": dataset, "columns": columns, "partition": partition, "clients": clients, "seed": seed}
    chosen = experiment_of(experiment, settings, **flags)
    loaded = chosen.load_dataset()
    division = chosen.divide(loaded)
    groups = ["-"] * len(division.train) if division.truth is None else [str(group) for group in division.truth]
    classes = loaded.classes or tuple(map(str, range(loaded.num_classes)))
    print_line(console, f"{chosen.dataset}, {chosen.partition}, seed {chosen.seed}")
    show_clients(console, count_classes(loaded, division), groups, classes)
