"""Methods on the base for clustered ones: by hand on fake clients, stopped and resumed, and on Flower's engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag import testing
from feddag.client.evaluate import Choose
from feddag.client.train import Anchor, Train
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Choice, Own, Ref
from tests.engines.in_process import run_on_nodes

SPEC = ModelSpec("mlp", (2,), 2)
SAMPLES = {0: 10, 1: 30, 2: 20, 3: 40}


def started(name: str, engine: FakeEngine, **settings: Any) -> Any:
    return testing.started(name, engine, SPEC, **settings)


# The base -------------------------------------------------------------------------------------------------------------


def test_fedavg_inside_clusters_by_hand() -> None:
    federation, oracle = started("oracle", FakeEngine(SAMPLES), truth={0: 0, 1: 0, 2: 1, 3: 1})
    before = oracle.model_of(0)
    one_round(federation, oracle, [0, 1, 2])
    assert moved(before, oracle.model_of(1)) == 1.75 and moved(before, oracle.model_of(3)) == 3


def test_sampling_and_smoothing_inside_clusters() -> None:
    held = dict.fromkeys(range(10), 10)
    truth = {client: int(client >= 8) for client in held}
    federation, oracle = started(
        "oracle", FakeEngine(held), truth=truth, participation=0.25, sampling="clusters", smoothing=0.5
    )
    for number in range(1, 10):
        federation.begin_round(number)
        drawn = oracle.sample(federation)
        assert [client < 8 for client in drawn] == [True, True, False]
    before = oracle.model_of(0)
    one_round(federation, oracle, [0])
    one_round(federation, oracle, [0])
    assert moved(before, oracle.groups.trained[0]) == 2
    assert moved(before, oracle.model_of(0)) == pytest.approx((1 * 1 + 2 * 2) / 3, abs=1e-3)


def test_a_newcomer_joins_the_cluster_whose_model_suits_it() -> None:
    engine = FakeEngine(SAMPLES, choices={4: 1})
    federation, ifca = started("ifca", engine, clusters=2)
    one_round(federation, ifca)
    engine.samples |= {4: 10}
    ifca.join(federation, [4])
    assert ifca.clusters()[4] == 1
    [event] = [event for event in federation.events() if event.kind == "join"]
    assert event.clients == (4,)
    ifca.leave(federation, [4])
    assert isinstance(ifca.model_of(4), Choice)


def test_a_newcomer_that_does_not_answer_has_the_best_of_all_models() -> None:
    engine = FakeEngine(SAMPLES)
    federation, ifca = started("ifca", engine, clusters=2)
    engine.samples |= {4: 10}
    engine.silent = {4}
    ifca.join(federation, [4])
    assert 4 not in ifca.clusters() and len(ifca.model_of(4).models) == 2


# IFCA -----------------------------------------------------------------------------------------------------------------


def test_ifca_by_hand() -> None:
    engine = FakeEngine(SAMPLES, choices={0: 1, 1: 0, 2: 1, 3: 0})
    federation, ifca = started("ifca", engine, clusters=3)
    before = dict(ifca.groups.trained)
    assert ifca.clusters() == {} and len(before) == 3
    assert not torch.equal(before[0]["head.weight"], before[1]["head.weight"])  # three different starts
    one_round(federation, ifca, [0, 1, 2])
    assert ifca.clusters() == {0: 1, 1: 0, 2: 1}
    assert moved(before[0], ifca.groups.trained[0]) == 2
    assert moved(before[1], ifca.groups.trained[1]) == 2  # clients 0 and 2 count the same: (1 + 3) / 2
    assert ifca.groups.trained[2] is before[2]  # nobody chose it
    choose, train = engine.jobs[0].steps
    assert isinstance(choose, Choose) and len(choose.models) == 3 and isinstance(train, Train) and train.model is None
    engine.choices[0] = 0
    one_round(federation, ifca, [0])
    assert ifca.clusters()[0] == 0  # it may choose again in every round


def test_ifca_chooses_by_training_loss_and_counts_what_choosing_costs() -> None:
    run = feddag.run(feddag.Experiment(method="ifca", **QUICK))
    scored, trained = run.result["samples_scored"], run.result["sample_passes"]
    assert scored == 3 * trained  # three models on every sample, and one epoch of training
    assert feddag.run(feddag.Experiment(method="fedavg", **QUICK)).result["samples_scored"] == 0


# Ditto ----------------------------------------------------------------------------------------------------------------


def test_ditto_by_hand() -> None:
    engine = FakeEngine(SAMPLES)
    federation, ditto = started("ditto", engine, pull=0.3)
    before = ditto.weights
    one_round(federation, ditto, [0, 1])
    assert moved(before, ditto.weights) == 1.75  # FedAvg's
    common, personal = engine.jobs[0].steps
    assert isinstance(common.model, Ref) and personal.anchors == (Anchor(common.model, 0.3),)
    assert not personal.send and personal.model == (common.model, Own("personal"))
    assert moved(before, engine.resolve(1, Own("personal"), {})) == 2  # the first from the common model
    one_round(federation, ditto, [1])
    assert moved(before, engine.resolve(1, Own("personal"), {})) == 4  # then from its own
    assert ditto.model_of(3) == (ditto.weights, Own("personal"))


# Real runs ------------------------------------------------------------------------------------------------------------

QUICK = {"clients": 6, "groups": 3, "rounds": 4, "epochs": 1, "participation": 0.5, "workers": 1}
SPLITTING = {"eps1": 100.0, "eps2": 0.01, "first_split": 1}
RIVALS: Mapping[str, dict[str, Any]] = {
    "ifca": {},
    "ifca, warm": {"method": "ifca", "start": "warm", "warm_rounds": 1, "forced_rounds": 2},
    "cfl": SPLITTING,
    "cfl-gp": {"clusters": 3, "balanced": True},
    "cgpfl": {"smoothing": 0.5},
    "ditto": {"smoothing": 0.5, "balanced": True},
    "fedgroup": {"pretrained": 1},
    "fedrc": {"clusters": 2, "smoothing": 0.5},
    "fedsoft": {"smoothing": 0.5, "balanced": True},
    "fesem": {"sampling": "clusters"},
    "fl-hc": {"rounds_before": 1, "sampling": "clusters"},
    "pacfl": {"clusters": 3, "sampling": "clusters"},
}


def same(one: feddag.Run, other: feddag.Run) -> None:
    skipped = ("seconds", "versions", "history_sha256", "partition_checksum")
    assert {k: v for k, v in one.result.items() if k not in skipped} == {
        k: v for k, v in other.result.items() if k not in skipped
    }


@pytest.mark.parametrize("name", RIVALS)
def test_a_stopped_run_goes_on_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 2:
            raise Stop

    experiment = feddag.Experiment(**{"method": name, "holdout": 0.2} | QUICK | RIVALS[name])
    whole = feddag.run(experiment)
    with pytest.raises(Stop):
        feddag.run(experiment, tmp_path / "r", observer=stop)
    resumed = feddag.run(experiment, tmp_path / "r", resume=True)
    same(whole, resumed)
    for client in range(6):
        ours, theirs = whole.network(client).state_dict(), resumed.network(client).state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("name", RIVALS)
def test_the_same_bytes_on_flowers_engine(name: str, tmp_path: Path, monkeypatch) -> None:
    experiment = feddag.Experiment(**{"method": name} | QUICK | RIVALS[name])
    there = run_on_nodes(experiment, tmp_path, monkeypatch)
    here = feddag.run(experiment)
    same(here, there)
    if name == "cfl":
        assert len(set(here.clusters or ())) > 1


@pytest.mark.parametrize("softmax", ["held", "own"])
@pytest.mark.parametrize("name", [name for name in RIVALS if name not in ("ifca", "cfl", "ditto")])
def test_every_stabiliser_at_once(name: str, softmax: str) -> None:
    """Clients answer with classes that they or their cluster hold, and every answer is sound."""
    fields = {"head": "sharp", "softmax": softmax, "balanced": True, "smoothing": 0.5, "sampling": "clusters"}
    run = feddag.run(feddag.Experiment(**{"method": name, "finetune": False} | QUICK | RIVALS[name] | fields))
    assert run.result["answers_missing"] == 0 and run.result["accuracy"]["mean"] > 0.3


def test_ditto_serves_personal_models() -> None:
    run = feddag.run(feddag.Experiment(method="ditto", **QUICK))
    first, second = run.network(0).state_dict(), run.network(1).state_dict()
    assert any(not torch.equal(value, second[name]) for name, value in first.items())
