"""Clients that are unlike one another: how far apart they are in a graph, and the best set of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import floyd_warshall

Array = NDArray[np.float64]

LEAST_ALIKE = 0.01  # epsilon: clients that are less alike have no edge
WIDTH = 0.1  # sigma: how fast an edge grows longer as clients are less alike
MOST_NODES = 100  # of the search tree; a limit in seconds would give other results on another machine


def divergences(features: Array) -> Array:
    """The Jensen-Shannon divergence, in bits, between all rows, each taken as shares of its sum; negatives are none.

    >>> divergences(np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])).round(3).tolist()
    [[0.0, 1.0, 0.311], [1.0, 0.0, 0.311], [0.311, 0.311, 0.0]]
    """
    rows = features.clip(min=0) + 1e-12
    shares = rows / rows.sum(axis=1, keepdims=True)
    own = _entropy(shares)
    middle = _entropy((shares[:, None] + shares[None]) / 2)
    found: Array = (middle - (own[:, None] + own[None]) / 2).clip(min=0)
    np.fill_diagonal(found, 0)
    return found


def _entropy(shares: Array) -> Array:
    entropy: Array = -(shares * np.log2(shares)).sum(axis=-1)
    return entropy


def graph_distances(features: Array) -> Array:
    """The lengths of the shortest paths between clients, by what their models make of noise; the longest is 1.

    Likeness is 1 / (1 + divergence), from 0 for the least alike pair to 1 for the most alike; the length of an edge is
    exp(-likeness^2 / sigma).
    """
    if len(features) < 2:
        return np.zeros((len(features), len(features)))
    alike = 1 / (1 + divergences(features))
    pairs = alike[np.triu_indices(len(alike), 1)]
    spread = pairs.max() - pairs.min()
    alike = (alike - pairs.min()) / spread if spread > 0 else np.ones_like(alike)
    edges = np.where(alike > LEAST_ALIKE, np.exp(-(alike**2) / WIDTH), np.inf)
    np.fill_diagonal(edges, 0)
    paths: Array = floyd_warshall(edges)
    longest = paths[np.isfinite(paths)].max()
    return np.where(np.isfinite(paths), paths / longest, 1.0) if longest > 0 else paths


def most_diverse(distances: Array, gains: Sequence[float], count: int) -> list[int]:
    """So many rows for which the sum of their gains and of the distances between them is largest.

    As an integer programme: u_i says whether a row is taken, and w_i is half of its distances to the others that are,
    held down to 0 where it is not. Where the search ends before it is sure, or finds less, rows are taken one by one.

    >>> most_diverse(np.array([[0, 1, 9.0], [1, 0, 2], [9, 2, 0]]), [0.0, 1.0, 0.0], 2)
    [0, 2]
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # here, because importing it takes a while

    rows = len(gains)
    if count >= rows:
        return list(range(rows))
    half = np.where(np.eye(rows, dtype=bool), 0.0, distances) / 2
    most = -np.sort(-half, axis=1)[:, : count - 1].sum(axis=1)
    none, some, each = np.zeros(rows), np.ones(rows), np.eye(rows)
    found = milp(
        -np.concatenate([gains, some]),
        integrality=np.concatenate([some, none]),
        bounds=Bounds(0, np.concatenate([some, np.full(rows, np.inf)])),
        constraints=[
            LinearConstraint(np.concatenate([some, none])[None], count, count),
            LinearConstraint(np.hstack([-np.diag(most), each]), -np.inf, 0),  # w_i <= u_i * the most there can be
            LinearConstraint(np.hstack([-half, each]), -np.inf, 0),  # w_i <= sum of u_j * d_ij / 2
        ],
        options={"node_limit": MOST_NODES},
    )
    by_turns = _one_by_one(distances, gains, count)
    searched = by_turns if found.x is None else [row for row in range(rows) if found.x[row] > 0.5]
    better = worth(distances, gains, by_turns) > worth(distances, gains, searched)
    return sorted(by_turns if better else searched)


def worth(distances: Array, gains: Sequence[float], taken: Sequence[int]) -> float:
    """The sum of the gains of some rows and of the distances between them."""
    return float(sum(gains[row] for row in taken) + np.triu(distances[np.ix_(taken, taken)], 1).sum())


def _one_by_one(distances: Array, gains: Sequence[float], count: int) -> list[int]:
    """Each time the row that adds most."""
    taken: list[int] = []
    for _ in range(count):
        added = np.asarray(gains, float) + distances[:, taken].sum(axis=1)
        added[taken] = -np.inf
        taken.append(int(added.argmax()))
    return taken
