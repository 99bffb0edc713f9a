"""What a method told about how it compared clients (`Method.diagnostics`), part by part: each may be missing.

A part that is not what it should be, or does not fit the others, say distances between another number of clients, is
taken as missing: a page shows what it can.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.weights import ClientId

FUSED = "fused"
NO_CLUSTER = -1
LARGEST = 1e15  # of any number: sums and products of such are still finite


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
    """Rows of other thresholds, as distances, with their clusters and loss."""
    rule: str = ""
    """What chose the threshold; empty where it is not told."""

    @property
    def clusters(self) -> int:
        """How many clusters the labels name."""
        return len(set(self.labels) - {NO_CLUSTER})

    def same_clusters(self) -> tuple[float, float, int] | None:
        """Between which two merges the tree was cut, and how many clusters any cut between them leaves.

        >>> tree = np.array([[0, 1, 0.1, 2], [2, 3, 0.2, 2], [4, 5, 0.9, 4]])
        >>> ComparedClients([0, 1, 2, 3], [0, 0, 1, 1], merges=tree, threshold=0.5).same_clusters()
        (0.2, 0.9, 2)
        """
        if self.merges is None or self.threshold is None or not len(self.merges):
            return None
        heights = np.sort(self.merges[:, 2])
        done = int(np.searchsorted(heights, self.threshold, side="right"))
        low = heights[done - 1] if done else min(0.0, self.threshold)
        high = heights[done] if done < len(heights) else max(1.0, self.threshold)
        return float(low), float(high), len(heights) + 1 - done


def sound_parts(told: Any) -> dict[str, Any]:
    """The parts of a method's diagnostics that can be used at all; they may come from a file that anybody wrote.

    >>> sound_parts({"labels": [0, 1], "distances": "near", "views": {"data": [0.5]}, "unknown": 3})
    {'labels': [0, 1], 'views': {'data': [0.5]}}
    """
    known = told if isinstance(told, dict) else {}
    there = [name for name in PARTS if known.get(name) is not None]
    return {name: known[name] for name in there if PARTS[name](known[name])}


def _is_table(dimensions: int) -> Callable[[Any], bool]:
    """Whether something is a table of numbers of so many dimensions, with gaps or without."""

    def is_table(value: Any) -> bool:
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, OverflowError):
            return False
        if array.ndim != dimensions or array.dtype.kind not in "biuf":
            return array.shape == (0,)  # an empty list is an empty table of any kind
        return bool((np.isnan(array) | (np.abs(array.astype(float)) <= LARGEST)).all())

    return is_table


def _is_whole(dimensions: int, least: int = 0) -> Callable[[Any], bool]:
    """The same for whole numbers without gaps."""

    def is_whole(value: Any) -> bool:
        if not _is_table(dimensions)(value):
            return False
        array = np.asarray(value, float)
        return bool((array == np.floor(array)).all() and (array >= least).all())

    return is_whole


def _is_distinct(value: Any) -> bool:
    return _is_whole(1)(value) and len(np.unique(value)) == len(value)


def _are_pairs(value: Any) -> bool:
    return _is_whole(2, NO_CLUSTER)(value) and np.shape(value)[1:] in ((), (2,))


def _are_views(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and _is_table(1)(value[name]) for name in value)


def _are_curves(value: Any) -> bool:
    """Whether something is, by figure and by name, rows of round and value."""
    return isinstance(value, dict) and all(
        isinstance(title, str)
        and isinstance(curves, dict)
        and all(isinstance(name, str) and _is_table(2)(rows) for name, rows in curves.items())
        and all(np.shape(rows)[1:] in ((), (2,)) for rows in curves.values())
        for title, curves in value.items()
    )


def _are_counts(value: Any) -> bool:
    clients = isinstance(value, dict) and all(isinstance(client, int) and client >= 0 for client in value)
    return clients and all(map(_is_whole(1), value.values()))


def _are_words(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(word, str) for word in value)


PARTS: dict[str, Callable[[Any], bool]] = {
    "clients": _is_distinct,
    "labels": _is_whole(1, NO_CLUSTER),
    "distances": _is_table(1),
    "views": _are_views,
    "weights": _are_views,
    "merges": _is_table(2),
    "threshold": _is_table(0),
    "rule": lambda value: isinstance(value, str),
    "noise": _is_table(0),
    "candidates": _is_table(2),
    "unit": _is_table(1),
    "scores": _is_table(2),
    "edges": _is_table(2),
    "graph": _are_pairs,
    "families": _is_whole(1),
    "names": _is_whole(2),
    "by_round": _are_curves,
    "counts": _are_counts,
    "class_counts": _is_whole(2),
    "classes": _are_words,
}


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
        _candidates(told.get("candidates"), _unit(told.get("unit"), found.get(FUSED))),
        told.get("rule") or "",
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
    except (TypeError, ValueError, OverflowError):
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


def _unit(told: Any, fused: NDArray[np.float64] | None) -> tuple[float, float]:
    """The distances that a candidate's alpha of 0 and of 1 stand for."""
    unit = _finite(_array(told, (2,)))
    finite = np.zeros(0) if fused is None else fused[np.isfinite(fused)]
    if unit is None and len(finite):
        unit = np.array([finite.min(), finite.max()])
    return (0.0, 1.0) if unit is None else (float(unit[0]), float(unit[1]))


def _candidates(value: Any, unit: tuple[float, float]) -> NDArray[np.float64] | None:
    """Rows of threshold, clusters, loss; one without a loss is left out."""
    try:
        rows = np.asarray(value, float).reshape(-1, 3)
    except (TypeError, ValueError, OverflowError):
        return None
    rows = rows[np.isfinite(rows).all(1)]
    rows[:, 0] = unit[0] + rows[:, 0] * (unit[1] - unit[0])
    return rows if len(rows) else None
