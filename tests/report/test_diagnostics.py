"""A method may tell any part of its diagnostics and leave out any other: a page shows what is there."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects
import pytest

from feddag.report import read_run, write_report
from feddag.report.diagnostics import compared_clients, sound_parts
from feddag.report.page import as_json
from feddag.report.recorded import RecordedRun
from feddag.report.run import run_document
from feddag.runner.trees import save_tree
from tests.report.conftest import made_by_hand
from tests.report.test_run import ALL_FIGURES, drawn

OF_EVERY_RUN = {"accuracy", "scores", "traffic", "timeline"}
DIAGNOSTICS = made_by_hand(8).diagnostics | {
    **{"counts": {client: np.arange(5) for client in range(8)}, "edges": np.eye(4, k=1, dtype=bool)},
}


def figures_with(told: dict[str, Any], run: RecordedRun | None = None) -> set[str]:
    """Which figures a page has that knows this; each is one that plotly accepts, and all of it is JSON."""
    document = run_document(replace(run or made_by_hand(8), diagnostics=told))
    as_json(document)
    for figure in drawn(document).values():
        text = json.dumps({"data": figure["data"], "layout": figure["layout"]}).replace('"ink"', '"black"')
        plotly.graph_objects.Figure(json.loads(text))
    return set(drawn(document)) - OF_EVERY_RUN


def without_clusters() -> RecordedRun:
    """The same run, but nothing besides the diagnostics knows who is in which cluster."""
    run = made_by_hand(8)
    history = [record | {"clusters": None} for record in run.history]
    return replace(run, history=history, result=run.result | {"clusters": None})


ALONE = {
    (): set(),
    ("clients", "labels", "distances"): {"proximity"},
    ("distances",): {"proximity"},
    ("views",): {"proximity"},
    ("clients", "views", "distances"): {"proximity"},
    ("weights",): {"weights"},
    ("merges",): {"dendrogram"},
    ("merges", "threshold"): {"dendrogram"},
    ("merges", "labels", "noise"): {"dendrogram"},
    ("candidates",): {"alpha"},
    ("candidates", "threshold", "distances"): {"alpha", "proximity"},
    ("counts",): {"classes"},
    ("counts", "classes"): {"classes"},
    ("class_counts",): {"classes"},
    ("labels", "graph"): {"graph"},
    ("labels", "edges", "scores"): {"graph"},
    ("clients", "labels"): set(),
    ("threshold", "noise", "scores", "classes"): set(),
}


@pytest.mark.parametrize("run", [made_by_hand(8), without_clusters()], ids=["clusters", "no clusters"])
@pytest.mark.parametrize(("parts", "figures"), ALONE.items(), ids=lambda value: " ".join(sorted(value)) or "nothing")
def test_what_is_there_is_shown(parts: tuple[str, ...], figures: set[str], run: RecordedRun) -> None:
    assert figures_with({part: DIAGNOSTICS[part] for part in parts}, run) == figures


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        *(("clients", set()), ("labels", {"graph"}), ("distances", set()), ("views", set()), ("threshold", set())),
        *(("noise", set()), ("scores", set()), ("edges", set()), ("counts", set()), ("class_counts", set())),
        *(("classes", set()), ("graph", set()), ("weights", {"weights"}), ("merges", {"dendrogram"})),
        ("candidates", {"alpha"}),
    ],
)
@pytest.mark.parametrize("absent", ["left out", None])
def test_only_what_a_missing_part_would_show_is_gone(missing: str, gone: set[str], absent: str | None) -> None:
    told = {part: value for part, value in DIAGNOSTICS.items() if part != missing}
    known = told if absent else told | {missing: None}
    assert figures_with(known, without_clusters()) == ALL_FIGURES - OF_EVERY_RUN - gone


@pytest.mark.parametrize(
    ("part", "value", "gone"),
    [
        ("labels", [0, 1], set()),
        ("distances", np.ones((8, 8)), set()),  # square, where pairs are asked for; the views are still there
        ("distances", np.full(28, np.nan), set()),
        ("views", {"loss": np.ones(28), "short": np.ones(3)}, set()),
        ("weights", {"data": np.ones(3)}, {"weights"}),
        ("weights", {"data": np.full(8, np.nan)}, set()),
        ("merges", DIAGNOSTICS["merges"][:-1], {"dendrogram"}),
        ("merges", np.zeros((7, 4)), {"dendrogram"}),  # no tree: a client that is merged with itself
        ("threshold", float("inf"), set()),
        ("candidates", [[0.1, 3, float("nan")]], {"alpha"}),
        ("candidates", "none", {"alpha"}),
        ("scores", np.full((4, 4), np.nan), set()),
        ("scores", [0.1, 0.2], set()),
        ("classes", ("only one",), set()),
        ("counts", {0: [1], 1: [1, 2, 3]}, set()),
    ],
)
def test_a_part_that_does_not_fit_is_taken_as_missing(part: str, value: Any, gone: set[str]) -> None:
    told = {name: known for name, known in DIAGNOSTICS.items() if (part, name) != ("counts", "class_counts")}
    assert figures_with(told | {part: value}) == ALL_FIGURES - OF_EVERY_RUN - gone


def test_labels_that_are_not_told_are_the_clusters_as_known() -> None:
    told = compared_clients({"clients": [4, 2, 9], "distances": [1, 2, 3]}, {2: 1, 4: 0})
    assert (told.clients, told.labels) == ([4, 2, 9], [0, 1, -1])


def test_a_client_whose_samples_are_not_known_has_no_number_of_them() -> None:
    run = replace(made_by_hand(3), diagnostics={"counts": {0: [2, 3]}})
    [table] = [part["table"] for part in run_document(run)["sections"] if part["id"] == "clients"]
    column = [named["name"] for named in table["columns"]].index("samples")
    assert [row[column] for row in table["rows"]] == [5, None, None]


def test_views_of_another_name_are_shown_under_it() -> None:
    document = run_document(replace(made_by_hand(8), diagnostics={"views": {"loss": np.ones(28), "data": np.ones(28)}}))
    assert [choice["label"] for choice in drawn(document)["proximity"]["choices"]["of"]] == ["data", "loss"]


def test_curves_by_round_are_drawn_on_the_scale_that_shows_them() -> None:
    settling = {"cluster 0": [[1, 1.0], [2, 0.1], [3, 0.001]], "<b>": np.array([[2, float("nan")], [3, 0.5]])}
    told = {"by_round": {"change": settling, "clusters": {"all": [[1, 4], [2, 5]]}, "nothing": {}}}
    assert figures_with(told) == {"by-round-0", "by-round-1"}
    first, second = (drawn(run_document(replace(made_by_hand(8), diagnostics=told)))[f"by-round-{n}"] for n in (0, 1))
    assert first["layout"]["yaxis"]["type"] == "log" and second["layout"]["yaxis"]["type"] == "linear"
    assert [trace["y"] for trace in first["data"]] == [[1.0, 0.1, 0.001], [None, 0.5]]
    assert "<b>" not in first["data"][1]["name"]


@pytest.mark.parametrize("wrong", [{"a": [[1, 2]]}, {"a": {"b": [[1, 2, 3]]}}, {"a": {"b": [1]}}, [1], {"a": {2: []}}])
def test_curves_that_are_none_are_left_out(wrong: Any) -> None:
    assert "by_round" not in sound_parts({"by_round": wrong})
    assert sound_parts({"by_round": {"a": {"b": []}}}) and figures_with({"by_round": {"a": {"b": []}}}) == {
        "by-round-0"
    }


def test_a_page_is_written_from_what_lies_on_disk(real_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(real_run, run)
    clients = [0, 2, 3]
    save_tree(run / "grouping.safetensors", {"clients": clients, "labels": [0, 0, 1], "distances": np.arange(3.0)})
    assert write_report(run).exists()
    shown = drawn(run_document(read_run(run)))
    assert "proximity" in shown and "dendrogram" not in shown
    (run / "grouping.safetensors").unlink()
    assert not {"proximity", "classes"} & set(drawn(run_document(read_run(run))))
