"""Methods side by side: curves, clients of one against another, and bars by setting."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.report.recorded import RecordedRun
from feddag.report.theme import GREY, LEGEND, Figure, colour, dash, faint, plain, symbol

Runs = dict[str, list[RecordedRun]]  # by method, over seeds
Along = Callable[[RecordedRun], list[float]]


def _scored(run: RecordedRun) -> NDArray[np.float64]:
    return np.array([record["accuracy"]["mean"] for record in run.history])


AXES: dict[str, tuple[str, Along]] = {
    "rounds": ("round", lambda run: [record["round"] for record in run.history]),
    "megabytes": (
        "MB per client, up and down",
        lambda run: [(r["bytes_up"] + r["bytes_down"]) / run.finished["clients"] / 1e6 for r in run.history],
    ),
    "seconds": (
        "seconds in rounds (without start and end)",
        lambda run: np.cumsum([record.get("seconds", 0.0) for record in run.history]).tolist(),
    ),
}


def curves(by_method: Runs, numbers: dict[str, int]) -> tuple[Figure, list[dict[str, Any]]]:
    """Accuracy against rounds, megabytes or seconds, and which traces belong to which."""
    data: list[dict[str, Any]] = []
    belongs: list[str] = []
    for axis, (_, along) in AXES.items():
        for method, runs in by_method.items():
            told = [run for run in runs if run.history]
            traces = _curve(told, along, method, numbers[method]) if told else []
            data += traces
            belongs += [axis] * len(traces)
    choices = [
        {
            **{"label": axis, "visible": [axis == owner for owner in belongs]},
            "layout": {"xaxis": {"title": {"text": title}, "rangemode": "tozero"}},
        }
        for axis, (title, _) in AXES.items()
    ]
    layout = {"height": 420, "legend": LEGEND, "yaxis": {"title": {"text": "balanced accuracy"}}}
    return {"data": data, "layout": layout}, choices


def _curve(runs: Sequence[RecordedRun], along: Along, method: str, number: int) -> list[dict[str, Any]]:
    """One method's mean over seeds and, of several seeds, the area of their standard deviation behind it."""
    length = min(run.rounds for run in runs)
    scores = np.stack([_scored(run)[:length] for run in runs])
    x = np.mean([along(run)[:length] for run in runs], axis=0).round(6).tolist()
    mean, name = scores.mean(0), plain(method, 60)
    line = {"color": colour(number), "width": 2.5, "dash": dash(number)}
    curve = {"x": x, "y": mean.round(6).tolist(), "mode": "lines", "name": name, "line": line}
    curve["hovertemplate"] = "%{y:.3f}"
    if len(runs) == 1:
        return [curve]
    std = scores.std(0, ddof=1)
    outline = [*(mean + std), *(mean - std)[::-1]]
    area = {"x": [*x, *x[::-1]], "y": np.round(outline, 6).tolist(), "fill": "toself", "fillcolor": faint(number)}
    quiet = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
    return [{**area, **quiet, "name": name}, curve]


def client_pairs(by_method: Runs, numbers: dict[str, int]) -> tuple[Figure, list[dict[str, Any]]] | None:
    """One method's accuracy of each client against another's, on the same partition; a choice for each pair."""
    data: list[dict[str, Any]] = []
    options: list[dict[str, Any]] = []
    for one, other in itertools.combinations(by_method, 2):
        points = [p for a in by_method[one] for b in by_method[other] for p in _shared_clients(a, b)]
        if not points:
            continue
        better, worse = sum(y > x for x, y, _ in points), sum(y < x for x, y, _ in points)
        said = f"{better} of {len(points)} better with {plain(other, 40)}, {worse} with {plain(one, 40)}"
        number = numbers[other]
        data.append(
            {
                **{"x": [x for x, *_ in points], "y": [y for _, y, _ in points], "mode": "markers"},
                **{"text": [name for *_, name in points], "showlegend": False, "name": ""},
                "hovertemplate": "%{text}<br>%{x:.3f} and %{y:.3f}<extra></extra>",
                "marker": {"color": colour(number), "symbol": symbol(number), "size": 7, "opacity": 0.7},
            }
        )
        layout = {
            **{"xaxis": _accuracy_axis(one), "yaxis": _accuracy_axis(other) | {"scaleanchor": "x"}},
            "title": {"text": said, "font": {"size": 14}},
        }
        options.append({"label": f"{one} and {other}", "layout": layout})
    if not data:
        return None
    for number, option in enumerate(options):
        option["visible"] = [number == other for other in range(len(data))]
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "line": {"color": GREY, "dash": "dot"}}
    return {"data": data, "layout": {"height": 560, "shapes": [diagonal]}}, options


def _accuracy_axis(method: str) -> dict[str, Any]:
    return {"title": {"text": f"accuracy with {plain(method, 60)}"}, "range": [0, 1.03], "constrain": "domain"}


def _shared_clients(one: RecordedRun, other: RecordedRun) -> list[tuple[float, float, str]]:
    """Both accuracies of every client that two runs on the same partition have scored."""
    first, second = one.finished, other.finished
    if first["seed"] != second["seed"] or first["partition_checksum"] != second["partition_checksum"]:
        return []
    scores = [dict(zip(r.get("participants", ()), r["accuracy"]["per_client"], strict=False)) for r in (first, second)]
    return [
        (score, beside, f"{plain(one.client_name(client))}, seed {first['seed']}")
        for client, score in scores[0].items()
        if score is not None and (beside := scores[1].get(client)) is not None
    ]


def setting_bars(settings: dict[str, Runs], numbers: dict[str, int]) -> Figure:
    """Accuracy of each method, setting by setting."""
    bars = []
    for method, number in numbers.items():
        held = {
            place: [float(run.finished["accuracy"]["mean"]) for run in by_method[method]]
            for place, by_method in enumerate(settings.values())
            if method in by_method
        }
        spread = [float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0 for scores in held.values()]
        bars.append(
            {
                **{"type": "bar", "x": list(held), "y": [float(np.mean(scores)) for scores in held.values()]},
                **{"name": plain(method, 60), "marker": {"color": colour(number)}, "hovertemplate": "%{y:.3f}"},
                "error_y": {"type": "data", "array": spread, "color": GREY, "thickness": 1.5},
            }
        )
    names = [plain(setting, 90).replace(", ", ",<br>") for setting in settings]
    return {
        "data": bars,
        "layout": {
            **{"height": 380, "barmode": "group", "legend": LEGEND},
            "xaxis": {"tickvals": [*range(len(names))], "ticktext": names, "showgrid": False, "automargin": True},
            "yaxis": {"title": {"text": "balanced accuracy"}, "rangemode": "tozero"},
        },
    }
