"""Where samples come from: named datasets, the user's own files, and how they are obtained."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data import obtain
from feddag.data.large import like, pieces, taken
from feddag.data.readers import Parts, Samples, parse_columns, read_csv, read_image_folder, read_npz, read_parquet
from feddag.errors import FeddagError, short
from feddag.rng import rng

# Published mean and standard deviation per channel, for pixels scaled to 0 .. 1.
STATISTICS = {
    "fmnist": ((0.1307,), (0.3081,)),
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
    "cifar100": ((0.507, 0.487, 0.441), (0.267, 0.256, 0.276)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.198, 0.201, 0.197)),
}
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CLASSES: dict[str, Sequence[str]] = {  # where the files hold only numbers
    "digits": digits,
    "mnist": digits,
    "svhn": digits,
    "fmnist": ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    "cifar10": CIFAR10,
    "cifar10-c": CIFAR10,
    "cifar100": [str(number) for number in range(100)],
    "femnist": digits + ascii_uppercase + ascii_lowercase,
}


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples with a fixed train/test split.

    Images are uint8, N x H x W x C (C = 1 for grey); any other fixed shape (a 128 x 6 time series) is float32.
    `mean` and `std` normalise the last axis, in the units of `x`. Labels are 0 .. num_classes - 1.
    `owner_*` says which natural client a sample belongs to and `domain_*` which domain, where the source knows it;
    they are indices into `owners` and `domains`.
    """

    name: str
    x_train: NDArray[np.uint8 | np.float32]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8 | np.float32]
    y_test: NDArray[np.int64]
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()
    owner_train: NDArray[np.int64] | None = None
    owner_test: NDArray[np.int64] | None = None
    owners: tuple[str, ...] = ()
    domain_train: NDArray[np.int64] | None = None
    domain_test: NDArray[np.int64] | None = None
    domains: tuple[str, ...] = ()


HELD: dict[str, Dataset] = {}
"""What `feddag.dataset` made in this process, by a name that holds a digest of the content."""
DIGEST = 16  # its hexadecimal figures
TABLES = {".csv": read_csv, ".parquet": read_parquet}


def load(name_or_path: str, columns: str = "") -> Dataset:
    """The dataset of that name, or the user's own: an .npz, .csv or .parquet file or a folder of images.

    `columns` says which columns of a table are what (`label=activity,client=subject`). A source without a train/test
    split gets a fixed one: a fifth of every owner's and domain's samples are for testing, with the classes in
    proportion.

    >>> dataset = load("digits")
    >>> dataset.x_train.shape, dataset.x_test.shape, dataset.num_classes
    ((1438, 8, 8, 1), (359, 8, 8, 1), 10)
    """
    name = name_or_path
    if name in HELD:
        return HELD[name]
    if re.fullmatch(rf"[^/@]+@[0-9a-f]{{{DIGEST}}}", name):
        raise FeddagError(f"dataset '{short(name)}' was given from Python: give it again, by feddag.dataset(...)")
    if name in obtain.KNOWN:
        found = obtain.find(name)
        if found is None:
            raise FeddagError(f"dataset '{name}' is not on this machine: {obtain.how(name)}")
        parts = _digits() if name == "digits" else obtain.read(name, found)
        return assembled(name, str(found), parts, CLASSES.get(name, ()), STATISTICS.get(name))
    path = Path(name).expanduser()
    if path.is_dir() and name:  # Path("") would be the current folder
        return assembled(path.resolve().name, str(path), read_image_folder(path))
    if path.suffix == ".npz":
        return assembled(path.stem, str(path), read_npz(path))
    if path.suffix in TABLES:
        return assembled(path.stem, str(path), TABLES[path.suffix](path, parse_columns(columns)))
    if name and (path.exists() or len(path.parts) > 1):
        raise FeddagError(f"{path} is neither an .npz, .csv or .parquet file nor a folder of images")
    raise obtain.unknown(name)


def _digits() -> Parts:
    from sklearn.datasets import load_digits  # here, because importing it takes a second

    held = load_digits()
    return Samples(held.images.astype(np.uint8), held.target), None


def assembled(
    name: str,
    source: str,
    parts: Parts,
    classes: Sequence[str] = (),
    statistics: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
) -> Dataset:
    """A dataset from what a reader found. `source` is named in errors; labels are indices into `classes` if given."""
    for part in parts:
        if part is not None:
            _check(part, source)
    train, test = parts
    if test is None:
        train, test = _split(train, source)
    x_train, x_test = _uniform(train.x, source), _uniform(test.x, source)
    if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
        raise FeddagError(
            f"{source} has training samples that are {x_train.dtype} of shape {x_train.shape[1:]} "
            f"but test samples that are {x_test.dtype} of shape {x_test.shape[1:]}"
        )
    if classes:
        for y in (train.y, test.y):
            if y.dtype.kind not in "iu" or y.min() < 0 or y.max() >= len(classes):
                raise FeddagError(f"{source} has a label outside 0 .. {len(classes) - 1}")
        y_train, y_test = train.y.astype(np.int64), test.y.astype(np.int64)
    else:
        y_train, y_test, classes = _numbered(train.y, test.y)
    owner_train, owner_test, owners = _membership(train.owner, test.owner)
    domain_train, domain_test, domains = _membership(train.domain, test.domain)
    mean, std = _scaled(statistics) if statistics else _measured(x_train)
    return Dataset(
        name=name,
        x_train=x_train,
        y_train=y_train,
        x_test=x_test,
        y_test=y_test,
        num_classes=len(classes),
        mean=mean,
        std=std,
        classes=tuple(classes),
        owner_train=owner_train,
        owner_test=owner_test,
        owners=owners,
        domain_train=domain_train,
        domain_test=domain_test,
        domains=domains,
    )


def _check(part: Samples, source: str) -> None:
    if part.x.ndim < 2 or part.x.size == 0 or part.x.dtype.kind not in "buif":
        raise FeddagError(
            f"{source} must hold numeric samples of one shape, not {part.x.dtype} of shape {part.x.shape}"
        )
    for name, values in (("labels", part.y), ("clients", part.owner), ("domains", part.domain)):
        if values is None:
            continue
        if values.shape != part.x.shape[:1]:
            raise FeddagError(f"{source} has {len(part.x)} samples but {name} of shape {values.shape}")
        if name == "labels" and values.dtype.kind == "f":
            raise FeddagError(
                f"{source} has labels of type {values.dtype}: only classification is supported, so that labels must "
                "be whole numbers or names"
            )
        if values.dtype.kind not in "biuU":
            raise FeddagError(f"{source} has {name} of type {values.dtype}; integers and strings are allowed")
        if values.dtype.kind == "U" and not _is_text(values):
            raise FeddagError(f"{source} has {name} with a character that cannot be written")
        if values.dtype == np.uint64 and (values > np.iinfo(np.int64).max).any():
            raise FeddagError(f"{source} has {name} that are not 64-bit integers")


def _is_text(words: NDArray[Any]) -> bool:
    """Whether all are words that can be written to a file: damaged ones hold numbers that are no characters.

    >>> _is_text(np.array(["cat", "Hündin"])), _is_text(np.array(["\\udc80"]))
    (True, False)
    """
    codes = np.ascontiguousarray(words).astype(words.dtype.newbyteorder("="), copy=False).view(np.uint32)
    return not ((codes > 0x10FFFF) | ((codes >= 0xD800) & (codes < 0xE000))).any()


def _uniform(x: NDArray[Any], source: str) -> NDArray[np.uint8 | np.float32]:
    """Images as uint8 N x H x W x C, everything else as float32 in its own shape."""
    if x.dtype == np.uint8 and x.ndim == 3:
        return x[..., np.newaxis]
    if x.dtype == np.uint8 and x.ndim == 4:
        if x.shape[3] > 4:
            raise FeddagError(f"{source} has images of shape {x.shape[1:]}; the channels, at most 4, must come last")
        return x
    numbers = x if x.dtype == np.float32 else like(x, len(x), np.float32)
    for part in pieces(x):
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused
            values = x[part].astype(np.float32)
        if not np.isfinite(values).all():
            raise FeddagError(f"{source} has a sample with a value that is not a finite 32-bit number")
        if numbers is not x:
            numbers[part] = values
    return numbers


def _numbered(train: NDArray[Any], test: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]:
    """The values of both parts as positions in the sorted list of all values, and that list as text.

    >>> _numbered(np.array([7, 10]), np.array([-1]))
    (array([1, 2]), array([0]), ('-1', '7', '10'))
    """
    together = [part if part.dtype.kind == "U" else part.astype(np.int64) for part in (train, test)]
    values, positions = np.unique(np.concatenate(together), return_inverse=True)
    return positions[: len(train)], positions[len(train) :], tuple(str(value) for value in values)


def _membership(
    train: NDArray[Any] | None, test: NDArray[Any] | None
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None, tuple[str, ...]]:
    """Owners or domains numbered, where the source knows them; it may know them for the training part alone."""
    if train is None:
        return None, None, ()
    train_number, test_number, words = _numbered(train, train[:0] if test is None else test)
    return train_number, None if test is None else test_number, words


def _split(samples: Samples, source: str) -> tuple[Samples, Samples]:
    """The fixed train/test split of samples that came without one; all versions of one picture stay together."""
    if samples.version_of is None:
        group = np.zeros(len(samples.y), np.int64)
        for membership in (samples.owner, samples.domain):
            if membership is not None:
                member = np.unique(membership, return_inverse=True)[1]
                group = np.unique(group * len(member) + member, return_inverse=True)[1]
        test = _every_fifth(samples.y, group)
    else:
        _, first, picture = np.unique(samples.version_of, return_index=True, return_inverse=True)
        test = _every_fifth(samples.y[first], np.zeros(len(first), np.int64))[picture]
    if not test.any():
        raise FeddagError(f"{source} has too few samples to set a fifth of them aside for testing")
    return _chosen(samples, ~test), _chosen(samples, test)


def _every_fifth(y: NDArray[Any], group: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Marks n / 5 samples, rounded, of every group and within one of n / 5 of every class in it.

    The samples of a group are ordered by class, classes and samples within one at random, and every fifth is marked,
    beginning with the third, so that a group of one or two keeps all of its samples.
    """
    random = rng(0, "division")  # this name decides the split, so it stays
    label = np.unique(y, return_inverse=True)[1]
    class_of_group = np.unique(group * len(y) + label, return_inverse=True)[1]
    turn = random.permutation(len(y))[class_of_group]
    layout = np.lexsort((random.random(len(y)), turn, group))
    place = np.arange(len(y)) - np.searchsorted(group[layout], group[layout])
    marked = np.empty(len(y), np.bool_)
    marked[layout] = place % 5 == 2
    return marked


def _chosen(samples: Samples, mask: NDArray[np.bool_]) -> Samples:
    owner, domain = (None if held is None else held[mask] for held in (samples.owner, samples.domain))
    return Samples(taken(samples.x, mask), samples.y[mask], owner, domain)


def _scaled(statistics: tuple[tuple[float, ...], tuple[float, ...]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, std = statistics
    return tuple(255 * value for value in mean), tuple(255 * value for value in std)


def _measured(x: NDArray[np.uint8 | np.float32]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation over the last axis; a constant channel gets 1, so that dividing by it is harmless."""
    axes = tuple(range(x.ndim - 1))
    mean = x.mean(axes, dtype=np.float64)
    batches = np.array_split(x, -(-len(x) // 1000))  # one by one, because float64 takes eight times the memory of uint8
    variance = sum(((batch - mean) ** 2).sum(axes) for batch in batches) / (x.size / x.shape[-1])
    std = np.sqrt(variance)
    constant = std <= 1e-6 * np.abs(mean)  # below what float32 resolves
    return tuple(mean.tolist()), tuple(np.where(constant, 1.0, std).tolist())
