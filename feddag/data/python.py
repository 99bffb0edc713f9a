"""Data that lie in Python: arrays, frames and datasets of other libraries, as a dataset of ours."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.datasets import DIGEST, HELD, Dataset, assembled
from feddag.data.readers import Samples, samples_of
from feddag.errors import FeddagError

Pair = tuple[Samples, Samples | None]


def dataset(
    data: Any = None,
    labels: Any = None,
    *,
    clients: Sequence[Any] | Mapping[str, Any] | None = None,
    client: Any = None,
    domain: Any = None,
    label: str = "label",
    test: Any = None,
    name: str = "data",
) -> Dataset:
    """A dataset from what lies in Python, for `Experiment(dataset=...)`.

    - `clients=[(x, y), ...]`: each client's samples and labels, or (x_train, y_train, x_test, y_test), or any of the
      following; a dict names the clients.
    - `dataset(x, y, client=column)`: arrays, and whose each sample is; `domain` likewise.
    - `dataset(frame, label="activity", client="subject")`: a pandas frame or a Hugging Face dataset, by its columns.
    - `dataset(pairs)`: a torch Dataset of (sample, label) pairs.

    `test` is the same for testing; without it a fifth is kept for that. Images are uint8, H x W or H x W x C.

    >>> random = np.random.default_rng(0)
    >>> made = dataset(clients=[(random.normal(size=(20, 4)), np.arange(20) % 2) for _ in range(3)], name="three")
    >>> made.owners, made.x_train.shape, made.name.partition("@")[0]
    (('0', '1', '2'), (48, 4), 'three')
    """
    how = {"label": label, "client": client, "domain": domain}
    if not name or "@" in name or any(character in name for character in "/\\\n"):
        raise FeddagError(f"name = {name[:80]!r} is not allowed: it should be a word")
    if (clients is None) == (data is None):
        raise FeddagError("give a dataset either its data, or clients = [(x, y), ...]")
    if clients is not None:
        if test is not None or client is not None:
            raise FeddagError("with clients = [...] each client brings its own: leave out test and client")
        parts = _of_clients(clients, how)
    elif isinstance(data, Mapping) and "train" in data:  # Hugging Face's DatasetDict
        parts = _samples(data["train"], labels, how), _samples(data["test"], None, how) if "test" in data else None
    else:
        parts = _samples(data, labels, how), None if test is None else _test_part(test, how)
    made = assembled(name, f"dataset '{name}'", parts)
    known = f"{name}@{_digest(made)[:DIGEST]}"
    object.__setattr__(made, "name", known)
    return HELD.setdefault(known, made)


def _of_clients(clients: Sequence[Any] | Mapping[str, Any], how: dict[str, Any]) -> Pair:
    named = clients if isinstance(clients, Mapping) else dict(zip(map(str, range(len(clients))), clients, strict=True))
    if not named:
        raise FeddagError("clients is empty: give at least one client's (x, y)")
    pairs = []
    for owner, given in named.items():
        try:
            train, test = _of_client(given, how)
        except FeddagError as error:
            raise FeddagError(f"client '{owner}': {error}") from None
        pairs.append(tuple(None if part is None else _owned(part, owner) for part in (train, test)))
    trains, tests = ([pair[number] for pair in pairs] for number in (0, 1))
    if any(part is None for part in tests) and any(part is not None for part in tests):
        raise FeddagError("some clients bring test samples and others do not: give them for all, or for none")
    return _joined(trains), None if tests[0] is None else _joined(tests)


def _of_client(given: Any, how: dict[str, Any]) -> Pair:
    if isinstance(given, tuple | list):
        if len(given) not in (2, 4):
            raise FeddagError(f"it is a tuple of {len(given)}; (x, y) or (x_train, y_train, x_test, y_test) is allowed")
        parts = [_arrays(*given[start : start + 2]) for start in range(0, len(given), 2)]
        return parts[0], parts[1] if len(parts) == 2 else None
    return _samples(given, None, how), None


def _owned(part: Samples, owner: str) -> Samples:
    return Samples(part.x, part.y, np.full(len(part.y), owner), part.domain)


def _joined(parts: list[Any]) -> Samples:
    shapes = {part.x.shape[1:] for part in parts}
    if len(shapes) > 1:
        told = " and ".join(str(shape) for shape in sorted(shapes, key=str)[:2])
        raise FeddagError(f"clients have samples of different shapes, as {told}; all must be alike")
    domains = [part.domain for part in parts]
    return Samples(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.y for part in parts]),
        np.concatenate([part.owner for part in parts]),
        None if any(domain is None for domain in domains) else np.concatenate(domains),
    )


def _test_part(test: Any, how: dict[str, Any]) -> Samples:
    if not isinstance(test, tuple | list):
        return _samples(test, None, how)
    if len(test) not in (2, 3):
        raise FeddagError(f"test is a tuple of {len(test)}; (x, y) or (x, y, client) is allowed")
    return _arrays(*test)


def _samples(data: Any, labels: Any, how: dict[str, Any]) -> Samples:
    """Samples from whatever this is."""
    if labels is not None:
        return _arrays(data, labels, how["client"], how["domain"])
    if hasattr(data, "column_names") or hasattr(data, "columns"):
        columns = {role: name for role, name in how.items() if isinstance(name, str)}
        columns = {role: name for role, name in columns.items() if role != "label" or name != "label"}
        table = dict(_hugging_face(data) if hasattr(data, "column_names") else _frame(data))
        found = samples_of(table, columns, "the table")
        given = {role: how[role] for role in ("client", "domain") if how[role] is not None and role not in columns}
        return Samples(
            found.x,
            found.y,
            _words(given["client"]) if "client" in given else found.owner,
            _words(given["domain"]) if "domain" in given else found.domain,
        )
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, np.ndarray):
        return _pairs(data, how)
    raise FeddagError(f"a {type(data).__name__} without labels is no dataset: give x and y, a frame, or (x, y) pairs")


def _arrays(x: Any, y: Any, client: Any = None, domain: Any = None) -> Samples:
    found = np.asanyarray(x)
    return Samples(found, _words(y), *(None if each is None else _words(each) for each in (client, domain)))


def _pairs(data: Any, how: dict[str, Any]) -> Samples:
    """A torch Dataset, or a list of pairs."""
    found = []
    for number in range(len(data)):
        item = data[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise FeddagError(f"item {number} of the {type(data).__name__} is no (sample, label) pair")
        found.append((np.asarray(item[0]), np.asarray(item[1])))
    if len({x.shape for x, _ in found}) != 1:
        raise FeddagError(f"the samples of the {type(data).__name__} are not all of one shape, or there are none")
    return _arrays(np.stack([x for x, _ in found]), np.stack([y for _, y in found]), how["client"], how["domain"])


def _frame(data: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The columns of a pandas frame (or one that looks like it)."""
    for name in data.columns:
        column = data[name]
        if column.isna().any():
            raise FeddagError(f"the table has an empty cell in column '{name}'")
        values = column.to_numpy()
        yield str(name), _words(values) if values.dtype.kind not in "biuf" else values


def _hugging_face(data: Any) -> Iterator[tuple[str, NDArray[Any]]]:
    """The columns of a Hugging Face dataset; labels by their names, images as arrays."""
    for name in data.column_names:
        values = [np.asarray(value) for value in data[name]]
        if len({value.shape for value in values}) > 1:
            raise FeddagError(f"the dataset's column '{name}' holds arrays of different shapes")
        column, names = np.stack(values), getattr(data.features[name], "names", None)
        yield name, np.array(names)[column] if names else _words(column) if column.ndim == 1 else column


def _words(values: Any) -> NDArray[Any]:
    """Labels or owners as an array of numbers or of text; objects become text."""
    found = np.asarray(values)
    if found.dtype.kind == "O" or found.dtype.kind not in "biufU":
        if any(value is None or value != value for value in found.ravel().tolist()):
            raise FeddagError("the labels, clients or domains have an empty value")
        found = np.array([str(value) for value in found.ravel()]).reshape(found.shape)
    return found


def _digest(made: Dataset) -> str:
    """SHA-256 of all that a dataset holds, but for its name."""
    hasher = hashlib.sha256()
    for field, value in sorted(vars(made).items()):
        if isinstance(value, np.ndarray):
            hasher.update(f"{field} {value.dtype.str} {value.shape} ".encode())
            for part in np.array_split(value, max(1, value.nbytes // 2**24)):
                hasher.update(np.ascontiguousarray(part).tobytes())
        elif field != "name":
            hasher.update(f"{field} {value!r} ".encode())
    return hasher.hexdigest()
