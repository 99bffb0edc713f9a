"""How clients were compared: distances, the tree of merges, thresholds, and what the distance is made of."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.errors import counted
from feddag.report.diagnostics import ComparedClients
from feddag.report.figures.parts import MOST_LABELS, MOST_ROWS, STRIP, cluster_edges, line, row_names
from feddag.report.theme import GREY, LEGEND, SCALE, SHADE, Figure, averaged, colour, packed, plain, symbol
from feddag.server.similarity import square
from feddag.weights import ClientId


def in_cluster_order(clients: Sequence[ClientId], labels: Sequence[int], leaves: Sequence[int]) -> list[int]:
    """Positions of clients, cluster by cluster and inside as in the tree.

    >>> in_cluster_order([7, 8, 9], [1, 0, 1], [2, 0, 1])
    [1, 2, 0]
    """
    place = {leaf: number for number, leaf in enumerate(leaves)}
    return sorted(range(len(clients)), key=lambda number: (labels[number], place.get(number, number)))


def distances_of(condensed: NDArray[Any], order: Sequence[int]) -> NDArray[np.float32]:
    """A condensed view as a square matrix in this order, with nothing between a client and itself."""
    matrix = square(np.asarray(condensed, np.float32)).copy()
    np.fill_diagonal(matrix, np.nan)
    ordered: NDArray[np.float32] = matrix[np.ix_(order, order)]
    return ordered


def proximity(views: Mapping[str, NDArray[Any]], labels: Sequence[int], names: Sequence[str]) -> Figure:
    """Square matrices of distances in the given order, one shown at a time."""
    data, block = [], 1
    for number, (view, matrix) in enumerate(views.items()):
        small, block = averaged(matrix, MOST_ROWS)
        ticks = row_names(names, block)
        data.append(
            {
                **{"type": "heatmap", "z": packed(small), "x": ticks, "y": ticks, "colorscale": SCALE},
                **{"name": plain(view), "visible": number == 0},
                "hovertemplate": "%{x}<br>%{y}<br>distance %{z:.3f}<extra></extra>",
                "colorbar": {"title": {"text": "distance", "side": "right"}, "thickness": 14},
            }
        )
    rows = -(-len(names) // block)
    shapes, notes = cluster_edges(labels, block, rows, rows, both=True)
    shown = {
        "showticklabels": rows <= MOST_LABELS,
        "type": "category",
        "showgrid": False,
        "automargin": True,
        "ticks": "",
    }
    beyond = rows - 0.5 + STRIP * rows
    title = "client, cluster by cluster" if max(labels) >= 0 else "client"
    return {
        "data": data,
        "layout": {
            **{"height": 660, "shapes": shapes, "annotations": notes, "margin": {"l": 90, "r": 20, "t": 30, "b": 60}},
            "xaxis": {
                **{**shown, "title": {"text": title}, "constrain": "domain"},
                "range": [-0.5 - STRIP * rows, beyond],
            },
            "yaxis": {**shown, "range": [beyond, -0.5], "scaleanchor": "x", "constrain": "domain"},
        },
    }


Bracket = tuple[int, list[float], list[float]]


def tree_lines(merges: NDArray[np.float64], clients: int) -> tuple[list[int], list[Bracket]]:
    """The leaves from left to right, and for each merge its number and the corners of the bracket that draws it.

    >>> tree_lines(np.array([[0, 2, 1.0, 2], [1, 3, 4.0, 3]]), 3)
    ([1, 0, 2], [(0, [1.0, 1.0, 2.0, 2.0], [0.0, 1.0, 1.0, 0.0]), (1, [0.0, 0.0, 1.5, 1.5], [0.0, 4.0, 4.0, 1.0])])
    """
    below: list[list[int]] = [[leaf] for leaf in range(clients)]
    for one, other in merges[:, :2].astype(int):
        below.append(below[one] + below[other])
    leaves = below[-1]
    at = {leaf: float(number) for number, leaf in enumerate(leaves)}
    x = [at[leaf] for leaf in range(clients)]
    y = [min(0.0, float(merges[:, 2].min(initial=0.0)))] * clients
    brackets = []
    for number, (one, other, height, _) in enumerate(merges.tolist()):
        left, right = int(one), int(other)
        brackets.append((number, [x[left], x[left], x[right], x[right]], [y[left], height, height, y[right]]))
        x.append((x[left] + x[right]) / 2)
        y.append(height)
    return leaves, brackets


def dendrogram(
    merges: NDArray[np.float64], labels: Sequence[int], threshold: float | None, names: Sequence[str]
) -> Figure:
    """Which clients merge at which distance; a branch whose clients are one cluster has its colour."""
    leaves, brackets = tree_lines(merges, len(labels))
    bottom = min(0.0, float(merges[:, 2].min(initial=0.0)))
    few = len(leaves) <= MOST_LABELS
    clusters = [f"<br>cluster {labels[leaf]}" if labels[leaf] >= 0 else "" for leaf in leaves]
    marks = {
        **{"x": [*range(len(leaves))], "y": [bottom] * len(leaves), "mode": "markers", "showlegend": False},
        "text": [f"{plain(names[leaf])}{cluster}" for leaf, cluster in zip(leaves, clusters, strict=True)],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {
            **{"size": 8 if len(leaves) <= 100 else 4, "color": [colour(labels[leaf]) for leaf in leaves]},
            "symbol": [symbol(labels[leaf]) for leaf in leaves],
        },
    }
    return {
        "data": [*_branches(merges, labels, brackets), marks],
        "layout": {
            "height": 420,
            **({} if threshold is None else _cut(threshold)),
            "xaxis": {
                **{"showgrid": False, "zeroline": False, "automargin": True, "tickvals": [*range(len(leaves))]},
                **{"ticktext": [plain(names[leaf]) for leaf in leaves], "showticklabels": few},
                **({} if few else {"title": {"text": "clients"}}),
            },
            "yaxis": {"title": {"text": "distance at which they merge"}, "zeroline": False},
        },
    }


def _branches(merges: NDArray[np.float64], labels: Sequence[int], brackets: Sequence[Bracket]) -> list[dict[str, Any]]:
    """One trace for each cluster, and a grey one for what joins clusters."""
    of_node = [int(label) for label in labels]
    for one, other in merges[:, :2].astype(int):
        of_node.append(of_node[one] if of_node[one] == of_node[other] else -1)
    lines: dict[int, tuple[list[float | None], list[float | None]]] = {}
    for number, x, y in brackets:
        xs, ys = lines.setdefault(of_node[len(labels) + number], ([], []))
        xs += [*x, None]
        ys += [*y, None]
    return [
        {
            **{"x": xs, "y": ys, "mode": "lines", "hoverinfo": "skip"},
            **{"name": "between clusters" if group < 0 else f"cluster {group}", "showlegend": False},
            "line": {"width": 1.5, "color": colour(group)},
        }
        for group, (xs, ys) in sorted(lines.items())
    ]


def _cut(threshold: float) -> dict[str, Any]:
    where = {"xref": "paper", "x": 1, "xanchor": "right", "y": threshold, "yanchor": "bottom"}
    return {
        "shapes": [line(xref="paper", x0=0, x1=1, y0=threshold, y1=threshold, dash="dash", width=2)],
        "annotations": [{**where, "text": f"cut at {threshold:.3f}", "showarrow": False}],
    }


def thresholds(told: ComparedClients, loss: bool) -> Figure:
    """How many clusters each cut leaves, on the scale of the tree's distances; the loss where it had a say."""
    assert told.candidates is not None
    heights, found, losses = (told.candidates[:, column].tolist() for column in range(3))
    if told.merges is not None:
        merged = np.sort(told.merges[:, 2])
        margin = 0.05 * max(float(np.ptp(merged)), 1e-9) if len(merged) else 1.0
        heights = [float(merged.min(initial=0)) - margin, *merged.tolist(), float(merged.max(initial=0)) + margin]
        found = [*range(len(merged) + 1, 0, -1), 1]
    steps = {
        **{"x": heights, "y": found, "mode": "lines", "name": "clusters", "line": {"shape": "hv", "color": "ink"}},
        "hovertemplate": "cut at %{x:.3f}, clusters left: %{y}<extra></extra>",
    }
    curve = {
        **{"x": told.candidates[:, 0].tolist(), "y": losses, "yaxis": "y2", "mode": "lines+markers", "name": "loss"},
        **{"line": {"dash": "dot", "color": GREY}, "hovertemplate": "cut at %{x:.3f}: loss %{y:.3f}<extra></extra>"},
    }
    right = {"overlaying": "y", "side": "right", "rangemode": "tozero", "showgrid": False, "automargin": True}
    many = max(found) > MOST_LABELS
    return {
        "data": [steps, *([curve] if loss else [])],
        "layout": {
            **{"height": 340, "legend": LEGEND | {"y": 1.12}, "showlegend": loss, **_chosen(told)},
            "xaxis": {"title": {"text": "distance at which the tree is cut"}, "zeroline": False},
            "yaxis": {"title": {"text": "clusters left"}, **({"type": "log"} if many else {"rangemode": "tozero"})},
            **({"yaxis2": {"title": {"text": "loss"}, **right}} if loss else {}),
        },
    }


def _chosen(told: ComparedClients) -> dict[str, Any]:
    """The cut, and the range in which any other would have left as many clusters."""
    if told.threshold is None:
        return {}
    tall = {"yref": "paper", "y0": 0, "y1": 1}
    shapes = [line(x0=told.threshold, x1=told.threshold, dash="dash", width=2, **tall)]
    if same := told.same_clusters():
        shapes.append({"type": "rect", **tall, "x0": same[0], "x1": same[1], "fillcolor": SHADE, "line": {"width": 0}})
    where = {"x": told.threshold, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False}
    left = f": {counted(told.clusters, 'cluster')}" if told.clusters else ""
    return {"shapes": shapes, "annotations": [{**where, "text": f"cut at {told.threshold:.3f}{left}"}]}


def fusion_weights(weights: Mapping[str, NDArray[Any]], labels: Sequence[int], names: Sequence[str]) -> Figure:
    """How much each view counted, client by client; cluster by cluster where there are many clients."""
    if len(names) > MOST_ROWS:
        groups = sorted(set(labels))
        member = {group: np.array(labels) == group for group in groups}
        weights = {
            view: np.array([values[member[group]].mean() for group in groups]) for view, values in weights.items()
        }
        rows = [f"cluster {group}" if group >= 0 else "in no cluster" for group in groups]
    else:
        rows = [plain(name) for name in names]
    return {
        "data": [
            {
                **{"type": "bar", "x": rows, "name": plain(view)},
                "y": [round(float(value), 4) if np.isfinite(value) else None for value in values],
                "hovertemplate": "%{x}<br>%{fullData.name} %{y:.0%}<extra></extra>",
                "marker": {"line": {"width": 1, "color": GREY}},
            }
            for view, values in weights.items()
        ],
        "layout": {
            **{"height": 360, "barmode": "stack", "bargap": 0.1, "legend": LEGEND},
            "xaxis": {"type": "category", "showticklabels": len(rows) <= MOST_LABELS, "automargin": True},
            "yaxis": {"title": {"text": "share in the distance"}, "tickformat": ".0%", "range": [0, 1]},
        },
    }
