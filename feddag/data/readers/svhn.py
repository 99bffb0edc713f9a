"""SVHN's cropped digits."""

from pathlib import Path

import numpy as np

from feddag.data.readers.apart import read_apart
from feddag.data.readers.limits import Budget, open_regular
from feddag.data.readers.samples import Parts, Samples, reading


def _svhn_part(path: Path, budget: Budget) -> Samples:
    with reading(path, "a complete SVHN cropped-digits .mat file"), open_regular(path) as file:
        x, y = read_apart(path, file, "matlab", budget).values()
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
            raise ValueError(f"X is {x.dtype} of shape {x.shape}, not uint8 of (32, 32, 3, N)")
        y = y.ravel()
        return Samples(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), np.where(y == 10, 0, y))  # digit 0 is kept as 10


def read_svhn(folder: Path) -> Parts:
    """`train_32x32.mat` and `test_32x32.mat`."""
    budget = Budget()
    return _svhn_part(folder / "train_32x32.mat", budget), _svhn_part(folder / "test_32x32.mat", budget)
