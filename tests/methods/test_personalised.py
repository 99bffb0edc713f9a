"""Personalised methods: their formulas by hand, against independent numbers, stopped and resumed, on Flower's engine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.methods.fedper import SendParts
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Own, Ref, keeping, only
from tests.engines.in_process import run_on_nodes

SPEC = ModelSpec("mlp", (2,), 2)
SAMPLES = {0: 10, 1: 30, 2: 20, 3: 40}


def started(name: str, engine: FakeEngine, **settings: Any) -> Any:
    return testing.started(name, engine, SPEC, **settings)


# FedPer ---------------------------------------------------------------------------------------------------------------


def send_parts(engine: FakeEngine, client: int, step: SendParts, current: Any) -> Result:
    own = {name: value for name, value in current.items() if name.startswith("head")}
    engine.memory[client] = 0, keeping(engine.memory.get(client, (0, {}))[1], step.keep, own)
    return Result(weights=only(current, step.parts))


def sending() -> FakeEngine:
    """Clients whose first step of a job is `Train` and whose second sends the encoder alone."""

    def train(engine: FakeEngine, client: int, step: Any, current: Any) -> Result:
        start = engine.resolve(client, step.model, current)
        current.update({name: value + client + 1 for name, value in start.items()})
        return Result(numbers={"loss": 1.0})

    return FakeEngine(SAMPLES, answers={feddag.client.train.Train: train, SendParts: send_parts})


def test_fedper_averages_encoders_and_heads_stay_where_they_are() -> None:
    engine = sending()
    federation, fedper = started("fedper", engine)
    start = fedper.weights
    one_round(federation, fedper, [0, 1])
    assert moved(start, fedper.weights, "encoder") == 1.75  # (10 * 1 + 30 * 2) / 40
    assert moved(start, fedper.weights, "head") == 0  # nobody's head has come here
    assert moved(only(start, ("head",)), engine.resolve(1, Own("personal"), {})) == 2
    first = engine.jobs[1].steps[0].model
    assert len(first) == 3 and isinstance(first[1], Ref)  # encoder, the first head, its own where it has one
    one_round(federation, fedper, [1, 2])
    assert moved(only(start, ("head",)), engine.resolve(1, Own("personal"), {})) == 4  # it went on with its own
    known, new = (job.steps[0].model for job in engine.jobs)
    assert len(known) == 2 and len(new) == 3
    assert fedper.model_of(3) == (fedper.weights, Own("personal"))  # a newcomer: the first head


def test_no_head_ever_leaves_a_client() -> None:
    run = feddag.run(feddag.Experiment(method="fedper", **QUICK | {"participation": 1.0}))
    encoder, head, clients, rounds = 4 * (64 * 128 + 128), 4 * (128 * 10 + 10), 6, 4
    assert run.result["bytes_up"] == rounds * clients * (encoder + 16)  # the loss and the number of samples
    assert run.result["bytes_down"] == rounds * clients * encoder + clients * head  # the first head, once
    heads = [only(run.network(client).state_dict(), ("head",)) for client in range(2)]
    encoders = [only(run.network(client).state_dict(), ("encoder",)) for client in range(2)]
    assert not torch.equal(heads[0]["head.weight"], heads[1]["head.weight"])
    assert all(torch.equal(value, encoders[1][name]) for name, value in encoders[0].items())


def test_a_client_cannot_put_its_head_into_the_common_encoder() -> None:
    engine = sending()
    federation, fedper = started("fedper", engine)

    def lies(engine: FakeEngine, client: int, step: SendParts, current: Any) -> Result:
        return Result(weights=only(current, ("head",) if client == 0 else step.parts))

    engine.answers[SendParts] = lies
    one_round(federation, fedper, [0, 1])
    assert set(federation.missing) == {0} and set(fedper.headed) == {1}


# Real runs ------------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"clients": 6, "groups": 3, "rounds": 4, "epochs": 1, "participation": 0.5, "workers": 1}
LEVEL = {"smoothing": 0.5, "balanced": True, "sampling": "clusters"}
METHODS: Mapping[str, dict[str, Any]] = {"fedper": {}}


def same(one: feddag.Run, other: feddag.Run) -> None:
    skipped = ("seconds", "versions", "history_sha256", "partition_checksum")
    assert {k: v for k, v in one.result.items() if k not in skipped} == {
        k: v for k, v in other.result.items() if k not in skipped
    }


@pytest.mark.parametrize("name", METHODS)
def test_a_stopped_run_with_newcomers_goes_on_as_if_never_stopped(name: str, tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 2:
            raise Stop

    experiment = feddag.Experiment(method=name, holdout=0.2, join_round=3, **QUICK, **LEVEL, **METHODS[name])
    whole = feddag.run(experiment)
    with pytest.raises(Stop):
        feddag.run(experiment, tmp_path / "r", observer=stop)
    resumed = feddag.run(experiment, tmp_path / "r", resume=True)
    same(whole, resumed)
    for client in range(6):
        ours, theirs = whole.network(client).state_dict(), resumed.network(client).state_dict()
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("name", METHODS)
def test_the_same_bytes_on_flowers_engine(name: str, tmp_path: Path, monkeypatch) -> None:
    experiment = feddag.Experiment(method=name, **QUICK, **METHODS[name])
    same(feddag.run(experiment), run_on_nodes(experiment, tmp_path, monkeypatch))


@pytest.mark.parametrize("name", METHODS)
def test_it_learns(name: str) -> None:
    """More than a model that guesses among the two classes that a client holds."""
    run = feddag.run(feddag.Experiment(method=name, **QUICK | {"rounds": 8, "epochs": 5}, **METHODS[name]))
    assert run.accuracy.mean > 0.6
