"""Tables: CSV and Parquet files, and whatever else has named columns, one of which is the label."""

import csv
import io
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.apart import read_apart
from feddag.data.readers.limits import CSV_GROWS, Budget, open_regular, text_of
from feddag.data.readers.samples import Parts, Samples, plain_words, reading
from feddag.errors import FeddagError, nearest, short

ROLES = ("label", "client", "domain")


def parse_columns(text: str) -> dict[str, str]:
    """Which column is the label, the client, the domain: `label=activity,client=subject`.

    >>> parse_columns("label=activity,client=subject"), parse_columns("")
    ({'label': 'activity', 'client': 'subject'}, {})
    """
    found = {}
    for item in filter(None, text.split(",")):
        role, equals, column = (word.strip() for word in item.partition("="))
        if role not in ROLES or not equals or not column or role in found:
            raise FeddagError(
                f"columns = '{short(text)}' is not allowed: it should be like label=activity,client=subject"
            )
        found[role] = column
    return found


def read_csv(path: Path, columns: Mapping[str, str]) -> Parts:
    """A CSV file whose first line names its columns: the label, perhaps the client, and numbers."""
    with reading(path, "a CSV file of numbers whose first line names its columns"):
        rows = list(csv.reader(io.StringIO(text_of(path, CSV_GROWS), newline=""), strict=True))
        if len(rows) < 2:
            raise ValueError("it has no rows")
        names, cells = rows[0], [row for row in rows[1:] if row]
        if len(set(names)) != len(names) or not all(names):
            raise ValueError("its first line does not give each column a name of its own")
        if any(len(row) != len(names) for row in cells):
            raise ValueError("its rows are not all as long as its first line")
        words = dict(zip(names, map(list, zip(*cells, strict=True)), strict=True))
        roles = {name: role for role, name in _roles(words, columns, str(path)).items()}
        table = {name: _cells(name, column, roles.get(name)) for name, column in words.items()}
    return samples_of(table, columns, str(path)), None


def read_parquet(path: Path, columns: Mapping[str, str]) -> Parts:
    """The same of a Parquet file; a single column of lists may hold the samples instead of numbers."""
    if find_spec("pyarrow") is None:
        raise FeddagError(f"{path} needs a package that is not installed: pip install 'feddag[tables]'")
    with reading(path, "a Parquet file of numbers and text"), open_regular(path) as file:
        table = read_apart(path, file, "parquet", Budget())
    return samples_of(table, columns, str(path)), None


def _cells(name: str, column: list[str], role: str | None) -> NDArray[Any]:
    """A column of a CSV file: numbers, or the words of labels, clients and domains."""
    if role is not None and not all(column):
        raise ValueError(f"column {short(name)} has an empty cell")
    words = plain_words(column)
    if role in ("client", "domain") or (role and words.dtype.kind == "i"):
        return words
    try:
        return np.array(column, np.float64)
    except ValueError:  # whose own words would show a value
        if role is not None:
            return words
        raise ValueError(f"column {short(name)} holds something that is not a number") from None


def samples_of(table: Mapping[str, NDArray[Any]], columns: Mapping[str, str], source: str) -> Samples:
    """Samples from named columns: one is the label, one may be the client or domain, all others are numbers.

    Numbers side by side make vectors; where a single other column holds arrays (images, series), those are the samples.

    >>> table = {"age": np.array([3, 4]), "weight": np.array([0.5, 2]), "label": np.array(["cat", "dog"])}
    >>> samples_of(table, {}, "a table").x.tolist()
    [[3.0, 0.5], [4.0, 2.0]]
    """
    roles = _roles(table, columns, source)
    rest = {name: column for name, column in table.items() if name not in roles.values()}
    if not rest:
        raise FeddagError(f"{source} has no column beside {', '.join(roles.values())}: there are no samples")
    if len(rest) == 1 and next(iter(rest.values())).ndim > 1:
        [x] = rest.values()
    else:
        for name, column in rest.items():
            if column.ndim != 1 or column.dtype.kind not in "buif":
                raise FeddagError(
                    f"{source} has a column '{short(name)}' that does not hold one number per sample; leave it out, or "
                    "say by columns what it is: label=..., client=... or domain=..."
                )
        x = np.stack([column.astype(np.float64) for column in rest.values()], axis=1)
    held = {role: table[name] for role, name in roles.items()}
    return Samples(x, held["label"], held.get("client"), held.get("domain"))


def _roles(names: Mapping[str, Any], columns: Mapping[str, str], source: str) -> dict[str, str]:
    """Which column is what; those that are not named are called label, client and domain."""
    for role, name in columns.items():
        if name not in names:
            raise FeddagError(f"{source} has no column '{short(name)}' for the {role}{nearest(name, names)}")
    roles = {role: columns.get(role, role) for role in ROLES if columns.get(role, role) in names}
    if "label" not in roles:
        some = ", ".join(short(name) for name in list(names)[:20])
        raise FeddagError(
            f"{source} has no column 'label'; say which of {some} it is: --columns label=..., or columns = in Python"
        )
    return roles
