"""A run and a comparison as objects, as somebody in a notebook would use them."""

import sys
from pathlib import Path

import pytest

import feddag
from feddag.errors import FeddagError

EXPERIMENT = feddag.Experiment(clients=6, groups=2, rounds=2, epochs=1, workers=1)


@pytest.fixture(scope="module")
def run() -> feddag.Run:
    return feddag.run(EXPERIMENT)


def test_a_run_says_what_it_is(run: feddag.Run, tmp_path: Path) -> None:
    assert isinstance(run, feddag.Run)
    assert repr(run).startswith("<Run of feddag on digits, label-skew, 6 clients, 2 rounds: ")
    assert run.verdict.headline in repr(run) and "feddag.compare(run.experiment)" in run.verdict.next
    shown = run._repr_html_()
    assert f"<b>{run.accuracy.mean:.3f}</b>" in shown and "<small>groups</small>" in shown
    run.save(tmp_path / "<i>" / "r")
    again = feddag.load(tmp_path / "<i>" / "r")
    assert repr(again) == repr(run) and "<i>" in again.verdict.next and "<i>" not in again._repr_html_()


def test_a_run_as_a_table_has_a_row_for_each_client(run: feddag.Run) -> None:
    table = run.to_frame()
    assert list(table.index) == list(range(6)) and table.index.name == "client"
    assert list(table["cluster"]) == run.clusters and list(table["true group"]) == run.truth
    assert list(table["accuracy"]) == list(run.accuracy.per_client)


def test_a_run_as_a_chart_shows_every_round(run: feddag.Run) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    axes = run.plot()
    mean, _worst = axes.get_lines()
    assert list(mean.get_xdata()) == [1, 2]
    assert list(mean.get_ydata()) == [record["accuracy"]["mean"] for record in run.history]
    assert run.plot(axes) is axes and len(axes.get_lines()) == 4


def test_a_run_writes_its_page(run: feddag.Run, tmp_path: Path) -> None:
    assert run.report(tmp_path / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(FeddagError, match="lies in a temporary directory; say where its page goes"):
        run.report()
    run.save(tmp_path / "r")
    assert feddag.load(tmp_path / "r").report() == tmp_path / "r/report.html"


@pytest.mark.parametrize(("module", "call"), [("pandas", "to_frame"), ("matplotlib", "plot")])
def test_what_an_extra_is_needed_for_says_so(run: feddag.Run, module: str, call: str, monkeypatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(FeddagError) as raised:
        getattr(run, call)()
    assert str(raised.value) == f"run.{call}() needs {module}: pip install 'feddag[notebook]'"


def test_methods_are_compared_on_the_same_partition(tmp_path: Path) -> None:
    found = feddag.compare(EXPERIMENT, ["local", "fedavg"], seeds=[0, 1], runs=tmp_path / "runs")
    expected = [("local", 0), ("local", 1), ("fedavg", 0), ("fedavg", 1)]
    assert [(result["method"], result["seed"]) for result in found.results] == expected
    assert len({result["partition_checksum"] for result in found.results}) == 2
    assert list(found.to_frame().index) == ["local", "fedavg"]
    assert "2 rounds, seed 0, 1" in str(found) and repr(found).startswith("<Comparison: ")
    assert "<td>fedavg</td>" in found._repr_html_()
    assert found.report(tmp_path / "c.html").exists()
    again = feddag.compare(EXPERIMENT, ["fedavg"], seeds=[1], runs=tmp_path / "runs")
    assert again.results == found.results[-1:]  # taken from there
    with pytest.raises(FeddagError, match="give a list of methods, such as"):
        feddag.compare(EXPERIMENT, "fedavg")
