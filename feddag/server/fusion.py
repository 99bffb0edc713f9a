"""Several views of how unlike clients are, made into one, each counting as much as it is clear.

Each view first groups the clients by itself, and counts for a client as much as that grouping is clear there. The
paper's own ways are in `printed_fusion`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.server.clustering import Cut, Linkage, build_tree, clarity, silhouettes
from feddag.server.noise import cut_by_noise
from feddag.server.similarity import Floats, class_excess, counts_of, data_excess, gradient_excess
from feddag.server.style import StyleSpace

STYLE, DATA = "style", "data"
VIEWS = ("classes", "data", "gradient", STYLE)
LEAST_CLARITY_RATIO = 0.5
"""A view that is less than half as clear as the clearest is ignored."""
LEAST_SILHOUETTE_RATIO = 0.9
"""The silhouette that several views must reach together, as a share of the best that one of them reaches alone."""
LEAST_REFINED = 10
"""Clients of one look among whom groups are looked for: the pairs of fewer tell too little of what chance gives."""
LEAST_WEIGHT = 1e-3
"""Added to every clarity, so that all views count the same where none is clear."""


def views_of(
    signatures: Sequence[Signature],
    names: Sequence[str],
    usual: NDArray[np.float64] | None = None,
    style: StyleSpace | None = None,
) -> dict[str, Floats]:
    """The named views; the gradient only where every client has sent an update, `style` where there is one."""
    updates = all(len(item.update) for item in signatures)
    makers: dict[str, Callable[[], Floats]] = {
        "classes": lambda: class_excess(counts_of(signatures)),
        "data": lambda: data_excess(signatures, usual),
    }
    if updates:
        makers["gradient"] = lambda: gradient_excess(signatures)
    if style is not None:
        makers["style"] = style.view
    return {name: makers[name]() for name in names if name in makers}


@dataclass(frozen=True)
class FusedDistances:
    """One distance per pair, and how much each view counted for each client (rows sum to 1)."""

    distances: Floats
    weights: dict[str, NDArray[np.float64]]
    cuts: dict[str, Cut]
    """The grouping that each view gave by itself."""


def fuse_by_clarity(
    views: Mapping[str, Floats], linkage: Linkage = "average", least_silhouette_ratio: float = LEAST_SILHOUETTE_RATIO
) -> FusedDistances:
    """The mean of the views, each weighted by how clearly it groups the two clients; a view that is nan is left out.

    Views may be clear about different things, and together show the finer groups. Or they only blur each other, as
    domains and the classes that small clients happen to hold do. So where the mean silhouette of the fused groups is
    less than `least_silhouette_ratio` times that of the best single view, one view decides alone: how samples look, if
    that counts, because its groups were tested against chance and hold inside each class; else the clearest. Among
    clients that look alike the data view then says whether there are groups inside (`_refined`).
    """
    cuts = {name: cut_by_noise(view, build_tree(view, linkage)) for name, view in views.items()}
    clarities = {name: clarity(view, cuts[name].labels) for name, view in views.items()}
    clearest = max(clarities, key=lambda name: float(clarities[name].mean()))
    least = LEAST_CLARITY_RATIO * clarities[clearest].mean()
    active_views = {name: value + LEAST_WEIGHT for name, value in clarities.items() if value.mean() >= least}
    weights = _normalised(active_views, views)
    distances = blend(views, weights)
    if len(active_views) > 1 and least_silhouette_ratio > 0:
        together = silhouettes(distances, cut_by_noise(distances, build_tree(distances, linkage)).labels).mean()
        alone = max(silhouettes(views[name], cuts[name].labels).mean() for name in active_views)
        if together < least_silhouette_ratio * alone:
            deciding = STYLE if STYLE in active_views else clearest
            weights = _normalised({deciding: active_views[deciding]}, views)
            distances = blend(views, weights)
            if deciding == STYLE and DATA in views:
                distances, weights = _refined(views[DATA], distances, weights, linkage)
    return FusedDistances(distances, weights, cuts)


def _refined(
    data: Floats, distances: Floats, weights: dict[str, NDArray[np.float64]], linkage: Linkage
) -> tuple[Floats, dict[str, NDArray[np.float64]]]:
    """Distances by looks, and inside groups of the same looks those of the data view, where it sees groups there.

    Looks that differ blur what else does: concepts of clean and of noisy images are told apart among either. Which
    classes clients hold is not asked here: few clients of one look miss some by chance.
    """
    labels = cut_by_noise(distances, build_tree(distances, linkage)).labels
    distances, weights = distances.copy(), {name: value.copy() for name, value in weights.items()}
    for group in np.unique(labels):
        members = np.flatnonzero(labels == group)
        if len(members) < LEAST_REFINED:
            continue
        pairs = pairs_among(members, len(labels))
        inside = data[pairs]
        if cut_by_noise(inside, build_tree(inside, linkage)).clusters > 1:
            distances[pairs] = np.nan_to_num(inside)
            weights[STYLE][members] = weights[DATA][members] = 0.5
    return distances, weights


def pairs_among(members: NDArray[np.int64], clients: int) -> NDArray[np.int64]:
    """Where the pairs of some clients stand among the pairs of all, in order.

    >>> pairs_among(np.array([0, 2, 3]), 4).tolist()  # of 01 02 03 12 13 23
    [1, 2, 5]
    """
    one, other = (members[side] for side in np.triu_indices(len(members), 1))
    return one * (2 * clients - one - 1) // 2 + other - one - 1


def _normalised(
    active_views: Mapping[str, NDArray[np.float64]], names: Iterable[str]
) -> dict[str, NDArray[np.float64]]:
    """Weights that sum to 1 for each client; 0 for the views that are not active."""
    total = np.sum(list(active_views.values()), axis=0)
    return {name: active_views[name] / total if name in active_views else np.zeros_like(total) for name in names}


def blend(views: Mapping[str, Floats], weights: Mapping[str, NDArray[np.float64]]) -> Floats:
    """The weighted mean of the views; a pair's weight is the mean of its two clients'.

    A pair that no active view can compare is at distance 0: whether it ends up in one group is then decided by the
    distances of the two to everybody else.

    >>> views = {"a": np.array([1.0], np.float32), "b": np.array([0.0], np.float32)}
    >>> blend(views, {"a": np.array([1.0, 0.5]), "b": np.array([0.0, 0.5])}).tolist()
    [0.75]
    """
    clients = len(next(iter(weights.values())))
    blended = np.empty_like(next(iter(views.values())))
    end = 0
    for client in range(clients - 1):  # row by row: there may be too many pairs for several arrays of them
        start, end = end, end + clients - 1 - client
        total, weight = np.zeros(end - start, np.float32), np.zeros(end - start, np.float32)
        for name, view in views.items():
            gate = weights[name].astype(np.float32)
            seen = view[start:end]
            pair = (gate[client] + gate[client + 1 :]) / 2 * ~np.isnan(seen)
            total += pair * np.nan_to_num(seen)
            weight += pair
        blended[start:end] = total / np.maximum(weight, 1e-30)
    return blended
