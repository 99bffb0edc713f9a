"""Client by client: what each holds, and how well it is served."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from feddag.report.figures.parts import MOST_LABELS, MOST_ROWS, STRIP, accuracy_range, cluster_edges, row_names
from feddag.report.theme import GREY, SCALE, Figure, colour, packed, plain, symbol
from feddag.weights import ClientId


def label_distribution(
    counts: NDArray[np.int64], labels: Sequence[int], names: Sequence[str], classes: Sequence[str]
) -> Figure:
    """Clients x classes, the brighter the more samples, on a logarithmic scale."""
    block = -(-len(counts) // MOST_ROWS)
    means = np.stack([rows.mean(0) for rows in np.split(counts, range(block, len(counts), block))])
    rows = len(means)
    shapes, notes = cluster_edges(labels, block, rows, len(classes), both=False)
    top = max(1.0, float(means.max()))
    ticks = sorted({0, *(10**power for power in range(1 + int(np.log10(top)))), round(top)})
    held = {"type": "category", "automargin": True, "showgrid": False, "ticks": ""}
    return {
        "data": [
            {
                **{"type": "heatmap", "z": packed(np.log10(1 + means).astype(np.float32)), "colorscale": SCALE},
                **{"x": [plain(name) for name in classes], "y": row_names(names, block)},
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


def client_scores(
    scores: Mapping[ClientId, float], groups: Mapping[ClientId, int], names: Mapping[ClientId, str]
) -> Figure:
    """Every client's accuracy, cluster by cluster and from worst to best."""
    order = sorted(scores, key=lambda client: (groups.get(client, -1), scores[client]))
    title = "clients, cluster by cluster, worst first" if groups else "clients, worst first"
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
                **{"title": {"text": title}, "showticklabels": False},
                **{"showgrid": False, "zeroline": False},
            },
            "yaxis": {"title": {"text": "balanced accuracy"}, "range": accuracy_range(list(scores.values()))},
        },
    }
