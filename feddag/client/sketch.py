"""Signatures in fewer numbers: one random projection that all clients share keeps angles, up to noise.

The noise of an angle is about 1 / sqrt(size) where vectors are far apart and less where they are near. Orthonormal, so
that a projection onto as many dimensions as there are loses nothing.
"""

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.rng import rng

USUAL_SKETCH = 128


@lru_cache(maxsize=8)
def projection(features: int, size: int) -> NDArray[np.float32]:
    """features x size, orthonormal columns: the same on every machine and for every seed of a run.

    >>> matrix = projection(6, 3)
    >>> bool(np.allclose(matrix.T @ matrix, np.eye(3), atol=1e-6))
    True
    """
    drawn = rng(0, "sketch", features, size).standard_normal((features, size))
    made: NDArray[np.float32] = np.linalg.qr(drawn)[0].astype(np.float32)
    made.setflags(write=False)
    return made


def sketched_vectors(vectors: NDArray[Any], size: int) -> NDArray[np.float16]:
    """classes x p x size: the principal vectors of the projected second moments, which have norm 1 again.

    >>> sketched_vectors(np.eye(4, dtype=np.float32)[None, :2] / 2**0.25, 4).shape
    (1, 2, 4)
    """
    projected = vectors.astype(np.float32) @ projection(vectors.shape[2], size)
    _, lengths, directions = np.linalg.svd(projected.astype(np.float64), full_matrices=False)
    norms = np.sqrt((lengths**4).sum(1))  # of V'V, the moment that the vectors make up
    scaled = lengths / np.sqrt(np.where(norms > 0, norms, 1))[:, None]
    table = np.zeros(projected.shape, np.float16)
    table[:, : lengths.shape[1]] = scaled[..., None] * directions
    return table


def sketched_update(update: NDArray[Any], size: int) -> NDArray[np.float16]:
    """An update in as many numbers, of length 1: only its direction is looked at."""
    projected = update @ projection(len(update), size) if len(update) > size else update
    length = float(np.linalg.norm(projected))
    return (projected / (length or 1.0)).astype(np.float16)
