"""Signatures and distances made by hand: every number is chosen, so that what follows can be checked on paper."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from feddag.client.signature import Signature


def made(
    counts: Sequence[int],
    vectors: dict[int, ArrayLike] | None = None,
    *,
    reliability: float | Sequence[float] = 0.0,
    update: Sequence[float] = (),
    update_reliability: float = 0.0,
    shape: tuple[int, int] = (1, 2),
) -> Signature:
    """A signature with these counts and, per class, these rows of vectors (zeros where there are none)."""
    table = np.zeros((len(counts), *shape), np.float32)
    for label, rows in (vectors or {}).items():
        rows = np.atleast_2d(np.asarray(rows, np.float32))
        table[label, : len(rows)] = rows
    return Signature(
        vectors=table,
        counts=np.array(counts, np.int64),
        reliability=np.broadcast_to(np.float32(reliability), len(counts)).copy(),
        update=np.array(update, np.float32),
        update_reliability=np.array(update_reliability, np.float32),
    )


def direction(degrees: float) -> list[float]:
    """A unit vector in the plane."""
    return [float(np.cos(np.radians(degrees))), float(np.sin(np.radians(degrees)))]


def on_a_line(*places: float) -> np.ndarray:
    """Condensed distances of points on a line."""
    points = np.array(places, np.float32)
    return np.abs(points[:, None] - points)[np.triu_indices(len(points), 1)]


def condensed(matrix: np.ndarray) -> np.ndarray:
    """The distances above the diagonal, as SciPy lays them out."""
    return np.asarray(matrix, np.float32)[np.triu_indices(len(matrix), 1)]


def same_partition(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two labellings put the same clients together, whatever they call the groups."""
    return bool(((one[:, None] == one) == (other[:, None] == other)).all())
