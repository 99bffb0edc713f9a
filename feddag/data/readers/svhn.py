"""SVHN's cropped digits."""

from pathlib import Path

import numpy as np
from scipy.io import loadmat

from feddag.data.readers.samples import Parts, Samples, reading


def _svhn_part(path: Path) -> Samples:
    with reading(path, "a complete SVHN cropped-digits .mat file"):
        held = loadmat(path, variable_names=["X", "y"])
        x, y = held["X"], held["y"].ravel()
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
            raise ValueError(f"X is {x.dtype} of shape {x.shape}, not uint8 of (32, 32, 3, N)")
        return Samples(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), np.where(y == 10, 0, y))  # digit 0 is kept as 10


def read_svhn(folder: Path) -> Parts:
    """`train_32x32.mat` and `test_32x32.mat`."""
    return _svhn_part(folder / "train_32x32.mat"), _svhn_part(folder / "test_32x32.mat")
