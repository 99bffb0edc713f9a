"""What stands on the page of a comparison: runs of several methods, seeds and settings side by side."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.records import ResultRecord
from feddag.report.left import Left
from feddag.report.look import GREY, LEGEND, PALETTE, Figure, colour, faint, plain, symbol
from feddag.report.run import Document, Section, drawn, section

IDENTITY = {"method", "seed", "workers", "trainer"}  # not part of the setting that methods are compared in
Runs = dict[str, list[Left]]  # by method, over seeds


def comparison_document(runs: Sequence[Left]) -> Document:
    """Everything on the page of a comparison, as plain data; the runs must have finished."""
    for run in runs:
        if run.result is None:
            raise FeddagError(f"run '{run.name}' has not finished: only finished runs can be compared")
    titles = _titles(runs)
    numbers = {method: number for number, method in enumerate(dict.fromkeys(method for _, method in titles))}
    settings: dict[str, Runs] = {}
    for run, (setting, method) in zip(runs, titles, strict=True):
        settings.setdefault(setting, {}).setdefault(method, []).append(run)
    made = [_summary(settings, numbers)] if len(settings) > 1 else []
    for place, (setting, by_method) in enumerate(settings.items()):
        first, *others = _sections(place, setting, by_method, numbers)
        made += [first, *({**other, "below": len(settings) > 1} for other in others)]
    seeds = sorted({int(_result(run)["seed"]) for run in runs})
    return {
        **{"title": f"{len(numbers)} methods compared", "tiles": [], "palette": PALETTE, "sections": made},
        "subtitle": f"{'; '.join(settings)}. Seeds {', '.join(map(str, seeds))}; {len(runs)} runs",
    }


def _result(run: Left) -> ResultRecord:
    assert run.result is not None
    return run.result


def _titles(runs: Sequence[Left]) -> list[tuple[str, str]]:
    """For each run what it was run in and by what, naming only the fields that tell runs apart."""
    shared, own = [], []
    for run in runs:
        known = {name: getattr(value, "name", value) for name, value in run.experiment.items() if name not in IDENTITY}
        shared.append({name: value for name, value in known.items() if name in Experiment.model_fields})
        own.append({name: value for name, value in known.items() if name not in Experiment.model_fields})
    methods = [str(_result(run)["method"]) for run in runs]
    found = []
    for run, method, fields, special in zip(runs, methods, shared, own, strict=True):
        result = _result(run)
        alike = [other for other, name in zip(own, methods, strict=True) if name == method]
        setting = f"{Path(result['dataset']).name}, {result['partition']}, {result['clients']} clients"
        differing = _differing(fields, shared, {"dataset", "partition", "clients"})
        found.append((", ".join([setting, *differing]), ", ".join([method, *_differing(special, alike, set())])))
    return found


def _differing(mine: dict[str, Any], everyone: Sequence[dict[str, Any]], shown: set[str]) -> list[str]:
    """Fields that everybody has, not with the same value.

    >>> _differing({"lr": 1, "mu": 2}, [{"lr": 1, "mu": 2}, {"lr": 3, "mu": 2}], set())
    ['lr = 1']
    """
    common = set(mine).intersection(*everyone) - shown if everyone else set()
    return [
        f"{name} = {mine[name]}" for name in mine if name in common and any(o[name] != mine[name] for o in everyone)
    ]


def clearly_best(scores: Sequence[Sequence[float]]) -> int | None:
    """Which has the highest mean by more than the larger standard deviation of it and the next; None if none has.

    >>> clearly_best([[0.9, 0.92], [0.7, 0.72]]), clearly_best([[0.9, 0.92], [0.88, 0.92]])
    (0, None)
    """
    if len(scores) < 2:
        return None
    order = np.argsort([-np.mean(values) for values in scores], kind="stable")
    first, second = scores[order[0]], scores[order[1]]
    if min(len(first), len(second)) < 2:
        return None  # a single run has no spread
    spread = max(np.std(first, ddof=1), np.std(second, ddof=1))
    return int(order[0]) if np.mean(first) - np.mean(second) > spread else None


def _cells(
    by_method: Runs, value: Callable[[ResultRecord], float | None], digits: int, sign: int = 0
) -> list[dict[str, Any]]:
    """A column: mean ± std over seeds. With a sign, the clearly highest (1) or lowest (-1) is marked."""
    known = [[v for v in (value(_result(run)) for run in runs) if v is not None] for runs in by_method.values()]
    present = [number for number, values in enumerate(known) if values]
    best = clearly_best([[sign * v for v in known[number]] for number in present]) if sign else None
    cells = []
    for number, values in enumerate(known):
        spread = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
        text = f"{np.mean(values):.{digits}f}{spread}" if values else "–"
        strong = best is not None and present[best] == number
        cells.append({"text": text, "sort": float(np.mean(values)) if values else None, "strong": strong})
    return cells


def _sections(place: int, setting: str, by_method: Runs, numbers: dict[str, int]) -> list[Section]:
    table = [
        ("accuracy", _cells(by_method, lambda r: r["accuracy"]["mean"], 3, 1)),
        ("worst tenth", _cells(by_method, lambda r: r["accuracy"]["worst_decile"], 3, 1)),
        ("fine-tuned", _cells(by_method, lambda r: r["accuracy_finetuned"] and r["accuracy_finetuned"]["mean"], 3, 1)),
        ("clusters", _cells(by_method, lambda r: len(set(r["clusters"]) - {None}) if r["clusters"] else None, 1)),
        ("ARI", _cells(by_method, lambda r: r["ari"], 3, 1)),
        ("MB/client", _cells(by_method, lambda r: (r["bytes_up"] + r["bytes_down"]) / r["clients"] / 1e6, 2, -1)),
        ("seconds", _cells(by_method, lambda r: r["seconds"], 1, -1)),
    ]
    rows = [[m, len(runs), *(cells[n] for _, cells in table)] for n, (m, runs) in enumerate(by_method.items())]
    columns = [{"name": "method"}, {"name": "seeds", "digits": 0}, *({"name": name, "digits": 3} for name, _ in table)]
    text = (
        "Balanced accuracy in [0, 1], mean ± standard deviation over seeds. A star marks the best where it is ahead of"
        " the next by more than the larger of the two deviations; with one seed nothing is marked."
    )
    grid = {"id": f"table-{place}", "label": setting, "columns": columns, "rows": rows}
    made = [section(f"setting-{place}", setting, text, table=grid)]
    if any(run.history for runs in by_method.values() for run in runs):
        figure, along = curves(by_method, numbers)
        text = "Mean over seeds of the mean over clients; the area is ± one standard deviation over seeds."
        choices = {"label": "against", "of": along}
        chart = drawn(f"curves-{place}", "accuracy of each method on the way", figure, choices=choices)
        made.append(section(f"learning-{place}", "Learning", text, figures=[chart]))
    pairs = client_pairs(by_method, numbers)
    if pairs:
        figure, options = pairs
        text = "Each mark is one client in one run; above the diagonal the second method serves it better."
        chart = drawn(
            f"pairs-{place}", "client by client", figure, square=True, choices={"label": "compare", "of": options}
        )
        made.append(section(f"clients-{place}", "Client by client", text, figures=[chart]))
    return made


def _scored(run: Left) -> NDArray[np.float64]:
    return np.array([record["accuracy"]["mean"] for record in run.history])


AXES: dict[str, tuple[str, Callable[[Left], list[float]]]] = {
    "rounds": ("round", lambda run: [record["round"] for record in run.history]),
    "megabytes": (
        "MB per client, up and down",
        lambda run: [(r["bytes_up"] + r["bytes_down"]) / _result(run)["clients"] / 1e6 for r in run.history],
    ),
    "seconds": (
        "seconds in rounds (without start and end)",
        lambda run: np.cumsum([record["seconds"] for record in run.history]).tolist(),
    ),
}


def curves(by_method: Runs, numbers: dict[str, int]) -> tuple[Figure, list[dict[str, Any]]]:
    """Accuracy against rounds, megabytes or seconds, and which traces belong to which."""
    data: list[dict[str, Any]] = []
    belongs = []
    for axis, (_, along) in AXES.items():
        for method, runs in by_method.items():
            told = [run for run in runs if run.history]
            if not told:
                continue
            length = min(run.rounds for run in told)
            scores = np.stack([_scored(run)[:length] for run in told])
            x = np.mean([along(run)[:length] for run in told], axis=0).round(6).tolist()
            mean, number = scores.mean(0), numbers[method]
            if len(told) > 1:
                std = scores.std(0, ddof=1)
                outline = [*(mean + std), *(mean - std)[::-1]]
                area = {"x": [*x, *x[::-1]], "y": np.round(outline, 6).tolist(), "fill": "toself"}
                quiet = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}
                data.append({**area, **quiet, "fillcolor": faint(number), "name": plain(method, 60)})
                belongs.append(axis)
            line = {"color": colour(number), "width": 2.5, "dash": ("solid", "dash", "dot")[number // 8 % 3]}
            data.append(
                {
                    **{"x": x, "y": mean.round(6).tolist(), "mode": "lines", "name": plain(method, 60), "line": line},
                    "hovertemplate": "%{y:.3f}",
                }
            )
            belongs.append(axis)
    layout = {
        **{"height": 420, "legend": LEGEND},
        "yaxis": {"title": {"text": "balanced accuracy"}},
    }
    choices = [
        {
            **{"label": axis, "visible": [axis == owner for owner in belongs]},
            "layout": {"xaxis": {"title": {"text": title}, "rangemode": "tozero"}},
        }
        for axis, (title, _) in AXES.items()
    ]
    return {"data": data, "layout": layout}, choices


def client_pairs(by_method: Runs, numbers: dict[str, int]) -> tuple[Figure, list[dict[str, Any]]] | None:
    """One method's accuracy of each client against another's, on the same partition; a choice for each pair."""
    data: list[dict[str, Any]] = []
    options: list[dict[str, Any]] = []
    methods = list(by_method)
    for at, one in enumerate(methods):
        for other in methods[at + 1 :]:
            points = [p for a in by_method[one] for b in by_method[other] for p in _shared_clients(a, b)]
            if not points:
                continue
            better = sum(y > x for x, y, _ in points)
            worse = sum(y < x for x, y, _ in points)
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
            axes = {
                "xaxis": {
                    "title": {"text": f"accuracy with {plain(one, 60)}"},
                    "range": [0, 1.03],
                    "constrain": "domain",
                },
                "yaxis": {
                    "title": {"text": f"accuracy with {plain(other, 60)}"},
                    "range": [0, 1.03],
                    **{"scaleanchor": "x", "constrain": "domain"},
                },
            }
            options.append(
                {"label": f"{one} and {other}", "layout": axes | {"title": {"text": said, "font": {"size": 14}}}}
            )
    if not data:
        return None
    for number, option in enumerate(options):
        option["visible"] = [number == other for other in range(len(data))]
    diagonal = {"type": "line", "x0": 0, "y0": 0, "x1": 1, "y1": 1, "line": {"color": GREY, "dash": "dot"}}
    return {"data": data, "layout": {"height": 560, "shapes": [diagonal]}}, options


def _shared_clients(one: Left, other: Left) -> list[tuple[float, float, str]]:
    """Both accuracies of every client that two runs on the same partition have scored."""
    first, second = _result(one), _result(other)
    if first["seed"] != second["seed"] or first["partition_checksum"] != second["partition_checksum"]:
        return []
    scores = [dict(zip(r.get("participants", ()), r["accuracy"]["per_client"], strict=False)) for r in (first, second)]
    return [
        (score, beside, f"{plain(one.client_name(client))}, seed {first['seed']}")
        for client, score in scores[0].items()
        if score is not None and (beside := scores[1].get(client)) is not None
    ]


def _summary(settings: dict[str, Runs], numbers: dict[str, int]) -> Section:
    """One row for each setting and one column for each method, and the same as bars."""
    rows: list[list[Any]] = []
    bars = []
    for setting, by_method in settings.items():
        cells = dict(zip(by_method, _cells(by_method, lambda r: r["accuracy"]["mean"], 3, 1), strict=True))
        rows.append([setting, *(cells.get(method) for method in numbers)])
    for method, number in numbers.items():
        held = {
            place: [float(_result(run)["accuracy"]["mean"]) for run in by_method[method]]
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
    figure = {
        "data": bars,
        "layout": {
            **{"height": 380, "barmode": "group", "legend": LEGEND},
            "xaxis": {"tickvals": [*range(len(names))], "ticktext": names, "showgrid": False, "automargin": True},
            "yaxis": {"title": {"text": "balanced accuracy"}, "rangemode": "tozero"},
        },
    }
    columns = [{"name": "setting"}, *({"name": method, "digits": 3} for method in numbers)]
    table = {"id": "summary-table", "label": "accuracy by setting", "columns": columns, "rows": rows}
    text = "Balanced accuracy of each method in each setting, mean ± standard deviation over seeds."
    return section(
        "summary",
        "By kind of difference",
        text,
        figures=[drawn("settings", "accuracy by setting", figure)],
        table=table,
    )
