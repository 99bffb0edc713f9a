"""A published table or figure as one TOML file: the paper's figures, and what has to be run to repeat them."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from feddag.errors import FeddagError, nearest, short
from feddag.files import read_toml

TABLES = Path(__file__).parent / "tables"
Scale = Literal["small", "paper"]
Shows = Literal[
    "accuracy", "accuracy_unseen", "accuracy_unseen_finetuned", "accuracy_by_round", "thresholds", "clusters"
]
PerCent = Annotated[float, Field(ge=0, le=100, strict=True)]
Printed = Annotated[
    list[PerCent],
    Field(max_length=2),
    BeforeValidator(lambda given: given if isinstance(given, list) else [given]),
]
"""A figure as the paper prints it: mean and deviation, the mean alone, or nothing."""
Score = Annotated[list[float], Field(max_length=2)]


class Curve(BaseModel):
    """What the paper prints for each of the table's alphas: the number of clusters, and the loss of Eq. 10."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clusters: list[Annotated[int, Field(ge=1)]]
    loss: list[float]


class Scores(BaseModel):
    """What the paper prints of a method's clusters: how many, and mean and deviation of scores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    clusters: Annotated[int, Field(ge=1)] | None = None
    accuracy: Printed = []
    rand: Score = []
    was: Score = []
    wadb: Score = []


class Column(BaseModel):
    """A dataset, divided in some way. What is not named here are fields of an experiment."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    dataset: str
    small: dict[str, Any] = {}
    """What else is different for this column at the small scale."""


class Row(BaseModel):
    """A method, with the figures that the paper prints for each column. The rest are fields of an experiment."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str
    method: str
    paper: list[Printed] = []
    curve: list[Curve] = []
    scores: list[Scores] = []

    def printed(self, column: int) -> list[float]:
        """The paper's figure for a column: mean and deviation, or less."""
        return self.paper[column] if self.paper else []


class Published(BaseModel):
    """A table or figure of a paper. Rows are methods and columns are data, whichever way the paper prints it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    title: str
    paper: str
    """Where it stands."""
    note: str = ""
    """What is different here, and what is known to be wrong there."""
    also: list[str] = []
    """Other names that it can be asked for by."""
    shows: Shows = "accuracy"
    at: list[Annotated[int, Field(ge=1)]] = []
    """The rounds of `accuracy_by_round`."""
    alphas: list[float] = []
    """The thresholds that curves are printed for."""
    experiment: dict[str, Any] = {}
    """Fields of all cells, as the paper has them."""
    small: dict[str, Any] = {}
    """What is different at the small scale."""
    column: Annotated[list[Column], Field(min_length=1)]
    row: Annotated[list[Row], Field(min_length=1)]

    @model_validator(mode="after")
    def _has_the_shape_of_a_table(self) -> "Published":
        for kind, names in (("rows", self.row), ("columns", self.column)):
            twice = [name for name, times in Counter(item.name for item in names).items() if times > 1]
            if twice:
                raise FeddagError(f"two {kind} are called '{short(twice[0])}'")
        if bool(self.at) != (self.shows == "accuracy_by_round"):
            raise FeddagError("'at' names the rounds of shows = 'accuracy_by_round', and goes with nothing else")
        for row in self.row:
            for name, figures in (("paper", row.paper), ("curve", row.curve), ("scores", row.scores)):
                if figures and len(figures) != len(self.column):
                    raise FeddagError(
                        f"row '{short(row.name)}' has {len(figures)} figures in '{name}' for {len(self.column)} columns"
                    )
            if any(len(part) != len(self.alphas) for curve in row.curve for part in (curve.clusters, curve.loss)):
                raise FeddagError(f"row '{short(row.name)}' has a curve that is not as long as 'alphas'")
        return self

    def fields_of(self, row: Row, column: Column, scale: Scale) -> dict[str, Any]:
        """The fields of a cell's experiment but for its seed."""
        fields = {**self.experiment, "dataset": column.dataset, **(column.model_extra or {})}
        fields |= {**(row.model_extra or {}), "method": row.method}
        return fields | (self.small | column.small if scale == "small" else {})

    @property
    def datasets(self) -> list[str]:
        """What it needs, in the order of its columns."""
        return list(dict.fromkeys(column.dataset for column in self.column))


def read_published(path: Path) -> Published:
    """A table from its file; whatever is wrong with it is one sentence."""
    values = read_toml(path, "file")
    try:
        return Published(**values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise FeddagError(f"'{path}' is not a table: {short(where)}: {short(first['msg'], 200)}") from None
    except FeddagError as error:
        raise FeddagError(f"'{path}' is not a table: {error}") from None


def all_published() -> dict[str, Published]:
    """Every table that comes with feddag, by name: tables before figures, 2 before 10."""

    def natural(path: Path) -> tuple[str, str, int]:
        paper, kind, number = path.stem.rsplit("-", 2)
        return paper, kind.replace("table", ""), int(number)

    return {path.stem: read_published(path) for path in sorted(TABLES.glob("*.toml"), key=natural)}


def find_published(name: str) -> Published:
    """The table of that name, or of the user's own file."""
    if name.endswith(".toml"):
        return read_published(Path(name))
    known = all_published()
    for found in known.values():
        if name in found.also:
            return found
    if name not in known:
        raise FeddagError(
            f"'{short(name)}' is not a table that comes with feddag, see `feddag reproduce --list`"
            f"{nearest(name, _names(known))}"
        )
    return known[name]


def _names(known: dict[str, Published]) -> Sequence[str]:
    return [*known, *(name for published in known.values() for name in published.also)]
