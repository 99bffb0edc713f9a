"""How good a clustering is: against the true groups, by distances between clients, and by the classes they hold.

A score by distances needs clusters with something inside and something outside. With one cluster, or with as many
clusters as clients, it is undefined: None. scikit-learn is imported where it is used: that takes as long as PyTorch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Labels = Sequence[int] | NDArray[np.int64]

NEGLIGIBLE = 1e-9  # a distance below this share of the usual ones is a rounding error
CHUNK_MB = 64  # the distances between 10,000 clients would be 800 MB at once


def adjusted_rand(cluster_labels: Labels, truth: Labels) -> float:
    """Agreement with the true groups: 1 is perfect, 0 what chance gives.

    >>> adjusted_rand([5, 5, 2, 2], [0, 0, 1, 1])
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth, cluster_labels))


def rand(cluster_labels: Labels, truth: Labels) -> float:
    """Share of the pairs of clients that are together in both, or apart in both.

    >>> rand([0, 0, 1], [0, 0, 0])  # 0 and 1 are together in both; 2 is with them in one only
    0.3333333333333333
    """
    from sklearn.metrics import rand_score

    return float(rand_score(truth, cluster_labels))


def silhouette(distances: Floats, cluster_labels: Labels) -> float | None:
    """Mean silhouette from a clients x clients matrix of distances; a client alone in its cluster counts 0."""
    from sklearn.metrics import silhouette_score

    if not _defined(cluster_labels):
        return None
    return float(silhouette_score(distances, cluster_labels, metric="precomputed"))


def davies_bouldin(distances: Floats, cluster_labels: Labels) -> float | None:
    """Davies-Bouldin score from a clients x clients matrix of distances; lower is better.

    A matrix has no centroids, so a cluster's centre is its medoid: the member with the smallest sum of distances to the
    others, the first of them if there are several. A cluster's spread is the mean distance of all its members,
    the medoid included, to the medoid. None also where two medoids are in the same place.
    """
    if not _defined(cluster_labels):
        return None
    medoids, spreads = [], []
    for members in _members(cluster_labels):
        inside = distances[np.ix_(members, members)]
        medoid = int(inside.sum(axis=0).argmin())
        medoids.append(members[medoid])
        spreads.append(inside[medoid].mean())
    return mean_worst_ratio(spreads, distances[np.ix_(medoids, medoids)], NEGLIGIBLE * float(distances.max()))


def class_silhouette(counts: Counts, cluster_labels: Labels) -> float | None:
    """Mean silhouette of the clients' class distributions (Euclidean), from clients x classes counts."""
    return _silhouette_of_points(_shares(counts), cluster_labels)


def wasserstein_silhouette(counts: Counts, cluster_labels: Labels) -> float | None:
    """FedGWC's WAS (its section 6), from clients x classes counts: the silhouette of ranked class distributions.

    Each client's class frequencies are sorted by size, and clients are compared by the Euclidean distance between them:
    the 2-Wasserstein distance between the two sets of frequencies. So WAS asks whether the clients of a cluster are
    alike in how uneven their classes are. Which classes these are does not count: a client of cats only and one of dogs
    only are at distance 0. `class_silhouette` tells them apart.

    The paper leaves open, and we chose:
    - "frequency": shares that add up to 1, not counts, because it speaks of probability distributions and because
      otherwise the number of samples would dominate. A client without samples has all shares 0.
    - 1/C stands outside the root in Eq. 7 and inside in Eq. 38. Silhouette and Davies-Bouldin are ratios of distances,
      so it cancels and is left out.
    - a client alone in its cluster, where Eq. 41 divides by zero: it counts 0, as usual; so does one at distance 0 from
      everybody.
    """
    return _silhouette_of_points(_ranked_shares(counts), cluster_labels)


def wasserstein_davies_bouldin(counts: Counts, cluster_labels: Labels) -> float | None:
    """FedGWC's WADB, from clients x classes counts: the Davies-Bouldin score of ranked class distributions.

    As for WAS; a cluster's centre is the mean of its members' ranked shares (the paper's "centroid" in Eq. 44, and the
    Wasserstein barycentre of them). Open in the paper: two clusters with the same centre. They are not separated at
    all and the score would be infinite or 0/0, so it is None (scikit-learn would take them for perfectly separated).
    """
    if not _defined(cluster_labels):
        return None
    points = _ranked_shares(counts)
    clusters = [points[members] for members in _members(cluster_labels)]
    centres = np.stack([cluster.mean(axis=0) for cluster in clusters])
    spreads = [
        np.linalg.norm(cluster - centre, axis=1).mean() for cluster, centre in zip(clusters, centres, strict=True)
    ]
    return mean_worst_ratio(spreads, cdist(centres, centres), NEGLIGIBLE)


def score_clustering(cluster_labels: Labels, truth: Labels | None, counts: Counts | None) -> dict[str, Any]:
    """All scores of a clustering; None for what is unknown or undefined."""
    return {
        "found": len(np.unique(cluster_labels)),
        "true": None if truth is None else len(np.unique(truth)),
        "ari": None if truth is None else adjusted_rand(cluster_labels, truth),
        "rand": None if truth is None else rand(cluster_labels, truth),
        "silhouette_classes": None if counts is None else class_silhouette(counts, cluster_labels),
        "was": None if counts is None else wasserstein_silhouette(counts, cluster_labels),
        "wadb": None if counts is None else wasserstein_davies_bouldin(counts, cluster_labels),
    }


def _defined(cluster_labels: Labels) -> bool:
    return 1 < len(np.unique(cluster_labels)) < len(cluster_labels)


def _members(cluster_labels: Labels) -> list[NDArray[np.int64]]:
    """The clients of each cluster."""
    return [np.flatnonzero(np.asarray(cluster_labels) == cluster) for cluster in np.unique(cluster_labels)]


def _shares(counts: Counts) -> Floats:
    """Each client's class distribution."""
    shares: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def _ranked_shares(counts: Counts) -> Floats:
    """Each client's class distribution, its shares sorted by size."""
    return np.sort(_shares(counts), axis=1)


def _silhouette_of_points(points: Floats, cluster_labels: Labels) -> float | None:
    import sklearn
    from sklearn.metrics import silhouette_score

    if not _defined(cluster_labels):
        return None
    with sklearn.config_context(working_memory=CHUNK_MB):
        # Euclidean under its other name: scikit-learn's quick way to it gives equal points a distance above 0.
        return float(silhouette_score(points, cluster_labels, metric="minkowski"))


def mean_worst_ratio(spreads: Sequence[float], separations: Floats, negligible: float) -> float | None:
    """Davies and Bouldin's mean over clusters of the worst (spread + spread) / separation with another cluster."""
    apart = separations + np.diag([np.inf] * len(spreads))
    if apart.min() <= negligible:
        return None
    return float((np.add.outer(spreads, spreads) / apart).max(axis=1).mean())
