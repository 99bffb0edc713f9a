"""What happened round by round: learning curves, events, and traffic by phase."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.records import Event, RoundRecord
from feddag.report.figures.parts import accuracy_range, line, stacked_lines
from feddag.report.theme import GREY, LEGEND, Figure, colour, dash, plain

MOST_LINES = 30  # vertical lines for events; beyond, marks alone
MOST_GROUP_CURVES = 12
HOVER = "round %{x}: %{y:.3f}"


def learning(history: Sequence[RoundRecord], events: Mapping[int, Sequence[str]]) -> Figure:
    """Accuracy with its spread over clients, and loss below, by round; events are marked."""
    rounds = [record["round"] for record in history]
    scores = [np.array([np.nan if s is None else s for s in record["per_client"]], float) for record in history]
    low, high = ([_percentile(row, q) for row in scores] for q in (10, 90))
    worst = [record["accuracy"]["worst_decile"] for record in history]
    axis = accuracy_range([*(score for score in low if score is not None), *worst])
    marked = list(events) if len(events) <= MOST_LINES else []
    data = [
        *_spread(rounds, low, high),
        {
            **{"x": rounds, "y": worst, "mode": "lines", "name": "worst tenth of clients", "hovertemplate": HOVER},
            "line": {"dash": "dot", "width": 1.5, "color": GREY},
        },
        *_cluster_curves(history, rounds, scores),
        _curve(rounds, [record["accuracy"]["mean"] for record in history], 3, name="mean over clients"),
        _curve(rounds, [record["loss"] for record in history], 2, name="loss", yaxis="y2", showlegend=False),
        *(_event_marks(events, axis[1]) if events else ()),
    ]
    return {
        "data": data,
        "layout": {
            **{"height": 520, "shapes": [line(x0=n, x1=n, yref="paper", y0=0, y1=1) for n in marked]},
            "legend": LEGEND | {"traceorder": "normal"},
            "margin": {"l": 64, "r": 40, "t": 90, "b": 50},
            "xaxis": {"title": {"text": "round"}, "anchor": "y2", "rangemode": "tozero"},
            "yaxis": {"title": {"text": "balanced accuracy"}, "domain": [0.36, 1], "range": axis},
            "yaxis2": {"title": {"text": "loss (nats)"}, "domain": [0, 0.26], "rangemode": "tozero"},
        },
    }


def _percentile(scores: NDArray[Any], percent: float) -> float | None:
    known = scores[~np.isnan(scores)]
    return float(np.percentile(known, percent)) if len(known) else None


def _spread(rounds: list[int], low: Sequence[float | None], high: Sequence[float | None]) -> list[dict[str, Any]]:
    """An area: its upper edge, then its lower edge with everything between them filled."""
    edge = {"x": rounds, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    filled = {"fill": "tonexty", "fillcolor": "rgba(136,136,136,0.25)", "name": "middle 80 % of clients"}
    return [{**edge, "y": high, "showlegend": False}, {**edge, "y": low, **filled}]


def _curve(rounds: list[int], values: Sequence[float | None], width: float, **more: Any) -> dict[str, Any]:
    mode = "lines+markers" if len(rounds) == 1 else "lines"  # a single round is a point, which no line shows
    return {
        **{"x": rounds, "y": values, "mode": mode, "hovertemplate": HOVER},
        **{"line": {"width": width, "color": "ink"}, **more},
    }


def _event_marks(events: Mapping[int, Sequence[str]], height: float) -> list[dict[str, Any]]:
    return [
        {
            **{"x": list(events), "y": [height] * len(events), "cliponaxis": False, "mode": "markers"},
            **{"name": "event", "text": [stacked_lines(said) for said in events.values()]},
            "hovertemplate": "round %{x}<br>%{text}",
            "marker": {"symbol": "triangle-down", "size": 10, "color": GREY},
        }
    ]


def _cluster_curves(history: Sequence[RoundRecord], rounds: list[int], scores: Sequence[Any]) -> list[dict[str, Any]]:
    groups = [record["clusters"] or [None] * len(record["per_client"]) for record in history]
    every = sorted({group for record in groups for group in record if group is not None})
    if not 1 < len(every) <= MOST_GROUP_CURVES:
        return []
    return [
        {
            **{"x": rounds, "y": [_mean_of(row[np.array(g) == group]) for row, g in zip(scores, groups, strict=True)]},
            **{"mode": "lines", "name": f"cluster {group}", "hovertemplate": HOVER},
            "line": {"color": colour(group), "width": 2, "dash": dash(group)},
        }
        for group in every
    ]


def _mean_of(values: NDArray[Any]) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def curves_by_round(title: str, curves: Mapping[str, Any]) -> Figure:
    """Curves that a method told; where values differ by orders of magnitude, and none is 0 or less, on a log scale."""
    rows = {name: np.asarray(told, float).reshape(-1, 2) for name, told in curves.items()}
    values = np.concatenate([points[:, 1] for points in rows.values()])
    values = values[~np.isnan(values)]
    far_apart = len(values) > 0 and values.min() > 0 and values.max() > 100 * values.min()
    data = [
        {
            **{"x": points[:, 0].tolist(), "y": [None if np.isnan(y) else y for y in points[:, 1].tolist()]},
            **{"mode": "lines+markers" if len(points) == 1 else "lines", "name": plain(name)},
            **{
                "hovertemplate": "round %{x}: %{y:.3g}",
                "line": {"color": colour(number), "width": 2, "dash": dash(number)},
            },
        }
        for number, (name, points) in enumerate(rows.items())
    ]
    return {
        "data": data,
        "layout": {
            **{"height": 340, "showlegend": len(rows) > 1, "legend": LEGEND},
            "xaxis": {"title": {"text": "round"}, "rangemode": "tozero"},
            "yaxis": {"title": {"text": plain(title, 60)}, "type": "log" if far_apart else "linear"},
        },
    }


def timeline(marks: Mapping[tuple[int, str], Sequence[Event]], kinds: Sequence[str], rounds: int) -> Figure:
    """What happened to clients, by round and kind; the larger the mark, the more clients."""
    clients = [sum(max(1, len(event.clients)) for event in events) for events in marks.values()]
    return {
        "data": [
            {
                **{"x": [number for number, _ in marks], "y": [kind for _, kind in marks], "mode": "markers"},
                "text": [stacked_lines([event.text for event in events]) for events in marks.values()],
                **{"hovertemplate": "round %{x}<br>%{text}<extra></extra>", "showlegend": False},
                "marker": {"size": [8 + 4 * float(np.log2(number)) for number in clients], "opacity": 0.75},
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
