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
    # Ten answers, ten that were undone and nine in their place, nine, nine; forty where nobody lies.
    assert run.result["bytes_up"] * 40 == honest.result["bytes_up"] * 47
    assert [record["bytes_up"] for record in run.history][-1] == run.result["bytes_up"]
    # Without the liar from the start of round 2 it is the same run.
    model = run.network(0).state_dict()
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


@pytest.mark.parametrize("attack", ["sign-flip", "scale", "free-rider"])
def test_clipping_saves_what_an_attack_takes(attack: str) -> None:
    fields = IID | {"rounds": 6}
    free, taken, saved = (
        feddag.run(feddag.Experiment(method="fedavg", **fields, **more)).result
        for more in ({}, {"attack": attack}, {"attack": attack, "robust": "clip"})
    )
    assert taken["accuracy_honest"]["mean"] < free["accuracy"]["mean"] - 0.3
    assert saved["accuracy_honest"]["mean"] > taken["accuracy_honest"]["mean"] + 0.3
    assert len(taken["attackers"]) == 1 and "attackers" not in free


def test_an_attack_and_a_rule_are_part_of_the_key_and_nothing_else_is() -> None:
    plain = feddag.Experiment(method="fedavg", **IID)
    assert plain.with_(attackers=0.3).key() == plain.key() == plain.with_(robust="none").key()
    keys = {plain.with_(**more).key() for more in ({}, {"attack": "noise"}, {"robust": "clip"}, {"robust": "krum"})}
    assert len(keys) == 4
    assert "attack" not in plain.resolved() and plain.with_(attack="noise").resolved()["attackers"] == 0.1


def test_clipping_an_honest_run_changes_little_and_a_resume_changes_nothing(tmp_path: Any) -> None:
    plain = feddag.run(feddag.Experiment(method="feddag", **IID))
    clipped = feddag.run(feddag.Experiment(method="feddag", **IID, robust="clip"))
    assert clipped.result["accuracy"] == plain.result["accuracy"]  # alike clients: nothing is clipped, the same bytes


def test_a_mimic_joins_its_victims_cluster_and_a_label_flipper_is_set_apart() -> None:
    fields = {"partition": "label-skew", "clients": 12, "groups": 3, "rounds": 1, "epochs": 1, "workers": 1}
    run = feddag.run(feddag.Experiment(method="feddag-star", attack="signature-mimic", **fields))
    assert run.result["ari"] < 1 and len(set(run.clusters or ())) == 3
    run = feddag.run(feddag.Experiment(method="feddag-star", attack="label-flip", **IID | {"rounds": 1}))
    [liar] = run.result["attackers"]
    clusters = run.clusters or []
    assert clusters.count(clusters[liar]) == 1


@pytest.mark.parametrize("robust", ["clip", "trimmed-mean", "median", "krum", "geometric-median"])
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "fairavg",
        "fedavgm",
        "oracle",
        "ifca",
        "cfl",
        "ditto",
        "feddag",
        "fesem",
        "fedrc",
        "fedper",
        "pfedme",
        "fblg",
    ],
)
def test_every_method_takes_every_rule(method: str, robust: str) -> None:
    fields = {
        "clients": 8,
        "groups": 2,
        "rounds": 2,
        "epochs": 1,
        "participation": 1.0,
        "workers": 1,
        "finetune": False,
    }
    run = feddag.run(feddag.Experiment(method=method, robust=robust, **fields))
    assert run.result["answers_missing"] == 0
