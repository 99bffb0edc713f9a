"""The figures of a run's page, as plotly.js takes them."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.records import RoundRecord
from feddag.report.look import GREY, LEGEND, SCALE, Figure, averaged, colour, packed, plain, symbol
from feddag.server.similarity import square
from feddag.weights import ClientId

MOST_ROWS = 300  # of a picture of clients: more would be finer than a screen
MOST_LABELS = 40
MOST_LINES = 30  # vertical lines for events; beyond, marks alone
MOST_GROUP_CURVES = 12
ASIDE = 0.04  # keeps the two directions of an edge apart, and its number off the line
NODE = 0.17  # the radius of a cluster's disc, on the scale of the circle that they stand on
STRIP = 0.025  # the breadth of a strip of cluster colours beside a picture, as a share of the picture


def learning(history: Sequence[RoundRecord], events: Mapping[int, Sequence[str]]) -> Figure:
    """Accuracy with its spread over clients, and loss below, by round; events are marked."""
    rounds = [record["round"] for record in history]
    scores = [np.array([np.nan if s is None else s for s in record["per_client"]], float) for record in history]
    low, high = ([float(np.nanpercentile(row, q)) for row in scores] for q in (10, 90))
    hover = "round %{x}: %{y:.3f}"
    data: list[dict[str, Any]] = [
        {"x": rounds, "y": high, "mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"},
        {
            **{"x": rounds, "y": low, "mode": "lines", "line": {"width": 0}, "fill": "tonexty"},
            **{"fillcolor": "rgba(136,136,136,0.25)", "name": "middle 80 % of clients", "hoverinfo": "skip"},
        },
        {
            **{"x": rounds, "y": [record["accuracy"]["worst_decile"] for record in history]},
            **{"mode": "lines", "name": "worst tenth of clients", "hovertemplate": hover},
            "line": {"dash": "dot", "width": 1.5, "color": GREY},
        },
        *_cluster_curves(history, rounds, scores),
        {
            **{"x": rounds, "y": [record["accuracy"]["mean"] for record in history]},
            **{"mode": "lines+markers" if len(rounds) == 1 else "lines", "name": "mean over clients"},
            **{"line": {"width": 3, "color": "ink"}, "hovertemplate": hover},
        },
        {
            **{"x": rounds, "y": [record["loss"] for record in history], "yaxis": "y2", "name": "loss"},
            **{"mode": "lines+markers" if len(rounds) == 1 else "lines", "showlegend": False},
            **{"line": {"width": 2, "color": "ink"}, "hovertemplate": hover},
        },
    ]
    lines = []
    axis = _from_worst([*low, *(record["accuracy"]["worst_decile"] for record in history)])
    if events:
        data.append(
            {
                **{
                    "x": list(events),
                    "y": [axis[1]] * len(events),
                    "cliponaxis": False,
                    "mode": "markers",
                    "name": "event",
                },
                **{"text": [_several(said) for said in events.values()], "hovertemplate": "round %{x}<br>%{text}"},
                "marker": {"symbol": "triangle-down", "size": 10, "color": GREY},
            }
        )
        marked = list(events) if len(events) <= MOST_LINES else []
        lines = [_line(x0=number, x1=number, yref="paper", y0=0, y1=1) for number in marked]
    return {
        "data": data,
        "layout": {
            **{"height": 520, "shapes": lines},
            "legend": LEGEND | {"traceorder": "normal"},
            "margin": {"l": 64, "r": 40, "t": 90, "b": 50},
            "xaxis": {"title": {"text": "round"}, "anchor": "y2", "rangemode": "tozero"},
            "yaxis": {"title": {"text": "balanced accuracy"}, "domain": [0.36, 1], "range": axis},
            "yaxis2": {"title": {"text": "loss (nats)"}, "domain": [0, 0.26], "rangemode": "tozero"},
        },
    }


def _from_worst(scores: Sequence[float]) -> list[float]:
    """The part of an axis of accuracies that is in use: from a tenth below the worst up to all."""
    lowest = float(np.floor(min(scores, default=0.0) * 10 - 0.5) / 10)
    bottom = max(0.0, lowest)
    return [bottom, 1 + 0.03 * (1 - bottom)]


def _cluster_curves(history: Sequence[RoundRecord], rounds: list[int], scores: Sequence[Any]) -> list[dict[str, Any]]:
    groups = [record["clusters"] or [] for record in history]
    every = sorted({group for record in groups for group in record if group is not None})
    if not 1 < len(every) <= MOST_GROUP_CURVES:
        return []
    return [
        {
            **{"x": rounds, "y": [_mean_of(row[np.array(g) == group]) for row, g in zip(scores, groups, strict=True)]},
            **{"mode": "lines", "name": f"cluster {group}", "hovertemplate": "round %{x}: %{y:.3f}"},
            "line": {"color": colour(group), "width": 1.5, "dash": "solid" if group < 8 else "dash"},
        }
        for group in every
    ]


def _mean_of(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def in_cluster_order(clients: Sequence[ClientId], labels: Sequence[int], leaves: Sequence[int]) -> list[int]:
    """Positions of clients, cluster by cluster and inside as in the tree.

    >>> in_cluster_order([7, 8, 9], [1, 0, 1], [2, 0, 1])
    [1, 2, 0]
    """
    place = {leaf: number for number, leaf in enumerate(leaves)}
    return sorted(range(len(clients)), key=lambda number: (labels[number], place.get(number, number)))


def proximity(views: Mapping[str, NDArray[Any]], labels: Sequence[int], names: Sequence[str]) -> Figure:
    """Square matrices of distances in the given order, one shown at a time."""
    data, block = [], 1
    for number, (view, matrix) in enumerate(views.items()):
        small, block = averaged(matrix, MOST_ROWS)
        ticks = _row_names(names, block)
        data.append(
            {
                **{"type": "heatmap", "z": packed(small), "x": ticks, "y": ticks, "colorscale": SCALE, "name": view},
                **{"visible": number == 0, "hovertemplate": "%{x}<br>%{y}<br>distance %{z:.3f}<extra></extra>"},
                "colorbar": {"title": {"text": "distance", "side": "right"}, "thickness": 14},
            }
        )
    rows = -(-len(names) // block)
    shapes, notes = _cluster_edges(labels, block, rows, rows, both=True)
    shown = {
        "showticklabels": rows <= MOST_LABELS,
        "type": "category",
        "showgrid": False,
        "automargin": True,
        "ticks": "",
    }
    beyond = rows - 0.5 + STRIP * rows
    return {
        "data": data,
        "layout": {
            **{"height": 660, "shapes": shapes, "annotations": notes, "margin": {"l": 90, "r": 20, "t": 30, "b": 60}},
            "xaxis": {
                **{**shown, "title": {"text": "client, cluster by cluster"}, "constrain": "domain"},
                "range": [-0.5 - STRIP * rows, beyond],
            },
            "yaxis": {**shown, "range": [beyond, -0.5], "scaleanchor": "x", "constrain": "domain"},
        },
    }


def holdings(counts: NDArray[np.int64], labels: Sequence[int], names: Sequence[str], classes: Sequence[str]) -> Figure:
    """Clients x classes, the brighter the more samples, on a logarithmic scale."""
    block = -(-len(counts) // MOST_ROWS)
    means = np.stack([rows.mean(0) for rows in np.split(counts, range(block, len(counts), block))])
    rows = len(means)
    shapes, notes = _cluster_edges(labels, block, rows, len(classes), both=False)
    top = max(1.0, float(means.max()))
    ticks = sorted({0, *(10**power for power in range(1 + int(np.log10(top)))), round(top)})
    held = {"type": "category", "automargin": True, "showgrid": False, "ticks": ""}
    return {
        "data": [
            {
                **{"type": "heatmap", "z": packed(np.log10(1 + means).astype(np.float32)), "colorscale": SCALE},
                **{"x": [plain(name) for name in classes], "y": _row_names(names, block)},
                "customdata": packed(means.astype(np.float32)),
                "hovertemplate": "%{y}<br>%{x}<br>%{customdata:.0f} samples<extra></extra>",
                "colorbar": {
                    **{"title": {"text": "samples", "side": "right"}, "thickness": 14},
                    **{"tickvals": [float(np.log10(1 + tick)) for tick in ticks], "ticktext": [*map(str, ticks)]},
                },
            }
        ],
        "layout": {
            **{"height": min(900, 180 + 22 * rows), "shapes": shapes, "annotations": notes},
            "margin": {"l": 90, "r": 20, "t": 30, "b": 60},
            "xaxis": {**held, "range": [-0.5 - STRIP * len(classes), (1 + STRIP) * len(classes) - 0.5]},
            "yaxis": {**held, "range": [rows - 0.5, -0.5], "showticklabels": rows <= MOST_LABELS},
        },
    }


def _row_names(names: Sequence[str], block: int) -> list[str]:
    if block == 1:
        return [plain(name) for name in names]
    return [f"{plain(names[first])} and {block - 1} more" for first in range(0, len(names), block)]


def _cluster_edges(
    labels: Sequence[int], block: int, rows: int, columns: int, both: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A strip in each cluster's colour along the rows (and columns), lines between clusters, and their numbers."""
    edges = [0, *(n for n in range(1, len(labels)) if labels[n] != labels[n - 1]), len(labels)]
    shapes, notes = [], []
    for begin, end in itertools.pairwise(edges) if len(labels) else ():
        cluster = labels[begin]
        if cluster < 0:
            continue
        low, high = begin / block - 0.5, min(end / block, rows) - 0.5
        filled = {"type": "rect", "fillcolor": colour(cluster), "line": {"width": 0}}
        shapes.append({**filled, "x0": -0.5 - STRIP * columns, "x1": -0.5, "y0": low, "y1": high})
        shapes.append(_line(x0=-0.5, x1=columns - 0.5, y0=high, y1=high))
        if both:
            shapes.append({**filled, "x0": low, "x1": high, "y0": rows - 0.5, "y1": rows - 0.5 + STRIP * rows})
            shapes.append(_line(x0=high, x1=high, y0=-0.5, y1=rows - 0.5))
        if high - low >= rows / 60:
            where = {"x": columns - 0.5, "xanchor": "left", "y": (low + high) / 2, "showarrow": False}
            notes.append({**where, "text": f"<b>{cluster}</b>", "font": {"color": colour(cluster)}})
    return shapes, notes


def tree_lines(
    merges: NDArray[np.float64], clients: int
) -> tuple[list[int], list[tuple[int, list[float], list[float]]]]:
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


def dendrogram(merges: NDArray[np.float64], labels: Sequence[int], threshold: float, names: Sequence[str]) -> Figure:
    """Which clients merge at which distance; a branch whose clients are one cluster has its colour."""
    leaves, brackets = tree_lines(merges, len(labels))
    of_node: list[int] = [int(label) for label in labels]
    for one, other in merges[:, :2].astype(int):
        of_node.append(of_node[one] if of_node[one] == of_node[other] else -1)
    lines: dict[int, tuple[list[float | None], list[float | None]]] = {}
    for number, x, y in brackets:
        xs, ys = lines.setdefault(of_node[len(labels) + number], ([], []))
        xs += [*x, None]
        ys += [*y, None]
    data: list[dict[str, Any]] = [
        {
            **{"x": xs, "y": ys, "mode": "lines", "hoverinfo": "skip"},
            **{"name": "between clusters" if group < 0 else f"cluster {group}", "showlegend": False},
            "line": {"width": 1.5, "color": GREY if group < 0 else colour(group)},
        }
        for group, (xs, ys) in sorted(lines.items())
    ]
    bottom = min(0.0, float(merges[:, 2].min(initial=0.0)))
    data.append(
        {
            **{"x": [*range(len(leaves))], "y": [bottom] * len(leaves), "mode": "markers", "showlegend": False},
            "text": [f"{plain(names[leaf])}<br>cluster {labels[leaf]}" for leaf in leaves],
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                **{"size": 8 if len(leaves) <= 100 else 4, "color": [colour(labels[leaf]) for leaf in leaves]},
                "symbol": [symbol(labels[leaf]) for leaf in leaves],
            },
        }
    )
    return {
        "data": data,
        "layout": {
            "height": 420,
            "shapes": [_line(xref="paper", x0=0, x1=1, y0=threshold, y1=threshold, dash="dash", width=2)],
            "annotations": [
                {
                    **{"xref": "paper", "x": 1, "xanchor": "right", "y": threshold, "yanchor": "bottom"},
                    **{"text": f"cut at {threshold:.3f}", "showarrow": False},
                }
            ],
            "xaxis": {
                **{"showgrid": False, "zeroline": False, "automargin": True, "tickvals": [*range(len(leaves))]},
                **{"ticktext": [plain(names[leaf]) for leaf in leaves], "showticklabels": len(leaves) <= MOST_LABELS},
                **({} if len(leaves) <= MOST_LABELS else {"title": {"text": "clients"}}),
            },
            "yaxis": {"title": {"text": "distance at which they merge"}, "zeroline": False},
        },
    }


def thresholds(candidates: NDArray[np.float64], chosen: float, clusters: int) -> Figure:
    """Loss and number of clusters against alpha, with the chosen alpha."""
    alphas, found, losses = (candidates[:, column].tolist() for column in range(3))
    return {
        "data": [
            {
                **{"x": alphas, "y": losses, "mode": "lines+markers", "name": "loss"},
                "hovertemplate": "α %{x:.2f}: loss %{y:.3f}",
            },
            {
                **{"x": alphas, "y": found, "yaxis": "y2", "mode": "lines+markers", "name": "clusters"},
                **{"line": {"shape": "hv", "dash": "dot", "color": GREY}, "marker": {"symbol": "square"}},
                "hovertemplate": "α %{x:.2f}: %{y} clusters",
            },
        ],
        "layout": {
            **{"height": 380, "legend": LEGEND | {"y": 1.12}},
            "shapes": [_line(yref="paper", x0=chosen, x1=chosen, y0=0, y1=1, dash="dash", width=2)],
            "annotations": [
                {
                    **{"x": chosen, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False},
                    "text": f"α* = {chosen:.2f}: {clusters} clusters",
                }
            ],
            "xaxis": {"title": {"text": "threshold α (distances scaled to 0 … 1)"}, "range": [0, 1.02]},
            "yaxis": {"title": {"text": "loss"}, "rangemode": "tozero"},
            "yaxis2": {
                **{"title": {"text": "clusters"}, "overlaying": "y", "side": "right", "rangemode": "tozero"},
                **{"showgrid": False, "tickmode": "auto", "automargin": True},
            },
        },
    }


def teaching(edges: Sequence[tuple[int, int, float | None, str]], sizes: Mapping[int, int]) -> Figure:
    """Clusters in a circle, and an arrow from each source to each learner, the wider the more it has to give."""
    groups = sorted(sizes)
    turn = 2 * np.pi / max(1, len(groups))
    at = {g: (float(np.sin(n * turn)), float(np.cos(n * turn))) for n, g in enumerate(groups)}
    known = [weight for _, _, weight, _ in edges if weight is not None]
    top = max([1e-12, *known])
    arrows, labels = [], []
    for learner, source, weight, supplied in edges:
        (x0, y0), (x1, y1) = at[source], at[learner]
        apart = max(1e-9, float(np.hypot(x1 - x0, y1 - y0)))
        right = (y1 - y0) / apart, (x0 - x1) / apart  # seen along the arrow
        x0, x1 = (x + ASIDE * right[0] for x in (x0, x1))
        y0, y1 = (y + ASIDE * right[1] for y in (y0, y1))
        gap = NODE / apart
        arrows.append(
            {
                **{"x": x1 - gap * (x1 - x0), "y": y1 - gap * (y1 - y0), "text": ""},
                **{"ax": x0 + gap * (x1 - x0), "ay": y0 + gap * (y1 - y0)},
                **{"xref": "x", "yref": "y", "axref": "x", "ayref": "y", "showarrow": True, "arrowhead": 2},
                **{"arrowwidth": 1 + 3 * (weight or 0) / top, "arrowcolor": colour(source), "opacity": 0.8},
            }
        )
        shown = "" if weight is None else f"{weight:.3g}"
        what = f"cluster {learner} learns from cluster {source}"
        x, y = x0 + 0.4 * (x1 - x0) + 2 * ASIDE * right[0], y0 + 0.4 * (y1 - y0) + 2 * ASIDE * right[1]
        labels.append((x, y, shown, f"{what}<br>{plain(supplied, 200)}"))
    data: list[dict[str, Any]] = [
        {
            **{"x": [x for x, *_ in labels], "y": [y for _, y, *_ in labels], "mode": "markers+text"},
            **{"text": [shown for *_, shown, _ in labels], "customdata": [said for *_, said in labels]},
            **{"hovertemplate": "%{customdata}<extra></extra>", "marker": {"size": 22, "color": "rgba(0,0,0,0)"}},
            **{"showlegend": False, "textfont": {"size": 12}},
        },
        {
            **{"x": [at[g][0] for g in groups], "y": [at[g][1] for g in groups], "mode": "markers+text"},
            **{"text": [str(g) for g in groups], "textfont": {"color": "white", "size": 15}, "showlegend": False},
            "customdata": [f"cluster {g}: {sizes[g]} clients" for g in groups],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {"size": 40, "opacity": 1, "color": [colour(g) for g in groups]},
        },
    ]
    hidden = {"visible": False, "range": [-1.3, 1.3]}
    axes = {"xaxis": hidden, "yaxis": {**hidden, "scaleanchor": "x"}}
    return {"data": data, "layout": {"height": 480, "annotations": arrows, **axes}}


def fusion_weights(weights: Mapping[str, NDArray[Any]], labels: Sequence[int], names: Sequence[str]) -> Figure:
    """How much each view counted, client by client; cluster by cluster where there are many clients."""
    if len(names) > MOST_ROWS:
        groups = sorted(set(labels))
        member = {group: np.array(labels) == group for group in groups}
        weights = {
            view: np.array([values[member[group]].mean() for group in groups]) for view, values in weights.items()
        }
        rows = [f"cluster {group}" for group in groups]
    else:
        rows = [plain(name) for name in names]
    patterns = ("", "/", ".")
    return {
        "data": [
            {
                **{"type": "bar", "x": rows, "y": [round(float(v), 4) for v in values], "name": view},
                **{"hovertemplate": "%{x}<br>%{fullData.name} %{y:.0%}<extra></extra>"},
                "marker": {"pattern": {"shape": patterns[number % 3], "fgopacity": 0.5}},
            }
            for number, (view, values) in enumerate(weights.items())
        ],
        "layout": {
            **{"height": 360, "barmode": "stack", "bargap": 0.1, "legend": LEGEND},
            "xaxis": {"type": "category", "showticklabels": len(rows) <= MOST_LABELS, "automargin": True},
            "yaxis": {"title": {"text": "share in the distance"}, "tickformat": ".0%", "range": [0, 1]},
        },
    }


def client_scores(
    scores: Mapping[ClientId, float], groups: Mapping[ClientId, int], names: Mapping[ClientId, str]
) -> Figure:
    """Every client's accuracy, cluster by cluster and from worst to best."""
    order = sorted(scores, key=lambda client: (groups.get(client, -1), scores[client]))
    return {
        "data": [
            {
                **{"x": [*range(len(order))], "y": [scores[client] for client in order], "mode": "markers"},
                "text": [
                    plain(names[client]) + (f"<br>cluster {groups[client]}" if client in groups else "")
                    for client in order
                ],
                **{"hovertemplate": "%{text}<br>accuracy %{y:.3f}<extra></extra>", "showlegend": False},
                "marker": {
                    "size": 9 if len(order) <= 100 else 5,
                    "color": [colour(groups[client]) if client in groups else GREY for client in order],
                    "symbol": [symbol(groups.get(client, 0)) for client in order],
                },
            }
        ],
        "layout": {
            "height": 340,
            "xaxis": {
                **{"title": {"text": "clients, cluster by cluster, worst first"}, "showticklabels": False},
                **{"showgrid": False, "zeroline": False},
            },
            "yaxis": {"title": {"text": "balanced accuracy"}, "range": _from_worst(list(scores.values()))},
        },
    }


def traffic(by_phase: Mapping[str, Mapping[str, int]]) -> Figure:
    """Megabytes up and down in each phase of the method."""
    phases = list(dict.fromkeys([*by_phase["up"], *by_phase["down"]]))
    return {
        "data": [
            {
                **{"type": "bar", "x": phases, "y": [by_phase[way].get(phase, 0) / 1e6 for phase in phases]},
                **{"name": name, "hovertemplate": "%{x}, %{fullData.name}: %{y:.3f} MB<extra></extra>"},
            }
            for way, name in (("up", "from clients"), ("down", "to clients"))
        ],
        "layout": {
            **{"height": 340, "barmode": "group", "legend": LEGEND},
            "xaxis": {"type": "category", "automargin": True},
            "yaxis": {"title": {"text": "MB, all clients and rounds"}, "rangemode": "tozero"},
        },
    }


def timeline(happened: Sequence[tuple[int, str, Sequence[str]]], kinds: Sequence[str], rounds: int) -> Figure:
    """What happened to clients, by round and kind; the larger the mark, the more of it."""
    return {
        "data": [
            {
                **{"x": [number for number, *_ in happened], "y": [kind for _, kind, _ in happened], "mode": "markers"},
                "text": [_several(said) for *_, said in happened],
                **{"hovertemplate": "round %{x}<br>%{text}<extra></extra>", "showlegend": False},
                "marker": {"size": [8 + 4 * float(np.log2(len(said))) for *_, said in happened], "opacity": 0.75},
            }
        ],
        "layout": {
            "height": 120 + 45 * len(kinds),
            "xaxis": {"title": {"text": "round"}, "range": [0, rounds + 1]},
            "yaxis": {
                **{"type": "category", "categoryorder": "array", "categoryarray": [*reversed(kinds)]},
                **{"automargin": True, "range": [-0.6, len(kinds) - 0.4]},
            },
        },
    }


def _several(said: Sequence[str], most: int = 8) -> str:
    more = [f"and {len(said) - most} more"] if len(said) > most else []
    return "<br>".join([*(plain(one, 120) for one in said[:most]), *more])


def _line(dash: str = "solid", width: float = 1, **where: Any) -> dict[str, Any]:
    return {"type": "line", "line": {"color": GREY, "width": width, "dash": dash}, **where}


def distances_of(condensed: NDArray[Any], order: Sequence[int]) -> NDArray[np.float32]:
    """A condensed view as a square matrix in this order, with nothing between a client and itself."""
    matrix = square(np.asarray(condensed, np.float32)).copy()
    np.fill_diagonal(matrix, np.nan)
    ordered: NDArray[np.float32] = matrix[np.ix_(order, order)]
    return ordered
