"""SVHN's cropped digits."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.limits import Budget, most_bytes, open_regular, size_of
from feddag.data.readers.npz import read_array
from feddag.data.readers.samples import Parts, Samples, reading

CHILD = Path(__file__).with_name("mat_child.py")
CPU_SECONDS, SECONDS = 120, 600  # the whole of SVHN takes 10


def _svhn_part(path: Path, budget: Budget) -> Samples:
    with reading(path, "a complete SVHN cropped-digits .mat file"), open_regular(path) as file:
        x, y = _read_apart(path, file, budget)
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
            raise ValueError(f"X is {x.dtype} of shape {x.shape}, not uint8 of (32, 32, 3, N)")
        y = y.ravel()
        return Samples(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), np.where(y == 10, 0, y))  # digit 0 is kept as 10


def _read_apart(path: Path, file: BinaryIO, budget: Budget) -> tuple[NDArray[Any], NDArray[Any]]:
    """X and y, read in another process: a damaged file can crash SciPy, and would take this one with it."""
    packed = size_of(file)
    memory = 4 * most_bytes(packed)  # unpacked, as an array, as a file, and what SciPy needs besides
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(CHILD), str(memory), str(CPU_SECONDS)],
            stdin=file,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading it took more than {SECONDS} seconds") from None
    if done.returncode < 0:
        raise ValueError(f"reading it ended in {signal.Signals(-done.returncode).name}")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(said[-1] if said else "it could not be read")
    found = io.BytesIO(done.stdout)
    x, y = (read_array(path, found, budget, packed // 2) for _ in range(2))
    return x, y


def read_svhn(folder: Path) -> Parts:
    """`train_32x32.mat` and `test_32x32.mat`."""
    budget = Budget()
    return _svhn_part(folder / "train_32x32.mat", budget), _svhn_part(folder / "test_32x32.mat", budget)
