"""Personalised methods: formulas by hand, independent numbers, stopped and resumed, on Flower's engine."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

import feddag
from feddag import testing
from feddag.client.adapt import Adapt
from feddag.client.step import Client, Result
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings, NativeTrainer, TorchTrainer, Trainer, native_network
from feddag.errors import FeddagError
from feddag.methods import find_method
from feddag.methods.fedper import SendParts
from feddag.methods.per_fedavg import TrainToAdapt
from feddag.methods.pfedme import TrainEnvelope
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Adapted, Own, Ref, Weights, keeping, only
from tests.engines.in_process import run_on_nodes
from tests.methods.least_squares import (
    LINEAR,
    PLAIN,
    LeastSquares,
    RegressionEngine,
    client_of,
    nearest_to,
    normal_equations,
    packed,
    regressions,
)

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


# Per-FedAvg -----------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["native", "torch"])
def trainer(request) -> Trainer:
    if request.param == "torch":
        return TorchTrainer(SPEC)
    network = native_network(SPEC, "native")
    assert network is not None
    return NativeTrainer(SPEC, network)


def some_samples(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(count, 2, generator=draw), torch.arange(count) % 2


def gradient(weights: Weights, x: torch.Tensor, y: torch.Tensor) -> Weights:
    """By autograd, of the mean cross-entropy."""
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    loss = functional.cross_entropy(functional_call(SPEC.build(), leaves, (x,)), y)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


def step_along(weights: Weights, lr: float, slope: Weights) -> Weights:
    return {name: value - lr * slope[name] for name, value in weights.items()}


def close(got: Weights, wanted: Weights, atol: float = 2e-6) -> bool:
    return all(torch.allclose(got[name], value, atol=atol) for name, value in wanted.items())


def test_per_fedavgs_first_order_step_against_autograd(trainer: Trainer) -> None:
    """w <- w - beta * gradient(w - alpha * gradient(w; D); D'), and so once more with momentum."""
    x, y = some_samples()
    start = SPEC.initial_weights(0, "start")
    settings = replace(PLAIN, steps=2, batch_size=3, lr=0.2, momentum=0.5)
    client = client_of(x, y, trainer, {"w": start}, settings)
    result = TrainToAdapt(Ref("w", 0), inner_lr=0.3).run(client)
    batches = np.split(client_of(x, y, trainer, {}).rng("batches").permutation(6), 2)  # D and D' of the first epoch
    second = client_of(x, y, trainer, {}).rng("batches")
    second.permutation(6)
    batches += np.split(second.permutation(6), 2)
    weights, velocity = start, {name: torch.zeros_like(value) for name, value in start.items()}
    for inner, outer in ((batches[0], batches[1]), (batches[2], batches[3])):
        there = step_along(weights, 0.3, gradient(weights, x[inner], y[inner]))
        slope = gradient(there, x[outer], y[outer])
        velocity = {name: 0.5 * velocity[name] + value for name, value in slope.items()}
        weights = step_along(weights, 0.2, velocity)
    assert close(result.weights or {}, weights)
    assert not close(result.weights or {}, step_along(start, 0.2, gradient(start, x, y)))
    assert result.samples == 12 and client.flops == trainer.flops(x, batches)  # as many as FedAvg takes for these


def test_a_client_with_a_single_batch_adapts_and_learns_on_it() -> None:
    x, y = some_samples(1)
    client = client_of(x, y, TorchTrainer(SPEC), {"w": SPEC.initial_weights(0, "start")})
    assert TrainToAdapt(Ref("w", 0)).run(client).samples == 2


@dataclass(frozen=True)
class AdaptOnTest(Train):
    """The twin with the defect of a public implementation: the step before use is taken on labelled test samples."""

    def run(self, client: Client) -> Result:
        client.x, client.y = client.test_samples()
        return super().run(client)


def adapted_with(step: Train, test_labels: torch.Tensor) -> Weights:
    x, y = some_samples()
    start = {"w": SPEC.initial_weights(0, "start")}
    usual = replace(PLAIN, momentum=0.5, batch_size=2)  # a client adapts without momentum, by all samples at once
    client = client_of(x, y, TorchTrainer(SPEC), start, usual, test_samples=lambda: (x, test_labels))
    step.run(client)
    assert client.current is not None
    return client.current


def test_what_a_client_uses_does_not_depend_on_test_samples() -> None:
    x, y = some_samples()
    step = Adapt(Ref("w", 0), lr=0.3, steps=2)
    weights = start = SPEC.initial_weights(0, "start")
    for _ in range(2):
        weights = step_along(weights, 0.3, gradient(weights, x, y))
    assert close(adapted_with(step, y), weights) and not close(weights, start)
    assert close(adapted_with(step, 1 - y), weights)  # whatever the test samples are called
    leaky = AdaptOnTest(Ref("w", 0), lr=0.3, steps=2)
    assert not close(adapted_with(leaky, 1 - y), adapted_with(leaky, y))


def test_per_fedavg_counts_clients_alike_and_everybody_adapts_the_common_model() -> None:
    federation, method = started("per-fedavg", FakeEngine(SAMPLES), inner_lr=0.2, adapt_steps=3)
    before = method.weights
    one_round(federation, method, [0, 1])
    assert moved(before, method.weights) == 1.5
    served = method.model_of(3)
    assert isinstance(served, Adapted) and (served.lr, served.steps) == (0.2, 3) and served.model is method.weights


def test_the_model_of_a_client_is_the_adapted_one_that_was_scored(tmp_path: Path) -> None:
    fields = {**QUICK, "rounds": 2, "inner_lr": 0.5}
    run = feddag.run(feddag.Experiment(method="per-fedavg", holdout=0.2, **fields), tmp_path / "r")
    first, second = (run.network(client).state_dict() for client in (0, 1))
    assert not torch.equal(first["head.weight"], second["head.weight"])


# pFedMe, Ditto and FedProx on least squares, whose solutions are known ------------------------------------------------


def solved(method: str, rounds: int, settings: LocalSettings = PLAIN, **fields: Any) -> tuple[Any, RegressionEngine]:
    engine = RegressionEngine(regressions(3), settings)
    federation, begun = testing.started(method, engine, LINEAR, **fields)
    for _ in range(rounds):
        one_round(federation, begun)
    return begun, engine


def test_pfedme_finds_the_minimum_of_the_mean_moreau_envelope() -> None:
    """Its gradient, the sum of lambda * (w - theta_i(w)), is linear in w: the minimum solves two equations."""
    pull, exact = 2.0, {"inner_steps": 30, "inner_lr": 0.3}
    method, engine = solved("pfedme", 60, replace(PLAIN, lr=0.4), pull=pull, **exact)
    left, right = np.zeros((2, 2)), np.zeros(2)
    for x, y in engine.data.values():
        a, b = normal_equations(x, y)
        inverse = np.linalg.inv(a + pull * np.eye(2))
        left, right = left + np.eye(2) - pull * inverse, right + inverse @ b
    minimum = np.linalg.solve(left, right)
    assert method.weights["head.w"].numpy() == pytest.approx(minimum, abs=1e-4)
    for client, (x, y) in engine.data.items():
        personal = engine.memory[client][1]["personal/head.w"].numpy()
        assert personal == pytest.approx(nearest_to(minimum, pull, x, y), abs=1e-4)
    together = [normal_equations(*data) for data in engine.data.values()]
    least = np.linalg.solve(sum(a for a, _ in together), sum(b for _, b in together))
    assert abs(minimum - least).max() > 0.01  # it is not what FedAvg looks for


def test_pfedmes_step_by_hand() -> None:
    """x = (1, 0), y = 4: from w = 0, theta is 0.1 * 4 after one step and 0.4 + 0.1 * (3.6 - 5 * 0.4) after two."""
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([4.0])
    client = client_of(*packed(x, y), LeastSquares(), {"w": {"head.w": torch.zeros(2)}}, replace(PLAIN, lr=0.05))
    result = TrainEnvelope(Ref("w", 0), pull=5.0, inner_steps=2, inner_lr=0.1).run(client)
    theta = 0.4 + 0.1 * (3.6 - 5 * 0.4)
    assert client.state["personal/head.w"].tolist() == pytest.approx([theta, 0])
    assert (result.weights or {})["head.w"].tolist() == pytest.approx([0.05 * 5 * theta, 0])  # eta * lambda * theta
    assert result.samples == 2 == client.flops


def test_pfedmes_server_goes_part_of_the_way() -> None:
    federation, method = started("pfedme", FakeEngine(SAMPLES), server_lr=2.0)
    before = method.weights
    one_round(federation, method, [0, 1])
    assert moved(before, method.weights) == 3  # twice the plain mean of 1 and 2


def test_dittos_models_are_the_closed_form_of_its_linear_problem() -> None:
    method, engine = solved("ditto", 80, replace(PLAIN, lr=0.4), pull=0.7)
    sizes = {client: len(y) for client, (_, y) in engine.data.items()}
    together = [
        (sizes[c] * a, sizes[c] * b) for c, (a, b) in ((c, normal_equations(*d)) for c, d in engine.data.items())
    ]
    common = np.linalg.solve(sum(a for a, _ in together), sum(b for _, b in together))
    assert method.weights["head.w"].numpy() == pytest.approx(common, abs=1e-4)
    for client, (x, y) in engine.data.items():
        personal = engine.memory[client][1]["personal/head.w"].numpy()
        assert personal == pytest.approx(nearest_to(common, 0.7, x, y), abs=1e-4)
        assert abs(personal - nearest_to(common, 0.0, x, y)).max() > 0.01


class Aliased(LeastSquares):
    """The twin with PACFL's defect: what clients are held near is the live model itself, so that nothing pulls."""

    def fit(self, *arguments: Any, **named: Any) -> Any:
        return super().fit(*arguments, **named | {"pulls": ()})


@pytest.mark.parametrize(("trainer_kind", "pulls"), [(LeastSquares, True), (Aliased, False)])
def test_fedprox_solves_the_proximal_problem_and_an_aliased_anchor_is_noticed(trainer_kind: Any, pulls: bool) -> None:
    x, y = regressions(1)[0]
    centre = torch.tensor([3.0, -1.0])
    federation, method = started("fedprox", engine := FakeEngine(SAMPLES), mu=0.5)
    one_round(federation, method, [0])
    step = replace(engine.jobs[0].steps[0], steps=500)
    client = client_of(*packed(x, y), trainer_kind(), {step.model.digest: {"head.w": centre}})
    found = (step.run(client).weights or {})["head.w"].numpy()
    wanted = nearest_to(centre.double().numpy(), 0.5, x, y)
    assert (abs(found - wanted).max() < 1e-4) == pulls


@pytest.mark.parametrize("name", ["fedper", "per-fedavg", "pfedme"])
def test_a_client_that_learnt_its_own_classes_answers_with_these(name: str) -> None:
    fields = {**QUICK, "rounds": 2, "softmax": "held", "head": "sharp", "participation": 1.0}
    run = feddag.run(feddag.Experiment(method=name, **fields))
    assert all((run.network(client).state_dict()["head.bias"] < -900).sum() == 8 for client in range(6))  # of ten


@pytest.mark.parametrize("name", ["fedmix", "fedbr"])
def test_where_samples_of_others_come_in_all_classes_are_told_apart(name: str) -> None:
    with pytest.raises(FeddagError, match="softmax = 'held' is not allowed"):
        feddag.Experiment(method=name, softmax="held")


# Real runs ------------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"clients": 6, "groups": 3, "rounds": 4, "epochs": 1, "participation": 0.5, "workers": 1}
LEVEL = {"smoothing": 0.5, "balanced": True, "sampling": "clusters"}
METHODS: Mapping[str, dict[str, Any]] = {
    "fedper": {},
    "per-fedavg": {"lr": 0.05, "inner_lr": 0.05},
    "pfedme": {},
    "fedmix": {},
    "fblg": {},
    "fedbr": {},
}


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
    """Of clients that differ, more than a model that guesses among the two classes of each; else among ten."""
    alike = {} if find_method(name).family == "personalised" else {"partition": "iid"}
    fields = {**QUICK, "rounds": 5, "epochs": 2, "lr": 0.05, "finetune": False, **METHODS[name], **alike}
    run = feddag.run(feddag.Experiment(method=name, **fields))
    assert run.accuracy.mean > 0.6
