"""Rounds that are not scored: the same models, fewer records, and a stop goes back to the last round that was."""

from pathlib import Path

import pytest

import feddag
from tests.test_run import QUICK, StopError, stop_after, without_seconds

FIVE = QUICK | {"rounds": 5}
SAME = ("accuracy", "loss", "per_client", "clusters", "bytes_up", "bytes_down", "sample_passes", "training_flops")


@pytest.mark.parametrize("method", ["fedavg", "feddag", "ditto"])
def test_rounds_that_are_scored_are_as_if_all_were(tmp_path: Path, method: str) -> None:
    every = feddag.run(feddag.Experiment(method=method, **FIVE), tmp_path / "every").history
    some = feddag.run(feddag.Experiment(method=method, evaluate_every=2, **FIVE), tmp_path / "some")
    assert [record["round"] for record in some.history] == [2, 4, 5]  # and the last one
    for record in some.history:
        assert {name: record[name] for name in SAME} == {name: every[record["round"] - 1][name] for name in SAME}
    assert some.result["rounds"] == 5
    assert feddag.load(tmp_path / "some").history == some.history


def test_a_stop_costs_the_rounds_since_the_last_that_was_scored(tmp_path: Path) -> None:
    experiment = feddag.Experiment(method="feddag", evaluate_every=2, **FIVE)
    whole = feddag.run(experiment, tmp_path / "whole")
    with pytest.raises(StopError):
        feddag.run(experiment, tmp_path / "r", observer=stop_after(4))
    resumed = feddag.run(experiment, tmp_path / "r", resume=True)
    assert without_seconds(resumed.result) == without_seconds(whole.result)
    assert [record["round"] for record in resumed.history] == [2, 4, 5]


def test_experiments_of_before_keep_their_keys() -> None:
    assert feddag.Experiment(evaluate_every=1).key() == feddag.Experiment().key()
    assert feddag.Experiment(evaluate_every=2).key() != feddag.Experiment().key()
