"""FedGWC's mathematics: rewards, interaction matrix, perception vectors, affinity, and the choice of clusters.

Equations and algorithms are those of Licciardi et al., 2025. Arrays are clients x clients, or clients x SGD steps.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from feddag.server.metrics import mean_worst_ratio

Floats = NDArray[np.float64]
Labels = NDArray[np.int64]
ScoredOn = Literal["affinity", "embedding"]

LEAST_VARIANCE = 1e-16  # losses that are all equal have no variance to divide by: every reward is then 1


def gaussian_rewards(losses: Floats, shares: Sequence[float] | None = None) -> Floats:
    """Eq. 1, and its mean over the steps: how near each client's losses are to the mean of all in this round.

    With shares, mean and variance weigh clients by them, and the variance is that of the population (released code).

    >>> gaussian_rewards(np.array([[1.0], [2.0], [3.0]])).round(4).tolist()  # variance 1: exp(-1/2), 1, exp(-1/2)
    [0.6065, 1.0, 0.6065]
    """
    weights = np.full(len(losses), 1 / len(losses)) if shares is None else np.asarray(shares) / np.sum(shares)
    off = losses - weights @ losses
    variance = weights @ off**2
    if shares is None:
        variance *= len(losses) / max(len(losses) - 1, 1)
    rewards: Floats = np.exp(-(off**2) / (2 * (variance + LEAST_VARIANCE))).mean(axis=1)
    return rewards


def pair_rewards(losses: Floats) -> Floats:
    """How near the losses of every two clients are to each other, not to the mean: ours instead of Eq. 1.

    Eq. 1 gives a client one sigma above the mean what it gives to one as far below it. The difference of two losses has
    twice the variance of one, hence the 4. Dimensions before clients x steps are rounds.

    >>> pair_rewards(np.array([[1.0], [2.0], [3.0]])).round(4).tolist()  # exp(-1/4), and exp(-1) for the outer two
    [[1.0, 0.7788, 0.3679], [0.7788, 1.0, 0.7788], [0.3679, 0.7788, 1.0]]
    """
    scaled = losses / np.sqrt(losses.var(axis=-2, ddof=1, keepdims=True) + LEAST_VARIANCE)
    steps = [scaled[..., step] for step in range(losses.shape[-1])]
    rewards: Floats = sum(np.exp(-((own[..., None] - own[..., None, :]) ** 2) / 4) for own in steps) / len(steps)
    return rewards


def updated(matrix: Floats, sampled: Sequence[int], rewards: Floats, alpha: float) -> Floats:
    """Eq. 3: the rows of the sampled clients move towards their rewards, in the columns of the sampled clients.

    >>> updated(np.zeros((3, 3)), [0, 2], np.array([1.0, 0.5]), 0.1).tolist()
    [[0.1, 0.0, 0.1], [0.0, 0.0, 0.0], [0.05, 0.0, 0.05]]
    """
    new = matrix.copy()
    pairs = np.ix_(sampled, sampled)
    new[pairs] = (1 - alpha) * matrix[pairs] + alpha * rewards[:, None]
    return new


def perception_distances(matrix: Floats, known: NDArray[np.bool_] | None = None) -> Floats:
    """Squared distances between unbiased perception vectors: rows k and j without their entries k and j.

    With `known`, only entries that both rows know count, and the sum becomes a mean over them, so that clients that
    met often and clients that met rarely can be compared; two clients that share nothing are as far apart as usual.

    >>> perception_distances(np.array([[9.0, 9.0, 1.0], [9.0, 9.0, 3.0], [5.0, 7.0, 9.0]]))[0].tolist()
    [0.0, 4.0, 4.0]
    """
    there = ~np.eye(len(matrix), dtype=bool) if known is None else known & ~np.eye(len(matrix), dtype=bool)
    # A row does not count its own entry, so that columns k and j both fall out of the sum for k and j.
    mask, rows = there.astype(float), np.where(there, matrix, 0.0)
    squares = rows**2 @ mask.T
    total: Floats = np.maximum(squares + squares.T - 2 * rows @ rows.T, 0.0)
    np.fill_diagonal(total, 0.0)
    if known is None:
        return total
    shared = mask @ mask.T
    other = ~np.eye(len(matrix), dtype=bool)
    distances: Floats = total / np.maximum(shared, 1)
    if (shared[other] > 0).any():
        distances[other & (shared == 0)] = distances[other & (shared > 0)].mean()
    return distances


def affinity(squared: Floats, beta: float) -> Floats:
    """Eq. 4.

    >>> affinity(np.array([[0.0, 2.0], [2.0, 0.0]]), 0.5).round(4).tolist()
    [[1.0, 0.3679], [0.3679, 1.0]]
    """
    kernel: Floats = np.exp(-beta * squared)
    return kernel


def min_max(matrix: Floats) -> Floats:
    """All entries scaled to 0 .. 1, as the released code does before Eq. 4.

    >>> min_max(np.array([[1.0, 2.0], [5.0, 1.0]])).tolist()
    [[0.0, 0.25], [1.0, 0.0]]
    """
    scaled: Floats = (matrix - matrix.min()) / max(float(np.ptp(matrix)), 1e-8)
    return scaled


def spectral_vectors(kernel: Floats, most: int) -> tuple[Floats, Floats]:
    """The leading eigenvectors of the normalised affinity without its diagonal, and the embedding that they are."""
    others = kernel - np.diag(np.diag(kernel))
    root = np.sqrt(np.maximum(others.sum(axis=1), 1e-12))
    vectors = np.linalg.eigh(others / root[:, None] / root)[1][:, ::-1][:, :most]
    return vectors, vectors / root[:, None]


def spectral_labels(vectors: Floats) -> Labels:
    """As many clusters as vectors, without a random start: the rotation that brings rows nearest to the axes.

    Pivoted QR picks one client for each cluster, and the clients nearest to each are its cluster (Damle et al., 2019).

    >>> spectral_labels(np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])).tolist()
    [0, 0, 1]
    """
    pivots = qr(vectors.T, mode="r", pivoting=True)[1][: vectors.shape[1]]
    left, _, right = np.linalg.svd(vectors[np.sort(pivots)].T)
    labels: Labels = np.abs(vectors @ (left @ right)).argmax(axis=1)
    return labels


def davies_bouldin(points: Floats, labels: Labels) -> float:
    """Eq. 42-44, on points; infinite where two clusters have the same centre.

    >>> davies_bouldin(np.array([[0.0], [2.0], [9.0], [11.0]]), np.array([0, 0, 1, 1]))  # (1 + 1) / 9
    0.2222222222222222
    """
    parts = [points[labels == label] for label in np.unique(labels)]
    centres = np.stack([part.mean(axis=0) for part in parts])
    spreads = [float(np.linalg.norm(part - centre, axis=1).mean()) for part, centre in zip(parts, centres, strict=True)]
    apart = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    score = mean_worst_ratio(spreads, apart, 1e-9)
    return np.inf if score is None else score


def best_split(
    kernel: Floats, most: int, least_size: int = 1, scored_on: ScoredOn = "affinity"
) -> tuple[float, Labels]:
    """Algorithm 2: of 2 .. `most` clusters those with the smallest Davies-Bouldin score, and that score.

    The score is that of the affinity's rows, as the paper says, or of the spectral embedding, as released. Infinite,
    and one cluster, where no number of clusters gives each at least `least_size` clients.
    """
    best, found = np.inf, np.zeros(len(kernel), np.int64)
    most = min(most, len(kernel) // max(least_size, 1), len(kernel) - 1)
    if most < 2:
        return best, found
    vectors, embedding = spectral_vectors(kernel, most)
    for number in range(2, most + 1):
        labels = spectral_labels(vectors[:, :number])
        if np.bincount(labels, minlength=number).min() < max(least_size, 1):
            continue
        score = davies_bouldin(kernel if scored_on == "affinity" else embedding[:, :number], labels)
        if score < best:
            best, found = score, labels
    return best, found
