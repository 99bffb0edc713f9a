"""Where a client belongs that was not there when the groups were found: its distances to some members of each group.

Nothing that the others were grouped by moves: usual noises, scales and everybody else's weights stay as they were.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.server.clustering import Labels
from feddag.server.fusion import LEAST_WEIGHT, blend, views_of
from feddag.server.printed_fusion import GATED, angles_of, gate_of_newcomer
from feddag.server.similarity import Floats, square

COMPARED = 50  # members of a group that a newcomer is compared with


@dataclass(frozen=True)
class Row:
    """A newcomer's distances to those it was compared with, and how much each view counts for it."""

    distances: Floats
    weights: dict[str, float]


def compared_members(labels: Labels) -> Labels:
    """The first members of every group: to know a group it is enough to be compared with some of it.

    >>> compared_members(np.array([1, 0, 1, 0])).tolist()
    [1, 3, 0, 2]
    """
    return np.concatenate([np.flatnonzero(labels == group)[:COMPARED] for group in np.unique(labels)])


def nearest_group(distances: Floats, groups: Labels, reach: NDArray[np.float64]) -> int | None:
    """The group that the newcomer is deepest inside of, by its mean distance; None if it is within reach of none.

    >>> nearest_group(np.array([0.1, 0.3, 0.9]), np.array([0, 0, 1]), np.array([0.25, 0.25]))
    0
    """
    numbers = np.unique(groups)
    means = np.array([distances[groups == group].mean() for group in numbers])
    best = int((means - reach).argmin())
    return int(numbers[best]) if means[best] <= reach[best] else None


def row_by_clarity(
    everyone: Sequence[Signature],
    groups: Labels,
    weights: Mapping[str, NDArray[np.float64]],
    heard: Sequence[str],
    usual: NDArray[np.float64] | None,
) -> Row:
    """The last client's distances to the others; a view counts as much as it tells the groups apart for it.

    `groups` and `weights` (by view) are those of the others, and `heard` are the views that counted for any of them.
    """
    rows = {name: square(view)[-1, :-1] for name, view in views_of(everyone, tuple(weights), usual).items()}
    if np.isnan([rows[name] for name in heard]).all():  # it shares no class with anybody: other views may know that
        heard = list(rows)
    own = {name: _clarity_of_newcomer(row, groups) + LEAST_WEIGHT for name, row in rows.items() if name in heard}
    total = sum(own.values())
    shares = {name: np.append(weights[name], own.get(name, 0.0) / total) for name in rows}
    pairs = {name: _only_last(row, len(groups)) for name, row in rows.items()}
    distances = square(blend(pairs, shares))[-1, :-1]
    unknown = np.all([np.isnan(rows[name]) for name in heard], axis=0)
    for group in np.unique(groups):
        if unknown[groups == group].all():
            distances[groups == group] = np.inf
    return Row(distances, {name: float(value[-1]) for name, value in shares.items()})


def row_as_printed(
    everyone: Sequence[Signature],
    fusion: str,
    delta: float,
    founders: Sequence[Signature],
    ranges: Mapping[str, tuple[float, float]],
) -> Row:
    """Algorithm 4, lines 10-12: scaled as the founders' distances were, and its own gate decides all of its row."""
    rows = {}
    for name, view in angles_of(everyone, fusion, delta, founders).items():
        low, high = ranges[name]
        rows[name] = (square(view)[-1, :-1] - low) / np.float32(high - low or 1.0)
    if fusion not in GATED:
        return Row(rows[fusion], {})
    gate = gate_of_newcomer(rows["gradient"], rows["data"])
    return Row(gate * rows["gradient"] + (1 - gate) * rows["data"], {"gradient": gate, "data": 1 - gate})


def _clarity_of_newcomer(row: Floats, groups: Labels) -> float:
    """How much nearer the nearest group is than the next, in one view: a silhouette of one."""
    means = [np.nanmean(row[groups == g]) for g in np.unique(groups) if not np.isnan(row[groups == g]).all()]
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
