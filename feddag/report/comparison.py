"""What stands on the page of a comparison: runs of several methods, seeds and settings side by side."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from feddag.errors import counted
from feddag.experiment import Experiment
from feddag.methods import all_methods
from feddag.records import ResultRecord
from feddag.report.best import ByMethod, clearly_best, say_best, say_best_of_settings, shown_names
from feddag.report.document import Document, Section, drawn, section
from feddag.report.figures.methods import Runs, client_pairs, curves, setting_bars
from feddag.report.recorded import RecordedRun
from feddag.report.theme import PALETTE
from feddag.runner.level import level_note
from feddag.runner.paired import MEANING, against_last, own_scores

NOT_IN_SETTING = {
    "method",
    "seed",
    "workers",
    "trainer",
    "training_flops",
}  # not part of the setting that methods are compared in
Better = Literal["higher", "lower"] | None


def comparison_document(runs: Sequence[RecordedRun]) -> Document:
    """Everything on the page of a comparison, as plain data; the runs must have finished."""
    titles = _titles(runs)
    numbers = {method: number for number, method in enumerate(dict.fromkeys(method for _, method in titles))}
    settings: dict[str, Runs] = {}
    for run, (setting, method) in zip(runs, titles, strict=True):
        settings.setdefault(setting, {}).setdefault(method, []).append(run)
    made = [_summary(settings, numbers)] if len(settings) > 1 else []
    for place, (setting, by_method) in enumerate(settings.items()):
        first, *others = _sections(place, setting, by_method, numbers)
        made += [first, *({**other, "below": len(settings) > 1} for other in others)]
    seeds = sorted({int(run.finished["seed"]) for run in runs})
    results: list[ByMethod] = [
        {method: [run.finished for run in own] for method, own in by_method.items()} for by_method in settings.values()
    ]
    said = say_best(results[0]) if len(results) == 1 else say_best_of_settings(results)
    return {
        **{"title": f"{counted(len(numbers), 'method')} compared", "headline": said, "tiles": [], "palette": PALETTE},
        "sections": made,
        "subtitle": f"{'; '.join(settings)}. Seeds {', '.join(map(str, seeds))}; {counted(len(runs), 'run')}",
    }


def _titles(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    """For each run what it was run in and by what, naming only the fields that tell runs apart."""
    shared, own = [], []
    for run in runs:
        known = {
            name: getattr(value, "name", value) for name, value in run.experiment.items() if name not in NOT_IN_SETTING
        }
        shared.append({name: value for name, value in known.items() if name in Experiment.model_fields})
        own.append({name: value for name, value in known.items() if name not in Experiment.model_fields})
    names = shown_names(run.finished for run in runs)
    methods = [names[run.finished["method"]] for run in runs]
    found = []
    for run, method, fields, special in zip(runs, methods, shared, own, strict=True):
        result = run.finished
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


def _cells(
    by_method: Runs, value: Callable[[ResultRecord], float | None], digits: int | None, better: Better = None
) -> list[dict[str, Any]]:
    """A column: mean ± std over seeds. The clearly best is marked where higher or lower is better.

    Without a number of digits, three count, whatever the size of the mean.
    """
    known = [[v for v in (value(run.finished) for run in runs) if v is not None] for runs in by_method.values()]
    present = [number for number, values in enumerate(known) if values]
    sign = -1 if better == "lower" else 1
    best = clearly_best([[sign * v for v in known[number]] for number in present]) if better else None
    cells = []
    for number, values in enumerate(known):
        form = f".{three_digits(values) if digits is None else digits}f"
        spread = f" ±\u00a0{np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
        text = f"{np.mean(values):{form}}{spread}" if values else "–"
        strong = best is not None and present[best] == number
        cells.append({"text": text, "sort": float(np.mean(values)) if values else None, "strong": strong})
    return cells


def three_digits(values: Sequence[float]) -> int:
    """Decimals that leave three digits of the mean, whatever its size.

    >>> three_digits([0.00124]), three_digits([12.0]), three_digits([1500.0]), three_digits([])
    (5, 1, 0, 0)
    """
    mean = abs(float(np.mean(values))) if values else 0.0
    return max(0, 2 - math.floor(math.log10(mean))) if mean else 0


def _sections(place: int, setting: str, by_method: Runs, numbers: dict[str, int]) -> list[Section]:
    table = [
        ("accuracy", _cells(by_method, lambda r: r["accuracy"]["mean"], 3, "higher")),
        ("worst tenth", _cells(by_method, lambda r: r["accuracy"]["worst_decile"], 3, "higher")),
        (
            "fine-tuned",
            _cells(by_method, lambda r: r["accuracy_finetuned"] and r["accuracy_finetuned"]["mean"], 3, "higher"),
        ),
        ("clusters", _cells(by_method, lambda r: len(set(r["clusters"]) - {None}) if r["clusters"] else None, 1)),
        ("ARI", _cells(by_method, lambda r: r["ari"], 3, "higher")),
        ("MB/client", _cells(by_method, lambda r: (r["bytes_up"] + r["bytes_down"]) / r["clients"] / 1e6, 2, "lower")),
        ("seconds", _cells(by_method, lambda r: r["seconds"], 1, "lower")),
        ("TFLOP", _cells(by_method, lambda r: r["training_flops"] / 1e12 if "training_flops" in r else None, None)),
    ]
    if len({run.finished["rounds"] for runs in by_method.values() for run in runs}) > 1:
        table.append(("rounds", _cells(by_method, lambda r: r["rounds"], 1)))
    differences = against_last([own_scores([run.finished for run in runs]) for runs in by_method.values()])
    if any(differences):
        told = [
            {"text": str(d or "–").replace(", ", ",\u00a0"), "sort": d.mean if d else None, "strong": False}
            for d in differences
        ]
        table.append((f"vs {[*by_method][-1]}", told))
    rows = [[m, len(runs), *(cells[n] for _, cells in table)] for n, (m, runs) in enumerate(by_method.items())]
    columns = [{"name": "method"}, {"name": "seeds", "digits": 0}, *({"name": name, "digits": 3} for name, _ in table)]
    text = (
        "Balanced accuracy in [0, 1], mean ± standard deviation over seeds. A star marks the best where it is ahead of"
        " the next by more than the larger of the two deviations; with one seed nothing is marked."
    )
    if any(differences):
        text += f" The column vs {[*by_method][-1]}: {MEANING}."
    told_of = [(run.experiment, run.finished) for runs in by_method.values() for run in runs]
    if any(fields.get("training_flops") for fields, _ in told_of):
        text += f" Level{level_note(told_of).removeprefix('level')}."
    grid = {"id": f"table-{place}", "label": setting, "columns": columns, "rows": rows, "cards": True}
    made = [section(f"setting-{place}", setting, text, table=grid)]
    if any(run.history for runs in by_method.values() for run in runs):
        figure, along = curves(by_method, numbers)
        text = "Mean over seeds of the mean over clients; the area is ± one standard deviation over seeds."
        choices = {"label": "against", "of": along}
        chart = drawn(f"curves-{place}", "accuracy of each method on the way", figure, choices=choices)
        made.append(section(f"learning-{place}", "Learning", text, figures=[chart]))
    made += _by_family(place, by_method)
    pairs = client_pairs(by_method, numbers)
    if pairs:
        figure, options = pairs
        text = "Each mark is one client in one run; above the diagonal the second method is better for that client."
        chart = drawn(
            f"pairs-{place}", "client by client", figure, square=True, choices={"label": "compare", "of": options}
        )
        made.append(section(f"clients-{place}", "Client by client", text, figures=[chart]))
    return made


def _by_family(place: int, by_method: Runs) -> list[Section]:
    """The best method of each kind, where there are several kinds: like is compared with like."""
    known = all_methods()
    families: dict[str, Runs] = {}
    for name, runs in by_method.items():
        kind = known.get(runs[0].finished["method"])
        families.setdefault(kind.family if kind else "your own", {})[name] = runs
    if len(families) < 2 or len(by_method) < 3:
        return []
    rows: list[list[Any]] = []
    for family, own in families.items():
        cells = _cells(own, lambda r: r["accuracy"]["mean"], 3)
        best = max(range(len(cells)), key=lambda place: cells[place]["sort"] or 0.0)
        worst = _cells(own, lambda r: r["accuracy"]["worst_decile"], 3)[best]
        rows.append([family, len(own), [*own][best], cells[best], worst])
    columns = [{"name": "family"}, {"name": "methods", "digits": 0}, {"name": "best of them"}]
    columns += [{"name": name, "digits": 3} for name in ("accuracy", "worst tenth")]
    table = {"id": f"family-table-{place}", "label": "by family", "columns": columns, "rows": rows, "cards": True}
    text = "The method with the highest mean accuracy of each family; `feddag methods` tells what they need and send."
    return [section(f"families-{place}", "By family", text, table=table)]


def _summary(settings: dict[str, Runs], numbers: dict[str, int]) -> Section:
    """One row for each setting and one column for each method, and the same as bars."""
    rows: list[list[Any]] = []
    for setting, by_method in settings.items():
        cells = dict(zip(by_method, _cells(by_method, lambda r: r["accuracy"]["mean"], 3, "higher"), strict=True))
        rows.append([setting, *(cells.get(method) for method in numbers)])
    columns = [{"name": "setting"}, *({"name": method, "digits": 3} for method in numbers)]
    table = {"id": "summary-table", "label": "accuracy by setting", "columns": columns, "rows": rows, "cards": True}
    figure = drawn("settings", "accuracy by setting", setting_bars(settings, numbers))
    text = "Balanced accuracy of each method in each setting, mean ± standard deviation over seeds."
    return section("summary", "By kind of difference", text, figures=[figure], table=table)
