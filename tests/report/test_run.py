"""What a run's page says, checked without a browser."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects
import pytest

from feddag.cli import main
from feddag.errors import FeddagError
from feddag.report import read_run, write_report
from feddag.report.figures import distances as figures
from feddag.report.page import page
from feddag.report.run import run_document
from feddag.report.terminal import result_row
from feddag.report.theme import colour, dash
from tests.report.conftest import HOSTILE, made_by_hand

TOML = b'method = "feddag"\ndataset = "digits"\npartition = "label-skew"\nseed = 0\nrounds = 4\n'
ALL_FIGURES = {
    *("accuracy", "proximity", "dendrogram", "alpha", "weights", "classes", "graph", "scores", "traffic", "timeline")
}


def drawn(document) -> dict[str, dict]:
    return {figure["id"]: figure for part in document["sections"] for figure in part.get("figures", [])}


def numbers(document) -> dict[str, str]:
    return {tile["label"]: tile["value"] for tile in document["tiles"]}


def test_a_real_run_has_every_figure_and_plotly_accepts_each(real_run: Path) -> None:
    document = run_document(read_run(real_run))
    assert set(drawn(document)) == ALL_FIGURES
    for figure in drawn(document).values():
        text = json.dumps({"data": figure["data"], "layout": figure["layout"]}).replace('"ink"', '"black"')
        plotly.graph_objects.Figure(json.loads(text))  # refuses a field that does not exist


def test_the_headline_is_that_of_the_result(real_run: Path) -> None:
    result = json.loads((real_run / "result.json").read_text())
    shown = numbers(run_document(read_run(real_run)))
    assert shown["balanced accuracy"] == f"{result['accuracy']['mean']:.3f}"
    assert shown["adjusted Rand index"] == f"{result['ari']:.3f}"
    assert shown["clusters"] == str(len(set(result["clusters"])))
    assert shown["traffic"] == f"{(result['bytes_up'] + result['bytes_down']) / 1e6:.1f} MB"


def test_an_unfinished_run_shows_what_there_is(real_run: Path, tmp_path: Path) -> None:
    for name in ("experiment.toml", "grouping.safetensors", "partition.npz"):
        (tmp_path / name).write_bytes((real_run / name).read_bytes())
    document = run_document(read_run(tmp_path))
    assert {"proximity", "dendrogram", "classes"} <= set(drawn(document)) <= ALL_FIGURES - {"accuracy", "scores"}
    first = (real_run / "history.jsonl").read_text().splitlines(keepends=True)[0]
    (tmp_path / "history.jsonl").write_text(first + '{"round": 2, "acc')  # a line that is being written
    document = run_document(read_run(tmp_path))
    assert {"accuracy", "scores"} <= set(drawn(document))
    assert "1 done" in document["subtitle"]


def test_rounds_before_the_first_clusters_and_rounds_without_scores_are_gaps() -> None:
    run = made_by_hand(4)
    run.history[0]["clusters"] = None
    run.history[1]["per_client"] = [None] * 4
    curves = {trace.get("name"): trace["y"] for trace in drawn(run_document(run))["accuracy"]["data"]}
    assert curves["cluster 0"][:2] == [None, None] and curves["cluster 0"][2] == run.history[2]["per_client"][0]
    assert curves["middle 80 % of clients"][1] is None
    page(run_document(run))


def test_clusters_lie_together_and_keep_the_order_of_the_tree() -> None:
    merges = np.array([[0, 3, 0.1, 2], [1, 2, 0.2, 2], [4, 5, 0.9, 4]])
    leaves, brackets = figures.tree_lines(merges, 4)
    assert leaves == [0, 3, 1, 2]
    assert brackets[2] == (2, [0.5, 0.5, 2.5, 2.5], [0.1, 0.9, 0.9, 0.2])
    assert figures.in_cluster_order([0, 1, 2, 3], [1, 0, 0, 1], leaves) == [1, 2, 0, 3]


def test_distances_are_reordered_and_gaps_stay_gaps() -> None:
    matrix = figures.distances_of(np.array([1, 2, np.nan]), [2, 0, 1])  # pairs 0-1, 0-2, 1-2
    np.testing.assert_array_equal(matrix, [[np.nan, 2, np.nan], [2, np.nan, 1], [np.nan, 1, np.nan]])


def test_names_cannot_leave_the_place_they_stand_in() -> None:
    written = page(run_document(made_by_hand(8, HOSTILE, word=HOSTILE[0])))
    content = re.search(r'id="document">(.*?)</script>', written, re.DOTALL)
    assert content is not None and "<" not in content[1]
    assert json.loads(content[1])["title"] == f"feddag on {HOSTILE[0].split('/')[-1]}"
    assert "<title>feddag on script&gt;</title>" in written


def test_a_thousand_clients_make_a_page_of_a_few_megabytes() -> None:
    document = run_document(made_by_hand(1000, rounds=20))
    assert len(json.dumps(document)) < 3.5e6
    assert "Neighbouring clients" in json.dumps(document)


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ({}, "is not a run directory: it has no experiment.toml"),
        ({"experiment.toml": b"= ="}, "experiment.toml' is damaged: it is not valid TOML"),
        ({"experiment.toml": b""}, "experiment.toml' is damaged: method is missing"),
        ({"experiment.toml": TOML, "history.jsonl": b"{\n"}, "history.jsonl' is damaged: a line of it is not JSON"),
        ({"experiment.toml": TOML, "grouping.safetensors": b"x"}, "grouping.safetensors' is damaged"),
        ({"experiment.toml": TOML, "result.json": b"x"}, "result.json' is damaged: it is not JSON"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(tmp_path: Path, broken: dict[str, bytes], sentence: str) -> None:
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(FeddagError, match=re.escape(sentence)):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_the_command_writes_where_it_says(real_run: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["feddag", "report", str(real_run), "--out", str(tmp_path / "my.html")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out == f"report: {tmp_path / 'my.html'}\n"
    assert (tmp_path / "my.html").read_text().startswith("<!doctype html>")


def test_clients_without_a_cluster_are_no_cluster() -> None:
    result = {
        "clusters": [0, None, 1],
        "truth": [0, 1, 1],
        "method": "ifca",
        "accuracy": {"mean": 1, "worst_decile": 1},
    }
    more = {"accuracy_finetuned": None, "ari": None, "bytes_up": 0, "bytes_down": 0, "clients": 3, "seconds": 1.0}
    assert result_row([result | more])[4:6] == ["2", "2"]


def test_scores_of_uneven_classes_are_shown_only_where_they_are_asked_for() -> None:
    run = made_by_hand(8)
    assert run.result is not None
    told = dict.fromkeys(("ari", "rand", "silhouette", "silhouette_classes"), 1.0)
    scores = told | {"was": 0.5, "wadb": 1.5, "found": 4}
    for method, shown in (("feddag", False), ("fedgwc", True)):
        result: Any = run.result | {"method": method, "clustering": scores}
        tiles = run_document(replace(run, result=result))["tiles"]
        assert any(tile["label"] == "WAS / WADB" for tile in tiles) == shown, method


def test_lines_of_the_first_and_the_fifth_cluster_differ_in_more_than_a_shade() -> None:
    assert colour(0) != colour(4) and dash(0) != dash(4)


def test_the_page_counts_as_a_person_does() -> None:
    run = made_by_hand(8)
    assert run.result is not None
    alike: Any = run.result | {"truth": [0] * 8, "clients": 30}
    document = run_document(replace(run, result=alike, experiment=run.experiment | {"clients": 0}))
    assert "30 clients" in document["subtitle"] and "all clients" not in document["subtitle"]
    [note] = [tile["note"] for tile in document["tiles"] if tile["label"] == "clusters"]
    assert note == "1 true group"


def test_all_fields_are_folded_away_and_what_is_unusual_is_said() -> None:
    run = made_by_hand(8)
    [part] = [part for part in run_document(run)["sections"] if part["id"] == "experiment"]
    assert part["details"]["code"].startswith("dataset = 'digits'")
    assert "dataset = 'digits'" not in part["text"] and "rounds = 3" in part["text"]


def test_a_single_view_is_a_sentence_instead_of_a_chart_of_a_constant() -> None:
    run = made_by_hand(8)
    weights = {"data": np.ones(8), "gradient": np.zeros(8)}
    document = run_document(replace(run, diagnostics={**run.diagnostics, "weights": weights}))
    [part] = [part for part in document["sections"] if part["id"] == "fusion"]
    assert "Only one view counts" in part["text"] and "Nothing by gradient" in part["text"]
    assert "weights" not in drawn(document) and "weights" in drawn(run_document(run))
