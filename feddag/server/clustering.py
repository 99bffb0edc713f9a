"""From distances to groups: agglomerative clustering, the paper's loss over thresholds, and where to cut.

Two rules choose the threshold alpha. `plateau` reads "low loss and relatively few clusters" from the paper's curve
(Eq. 9-10): the lowest loss among cluster counts that stay the same for three consecutive steps of alpha. It needs
nothing but the curve, and it cannot tell noise from structure. `noise` needs distances that are an excess over chance
(`similarity`): among like clients they scatter around zero, so the negative ones tell how wide, and a merge is kept
from happening where the distance is more than such a scatter explains.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import csr_array

from feddag.errors import FeddagError
from feddag.server.similarity import Floats, square

Linkage = Literal["average", "weighted", "single", "complete"]
Labels = NDArray[np.int64]

ALPHAS = tuple(np.round(np.arange(1, 21) * 0.05, 2).tolist())
STABLE_STEPS = 3
LEAST_DIFFERENCE = 3 / 90
"""Groups that are less than 3 degrees apart beyond chance are not worth a model of their own, however sure it is."""
CONFIDENCE = 2.5
"""A difference counts when it exceeds its own noise by this factor."""


@dataclass(frozen=True)
class Candidate:
    """One threshold of the search: how many clusters it gives and at which loss (Eq. 10)."""

    alpha: float
    clusters: int
    loss: float


@dataclass(frozen=True)
class Cut:
    """Where the tree of merges was cut: groups numbered by their first client, and the threshold."""

    labels: Labels
    alpha: float

    @property
    def clusters(self) -> int:
        """How many groups there are."""
        return int(self.labels.max()) + 1


@dataclass(frozen=True)
class Tree:
    """The merges of an agglomerative clustering, lowest first."""

    steps: NDArray[np.float64]
    """As SciPy gives them, but with the true heights, which may be below zero."""
    clients: int
    _raised: float

    @property
    def heights(self) -> NDArray[np.float64]:
        """The distance at which each merge happens."""
        heights: NDArray[np.float64] = self.steps[:, 2]
        return heights

    def sizes(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The sizes of the two clusters that each merge joins."""
        sizes = np.concatenate([np.ones(self.clients), self.steps[:, 3]])
        return sizes[self.steps[:, 0].astype(int)], sizes[self.steps[:, 1].astype(int)]

    def cut(self, alpha: float) -> Labels:
        """The groups left when only merges up to alpha are done."""
        if self.clients == 1:
            return np.zeros(1, np.int64)
        raised = self.steps.copy()
        raised[:, 2] += self._raised  # SciPy wants heights that are not negative
        return numbered(fcluster(raised, alpha + self._raised, "distance"))


def build_tree(condensed: Floats, method: Linkage = "average") -> Tree:
    """The tree of merges; a distance that is not known (nan) is taken as the mean of those that are."""
    clients = round((1 + math.sqrt(1 + 8 * len(condensed))) / 2)
    if clients == 1:
        return Tree(np.zeros((0, 4)), 1, 0.0)
    raised = max(-float(np.nanmin(condensed)) if not np.isnan(condensed).all() else 0.0, 0.0)
    distances = known(condensed).astype(np.float64)
    distances += raised
    steps = linkage(distances, method)
    steps[:, 2] -= raised
    return Tree(steps, clients, raised)


def known(condensed: Floats) -> Floats:
    """Unknown distances replaced by the mean of the known ones, which leans neither way."""
    unknown = np.isnan(condensed)
    if not unknown.any():
        return condensed
    return np.where(unknown, np.float32(0 if unknown.all() else np.nanmean(condensed)), condensed)


def numbered(labels: Sequence[int] | NDArray[np.integer]) -> Labels:
    """The same groups, numbered 0, 1, ... in the order of their first members.

    >>> numbered([7, 7, 2, 9, 2]).tolist()
    [0, 0, 1, 2, 1]
    """
    _, first, inverse = np.unique(np.asarray(labels), return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse].astype(np.int64)


# The paper's search --------------------------------------------------------------------------------------------------


def clustering_loss(distances: Floats, labels: Labels, balance: float = 0.01, gamma: float = 1.0) -> float:
    """Eq. 10 of a square matrix: compactness, plus `balance` (the paper's lambda) times the penalty of small clusters.

    The paper leaves lambda, gamma and tau open; its code has 0.01, 1 and 1 client. Sizes grow with the number of
    clients, and exp(size / 1 client) overflows; so tau is a tenth of the mean cluster size (1 client for 100 clients in
    10 clusters), which makes the penalty depend on how unequal clusters are and not on how many clients there are.

    >>> apart = np.array([[0, 0.2, 1], [0.2, 0, 1], [1, 1, 0]])
    >>> round(clustering_loss(apart, np.array([0, 0, 1])), 6)  # 0.1 + 0 within; sizes 2 and 1, none below 1.5 - 0.5
    0.11
    """
    sizes = np.bincount(labels).astype(float)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    within = np.array([distances[np.ix_(own, own)].sum(dtype=np.float64) for own in members]) / sizes**2  # Eq. 9, L1
    mean_size = sizes.mean()
    missing = np.maximum(0.0, mean_size - gamma * sizes.std() - sizes)
    small = np.exp(missing / (mean_size / 10)).mean()  # Eq. 9, L2
    return float(within.sum() + balance * small)


def search(distances: Floats, tree: Tree, alphas: Sequence[float] = ALPHAS) -> list[Candidate]:
    """Algorithm 3's records: every threshold with its clusters and loss."""
    records: dict[int, Candidate] = {}
    found = []
    for alpha in alphas:
        labels = tree.cut(alpha)
        clusters = int(labels.max()) + 1
        if clusters not in records:
            records[clusters] = Candidate(alpha, clusters, clustering_loss(distances, labels))
        found.append(Candidate(alpha, clusters, records[clusters].loss))
    return found


def choose_on_plateau(candidates: Sequence[Candidate], most: int | None = None) -> Candidate:
    """The lowest loss among counts that stay the same for three consecutive thresholds, the middle of them.

    `most` bounds the number of clusters. With no such plateau, the lowest loss of all; fewer clusters where losses tie.

    >>> curve = [Candidate(0.1, 9, 0.1), *(Candidate(a, 4, 0.3) for a in (0.2, 0.3, 0.4)), Candidate(0.5, 1, 0.9)]
    >>> choose_on_plateau(curve)
    Candidate(alpha=0.3, clusters=4, loss=0.3)
    """
    allowed = [
        item for item in sorted(candidates, key=lambda item: item.alpha) if most is None or item.clusters <= most
    ]
    if not allowed:
        allowed = [min(candidates, key=lambda item: item.clusters)]
    counts = [item.clusters for item in allowed]
    stable = [item for item in allowed if counts.count(item.clusters) >= STABLE_STEPS] or allowed
    best = min(stable, key=lambda item: (item.loss, item.clusters))
    plateau = [item for item in stable if item.clusters == best.clusters]
    return plateau[(len(plateau) - 1) // 2]


# Cutting by noise ----------------------------------------------------------------------------------------------------


def noise_of(condensed: Floats) -> float:
    """The scatter of distances between like clients: the root mean square of those below zero.

    >>> noise_of(np.array([-1.0, 1.0, 50.0, -1.0], np.float32))
    1.0
    """
    below = condensed[condensed < 0].astype(np.float64)
    return float(np.sqrt(np.mean(below**2))) if len(below) else 0.0


def least_significant(noise: float, one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least distance between clusters of these sizes that counts: a mean over many clients is less noisy."""
    least: NDArray[np.float64] = np.maximum(LEAST_DIFFERENCE, CONFIDENCE * noise * np.sqrt((1 / one + 1 / other) / 2))
    return least


def cut_by_noise(condensed: Floats, tree: Tree) -> Cut:
    """Cut where fewest clients end up on the wrong side; then a group that is not really apart joins its nearest.

    A merge above the cut that is within noise splits like clients; a merge below it that is beyond noise joins unlike
    ones. Each is counted with the smaller of its two sides. Where several cuts are equally good, the one amid the
    widest gap is taken, on a logarithmic scale.
    """
    if tree.clients == 1:
        return Cut(np.zeros(1, np.int64), LEAST_DIFFERENCE)
    noise = noise_of(condensed)
    one, other = tree.sizes()
    beyond = tree.heights >= least_significant(noise, one, other)
    affected = np.minimum(one, other)
    joined_wrongly = np.concatenate([[0], np.cumsum(affected * beyond)])
    split_wrongly = np.concatenate([[0], np.cumsum((affected * ~beyond)[::-1])])[::-1]
    wrong = joined_wrongly + split_wrongly
    edges = np.maximum(np.concatenate([[0], tree.heights, [max(1.0, tree.heights[-1])]]), LEAST_DIFFERENCE)
    gaps = np.where(wrong == wrong.min(), edges[1:] / edges[:-1], 0)
    done = int(gaps.argmax())  # how many merges are done
    alpha = float(np.sqrt(edges[done] * edges[done + 1]))
    labels = tree.cut(alpha)
    if labels.max() > 0:
        labels = _joined(square(known(condensed)), labels, noise)
    return Cut(labels, alpha)


def _joined(distances: Floats, labels: Labels, noise: float) -> Labels:
    """Groups merged, least apart first, until every two differ by more than noise."""
    sizes, means = cluster_means(distances, labels)
    target = np.arange(len(sizes))
    while len(sizes) > 1:
        excess = means / least_significant(noise, sizes[:, None], sizes[None])
        np.fill_diagonal(excess, np.inf)
        keep, gone = sorted(int(place) for place in np.unravel_index(excess.argmin(), excess.shape))
        if excess[keep, gone] >= 1:
            break
        means[keep] = (sizes[keep] * means[keep] + sizes[gone] * means[gone]) / (sizes[keep] + sizes[gone])
        means[:, keep] = means[keep]
        sizes[keep] += sizes[gone]
        means, sizes = np.delete(np.delete(means, gone, 0), gone, 1), np.delete(sizes, gone)
        target = np.where(target == gone, keep, np.where(target > gone, target - 1, target))
    return numbered(target[labels])


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
    to_cluster = _membership(labels) @ square(np.maximum(known(condensed), 0))
    inside = to_cluster[labels, np.arange(len(labels))] / np.maximum(own - 1, 1)
    to_cluster[labels, np.arange(len(labels))] = np.inf
    outside = (to_cluster / sizes[:, None]).min(0)
    apart = (outside - inside) / np.maximum(np.maximum(outside, inside), 1e-12)
    return np.asarray(np.maximum(apart, 0) * (own > 1), np.float64)


def refuse_bad_distances(condensed: Floats, names: Sequence[str]) -> None:
    """A distance that is not finite is refused, naming the client."""
    bad = np.flatnonzero(~np.isfinite(condensed))
    if len(bad):
        table = square(np.isfinite(condensed).astype(np.float32))
        np.fill_diagonal(table, 1)
        raise FeddagError(f"client {names[int(table.sum(1).argmin())]}: its distances are not finite numbers")
