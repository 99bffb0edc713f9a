"""Samples that do not fit into memory: mapped from files, and moved about piece by piece in temporary files."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from feddag.errors import FeddagError

PIECE = 2**24  # bytes that are in memory at a time
SPARE = 2**28  # bytes of the disk that are left alone


def taken(x: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    """x[index], for whole numbers or a mask; of mapped samples again mapped ones.

    >>> taken(np.array([5, 6, 7]), np.array([True, False, True])).tolist()
    [5, 7]
    """
    if not isinstance(x, np.memmap):
        chosen: NDArray[Any] = x[index]
        return chosen
    rows = np.flatnonzero(index) if index.dtype == np.bool_ else index
    found = like(x, len(rows))
    for part in pieces(found):
        found[part] = x[rows[part]]
    return found


def like(x: NDArray[Any], count: int, dtype: DTypeLike | None = None) -> NDArray[Any]:
    """Room for so many samples: in memory, or in a temporary file where `x` is mapped, which goes when it is let go."""
    kind, shape = np.dtype(dtype or x.dtype), (count, *x.shape[1:])
    if not isinstance(x, np.memmap) or 0 in shape:
        return np.empty(shape, kind)
    check_room(int(np.prod(shape)) * kind.itemsize)
    with tempfile.TemporaryFile(prefix="feddag-samples-") as file:
        return np.memmap(file, kind, "w+", shape=shape)


def check_room(size: int) -> None:
    """Refuse samples for which the disk of temporary files has no room."""
    folder = Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free - SPARE
    if size > free:
        raise FeddagError(
            f"samples of {size:,} bytes are more than memory holds and need as much room in '{folder}', where "
            f"{max(free, 0):,} bytes are free; the environment variable TMPDIR names another folder"
        )


def pieces(x: NDArray[Any]) -> list[slice]:
    """Slices of so many samples that one of them is harmless in memory.

    >>> pieces(np.zeros((5, 2**22), np.float32))
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    step = max(1, PIECE // max(1, x.nbytes // max(1, len(x))))
    return [slice(start, min(start + step, len(x))) for start in range(0, len(x), step)]
