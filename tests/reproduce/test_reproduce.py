"""Running a published table: the plan, the time it takes, and the command as a user types it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from feddag.cli import main
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.reproduce import estimate
from feddag.reproduce.plan import SEARCH_SECONDS, Plan
from feddag.reproduce.published import Published, read_published
from feddag.reproduce.shown import blocks_of
from feddag.reproduce.thresholds import find_searches, search
from feddag.runner.compare import name_of
from feddag.runner.run import prepare, run

FEDDAG = [sys.executable, "-c", "from feddag.cli import main; main()"]
TABLE = """
title = "two datasets"
paper = "nobody, Table 0"
note = "made by hand"

[experiment]
clients = 6
groups = 3
rounds = 6
epochs = 1
participation = 0.5
finetune = false

[small]
rounds = 2

[[column]]
name = "digits, skewed"
dataset = "digits"

[[column]]
name = "landmarks"
dataset = "landmarks"
partition = "natural"

[[row]]
name = "FedAvg"
method = "fedavg"
paper = [[50.0, 1.5], [40.0, 0.5]]

[[row]]
name = "Tomorrow"
method = "fed-of-tomorrow"
strength = 3
paper = [[60.0, 1.5], [70.0, 0.5]]

[[row]]
name = "CFL"
method = "cfl"
paper = [[55.0, 1.5], []]
"""
SMALL_RUN = {"clients": 6, "groups": 3, "rounds": 4, "participation": 0.5, "epochs": 2, "finetune": False}
EVEN = SMALL_RUN | {"partition": "iid"}  # all 1,438 training samples are used; 359 are for testing


@pytest.fixture
def reproduce(in_tmp: Path, monkeypatch, capsys) -> Callable[..., str]:
    """The command in an empty home, where no dataset is in reach but digits; returns what it shows."""
    monkeypatch.setenv("HOME", str(in_tmp))
    monkeypatch.delenv("FEDDAG_DATA", raising=False)
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def call(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["feddag", "reproduce", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        shown = capsys.readouterr()
        assert not ended.value.code, shown.err
        return str(shown.out)

    return call


def line(shown: str, *first: str) -> list[str]:
    """The rest of the line whose first cells are these."""
    lines = [re.split(r" {2,}", line) for line in shown.splitlines()]
    return next(cells[len(first) :] for cells in lines if tuple(cells[: len(first)]) == first)


# The command ---------------------------------------------------------------------------------------------------------


def test_ours_stand_beside_the_papers_and_what_is_known_is_not_run_again(in_tmp: Path, reproduce) -> None:
    Path("table.toml").write_text(TABLE)
    planned = reproduce("table.toml", "--plan")
    assert re.search(r"^about \d+ (second|minute)s? on this machine: 2 runs, 0 already done$", planned, re.MULTILINE)
    assert not Path("runs").exists()  # a plan runs nothing

    shown = reproduce("table.toml", "--json", "all.json", "--keep")
    fedavg = json.loads(Path("all.json").read_text())["cells"][0]
    ours, best = fedavg["accuracy"][0], fedavg["accuracy_best"][0]
    numbers = [f"{ours:.2f}", f"{ours - 50:+.2f}", f"{best:.2f}", f"{best - 50:+.2f}"]
    assert line(shown, "FedAvg", "50.00 ± 1.50") == numbers
    assert line(shown, "Tomorrow", "60.00 ± 1.50") == ["-"] * 4
    assert line(shown, "FedAvg", "40.00 ± 0.50") == ["-"] * 4  # the other column, whose data are absent
    assert "small scale, which the paper's is not: rounds = 2" in shown and "note: made by hand" in shown
    assert "\nnot in this version: Tomorrow\n" in shown
    assert "\nlandmarks: dataset 'landmarks' is not on this machine: put landmarks/train.csv" in shown
    assert "\x1b" not in shown
    (result,) = Path("results").glob("*fedavg*.json")
    assert json.loads(result.read_text())["accuracy"]["mean"] * 100 == pytest.approx(ours)

    extended = reproduce("table.toml", "--seeds", "0,1", "--plan")
    assert "4 runs, 2 already done" in extended
    assert line(extended, "FedAvg", "50.00 ± 1.50") == numbers  # a plan shows what is known


def test_stopped_it_goes_on_in_the_middle_of_a_run(in_tmp: Path, reproduce) -> None:
    Path("table.toml").write_text(TABLE.replace("rounds = 6", "rounds = 1000"))
    process = subprocess.Popen(
        [*FEDDAG, "reproduce", "table.toml", "--scale", "paper"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 300
    while not (history := list(in_tmp.glob("runs/*fedavg*/history.jsonl"))) or len(history[0].read_bytes()) < 2000:
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)  # the other one is ignored where tests run in the background
    _, complaint = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert complaint == "feddag: stopped; the same command goes on where it was\n"
    before = history[0].read_text().splitlines()[0]
    reproduce("table.toml", "--scale", "paper")
    lines = history[0].read_text().splitlines()
    assert len(lines) == 1000 and lines[0] == before  # with the seconds of the first run: it was not begun again
    assert "2 runs, all already done" in reproduce("table.toml", "--scale", "paper", "--plan")


def test_the_list_says_what_there_is_and_which_data_are_here(reproduce) -> None:
    shown = reproduce("--list")
    about = ["schedules of the second encoder (K:1)", "-", "cifar10, svhn", "5 x 2"]
    assert line(shown, "feddag-table-18") == about
    assert shown.index("feddag-table-2 ") < shown.index("feddag-table-10 ") < shown.index("feddag-figure-2 ")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name a table or figure, see `feddag reproduce --list`"),
        (["feddag-table-44"], "did you mean 'feddag-table-4'?"),
        (["feddag-table-4", "--scale", "smal"], "--scale 'smal' is not one of small, paper; did you mean 'small'?"),
        (["feddag-table-4", "--seeds", "a"], "--seeds 'a' is not a comma-separated list"),
        (["nowhere.toml"], "file 'nowhere.toml' cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(in_tmp: Path, monkeypatch, capsys, arguments: list[str], sentence: str) -> None:
    monkeypatch.setattr(sys, "argv", ["feddag", "reproduce", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    complaint = capsys.readouterr().err
    assert ended.value.code == 2 and sentence in complaint and complaint.count("\n") == 1


# How long it takes ---------------------------------------------------------------------------------------------------


def test_sample_passes_of_a_run_are_counted_as_the_run_counts_them(in_tmp: Path) -> None:
    experiment = Experiment(method="fedavg", **EVEN | {"participation": 1.0})
    dataset, partition, config = prepare(experiment)
    scoring = 4 * 359 / 3
    passes = estimate.passes_of(experiment, dataset, partition, config)
    assert passes - scoring == run(experiment).result["sample_passes"] == 4 * 2 * 1438


TWO_ENCODERS = {"method": "feddag", "sharing": "encoder"}


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ({}, 4 * 0.5 * 2 * 1438 + 4 * 359 / 3),
        ({"finetune": True}, 4 * 0.5 * 2 * 1438 + 4 * 359 / 3 + 2 * 1438),
        ({"method": "feddag"}, 4 * 0.5 * 2 * 1438 + 4 * 359 / 3),
        (TWO_ENCODERS, 4 * 0.5 * 2 * 1438 * 8 / 3 + 4 * 2 * 359 / 3),  # two phases of 4/3 each
        ({**TWO_ENCODERS, "warmup_epochs": 3}, 4 * 0.5 * 2 * 1438 * 8 / 3 + 4 * 2 * 359 / 3 + 2 * 3 * 1438),
        ({"method": "cfl"}, 4 * 2 * 1438 + 4 * 359 / 3),  # which asks all clients in every round
        ({"steps": 3, "batch_size": 5}, 4 * 0.5 * 6 * 3 * 5 + 4 * 359 / 3),
    ],
)
def test_sample_passes_by_hand(fields: dict, passes: float) -> None:
    experiment = Experiment(**{"method": "fedavg", **EVEN, **fields})
    assert estimate.passes_of(experiment, *prepare(experiment)) == pytest.approx(passes)


def test_rounds_that_are_done_already_take_no_time(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(estimate, "measure_speed", lambda *_: 100.0)
    experiment = Experiment(method="fedavg", **EVEN)
    whole = estimate.estimate([experiment], tmp_path)[experiment.key()]
    assert whole == pytest.approx(estimate.START_SECONDS + (4 * 0.5 * 2 * 1438 + 4 * 359 / 3) / 100)
    history = tmp_path / name_of(experiment) / "history.jsonl"
    history.parent.mkdir()
    history.write_text("{}\n{}\n{}\n")
    left = estimate.estimate([experiment], tmp_path)[experiment.key()]
    assert left - estimate.START_SECONDS == pytest.approx((whole - estimate.START_SECONDS) / 4)


def test_the_speed_of_a_network_is_measured_once(tmp_path: Path, monkeypatch) -> None:
    measured = []
    monkeypatch.setattr(estimate, "measure_speed", lambda chosen, *_: measured.append(chosen.batch_size) or 1.0)
    fields = [{"method": "fedavg"}, {"method": "feddag"}, {"method": "fedavg", "batch_size": 7}]
    estimate.estimate([Experiment(**SMALL_RUN, **some) for some in fields], tmp_path)
    assert measured == [32, 7]


def test_the_time_left_follows_what_runs_really_take(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "table.toml").write_text(TABLE)
    monkeypatch.setattr("feddag.reproduce.plan.estimate", lambda these, runs: {e.key(): 500.0 for e in these})
    plan = Plan(read_published(tmp_path / "table.toml"), "small", [0], tmp_path / "runs", tmp_path / "results")
    assert plan.sentence() == "about 17 minutes on this machine: 2 runs, 0 already done"
    left = [plan.time_left() for _ in plan.carry_out(lambda _: nullcontext(lambda record: None))]
    assert re.fullmatch(r"\d+ seconds?", left[0])  # and not half of the 17 minutes
    assert plan.sentence() == "2 runs, all already done"


def test_what_cannot_be_run_is_refused_before_anything_is(tmp_path: Path) -> None:
    (tmp_path / "table.toml").write_text(TABLE.replace('method = "cfl"', 'method = "cfl"\nclients = 99999'))
    with pytest.raises(FeddagError, match="clients = 99999"):
        Plan(read_published(tmp_path / "table.toml"), "small", [0], tmp_path / "runs", tmp_path / "results")
    assert not (tmp_path / "runs").exists()


# Figures by round, and tables about clusters -------------------------------------------------------------------------


def table(**changes: object) -> Published:
    fields = {"title": "t", "paper": "p", "experiment": SMALL_RUN, "column": [{"name": "digits", "dataset": "digits"}]}
    return Published(**fields | changes)


def test_accuracy_after_some_rounds(tmp_path: Path) -> None:
    row = {"name": "FedAvg", "method": "fedavg"}
    published = table(shows="accuracy_by_round", at=[1, 4, 9], row=[row])
    plan = Plan(published, "paper", [0], tmp_path / "runs", tmp_path / "results")
    list(plan.carry_out(lambda _: nullcontext(lambda record: None)))
    (result,) = plan.results.values()
    (block,) = blocks_of(published, plan.cells, plan.results, plan.searches)
    curve = result["accuracy_by_round"]
    assert block.lines == [["FedAvg", f"{100 * curve[0]:.2f}", f"{100 * curve[3]:.2f}", "-"]]


def test_a_table_about_clusters_trains_nothing_and_is_kept(tmp_path: Path, monkeypatch) -> None:
    curve = {"clusters": [1, 7], "loss": [0.77, 0.1]}
    row = {"name": "FedDAG", "method": "feddag-star", "curve": [curve]}
    published = table(shows="thresholds", alphas=[1.0, 0.05], row=[row])
    folders = tmp_path / "runs", tmp_path / "results"
    plan = Plan(published, "small", [0, 1], *folders)
    assert (
        plan.sentence()
        == f"about {2 * SEARCH_SECONDS:.0f} seconds on this machine: 2 searches for groups, 0 already done"
    )
    assert len(list(plan.carry_out(lambda _: nullcontext(lambda record: None), keep=True))) == 2
    (block,) = blocks_of(published, plan.cells, plan.results, plan.searches)
    losses = [found["candidates"] for found in plan.searches.values()]
    means = [sum(candidates[place]["loss"] for candidates in losses) / 2 for place in (-1, 0)]
    finest = "/".join(sorted({str(candidates[0]["clusters"]) for candidates in losses}))
    assert block.lines == [
        ["1.00", "1", "1", "0.770", f"{means[0]:.3f}"],
        ["0.05", "7", finest, "0.100", f"{means[1]:.3f}"],
    ]
    assert block.below.startswith("seed 0: 3 clusters chosen, true are 3 (ARI 1.000); seed 1: 3 clusters")
    monkeypatch.setattr("feddag.reproduce.thresholds.search", None)  # nothing is searched again
    for path in folders[0].iterdir():
        path.unlink()
    again = Plan(published, "small", [0, 1], *folders)
    assert again.sentence() == "2 searches for groups, all already done"
    assert again.searches == plan.searches


def test_a_table_of_scores_shows_those_that_are_printed(tmp_path: Path) -> None:
    printed = {"clusters": 3, "was": [0.6, 0.1], "accuracy": [81.5, 0.2]}
    rows = [
        {"name": "truth", "method": "oracle", "scores": [printed]},
        {"name": "one", "method": "fedavg", "scores": [{"accuracy": [40.0]}]},
        {"name": "later", "method": "fed-of-tomorrow", "scores": [{"rand": [0.5, 0.0]}]},
    ]
    published = table(shows="clusters", row=rows)
    plan = Plan(published, "paper", [0, 1], tmp_path / "runs", tmp_path / "results")
    list(plan.carry_out(lambda _: nullcontext(lambda record: None)))
    (block,) = blocks_of(published, plan.cells, plan.results, plan.searches)
    assert block.header == ("row", *("clusters, paper", "ours", "accuracy, paper", "ours", "Rand, paper", "ours"),
                            *("WAS, paper", "ours"))  # fmt: skip
    truth, one, later = block.lines
    assert truth[:4] == ["truth", "3", "3", "81.5 ± 0.2"] and truth[5:7] == ["-", "1.00 ± 0.00"] and " ± " in truth[8]
    assert one[:4] == ["one", "-", "-", "40"] and " ± " in one[4] and one[5:] == ["-", "-", "-", "-"]
    assert later == ["later", "-", "-", "-", "-", "0.5 ± 0", "-", "-", "-"]
    unprinted = table(shows="clusters", row=[{"name": "truth", "method": "oracle"}])
    (block,) = blocks_of(unprinted, plan.cells[:1], plan.results, plan.searches)
    assert block.header[1::2] == ("clusters, paper", "Rand, paper", "WAS, paper", "WADB, paper")


def test_a_damaged_search_is_done_again(tmp_path: Path) -> None:
    (tmp_path / "groups-a.json").write_text('{"search": "a"}')
    (tmp_path / "groups-b.json").write_text("{")
    assert find_searches([tmp_path]) == {}


@pytest.mark.parametrize("method", ["feddag-star", "feddag-paper"])
def test_the_search_is_the_one_that_a_run_does(method: str) -> None:
    experiment = Experiment(method=method, **SMALL_RUN | {"rounds": 1})
    found, result = search(experiment), run(experiment).result
    assert result["clusters"] is not None
    assert (found["clusters"], found["ari"]) == (len(set(result["clusters"])), result["ari"])


def test_a_method_without_a_search_is_refused() -> None:
    with pytest.raises(FeddagError, match="method = 'fedavg' does not search for a threshold"):
        search(Experiment(method="fedavg", **SMALL_RUN))
