"""Directions in which clients' samples or updates lie, and what one-shot and spectral groupings make of them.

Principal angles (PACFL), cosines with common directions (FedGroup), coordinates in these (CFL-GP).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Angle = Literal["principal", "smallest", "sum"]


def angles_to(one: Tensor, others: Sequence[Tensor], angle: Angle) -> NDArray[np.float64]:
    """The angles in degrees between a client's vectors and those of others; 90 where one of the two has none.

    Vectors are classes x p x features, zeros where there is none.

    >>> import torch
    >>> x, y, z = torch.eye(3)
    >>> own, other = torch.stack([x, y])[None], torch.stack([(x + y) / 2**0.5, z])[None]
    >>> [angles_to(own, [other, 0 * other], kind).round(3).tolist() for kind in Angle.__args__]
    [[0.0, 90.0], [45.0, 90.0], [135.0, 90.0]]
    """
    stacked, counts = _stacked([one, *others], angle)
    return _first_to_rest(stacked, counts, angle)


def angles_between(clients: Sequence[Tensor], angle: Angle) -> NDArray[np.float64]:
    """Of all pairs of clients, condensed as SciPy does it."""
    if len(clients) < 2:
        return np.zeros(0)
    stacked, counts = _stacked(clients, angle)
    return np.concatenate([_first_to_rest(stacked[row:], counts[row:], angle) for row in range(len(clients) - 1)])


def _stacked(clients: Sequence[Tensor], angle: Angle) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Clients x most vectors x features, and how many each has; of a basis of what they span, for principal angles."""
    tables = [_held(vectors) for vectors in clients]
    if angle == "principal":
        tables = [np.linalg.qr(vectors.T)[0].T for vectors in tables]
    counts = np.array([len(vectors) for vectors in tables])
    stacked = np.zeros((len(tables), max(1, counts.max()), tables[0].shape[1]))
    for place, vectors in enumerate(tables):
        stacked[place, : len(vectors)] = vectors
    return stacked, counts


def _first_to_rest(stacked: NDArray[np.float64], counts: NDArray[np.int64], angle: Angle) -> NDArray[np.float64]:
    """The angles of the first client to all others; vectors of zeros, which fill up, change no largest cosine."""
    cosines = stacked[0] @ stacked[1:].transpose(0, 2, 1)
    if angle == "sum":
        both = np.arange(cosines.shape[1]) < np.minimum(counts[0], counts[1:])[:, None]
        paired = np.abs(np.diagonal(cosines, axis1=1, axis2=2)).clip(0, 1)
        found = (np.degrees(np.arccos(paired)) * both).sum(axis=1)
    elif angle == "principal":  # the singular values of Q1 Q2' are the cosines of principal angles
        found = np.degrees(np.arccos(np.linalg.norm(cosines, 2, axis=(1, 2)).clip(0, 1)))
    else:
        found = np.degrees(np.arccos(np.abs(cosines).max(axis=(1, 2)).clip(0, 1)))
    return np.where((counts[0] > 0) & (counts[1:] > 0), found, 90.0)


def _held(vectors: Tensor) -> NDArray[np.float64]:
    flat = vectors.flatten(0, 1).numpy().astype(np.float64)
    held: NDArray[np.float64] = flat[np.linalg.norm(flat, axis=1) > 0.5]
    return held


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
    from scipy.spatial.distance import cdist

    unit = updates / np.maximum(np.linalg.norm(updates, axis=1, keepdims=True), 1e-12)
    cosines, count = unit @ unit.T, len(updates)
    if count < 3:
        return np.zeros((count, count))
    own = np.abs(np.diagonal(cosines)[:, None] - cosines)  # the differences where the third one is one of the two
    apart: NDArray[np.float64] = (cdist(cosines, cosines, "cityblock") - own - own.T) / (count - 2)
    return np.maximum(apart, 0.0)


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
