"""From distances to a tree of merges, and what a partition of the clients looks like: means and silhouettes.

Where the tree is cut is decided in `cutting`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array

from feddag.server.similarity import Floats, square

Linkage = Literal["average", "weighted", "single", "complete"]
Algorithm = Literal["agglomerative", "kmeans", "spectral"]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Tree:
    """The merges of an agglomerative clustering, lowest first."""

    merges: NDArray[np.float64]
    """As SciPy gives them, but with the true heights, which may be below zero."""
    clients: int
    _offset: float

    @property
    def heights(self) -> NDArray[np.float64]:
        """The distance at which each merge happens."""
        heights: NDArray[np.float64] = self.merges[:, 2]
        return heights

    def sizes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The sizes of the two clusters that each merge joins."""
        sizes = np.concatenate([np.ones(self.clients), self.merges[:, 3]])
        return sizes[self.merges[:, 0].astype(int)], sizes[self.merges[:, 1].astype(int)]

    def cut(self, alpha: float) -> Labels:
        """The groups left when only merges up to alpha are done."""
        if self.clients == 1:
            return np.zeros(1, np.int64)
        shifted = self.merges.copy()
        shifted[:, 2] += self._offset  # SciPy wants heights that are not negative
        return relabel(fcluster(shifted, alpha + self._offset, "distance"))


@dataclass(frozen=True)
class Cut:
    """Where the tree of merges was cut: groups numbered by their first client, and the threshold."""

    labels: Labels
    alpha: float
    rule: str = "given"
    """What chose the threshold: noise, plateau, lowest, or given."""

    @property
    def clusters(self) -> int:
        """How many groups there are."""
        return int(self.labels.max()) + 1


def clients_of(condensed: Floats) -> int:
    """How many clients have so many pairs.

    >>> clients_of(np.zeros(6, np.float32))
    4
    """
    return round((1 + math.sqrt(1 + 8 * len(condensed))) / 2)


def build_tree(condensed: Floats, method: Linkage = "average") -> Tree:
    """The tree of merges; an unknown distance (nan) is taken as the mean of the known ones."""
    clients = clients_of(condensed)
    if clients == 1:
        return Tree(np.zeros((0, 4)), 1, 0.0)
    offset = max(-float(np.nanmin(condensed)) if not np.isnan(condensed).all() else 0.0, 0.0)
    distances = fill_unknown(condensed).astype(np.float64)
    distances += offset
    merges = linkage(distances, method)
    merges[:, 2] -= offset
    return Tree(merges, clients, offset)


def fill_unknown(condensed: Floats) -> Floats:
    """Unknown distances (nan) replaced by the mean of the known ones, which favours neither merging nor separating."""
    unknown = np.isnan(condensed)
    if not unknown.any():
        return condensed
    return np.where(unknown, np.float32(0 if unknown.all() else np.nanmean(condensed)), condensed)


def relabel(labels: Sequence[int] | NDArray[np.integer]) -> Labels:
    """The same groups, numbered 0, 1, ... in the order of their first members.

    >>> relabel([7, 7, 2, 9, 2]).tolist()
    [0, 0, 1, 2, 1]
    """
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


def regrouped_by(algorithm: Algorithm, condensed: Floats, clusters: int, seed: int) -> Labels:
    """The clients in so many groups by another algorithm, for comparison (A.2): both see the rows of the distances.

    k-means takes a client's distances to all others as its coordinates, spectral clustering a Gaussian of the distance
    as wide as the median one.
    """
    from sklearn.cluster import KMeans, SpectralClustering

    distances = square(np.maximum(fill_unknown(condensed), 0)).astype(np.float64)
    if clusters in (1, len(distances)):
        return np.arange(len(distances)) if clusters > 1 else np.zeros(len(distances), np.int64)
    if algorithm == "kmeans":
        return relabel(KMeans(clusters, n_init=10, random_state=seed % 2**32).fit_predict(distances))
    width = float(np.median(condensed[condensed > 0])) if (condensed > 0).any() else 1.0
    affinity = np.exp(-((distances / width) ** 2) / 2)
    found = SpectralClustering(clusters, affinity="precomputed", random_state=seed % 2**32)
    return relabel(found.fit_predict(affinity))


# A partition of the clients ------------------------------------------------------------------------------------------


def cluster_means(distances: Floats, labels: Labels) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cluster sizes, and the mean distance between every two clusters (Eq. 9's inner sum on the diagonal)."""
    member = _membership(labels)
    sizes = np.bincount(labels).astype(np.float64)
    return sizes, (member @ (member @ distances).T).astype(np.float64) / sizes[:, None] / sizes[None]


def _membership(labels: Labels) -> csr_array:
    """Clusters x clients, ones and zeros; sparse, because there may be as many clusters as clients."""
    clients = len(labels)
    return csr_array((np.ones(clients, np.float32), (labels, np.arange(clients))), (int(labels.max()) + 1, clients))


def clarity(condensed: Floats, labels: Labels) -> NDArray[np.float64]:
    """Per client, 0 to 1: how clearly these groups stand apart around it, and that it is one of many in its group.

    The silhouette, times 1 - 2 / group size: two clients that happen to be alike are found in any data.

    >>> apart = np.array([[0, 0, 0, 1, 1, 1]] * 3 + [[1, 1, 1, 0, 0, 0]] * 3, np.float32)[np.triu_indices(6, 1)]
    >>> clarity(apart, np.array([0, 0, 0, 1, 1, 1])).round(3).tolist()
    [0.333, 0.333, 0.333, 0.333, 0.333, 0.333]
    """
    own = np.bincount(labels)[labels]
    return silhouettes(condensed, labels) * np.maximum(1 - 2 / own, 0)


def silhouettes(condensed: Floats, labels: Labels) -> NDArray[np.float64]:
    """Per client, 0 to 1: how much nearer its own group is than the next one; 0 for a client alone in its group.

    >>> silhouettes(np.array([1, 4, 4], np.float32), np.array([0, 0, 1])).tolist()
    [0.75, 0.75, 0.0]
    """
    clusters = int(labels.max()) + 1
    if clusters == 1 or clusters == len(labels):
        return np.zeros(len(labels))
    sizes = np.bincount(labels).astype(np.float32)
    own = sizes[labels]
    to_cluster = _membership(labels) @ square(np.maximum(fill_unknown(condensed), 0))
    inside = to_cluster[labels, np.arange(len(labels))] / np.maximum(own - 1, 1)
    to_cluster[labels, np.arange(len(labels))] = np.inf
    outside = (to_cluster / sizes[:, None]).min(0)
    apart = (outside - inside) / np.maximum(np.maximum(outside, inside), 1e-12)
    return np.asarray(np.maximum(apart, 0) * (own > 1), np.float64)
