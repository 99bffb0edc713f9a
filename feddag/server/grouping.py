"""Groups of clients from their signatures: what a server calls, with or without the rest of the library."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.errors import FeddagError, nearest
from feddag.rng import rng
from feddag.server.clustering import (
    ALPHAS,
    Candidate,
    Cut,
    Labels,
    Linkage,
    Tree,
    build_tree,
    choose_on_plateau,
    cut_by_noise,
    least_significant,
    noise_of,
    refuse_bad_distances,
    search,
)
from feddag.server.complement import Alignment, ComplementGraph, complement_graph
from feddag.server.fusion import (
    LEAST_WEIGHT,
    MUDDLED_BELOW,
    blend,
    fused,
    gate_of_newcomer,
    mixed,
    printed_mlp,
    printed_projection,
)
from feddag.server.similarity import (
    Floats,
    class_excess,
    counts_of,
    data_angles,
    data_excess,
    gradient_angles,
    gradient_excess,
    min_max,
    square,
    stacked_angles,
    usual_noise,
)

FUSIONS = ("clarity", "mlp", "projected", "data", "gradient", "stacked")
VIEWS = ("classes", "data", "gradient")
Fusion = Literal["clarity", "mlp", "projected", "data", "gradient", "stacked"]
NOTHING_IN_COMMON = 0.5  # the distance beyond which clients are better off alone
COMPARED = 50  # members of a group that a newcomer is compared with


@dataclass(frozen=True, eq=False)
class Grouping:
    """Groups, and everything that led to them. Attributes that end in _ are results, as in scikit-learn."""

    labels_: Labels
    """The group of each client, in the order of the signatures; groups are numbered by their first client."""
    threshold_: float
    """alpha*: the distance at which the tree of merges was cut."""
    candidates_: list[Candidate]
    """Other thresholds, with the number of clusters and the loss (Eq. 10) of each."""
    tree_: Tree
    distances_: Floats
    """The fused distance of every pair, condensed."""
    views_: dict[str, Floats]
    """The distances that were fused, condensed."""
    weights_: dict[str, NDArray[np.float64]]
    """How much each view counted for each client."""
    noise_: float
    """The scatter of distances between like clients."""
    graph_: ComplementGraph | None
    """Which group can teach which; None for precomputed distances."""
    signatures: Sequence[Signature] = field(default=(), repr=False)
    fusion: str = ""
    """How the views became one distance; empty for precomputed distances."""
    delta: float = 0.5
    usual_noise_: NDArray[np.float64] | None = field(default=None, repr=False)
    ranges_: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Constants that newcomers do not move: each class's usual noise, and what min-max scaling took for 0 and 1."""

    @property
    def clusters_(self) -> int:
        """How many groups there are."""
        return int(self.labels_.max()) + 1

    @property
    def proximity_(self) -> Floats:
        """The fused distances as a square matrix."""
        return square(self.distances_)

    def assign(self, newcomer: Signature) -> int | None:
        """The group for a client that was not there before; None if it is unlike every group (Algorithm 4).

        Nobody else is moved. The newcomer's own view weights say how clearly each view places it among the groups.
        """
        return self._placed(newcomer)[0]

    def joined_by(self, newcomer: Signature, label: int) -> "Grouping":
        """The same groups with one more member (or one more group), as later newcomers find them.

        Distances, tree and candidates stay those of the clients that were grouped together.
        """
        weights = self._placed(newcomer)[1]
        return replace(
            self,
            labels_=np.append(self.labels_, label),
            weights_={name: np.append(old, weights[name]) for name, old in self.weights_.items()},
            signatures=(*self.signatures, newcomer),
        )

    def _placed(self, newcomer: Signature) -> tuple[int | None, dict[str, float]]:
        """Its group, and how much each view counts for it."""
        if not self.signatures:
            raise FeddagError("a grouping of precomputed distances cannot place a newcomer: it has no signatures")
        groups, sizes = np.unique(self.labels_, return_counts=True)
        members = np.concatenate([np.flatnonzero(self.labels_ == group)[:COMPARED] for group in groups])
        known = [self.signatures[client] for client in members]
        _check_alike([*known, newcomer], [str(client) for client in members] + ["newcomer"])
        row_of = self._row_by_clarity if self.fusion == "clarity" else self._row_as_printed
        distances, shares = row_of(members, [*known, newcomer])
        means = np.array([distances[self.labels_[members] == group].mean() for group in groups])
        reach = np.full(len(groups), self.threshold_)
        if self.fusion == "clarity":
            reach = np.maximum(reach, least_significant(self.noise_, np.ones(len(groups)), sizes.astype(float)))
        nearest_group = int((means - reach).argmin()) if (means <= reach).any() else int(means.argmin())
        return (int(groups[nearest_group]) if means[nearest_group] <= reach[nearest_group] else None), shares

    def _row_by_clarity(self, members: Labels, everyone: Sequence[Signature]) -> tuple[Floats, dict[str, float]]:
        """The last client's distances to the others; a view counts as much as it tells the groups apart for it."""
        views = views_of(everyone, tuple(self.views_), self.usual_noise_)
        rows = {name: square(view)[-1, :-1] for name, view in views.items()}
        heard = [name for name in rows if self.weights_[name][: self.tree_.clients].any()]
        if np.isnan([rows[name] for name in heard]).all():  # it shares no class with anybody: other views may know that
            heard = list(rows)
        groups = self.labels_[members]
        own = {name: _clarity_of_newcomer(row, groups) + LEAST_WEIGHT for name, row in rows.items() if name in heard}
        total = sum(own.values())
        weights = {name: np.append(self.weights_[name][members], own.get(name, 0.0) / total) for name in rows}
        pairs = {n: _only_last(row, len(members)) for n, row in rows.items()}
        distances = square(blend(pairs, weights))[-1, :-1]
        unknown = np.all([np.isnan(rows[name]) for name in heard], axis=0)
        for label in np.unique(groups):
            if unknown[groups == label].all():
                distances[groups == label] = np.inf
        return distances, {name: float(value[-1]) for name, value in weights.items()}

    def _row_as_printed(self, members: Labels, everyone: Sequence[Signature]) -> tuple[Floats, dict[str, float]]:
        """Algorithm 4, lines 10-12: scaled as the clients before it were, and its own gate decides all of its row."""
        rows, founders = {}, self.signatures[: self.tree_.clients]
        for name, view in _angles(everyone, self.fusion, self.delta, founders).items():
            low, high = self.ranges_[name]
            rows[name] = (square(view)[-1, :-1] - low) / np.float32(high - low or 1.0)
        if self.fusion not in ("mlp", "projected"):
            return rows[self.fusion], {}
        gate = gate_of_newcomer(rows["gradient"], rows["data"])
        return gate * rows["gradient"] + (1 - gate) * rows["data"], {"gradient": gate, "data": 1 - gate}

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays and numbers, for a report."""
        return {
            "labels": self.labels_,
            "threshold": self.threshold_,
            "noise": self.noise_,
            "distances": self.distances_,
            "merges": self.tree_.steps,
            "candidates": np.array([[c.alpha, c.clusters, c.loss] for c in self.candidates_]),
            "views": dict(self.views_),
            "weights": dict(self.weights_),
            **({} if self.graph_ is None else {"scores": self.graph_.scores, "edges": self.graph_.edges}),
        }


def group(
    signatures: Sequence[Signature] | NDArray[Any],
    *,
    fusion: Fusion = "clarity",
    views: Sequence[str] = VIEWS,
    linkage: Linkage = "average",
    sources: int = 2,
    alignment: Alignment = "affinity",
    delta: float = 0.5,
    muddled_below: float = MUDDLED_BELOW,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> Grouping:
    """Find the groups, and how many there are, from signatures or from a square matrix of distances.

    `fusion = "clarity"` is the default described in docs/grouping.md, over the given `views`; "mlp" and "projected"
    are the paper's, "data" and "gradient" its single views, "stacked" PACFL's signal: these cut by the plateau of the
    paper's loss. Where the groups of the fused views stand apart less than `muddled_below` times those of the best
    single view, the clearest view decides alone. `names` name the clients in messages.

    >>> from feddag.client.signature import signature
    >>> draw = np.random.default_rng(0)
    >>> def client(labels):
    ...     return signature(draw.normal(size=(20, 4)), draw.permutation(np.repeat(labels, 10)), num_classes=4)
    >>> group([client([0, 1]), client([2, 3]), client([0, 1]), client([2, 3])]).labels_.tolist()
    [0, 1, 0, 1]
    """
    _one_of("fusion", fusion, FUSIONS)
    _one_of("linkage", linkage, ("average", "weighted", "single", "complete"))
    _one_of("alignment", alignment, ("affinity", "paper", "none"))
    if sources < 0:
        raise FeddagError(f"sources = {sources} is not allowed: it should be at least 0")
    if not 0 <= delta <= 1:
        raise FeddagError(f"delta = {delta} is not allowed: it should be from 0 to 1")
    if not 0 <= muddled_below <= 1:
        raise FeddagError(f"muddled_below = {muddled_below} is not allowed: it should be from 0 to 1")
    names = [str(number) for number in range(len(signatures))] if names is None else list(names)
    if len(names) != len(signatures):
        raise FeddagError(f"there are {len(names)} names for {len(signatures)} clients")
    if isinstance(signatures, np.ndarray):
        return _of_matrix(signatures, linkage, names)
    _check_alike(signatures, names)
    _check_views(fusion, views, updates=bool(len(signatures[0].update)))
    weights: dict[str, NDArray[np.float64]] = {}
    ranges: dict[str, tuple[float, float]] = {}
    if fusion == "clarity":
        seen = views_of(signatures, tuple(views))
        result = fused(seen, linkage, muddled_below)
        distances, weights = result.distances, result.weights
    else:
        angles = _angles(signatures, fusion, delta)
        ranges = {name: _range(view) for name, view in angles.items()}
        distances, weights, seen = _printed(angles, fusion, seed)
    tree = build_tree(distances, linkage)
    candidates = search(min_max_square(distances), _rescaled(tree, distances), ALPHAS)
    noise = noise_of(distances) if fusion == "clarity" else 0.0
    cut = _cut(distances, tree, candidates, by_noise=fusion == "clarity")
    graph = complement_graph(signatures, cut.labels, sources, alignment, rng(seed, "complement"))
    return Grouping(
        labels_=cut.labels,
        threshold_=cut.alpha,
        candidates_=candidates,
        tree_=tree,
        distances_=distances,
        views_=seen,
        weights_=weights,
        noise_=noise,
        graph_=graph,
        signatures=tuple(signatures),
        fusion=fusion,
        delta=delta,
        usual_noise_=usual_noise(signatures),
        ranges_=ranges,
    )


def views_of(
    signatures: Sequence[Signature], names: Sequence[str], usual: NDArray[np.float64] | None = None
) -> dict[str, Floats]:
    """The named views; the gradient only where every client has sent an update."""
    updates = all(len(item.update) for item in signatures)
    makers = {
        "classes": lambda: class_excess(counts_of(signatures)),
        "data": lambda: data_excess(signatures, usual),
        "gradient": lambda: gradient_excess(signatures),
    }
    return {name: makers[name]() for name in names if name != "gradient" or updates}


def _angles(
    signatures: Sequence[Signature], fusion: str, delta: float, known: Sequence[Signature] | None = None
) -> dict[str, Floats]:
    """What the papers compare clients by, before it is scaled."""
    if fusion == "stacked":
        return {"stacked": stacked_angles(signatures)}
    data = {"data": data_angles(signatures, delta, known)}
    return data if fusion == "data" else data | {"gradient": gradient_angles(signatures)}


def _printed(
    angles: dict[str, Floats], fusion: str, seed: int
) -> tuple[Floats, dict[str, NDArray[np.float64]], dict[str, Floats]]:
    """Distances as the papers print them, min-max scaled; gates of the gradient where there are any."""
    seen = {name: min_max(view) for name, view in angles.items()}
    if fusion not in ("mlp", "projected"):
        return seen[fusion], {}, {} if fusion == "stacked" else seen
    import torch

    data, gradient = seen["data"], seen["gradient"]
    gates = (
        printed_mlp(gradient, data, seed) if fusion == "mlp" else printed_projection(gradient, data, rng(seed, "gates"))
    )
    matrix = mixed(torch.from_numpy(gates).float(), torch.from_numpy(square(gradient)), torch.from_numpy(square(data)))
    condensed: Floats = matrix.numpy()[np.triu_indices(len(gates), 1)]
    return condensed, {"gradient": gates, "data": 1 - gates}, seen


def _cut(distances: Floats, tree: Tree, candidates: Sequence[Candidate], *, by_noise: bool) -> Cut:
    if by_noise:
        cut = cut_by_noise(distances, tree)
        apart = tree.heights[tree.heights > cut.alpha]
        if cut.clusters <= (tree.clients + 1) // 2 or apart.min() > NOTHING_IN_COMMON:
            return cut
    # Most are alone, and yet have much in common: no groups in sight. Then few clusters at a low loss are all one can
    # ask for.
    chosen = choose_on_plateau(candidates, most=max(1, int(np.sqrt(tree.clients))) if by_noise else None)
    low, high = _range(distances)
    alpha = low + chosen.alpha * (high - low)
    return Cut(tree.cut(alpha), alpha)


def _of_matrix(matrix: NDArray[Any], linkage: Linkage, names: Sequence[str]) -> Grouping:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise FeddagError(f"a precomputed matrix must be square, and this one has shape {matrix.shape}")
    condensed: Floats = np.asarray((matrix + matrix.T) / 2, np.float32)[np.triu_indices(len(matrix), 1)]
    refuse_bad_distances(condensed, names)
    tree = build_tree(condensed, linkage)
    candidates = search(min_max_square(condensed), _rescaled(tree, condensed), ALPHAS)
    cut = _cut(condensed, tree, candidates, by_noise=False)
    return Grouping(cut.labels, cut.alpha, candidates, tree, condensed, {}, {}, 0.0, None)


def min_max_square(distances: Floats) -> Floats:
    """Distances as the paper's loss takes them: scaled to [0, 1] over all pairs."""
    return square(min_max(distances))


def _rescaled(tree: Tree, distances: Floats) -> Tree:
    """The same merges at min-max heights, for the paper's grid of thresholds in [0, 1]."""
    low, high = _range(distances)
    steps = tree.steps.copy()
    steps[:, 2] = (steps[:, 2] - low) / max(high - low, 1e-30)
    return Tree(steps, tree.clients, 0.0)


def _range(distances: Floats) -> tuple[float, float]:
    return (float(distances.min()), float(distances.max())) if len(distances) else (0.0, 1.0)


def _clarity_of_newcomer(row: Floats, groups: Labels) -> float:
    """How much nearer the nearest group is than the next, in one view: a silhouette of one."""
    means = [np.nanmean(row[groups == g]) for g in np.unique(groups) if not np.isnan(row[groups == g]).all()]
    if len(means) < 2:
        return 0.0
    near, next_one = np.maximum(np.sort(means)[:2], 0)
    return float((next_one - near) / max(next_one, 1e-12))


def _only_last(row: Floats, known: int) -> Floats:
    """A condensed array in which only the last client's distances matter."""
    matrix = np.zeros((known + 1, known + 1), np.float32)
    matrix[-1, :-1] = matrix[:-1, -1] = row
    condensed: Floats = matrix[np.triu_indices(known + 1, 1)]
    return condensed


def _check_alike(signatures: Sequence[Signature], names: Sequence[str]) -> None:
    if not signatures:
        raise FeddagError("there is no signature to group")
    first = signatures[0]
    for item, name in zip(signatures, names, strict=True):
        if item.vectors.shape != first.vectors.shape or item.update.shape != first.update.shape:
            raise FeddagError(
                f"client {name}: its signature has vectors {item.vectors.shape} and an update of {len(item.update)},"
                f" and that of client {names[0]} {first.vectors.shape} and {len(first.update)}"
            )
        try:
            item.check()
        except FeddagError as error:
            raise FeddagError(f"client {name}: {error}") from None


def _check_views(fusion: str, views: Sequence[str], updates: bool) -> None:
    for view in views:
        _one_of("views", view, VIEWS)
    if not views:
        raise FeddagError(f"views is empty; allowed are {', '.join(VIEWS)}")
    if not updates and fusion in ("gradient", "mlp", "projected"):
        raise FeddagError(f"fusion = '{fusion}' needs signatures with an update")
    if not updates and set(views) == {"gradient"}:
        raise FeddagError("views = 'gradient' needs signatures with an update")


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise FeddagError(
            f"{name} = '{value}' is not allowed; allowed are {', '.join(allowed)}{nearest(value, allowed)}"
        )
