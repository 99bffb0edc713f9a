"""Which group a client belongs to that was not there when the groups were found, by its distances to their members.

Nothing that the others were grouped by moves: usual noises, scales and everybody else's weights stay as they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.server.clustering import Labels
from feddag.server.fusion import LEAST_WEIGHT, blend, views_of
from feddag.server.printed_fusion import GATED_FUSIONS, angles_of, newcomer_gate
from feddag.server.similarity import Angles, Floats, square

MEMBERS_COMPARED = 50  # a newcomer is compared with so many members of each cluster, at most


@dataclass(frozen=True)
class Row:
    """A newcomer's distances to the members it was compared with, and the weight that each view has for it."""

    distances: Floats
    weights: dict[str, float]


def compared_members(cluster_labels: Labels, most: int = MEMBERS_COMPARED) -> Labels:
    """The clients that stand for their clusters: the first few of each.

    >>> compared_members(np.array([1, 0, 1, 0])).tolist()
    [1, 3, 0, 2]
    """
    clusters = np.unique(cluster_labels)
    return np.concatenate([np.flatnonzero(cluster_labels == cluster)[:most] for cluster in clusters])


def nearest_cluster(distances: Floats, cluster_labels: Labels, reach: NDArray[np.float64]) -> tuple[int | None, float]:
    """The cluster whose mean distance is farthest below its reach, and how sure that is; None where none is in reach.

    Sure is 1 - its mean distance / that of the nearest other cluster: 0 where both are as near, 1 where only one is.
    Where there is no other cluster, its reach takes that one's place.

    >>> nearest_cluster(np.array([0.1, 0.3, 0.8]), np.array([0, 0, 1]), np.array([0.25, 0.25]))
    (0, 0.75)
    """
    clusters = np.unique(cluster_labels)
    means = np.array([distances[cluster_labels == cluster].mean() for cluster in clusters])
    best = int((means - reach).argmin())
    if means[best] > reach[best]:
        return None, 0.0
    near, next_one = max(float(means[best]), 0.0), float(np.delete(means, best).min(initial=np.inf))
    next_one = float(reach[best]) if len(means) == 1 else next_one
    return int(clusters[best]), round(max(0.0, 1 - near / next_one), 6) if next_one > 0 else 0.0


def row_by_clarity(
    everyone: Sequence[Signature],
    cluster_labels: Labels,
    weights: Mapping[str, NDArray[np.float64]],
    active_views: Sequence[str],
    usual: NDArray[np.float64] | None,
    known: Mapping[str, Floats],
    offsets: Mapping[str, float],
) -> Row:
    """The last client's distances to the others; a view counts as much as it tells the clusters apart for it.

    `cluster_labels` and `weights` (by view) are those of the others. `active_views` are the views that counted for any
    of the clients that were grouped. `known` are its distances in views that no pairs are compared for; `offsets` what
    the others' distances were lowered by.
    """
    compared = views_of(everyone, tuple(weights), usual)
    rows = {name: square(view)[-1, :-1] - np.float32(offsets.get(name, 0.0)) for name, view in compared.items()}
    rows |= dict(known)
    # It may share no class with anybody: then the other views are asked too.
    active = list(rows) if np.isnan([rows[name] for name in active_views]).all() else active_views
    own = {name: _clarity_of_newcomer(rows[name], cluster_labels) + LEAST_WEIGHT for name in rows if name in active}
    total = sum(own.values())
    shares = {name: np.append(weights[name], own.get(name, 0.0) / total) for name in rows}
    pairs = {name: _only_last(row, len(cluster_labels)) for name, row in rows.items()}
    distances = square(blend(pairs, shares))[-1, :-1]
    unknown = np.all([np.isnan(rows[name]) for name in active], axis=0)
    for cluster in np.unique(cluster_labels):
        if unknown[cluster_labels == cluster].all():
            distances[cluster_labels == cluster] = np.inf
    return Row(distances, {name: float(value[-1]) for name, value in shares.items()})


def row_as_printed(
    everyone: Sequence[Signature],
    fusion: str,
    delta: float,
    founders: Sequence[Signature],
    ranges: Mapping[str, tuple[float, float]],
    angles: Angles = "printed",
) -> Row:
    """Algorithm 4, lines 10-12: scaled as the founders' distances were, and its own gate decides all of its row."""
    rows = {}
    for name, view in angles_of(everyone, fusion, delta, founders, angles).items():
        low, high = ranges[name]
        rows[name] = (square(view)[-1, :-1] - low) / np.float32(high - low or 1.0)
    if fusion not in GATED_FUSIONS:
        return Row(rows[fusion], {})
    gate = newcomer_gate(rows["gradient"], rows["data"])
    return Row(gate * rows["gradient"] + (1 - gate) * rows["data"], {"gradient": gate, "data": 1 - gate})


def _clarity_of_newcomer(row: Floats, cluster_labels: Labels) -> float:
    """How much nearer the nearest cluster is than the next, in one view: the silhouette of one client."""
    by_cluster = [row[cluster_labels == cluster] for cluster in np.unique(cluster_labels)]
    means = [np.nanmean(distances) for distances in by_cluster if not np.isnan(distances).all()]
    if len(means) < 2:
        return 0.0
    near, next_one = np.maximum(np.sort(means)[:2], 0)
    return float((next_one - near) / max(next_one, 1e-12))


def _only_last(row: Floats, others: int) -> Floats:
    """A condensed array in which only the last client's distances matter."""
    matrix = np.zeros((others + 1, others + 1), np.float32)
    matrix[-1, :-1] = matrix[:-1, -1] = row
    condensed: Floats = matrix[np.triu_indices(others + 1, 1)]
    return condensed
