"""What a comparison's page says."""

import json
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects
import pytest

import feddag
from feddag.errors import FeddagError
from feddag.report import find_run, write_comparison
from feddag.report.best import clearly_best, say_best, say_best_of_settings
from feddag.report.comparison import comparison_document
from feddag.report.recorded import RecordedRun
from tests.report.conftest import HOSTILE, made_by_hand
from tests.report.test_run import drawn


def finished(method: str, seed: int, accuracy: float, **fields: object) -> RecordedRun:
    """A run of four clients that all have this accuracy."""
    run = made_by_hand(4, word="digits")
    block = {"mean": accuracy, "std": 0.0, "worst_decile": accuracy, "per_client": [accuracy] * 4}
    result = run.result | {"method": method, "seed": seed, "accuracy": block, "accuracy_finetuned": None}
    return replace(run, result=result, experiment=run.experiment | {"method": method, "seed": seed} | fields)


def table(document, section: str) -> list[list]:
    return next(part["table"]["rows"] for part in document["sections"] if part["id"] == section)


def test_mean_and_spread_by_hand_and_a_star_only_beyond_the_spread() -> None:
    runs = [finished("a", 0, 0.8), finished("a", 1, 0.9), finished("b", 0, 0.5), finished("b", 1, 0.5)]
    first, second = table(comparison_document(runs), "setting-0")
    assert (first[0], first[1], first[2]) == (
        "a",
        2,
        {"text": "0.850 ±\u00a00.071", "sort": 0.8500000000000001, "strong": True},
    )
    assert second[2]["text"] == "0.500 ±\u00a00.000" and not second[2]["strong"]
    assert first[4] == {"text": "–", "sort": None, "strong": False}
    assert [row[8]["text"] for row in (first, second)] == ["1.5 ±\u00a00.0", "1.5 ±\u00a00.0"]
    assert not any(row[8]["strong"] for row in (first, second))


@pytest.mark.parametrize(
    ("scores", "best"),
    [([[0.9, 0.9], [0.8, 0.8]], 0), ([[0.7, 0.9], [0.6, 0.8]], None), ([[0.5], [0.9]], None), ([[0.5, 0.6]], None)],
)
def test_who_is_clearly_best(scores: list[list[float]], best: int | None) -> None:
    assert clearly_best(scores) == best


def test_settings_and_variants_are_told_apart_by_what_differs() -> None:
    runs = [
        finished("a", 0, 0.8, lr=0.1, mu=1),
        finished("a", 0, 0.8, lr=0.1, mu=2),
        finished("a", 0, 0.7, lr=0.2, mu=2),
    ]
    document = comparison_document(runs)
    assert [row[0] for row in table(document, "summary")] == [
        "digits, label-skew, 4 clients, lr = 0.1",
        "digits, label-skew, 4 clients, lr = 0.2",
    ]
    assert [row[0] for row in table(document, "setting-0")] == ["a, mu = 1", "a, mu = 2"]


def test_clients_are_compared_only_on_the_same_partition() -> None:
    one, other = finished("a", 0, 0.8), finished("b", 0, 0.9)
    figure = drawn(comparison_document([one, other]))["pairs-0"]
    assert (figure["data"][0]["x"], figure["data"][0]["y"]) == ([0.8] * 4, [0.9] * 4)
    assert "4 of 4 better" in figure["choices"]["of"][0]["layout"]["title"]["text"]
    strange = replace(other, result=other.result | {"partition_checksum": "another"})
    assert "pairs-0" not in drawn(comparison_document([one, strange]))


def test_plotly_accepts_each_figure_whatever_methods_are_called() -> None:
    runs = [finished(name, seed, 0.8) for name in HOSTILE for seed in (0, 1)] + [finished("b", 0, 0.7, lr=3)]
    for figure in drawn(comparison_document(runs)).values():
        for choice in figure.get("choices", {"of": [{}]})["of"]:
            layout = figure["layout"] | choice.get("layout", {})
            plotly.graph_objects.Figure(json.loads(json.dumps({"data": figure["data"], "layout": layout})))


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FeddagError, match="run 'by-hand' has not finished"):
        write_comparison([made_by_hand(4), replace(made_by_hand(4), result=None)], tmp_path / "c.html")


def test_a_kept_result_has_no_history_and_a_run_has(tmp_path: Path) -> None:
    experiment = feddag.Experiment(clients=4, groups=2, rounds=1, epochs=1, workers=1, method="fedavg")
    run = feddag.run(experiment, tmp_path / "runs/one")
    assert find_run(experiment, run.result, tmp_path / "runs").rounds == 1
    alone = find_run(experiment, run.result, tmp_path / "elsewhere")
    assert alone.rounds == 0
    assert {part["id"] for part in comparison_document([alone, alone])["sections"]} == {"setting-0"}


def test_a_comparison_says_first_which_is_best() -> None:
    def results(method: str, *means: float) -> list:
        return [finished(method, seed, mean).finished for seed, mean in enumerate(means)]

    clear = {"a": results("a", 0.9, 0.92), "b": results("b", 0.7, 0.72), "oracle": results("oracle", 0.99, 0.99)}
    assert say_best(clear) == "a is clearly best: 0.910 against b 0.710; knowing the true groups (oracle) 0.990."
    close = {"a": results("a", 0.8, 0.9), "b": results("b", 0.82, 0.9), "c": results("c", 0.1, 0.2)}
    assert say_best(close) == "No clear winner over 2 seeds: b has 0.860 against a 0.850 and c 0.150."
    single = {"a": results("a", 0.9), "b": results("b", 0.895)}
    assert say_best(single) == "a and b are as good: 0.900 against b 0.895. One seed does not tell how sure that is."
    assert say_best({"a": results("a", 0.9)}) == "a has 0.900."
    assert say_best_of_settings([clear, close]) == "Clearly best: a in 1 of 2 settings; no clear winner in 1."
    assert say_best_of_settings([close, close]) == "No method is clearly best in any of 2 settings."
    assert comparison_document([finished("a", 0, 0.9), finished("b", 0, 0.7)])["headline"].startswith("a is ahead")


def test_a_method_of_ones_own_has_its_own_name() -> None:
    runs = [finished("mine:Own", 0, 0.8), finished("fedavg", 0, 0.7)]
    named = replace(runs[0], result=runs[0].result | {"method_name": "my-own"})
    assert [row[0] for row in table(comparison_document([named, runs[1]]), "setting-0")] == ["my-own", "fedavg"]
    assert [row[0] for row in table(comparison_document(runs), "setting-0")] == ["Own", "fedavg"]


def test_families_are_compared_by_the_best_of_each() -> None:
    runs = [finished("fedavg", 0, 0.5), finished("fedprox", 0, 0.6), finished("ditto", 0, 0.7), finished("x:Y", 0, 0.4)]
    rows = table(comparison_document(runs), "families-0")
    assert [(row[0], row[1], row[2], row[3]["text"]) for row in rows] == [
        ("one model", 2, "fedprox", "0.600"),
        ("personalised", 1, "ditto", "0.700"),
        ("your own", 1, rows[2][2], "0.400"),
    ]
    alike = comparison_document([finished("fedavg", 0, 0.5), finished("fedprox", 0, 0.6), finished("fairavg", 0, 0.6)])
    assert not any(part["id"] == "families-0" for part in alike["sections"])
