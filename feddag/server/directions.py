"""Directions in which clients' samples or updates lie, and what one-shot and spectral groupings make of them.

Principal angles (PACFL), cosines with common directions (FedGroup), coordinates in these (CFL-GP).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Angle = Literal["principal", "smallest", "sum"]


def angle_between(one: Tensor, other: Tensor, angle: Angle) -> float:
    """The angle in degrees between two clients' vectors, classes x p x features; 90 where one of them has none.

    >>> import torch
    >>> x, y, z = torch.eye(3)
    >>> slanted = (x + y) / 2**0.5
    >>> [round(angle_between(torch.stack([x, y])[None], torch.stack([slanted, z])[None], k)) for k in Angle.__args__]
    [0, 45, 135]
    """
    rows, columns = (_held(vectors) for vectors in (one, other))
    if not len(rows) or not len(columns):
        return 90.0
    if angle == "principal":  # of the subspaces: the singular values of Q1' Q2 are the cosines of principal angles
        bases = [np.linalg.qr(vectors.T)[0] for vectors in (rows, columns)]
        return _degrees(float(np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)[0]))
    cosines = np.abs(rows @ columns.T)
    return _degrees(float(cosines.max())) if angle == "smallest" else sum(map(_degrees, np.diagonal(cosines)))


def _held(vectors: Tensor) -> NDArray[np.float64]:
    flat = vectors.flatten(0, 1).numpy().astype(np.float64)
    held: NDArray[np.float64] = flat[np.linalg.norm(flat, axis=1) > 0.5]
    return held


def _degrees(cosine: float) -> float:
    return float(np.degrees(np.arccos(min(cosine, 1.0))))


def decomposed_cosines(updates: NDArray[np.float64], directions: int) -> NDArray[np.float64]:
    """EDC: the cosine of each update (a row) with each of the leading left singular vectors of all of them as columns.

    >>> decomposed_cosines(np.array([[2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.5, 0.0]]), 2).round(6).__abs__().tolist()
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    basis = np.linalg.svd(updates.T, full_matrices=False)[0][:, :directions]
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    cosines: NDArray[np.float64] = updates @ basis / np.maximum(lengths, 1e-12)
    return cosines


def cosine_differences(updates: NDArray[np.float64]) -> NDArray[np.float64]:
    """MADC: the mean difference of two clients' cosines with each third one.

    >>> cosine_differences(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    unit = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-12)
    cosines, count = unit @ unit.T, len(updates)
    apart = np.zeros((count, count))
    for i in range(count):
        for j in range(i + 1, count):
            others = np.delete(np.arange(count), [i, j])
            if len(others):
                apart[i, j] = apart[j, i] = np.abs(cosines[i, others] - cosines[j, others]).mean()
    return apart


def projected(gradients: NDArray[np.float64], dimensions: int) -> NDArray[np.float64]:
    """Gradients (rows) in the coordinates of the leading left singular vectors of all of them as columns.

    By the Gram matrix, which is clients x clients: for G = U S V', U'G = S V'.

    >>> projected(np.array([[3.0, 4.0, 0.0], [6.0, 8.0, 0.0]]), 1).__abs__().round(6).tolist()
    [[5.0], [10.0]]
    """
    values, vectors = np.linalg.eigh(gradients @ gradients.T)
    leading: NDArray[np.float64] = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :dimensions]
    return leading


def matched(labels: Sequence[int], old: Sequence[int], numbers: int) -> list[int]:
    """New labels under the numbers of the old ones, each used once, so that as many clients as possible keep theirs.

    >>> matched([0, 0, 1, 1, 2], [1, 1, 0, 0, 0], 3)
    [1, 1, 0, 0, 2]
    """
    from scipy.optimize import linear_sum_assignment

    overlap = np.zeros((max(labels) + 1, numbers))
    for new, was in zip(labels, old, strict=True):
        overlap[new, was] += 1
    rows, columns = linear_sum_assignment(-overlap)
    name = dict(zip(rows.tolist(), columns.tolist(), strict=True))
    return [name[label] for label in labels]
