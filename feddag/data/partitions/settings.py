"""What a partition's settings may be: a value that is not allowed is refused in one sentence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from feddag.data.corruptions import CORRUPTIONS
from feddag.data.partitions.samples import SampleInfo
from feddag.data.shifts import Shift, check_corruption
from feddag.errors import FeddagError, nearest

COMMON = ("holdout", "validation", "test", "test_share", "fraction")  # the settings that every partition has


@dataclass(frozen=True)
class PartitionSettings:
    """Every setting of every partition, with the only copy of its default. Partitions check the settings they use."""

    label_fraction: float = 0.2
    """Share of the classes that a group of clients holds."""
    concentration: float = 0.25
    """Dirichlet factor."""
    groups: int | None = None
    classes_per_client: int = 2
    concepts: int = 3
    skewed: bool = False
    corruptions: int | str = 4
    severity: int = Shift.severity
    mix: str = "40,30,30"
    mix_kind: Literal["labels", "domains"] = "labels"
    homogeneous: float = 1000.0
    """Dirichlet factors of the first two kinds of a mix by labels."""
    heterogeneous: float = 0.5
    base: Literal["dirichlet", "pathological"] = "dirichlet"
    samples_min: int = 50
    samples_max: int = 350
    fraction: float = 1.0
    """Share of the training samples used at all."""
    test: Literal["classes", "mix", "own"] = "classes"
    """A client's test samples: all of the classes that it holds, its part of them, or a share of its "own" samples."""
    test_share: float = 0.2
    validation: float = 0.0
    """Share of each client's training samples split off."""
    holdout: float = 0.0
    """Share of the clients kept out of training."""

    def __post_init__(self) -> None:
        number("holdout", self.holdout, 0, 0.99)
        number("validation", self.validation, 0, 0.99)
        one_of("test", self.test, ("classes", "mix", "own"))
        number("test_share", self.test_share, 0.001, 0.99)
        number("fraction", self.fraction, 1e-6, 1)


def whole(key: str, value: Any, low: int, high: int | None = None, limit: str = "") -> int:
    """The value if it is a whole number in these bounds; `limit` says what the upper one is."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_whole and low <= value and (high is None or value <= high):
        return int(value)
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise FeddagError(f"{key} = {value!r}: it must be a whole number {bounds}" + (f" ({limit})" if limit else ""))


def number(key: str, value: Any, low: float, high: float) -> float:
    """The value if it is a number in these bounds."""
    if isinstance(value, int | float | np.number) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise FeddagError(f"{key} = {value!r}: it must be a number from {low:g} to {high:g}")


def one_of(key: str, value: Any, allowed: Sequence[str]) -> str:
    """The value if it is one of these words."""
    if isinstance(value, str) and value in allowed:
        return value
    raise FeddagError(f"{key} = {value!r}: allowed are {', '.join(allowed)}{nearest(str(value), allowed)}")


def dirichlet_factor(concentration: Any, key: str = "concentration") -> float:
    """The Dirichlet factor if it is one that can be drawn with."""
    return number(key, concentration, 0.001, 1e6)


def labels_per_set(info: SampleInfo, label_fraction: Any) -> int:
    """How many classes this share of all classes is."""
    count = round(number("label_fraction", label_fraction, 0, 1) * info.num_classes)
    if not 1 <= count <= len(info.classes):
        raise FeddagError(
            f"label_fraction = {label_fraction!r}: this share of the {info.num_classes} classes is {count} of them,"
            f" and it must be 1 to {len(info.classes)}"
        )
    return count


def corruption_names(info: SampleInfo, partition: str, corruptions: Any) -> list[str]:
    """The first corruptions, as many as the number says, or those that a comma-separated list names."""
    if info.channels is None:
        raise FeddagError(f"partition = '{partition}': it corrupts images, and dataset '{info.dataset}' has none")
    fitting = [name for name in CORRUPTIONS if name != "saturate" or info.channels == 3]  # grey has no colour
    if not isinstance(corruptions, str) or corruptions.strip().isdecimal():
        count = int(corruptions) if isinstance(corruptions, str) else corruptions
        return fitting[: whole("corruptions", count, 1, len(fitting), "or a comma-separated list of names")]
    names = [name.strip() for name in corruptions.split(",")]
    for name in names:
        check_corruption(name)
        if name not in fitting:
            raise FeddagError(f"corruptions = '{corruptions}': '{name}' needs colour, and '{info.dataset}' is grey")
    if len(set(names)) < len(names):
        raise FeddagError(f"corruptions = '{corruptions}': each name is allowed once")
    return names
