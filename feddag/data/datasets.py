"""Where samples come from: named datasets, the user's own files, and how they are obtained."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled samples with a fixed train/test division.

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
