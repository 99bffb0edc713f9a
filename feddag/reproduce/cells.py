"""From a published table to experiments: what each cell runs, or why it cannot be run here."""

from collections.abc import Sequence
from dataclasses import dataclass

from feddag.data.obtain import KNOWN, find, how
from feddag.errors import FeddagError, nearest
from feddag.experiment import Experiment
from feddag.methods import all_methods
from feddag.reproduce.published import Column, Published, Row, Scale

NOT_YET = "not in this version"


@dataclass(frozen=True)
class Cell:
    """A place in the table: an experiment for each seed, or none, and then the reason."""

    row: Row
    column: Column
    printed: list[float]
    """The paper's figure: mean and deviation, or less."""
    experiments: tuple[Experiment, ...] = ()
    why_not: str = ""


def cells_of(published: Published, scale: Scale, seeds: Sequence[int]) -> list[Cell]:
    """Every cell, column by column. A cell that could be run but is described wrongly is refused in one sentence."""
    return [
        _cell(published, row, number, scale, seeds) for number in range(len(published.column)) for row in published.row
    ]


def absent(dataset: str) -> str:
    """One sentence where a dataset with a name is not here; empty where it is, or is the user's own.

    >>> absent("digits")
    ''
    """
    if dataset not in KNOWN or find(dataset) is not None:
        return ""
    return f"dataset '{dataset}' is not on this machine: {how(dataset)}"


def _cell(published: Published, row: Row, number: int, scale: Scale, seeds: Sequence[int]) -> Cell:
    column = published.column[number]
    printed = row.printed(number)
    if ":" not in row.method and row.method not in all_methods():
        return Cell(row, column, printed, why_not=NOT_YET)
    fields = published.fields_of(row, column, scale)
    try:
        experiment = Experiment(**fields)
        allowed = {*Experiment.model_fields, *experiment.method_class.Settings.model_fields}
        for name in row.model_extra or {}:
            if name not in allowed:
                raise FeddagError(f"'{name}' is not a field of method = '{row.method}'{nearest(name, allowed)}")
    except FeddagError as error:
        raise FeddagError(f"row '{row.name}', column '{column.name}': {error}") from None
    if reason := absent(column.dataset):
        return Cell(row, column, printed, why_not=reason)
    return Cell(row, column, printed, tuple(experiment.with_(seed=seed) for seed in seeds))
