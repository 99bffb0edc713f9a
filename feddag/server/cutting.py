"""Where to cut the tree of merges: how many groups there are.

Three rules choose the threshold alpha. `plateau` reads "low loss and relatively few clusters" from the paper's curve
(Eq. 9-10): the lowest loss among cluster counts that stay the same for three consecutive steps of alpha. It needs
nothing but the curve, and it cannot tell noise from structure. `lowest` is the lowest loss alone. `noise` needs
distances that are an excess over chance (`similarity`): among clients of one group they scatter around zero, so the
negative ones tell how wide, and clusters are not merged where their distance is more than such a scatter explains.
Or the user fixes the threshold, or the number of groups.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from feddag.errors import FeddagError
from feddag.server.clustering import Algorithm, Labels, Tree, clients_of, cluster_means, fill_unknown, relabel
from feddag.server.similarity import Floats, min_max, square

Rule = Literal["noise", "plateau", "lowest"]

ALPHAS = tuple(np.round(np.arange(1, 21) * 0.05, 2).tolist())
STABLE_STEPS = 3
LEAST_DIFFERENCE = 3 / 90
"""Groups less than 3 degrees apart beyond chance do not need models of their own, however certain the difference."""
CONFIDENCE = 2.5
"""A difference between clusters counts when it exceeds its own noise by this factor."""
FALSE_SPLITS = 0.01
"""The chance that any of the clients is set apart by noise alone: the more there are, the surer each has to be."""
FEW = 2
"""So many clients may stray together by chance; more do not, because what sets them apart sets them apart as well."""
MOST_BY_FEW = 2.0
"""As many times the noise among the others is the most that a tenth of the clients can make of it."""
LEAST_SAMPLES = 20
"""So many samples a group of few clients has to have: what sets apart fewer is not known."""
NOTHING_IN_COMMON = 0.5
"""The distance beyond which clients are better off alone."""
LARGEST_EXPONENT = 700.0  # exp of more is infinite


@dataclass(frozen=True)
class CutSettings:
    """Where to cut, as far as that is not left to the distances."""

    rule: Rule | None = None
    """None: by noise where distances are an excess over chance, else by plateau."""
    threshold: float | None = None
    """A fixed alpha, in units of the distances; no rule is asked."""
    clusters: int | None = None
    """A fixed number of groups; no rule is asked."""
    balance: float = 0.01
    """lambda of Eq. 10."""
    gamma: float = 1.0
    tau: float | None = None
    """Of Eq. 9, in clients; None: a tenth of the mean cluster size."""
    algorithm: Algorithm = "agglomerative"
    """Who finds the members of that many groups (A.2)."""

    def __post_init__(self) -> None:
        if self.threshold is not None and self.clusters is not None:
            raise FeddagError(f"threshold = {self.threshold} and clusters = {self.clusters}: give one of the two")
        if self.clusters is not None and self.clusters < 1:
            raise FeddagError(f"clusters = {self.clusters} is not allowed: it should be at least 1")


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


def choose_cut(
    condensed: Floats, tree: Tree, candidates: Sequence[Candidate], how: CutSettings, *, by_noise: bool, scaled: bool
) -> Cut:
    """Cut as fixed, or by the rule; without one, `by_noise` or on the plateau of the loss.

    `scaled` says that the candidates' thresholds are in units of the range of the distances.
    """
    if how.clusters is not None:
        return cut_into(tree, how.clusters)
    if how.threshold is not None:
        return Cut(tree.cut(how.threshold), how.threshold)
    by_noise = how.rule == "noise" or (how.rule is None and by_noise)
    if by_noise:
        cut = cut_by_noise(condensed, tree)
        apart = tree.heights[tree.heights > cut.alpha]
        if cut.clusters <= (tree.clients + 1) // 2 or apart.min() > NOTHING_IN_COMMON:
            return cut
    # By noise most clients would be alone although they have much in common: no groups in sight. Then take the best of
    # a few large clusters.
    if how.rule == "lowest":
        chosen = min(candidates, key=lambda item: (item.loss, item.clusters))
    else:
        chosen = choose_on_plateau(candidates, most=max(1, int(np.sqrt(tree.clients))) if by_noise else None)
    low, high = range_of(condensed) if scaled else (0.0, 1.0)
    alpha = low + chosen.alpha * (high - low)
    return Cut(tree.cut(alpha), alpha)


def cut_into(tree: Tree, clusters: int) -> Cut:
    """The cut that leaves so many groups: the lowest merges are done, the first of those that are equally high.

    >>> from feddag.server.clustering import build_tree
    >>> cut_into(build_tree(np.array([1.0, 5.0, 5.0], np.float32)), 2).labels.tolist()
    [0, 0, 1]
    """
    if clusters > tree.clients:
        raise FeddagError(f"clusters = {clusters} is more than there are clients, and those are {tree.clients}")
    group = np.arange(tree.clients + len(tree.merges))
    done = tree.clients - clusters
    for number, (one, other) in enumerate(tree.merges[:done, :2].astype(int)):
        group[np.isin(group, (group[one], group[other]))] = tree.clients + number
    edges = np.concatenate([[0.0], tree.heights, [tree.heights[-1]]]) if tree.clients > 1 else np.zeros(2)
    return Cut(relabel(group[: tree.clients]), float((edges[done] + edges[done + 1]) / 2))


# The paper's search --------------------------------------------------------------------------------------------------


def clustering_loss(
    distances: Floats, labels: Labels, balance: float = 0.01, gamma: float = 1.0, tau: float | None = None
) -> float:
    """Eq. 10 of a square matrix: compactness, plus `balance` (the paper's lambda) times the penalty of small clusters.

    The paper leaves lambda, gamma and tau open; its code has 0.01, 1 and 1 client. Sizes grow with the number of
    clients, and exp(size / 1 client) overflows; so tau, unless given, is a tenth of the mean cluster size (1 client for
    100 clients in 10 clusters), which makes the penalty depend on how unequal clusters are and not on how many clients
    there are.

    >>> apart = np.array([[0, 0.2, 1], [0.2, 0, 1], [1, 1, 0]])
    >>> round(clustering_loss(apart, np.array([0, 0, 1])), 6)  # 0.1 + 0 within; sizes 2 and 1, none below 1.5 - 0.5
    0.11
    """
    sizes = np.bincount(labels).astype(float)
    members = np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])
    within = np.array([distances[np.ix_(own, own)].sum(dtype=np.float64) for own in members]) / sizes**2  # Eq. 9, L1
    mean_size = sizes.mean()
    missing = np.maximum(0.0, mean_size - gamma * sizes.std() - sizes)
    small = np.exp(np.minimum(missing / (tau or mean_size / 10), LARGEST_EXPONENT)).mean()  # Eq. 9, L2
    return float(within.sum() + balance * small)


def search_thresholds(
    distances: Floats, tree: Tree, alphas: Sequence[float] = ALPHAS, how: CutSettings | None = None
) -> list[Candidate]:
    """Algorithm 3's records: every threshold with its clusters and loss."""
    how = how or CutSettings()
    records: dict[int, Candidate] = {}
    found = []
    for alpha in alphas:
        labels = tree.cut(alpha)
        clusters = int(labels.max()) + 1
        if clusters not in records:
            loss = clustering_loss(distances, labels, how.balance, how.gamma, how.tau)
            records[clusters] = Candidate(alpha, clusters, loss)
        found.append(Candidate(alpha, clusters, records[clusters].loss))
    return found


def search_scaled_thresholds(condensed: Floats, tree: Tree, how: CutSettings | None = None) -> list[Candidate]:
    """The search over the paper's grid of thresholds, with distances and merges scaled to [0, 1]."""
    low, high = range_of(condensed)
    merges = tree.merges.copy()
    merges[:, 2] = (merges[:, 2] - low) / max(high - low, 1e-30)
    return search_thresholds(square(min_max(condensed)), Tree(merges, tree.clients, 0.0), ALPHAS, how)


def range_of(condensed: Floats) -> tuple[float, float]:
    """The least and the greatest distance; 0 and 1 where there is none.

    >>> range_of(np.array([3.0, 1.0, 2.0], np.float32))
    (1.0, 3.0)
    """
    return (float(condensed.min()), float(condensed.max())) if len(condensed) else (0.0, 1.0)


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


def estimate_noise(condensed: Floats) -> float:
    """The spread of distances between clients of one group: the root mean square of those below zero.

    >>> estimate_noise(np.array([-1.0, 1.0, 50.0, -1.0], np.float32))
    1.0
    """
    below = condensed[condensed < 0].astype(np.float64)
    noise = float(np.sqrt(np.mean(below**2))) if len(below) else 0.0
    sure = confidence(clients_of(condensed))
    if sure * noise <= LEAST_DIFFERENCE:
        return noise  # it decides nothing
    return min(noise, max(MOST_BY_FEW * _noise_without_few(condensed), LEAST_DIFFERENCE / sure))


def _noise_without_few(condensed: Floats) -> float:
    """The same without the tenth of the clients that contribute most; infinite where too few distances are left.

    A client that claims to know nothing about itself is nearer than chance to everybody: without a bound, a few of them
    could make any difference between the others look like noise.
    """
    clients = clients_of(condensed)
    few = clients // 10
    if few == 0:
        return math.inf
    squares = np.zeros(clients)
    for client, row in enumerate(_rows(condensed, clients)):
        below = np.minimum(row, 0, dtype=np.float64) ** 2
        squares[client] += np.nansum(below)
        squares[client + 1 :] += np.nan_to_num(below)
    kept = np.ones(clients, bool)
    kept[np.argsort(squares, kind="stable")[-few:]] = False
    left = [row[kept[client + 1 :]] for client, row in enumerate(_rows(condensed, clients)) if kept[client]]
    among = np.concatenate(left).astype(np.float64)
    below = among[among < 0]
    return float(np.sqrt(np.mean(below**2))) if len(below) >= clients else math.inf


def _rows(condensed: Floats, clients: int) -> Iterator[Floats]:
    """For each client its distances to those after it."""
    ends = np.cumsum(np.arange(clients - 1, -1, -1))
    return (condensed[end - (clients - 1 - client) : end] for client, end in enumerate(ends.tolist()))


def confidence(clients: int) -> float:
    """How many times its own noise a difference has to be, where so many clients might stray by chance.

    Student's t: the noise is known only as well as so many clients tell it.

    >>> [round(confidence(clients), 2) for clients in (10, 100, 10_000)]
    [4.3, 3.86, 4.76]
    """
    return -float(stdtrit(max(clients - 1, 1), FALSE_SPLITS / clients))


def least_significant_distance(
    noise: float, one: NDArray[np.float64], other: NDArray[np.float64], clients: int
) -> NDArray[np.float64]:
    """The least distance between clusters of these sizes that counts: a mean over many clients is less noisy.

    The noise is mostly that of clients: one whose own noise is misjudged is too far from all others. So one or two have
    to be surer the more `clients` there are in all.
    """
    sure = np.where(np.minimum(one, other) <= FEW, max(confidence(clients), CONFIDENCE), CONFIDENCE)
    least: NDArray[np.float64] = np.maximum(LEAST_DIFFERENCE, sure * noise * np.sqrt((1 / one + 1 / other) / 2))
    return least


def cut_by_noise(condensed: Floats, tree: Tree) -> Cut:
    """Cut where the fewest clients end up on the wrong side; then merge groups whose distance is within noise.

    A merge above the cut that is within noise separates clients that belong together; a merge below it that is beyond
    noise joins clients that do not. Each is counted with the smaller of its two sides. Where several cuts are equally
    good, the one in the middle of the widest gap is taken, on a logarithmic scale.
    """
    if tree.clients == 1:
        return Cut(np.zeros(1, np.int64), LEAST_DIFFERENCE)
    noise = estimate_noise(condensed)
    one, other = tree.sizes()
    significant = tree.heights >= least_significant_distance(noise, one, other, tree.clients)
    affected = np.minimum(one, other)
    joined_wrongly = np.concatenate([[0], np.cumsum(affected * significant)])
    split_wrongly = np.concatenate([[0], np.cumsum((affected * ~significant)[::-1])])[::-1]
    wrong = joined_wrongly + split_wrongly
    edges = np.maximum(np.concatenate([[0], tree.heights, [max(1.0, tree.heights[-1])]]), LEAST_DIFFERENCE)
    gaps = np.where(wrong == wrong.min(), edges[1:] / edges[:-1], 0)
    done = int(gaps.argmax())  # how many merges are done
    alpha = float(np.sqrt(edges[done] * edges[done + 1]))
    labels = tree.cut(alpha)
    if labels.max() > 0:
        labels = _merge_insignificant(square(fill_unknown(condensed)), labels, noise)
    return Cut(labels, alpha)


def _merge_insignificant(distances: Floats, labels: Labels, noise: float) -> Labels:
    """Groups merged, least apart first, until every two differ by more than noise."""
    sizes, means = cluster_means(distances, labels)
    target = np.arange(len(sizes))
    while len(sizes) > 1:
        excess = means / least_significant_distance(noise, sizes[:, None], sizes[None], len(labels))
        np.fill_diagonal(excess, np.inf)
        keep, gone = sorted(int(index) for index in np.unravel_index(excess.argmin(), excess.shape))
        if excess[keep, gone] >= 1:
            break
        means[keep] = (sizes[keep] * means[keep] + sizes[gone] * means[gone]) / (sizes[keep] + sizes[gone])
        means[:, keep] = means[keep]
        sizes[keep] += sizes[gone]
        means, sizes = np.delete(np.delete(means, gone, 0), gone, 1), np.delete(sizes, gone)
        target = np.where(target == gone, keep, np.where(target > gone, target - 1, target))
    return relabel(target[labels])


def with_few_samples_joined(condensed: Floats, labels: Labels, samples: NDArray[np.int64]) -> Labels:
    """Groups of one or two clients with fewer than `LEAST_SAMPLES` samples joined to the group nearest to them.

    Clients measure their own noise, and from a handful of samples that measure is mostly chance.

    >>> pairs = np.array([0, 0, 1, 0, 1, 1], np.float32)
    >>> with_few_samples_joined(pairs, np.array([0, 0, 0, 1]), np.array([30, 30, 30, 4])).tolist()
    [0, 0, 0, 0]
    """
    distances = square(fill_unknown(condensed))
    while labels.max() > 0:
        sizes, means = cluster_means(distances, labels)
        np.fill_diagonal(means, np.inf)
        held = np.bincount(labels, samples)
        few = np.flatnonzero((sizes <= FEW) & (held < LEAST_SAMPLES))
        if not len(few):
            break
        one = few[means[few].min(1).argmin()]
        labels = relabel(np.where(labels == one, means[one].argmin(), labels))
    return labels
