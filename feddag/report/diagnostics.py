"""What a method told about how it compared clients (`Method.diagnostics`), part by part: each may be missing.

A part that does not fit the others, say distances between another number of clients, is taken as missing: a page shows
what it can.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.weights import ClientId

FUSED = "fused"
NO_CLUSTER = -1


@dataclass(frozen=True)
class ComparedClients:
    """How clients were compared. Everything is in the order of `clients`."""

    clients: list[ClientId]
    labels: list[int]
    """The cluster of each client; NO_CLUSTER where it is not known."""
    distances: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    """Condensed, by view; the fused ones first."""
    weights: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """How much each view counted for each client."""
    merges: NDArray[np.float64] | None = None
    threshold: float | None = None
    noise: float | None = None
    candidates: NDArray[np.float64] | None = None

    @property
    def clusters(self) -> int:
        """How many clusters the labels name."""
        return len(set(self.labels) - {NO_CLUSTER})

    def scaled_threshold(self) -> float | None:
        """The threshold on the scale of the candidates, on which the least distance is 0 and the largest 1."""
        known = self.distances.get(FUSED)
        if self.threshold is None or known is None or not np.isfinite(known).any():
            return None
        low, high = float(np.nanmin(known)), float(np.nanmax(known))
        return min(1.0, max(0.0, (self.threshold - low) / max(high - low, 1e-30)))


def compared_clients(told: Mapping[str, Any], clusters: Mapping[ClientId, int]) -> ComparedClients:
    """The parts of a method's diagnostics about comparing clients. Labels it does not tell are the clusters as known.

    >>> compared_clients({"distances": [0.1, 0.9, 0.8]}, {0: 0, 1: 0, 2: 1}).labels
    [0, 0, 1]
    """
    count = _count(told)
    clients = [int(client) for client in told["clients"]] if _has(told, "clients") else list(range(count))
    labels = _finite(_array(told.get("labels"), (count,)))
    condensed = {FUSED: told.get("distances"), **(told.get("views") or {})}
    pairs = (count * (count - 1) // 2,)
    found = {view: _array(values, pairs) for view, values in condensed.items()}
    weights = {view: _array(values, (count,)) for view, values in (told.get("weights") or {}).items()}
    return ComparedClients(
        clients,
        [clusters.get(client, NO_CLUSTER) for client in clients] if labels is None else labels.astype(int).tolist(),
        {view: values.astype(np.float32) for view, values in found.items() if values is not None},
        {view: values for view, values in weights.items() if values is not None},
        _tree(_finite(_array(told.get("merges"), (count - 1, 4)))),
        _number(told.get("threshold")),
        _number(told.get("noise")),
        _candidates(told.get("candidates")),
    )


def graph_edges(told: Mapping[str, Any]) -> list[tuple[int, int]]:
    """(learner, source) pairs of clusters: those of now, else those that the clusters began with.

    >>> graph_edges({"edges": [[False, True], [False, False]]}), graph_edges({"graph": [], "edges": [[True]]})
    ([(0, 1)], [])
    """
    if _has(told, "graph"):
        return [(int(learner), int(source)) for learner, source in told["graph"]]
    edges = np.asarray(told.get("edges", ()), bool)
    return [(int(learner), int(source)) for learner, source in np.argwhere(edges)] if edges.ndim == 2 else []


def _has(told: Mapping[str, Any], name: str) -> bool:
    return told.get(name) is not None


def _count(told: Mapping[str, Any]) -> int:
    """How many clients were compared, from the first part that tells."""
    for name in ("clients", "labels"):
        if _has(told, name):
            return len(told[name])
    if _has(told, "merges"):
        return len(told["merges"]) + 1
    for condensed in (told.get("distances"), *(told.get("views") or {}).values()):
        if condensed is not None:
            return int((1 + np.sqrt(1 + 8 * len(condensed))) / 2)
    for values in (told.get("weights") or {}).values():
        return len(values)
    return 0


def _array(value: Any, shape: tuple[int, ...]) -> NDArray[np.float64] | None:
    """Numbers of this shape; None for anything else."""
    try:
        array = np.asarray(value, float)
    except (TypeError, ValueError):
        return None
    return array if array.shape == shape and array.size else None


def _finite(array: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return array if array is not None and np.isfinite(array).all() else None


def _tree(merges: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    """The merges if they are a tree: every node but the last is merged once, and after it has come to be."""
    if merges is None:
        return None
    nodes, made = merges[:, :2], len(merges) + 1 + np.arange(len(merges))
    once = np.array_equal(np.sort(nodes.ravel()), np.arange(2 * len(merges)))
    return merges if once and (nodes < made[:, None]).all() else None


def _number(value: Any) -> float | None:
    array = _finite(_array(value, ()))
    return None if array is None else float(array)


def _candidates(value: Any) -> NDArray[np.float64] | None:
    """Rows of alpha, clusters, loss; a threshold without a loss is left out."""
    try:
        rows = np.asarray(value, float).reshape(-1, 3)
    except (TypeError, ValueError):
        return None
    rows = rows[np.isfinite(rows).all(1)]
    return rows if len(rows) else None
