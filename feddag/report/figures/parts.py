"""What several figures share: lines, colours beside rows, names of rows, and how much is too much to draw."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from feddag.report.theme import GREY, colour, plain

MOST_ROWS = 300  # of a picture of clients: more would be finer than a screen
MOST_LABELS = 40
STRIP = 0.025  # the breadth of a strip of cluster colours beside a picture, as a share of the picture


def line(dash: str = "solid", width: float = 1, **where: Any) -> dict[str, Any]:
    """A grey line."""
    return {"type": "line", "line": {"color": GREY, "width": width, "dash": dash}, **where}


def stacked_lines(said: Sequence[str], most: int = 8) -> str:
    """Sentences below each other, as a figure shows them."""
    more = [f"and {len(said) - most} more"] if len(said) > most else []
    return "<br>".join([*(plain(one, 120) for one in said[:most]), *more])


def accuracy_range(scores: Sequence[float]) -> list[float]:
    """The part of an axis of accuracies that is in use: from a tenth below the worst up to all."""
    lowest = float(np.floor(min(scores, default=0.0) * 10 - 0.5) / 10)
    bottom = max(0.0, lowest)
    return [bottom, 1 + 0.03 * (1 - bottom)]


def row_names(names: Sequence[str], block: int) -> list[str]:
    """What rows are called that stand for so many clients each."""
    if block == 1:
        return [plain(name) for name in names]
    return [f"{plain(names[first])} and {block - 1} more" for first in range(0, len(names), block)]


def cluster_edges(
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
        shapes.append(line(x0=-0.5, x1=columns - 0.5, y0=high, y1=high))
        if both:
            shapes.append({**filled, "x0": low, "x1": high, "y0": rows - 0.5, "y1": rows - 0.5 + STRIP * rows})
            shapes.append(line(x0=high, x1=high, y0=-0.5, y1=rows - 0.5))
        if high - low >= rows / 60:
            where = {"x": columns - 0.5, "xanchor": "left", "y": (low + high) / 2, "showarrow": False}
            notes.append({**where, "text": f"<b>{cluster}</b>", "font": {"color": colour(cluster)}})
    return shapes, notes
