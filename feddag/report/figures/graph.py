"""Which cluster learns from which."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feddag.errors import counted
from feddag.report.theme import Figure, colour, plain

ASIDE = 0.04  # keeps the two directions of an edge apart, and its number off the line
NODE = 0.17  # the radius of a cluster's disc, on the scale of the circle that they stand on


def complementarity_graph(edges: Sequence[tuple[int, int, float | None, str]], sizes: Mapping[int, int]) -> Figure:
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
            "customdata": [f"cluster {g}: {counted(sizes[g], 'client')}" for g in groups],
            "hovertemplate": "%{customdata}<extra></extra>",
            "marker": {"size": 40, "opacity": 1, "color": [colour(g) for g in groups]},
        },
    ]
    hidden = {"visible": False, "range": [-1.3, 1.3]}
    axes = {"xaxis": hidden, "yaxis": {**hidden, "scaleanchor": "x"}}
    return {"data": data, "layout": {"height": 480, "annotations": arrows, **axes}}
