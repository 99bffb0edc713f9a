"""Where to cut the tree of merges: how many groups there are.

Three rules choose the threshold alpha. `plateau` reads "low loss and relatively few clusters" from the paper's curve
(Eq. 9-10): the lowest loss among cluster counts that stay the same for three consecutive steps of alpha. It needs
nothing but the curve, and it cannot tell noise from structure. `lowest` is the lowest loss alone. `noise` needs
distances that are an excess over chance (`similarity`): among clients of one group they scatter around zero, so the
negative ones tell how wide, and clusters are not merged where their distance is more than such a scatter explains.
Or the user fixes the threshold, or the number of groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from feddag.errors import FeddagError
from feddag.server.clustering import Algorithm, Cut, Labels, Tree, relabel
from feddag.server.noise import NOTHING_IN_COMMON, cut_by_noise
from feddag.server.similarity import Floats, min_max, square

Rule = Literal["noise", "plateau", "lowest"]

ALPHAS = tuple(np.round(np.arange(1, 21) * 0.05, 2).tolist())
STABLE_STEPS = 3
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
    return Cut(tree.cut(alpha), alpha, "lowest" if how.rule == "lowest" else "plateau")


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
