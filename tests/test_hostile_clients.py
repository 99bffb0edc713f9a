"""One client of ten that lies in whole runs: the others' run goes on, and what it broke is undone."""

from typing import Any

import pytest
import torch

import feddag
from feddag.engines.local import LocalEngine

IID = {
    "partition": "iid",
    "clients": 10,
    "rounds": 4,
    "epochs": 2,
    "participation": 1.0,
    "workers": 1,
    "finetune": False,
}


@pytest.fixture
def lying(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From round 2 on, client 3's weights are multiplied."""
    perform = LocalEngine.perform

    def multiply(factor: float) -> None:
        def lie(self: LocalEngine, jobs: Any, round: int, exchange: int) -> Any:
            replies, missing = perform(self, jobs, round, exchange)
            for reply in replies:
                for result in reply.results:
                    if reply.client == 3 and result.weights is not None and round >= 2:
                        result.weights = {name: value * factor for name, value in result.weights.items()}
            return replies, missing

        monkeypatch.setattr(LocalEngine, "perform", lie)

    return multiply


@pytest.mark.parametrize("method", ["fedavg", "feddag", "ifca"])
def test_weights_without_bounds_are_left_out_at_once(lying: Any, method: str) -> None:
    honest = feddag.run(feddag.Experiment(method=method, **IID))
    lying(1e37)
    run = feddag.run(feddag.Experiment(method=method, **IID))
    assert run.accuracy.mean > honest.accuracy.mean - 0.1
    assert all("3" in record["missing"] for record in run.history[1:])


def test_a_round_that_left_unusable_models_is_undone_and_repeated(lying: Any, tmp_path: Any) -> None:
    honest = feddag.run(feddag.Experiment(method="fedavg", **IID))
    lying(5e3)  # not so far beyond the others that it is refused by itself, and enough to ruin the mean
    run = feddag.run(feddag.Experiment(method="fedavg", **IID), tmp_path / "r")
    assert run.accuracy.mean > honest.accuracy.mean - 0.1
    events = [event for record in run.history for event in record["events"]]
    assert [event["kind"] for event in events] == ["fault"] and events[0]["clients"] == [3]
    assert "round 2 was undone" in events[0]["text"]
    assert [len(record["missing"]) for record in run.history] == [0, 1, 1, 1]
    assert [record["round"] for record in run.history] == [1, 2, 3, 4]
    # Without the liar from the start of round 2 it is the same run.
    model = run.model(0).state_dict()
    assert all(torch.isfinite(value).all() for value in model.values())


def test_an_undone_round_stays_undone_after_a_resume(lying: Any, tmp_path: Any) -> None:
    class Stop(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 3:
            raise Stop

    lying(5e3)
    experiment = feddag.Experiment(method="fedavg", **IID)
    whole = feddag.run(experiment)
    with pytest.raises(Stop):
        feddag.run(experiment, tmp_path / "r", observer=stop)
    resumed = feddag.run(experiment, tmp_path / "r", resume=True)
    assert resumed.result["accuracy"] == whole.result["accuracy"]
    assert resumed.history[-1]["missing"] == whole.history[-1]["missing"]


def test_training_that_diverges_by_itself_is_nobodys_fault() -> None:
    run = feddag.run(feddag.Experiment(method="fedavg", **IID, lr=100.0))
    assert not [event for record in run.history for event in record["events"]]
