"""IFCA: choosing by training loss, three ways to begin, and the optimum of two logistic regressions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import feddag
from feddag import testing
from feddag.client.evaluate import Choose
from feddag.client.step import Client, Result
from feddag.client.train import Train
from feddag.methods.ifca import IFCA
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Choice, Ref, flat
from tests.methods.beside import RealClients, classifier, linear_spec

SPEC = ModelSpec("mlp", (2,), 2)
QUICK = {"clients": 6, "groups": 2, "rounds": 4, "epochs": 1, "workers": 1, "finetune": False}
DECAY = 0.1


class ChooseByTest(Choose):
    """What PACFL's copy of IFCA does: the model with the best accuracy on *test* samples."""

    def run(self, client: Client) -> Result:
        counts = torch.stack([client.score(client.weights(model)) for model in self.models])
        chosen = int((counts[:, :, 0].sum(1) / counts[:, :, 1].sum(1)).argmax())
        client.current = client.weights(self.models[chosen])
        return Result(arrays={"losses": torch.zeros(len(self.models)), "chosen": torch.tensor([chosen])})


class IFCAByTest(IFCA):
    """The twin with the defect."""

    def local_work(self, client: int, models: Mapping[int, Ref]) -> Any:
        return [ChooseByTest(tuple(models.values())), Train()]


@pytest.mark.parametrize(("kind", "right"), [(IFCA, True), (IFCAByTest, False)])
def test_a_client_chooses_by_the_loss_on_its_training_samples(kind: type[IFCA], right: bool) -> None:
    """Its test samples follow another rule than its training samples: whoever looks at them takes the other model."""
    x = np.array([[1.0, 0.0], [-1.0, 0.0]])
    spec = linear_spec(2)
    engine = RealClients(spec, {0: (x, [1, 0])}, test={0: (x, [0, 1])}, lr=1e-6)
    federation, ifca = testing.started(kind, engine, spec, clusters=2)
    rules = [classifier([[-s, 0.0], [s, 0.0]]) for s in (-1.0, 1.0)]
    ifca.groups.trained = dict(enumerate(rules))
    one_round(federation, ifca)
    assert (ifca.clusters() == {0: 1}) == right


def swapped(clients: int = 6, samples: int = 40) -> dict[int, Any]:
    """Clients of two concepts: the second half has the labels of the first one swapped, with noise in both."""
    draw, held = np.random.default_rng(7), {}
    for client in range(clients):
        x = draw.normal(size=(samples, 2))
        y = (x @ [1.0, 0.5] + draw.normal(0, 0.5, samples) > 0).astype(int)
        held[client] = x, y if client < clients // 2 else 1 - y
    return held


def optimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The minimum of mean cross-entropy + decay / 2 ||w||^2 of a logistic regression, as SciPy finds it."""

    def objective(w: np.ndarray) -> float:
        scores = x @ w[:4].reshape(2, 2).T + w[4:]
        losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(y)), y]
        return float(losses.mean() + DECAY / 2 * (w**2).sum())

    return minimize(objective, np.zeros(6), tol=1e-12).x


def test_both_models_reach_the_optimum_of_their_own_clients() -> None:
    """Whole-batch steps of equally large clients: the mean of models is gradient descent on what they hold together."""
    held = swapped()
    spec = linear_spec(2)
    engine = RealClients(spec, held, lr=1.5, weight_decay=DECAY)
    federation, ifca = testing.started("ifca", engine, spec, clusters=2, start="rejection", least_share=0.5)
    for _ in range(60):
        one_round(federation, ifca)
    assert [ifca.clusters()[c] == ifca.clusters()[0] for c in held] == [True] * 3 + [False] * 3
    for part in (range(3), range(3, 6)):
        x, y = (np.concatenate([held[client][n] for client in part]) for n in (0, 1))
        found = flat(ifca.model_of(part[0])).numpy()
        np.testing.assert_allclose(found, optimum(x, y), atol=2e-3)
        both = np.concatenate([held[c][0] for c in held]), np.concatenate([held[c][1] for c in held])
        assert np.abs(found - optimum(*both)).max() > 0.2  # FedAvg would have gone there


# How the models begin -------------------------------------------------------------------------------------------------


def by_draw(takes: list[list[int]]) -> Any:
    """Client i chooses what is written for it in the list of the draw."""
    seen: list[tuple[Ref, ...]] = []

    def answer(engine: FakeEngine, client: int, step: Choose, current: Any) -> Result:
        if step.models not in seen:
            seen.append(step.models)
        chosen = takes[seen.index(step.models)][client]
        return Result(arrays={"losses": torch.zeros(len(step.models)), "chosen": torch.tensor([chosen])})

    return seen, answer


@pytest.mark.parametrize(
    ("takes", "draws", "kept"),
    [
        ([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 1], [0, 1, 1, 1]], 3, 2),  # the third is the first with half and half
        ([[0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 1]], 3, 1),  # none is: the evenest
        ([[1, 0, 0, 1]], 1, 0),
    ],
)
def test_models_are_drawn_again_until_enough_clients_choose_each(takes: Any, draws: int, kept: int) -> None:
    seen, answer = by_draw(takes)
    engine = FakeEngine(dict.fromkeys(range(4), 10), answers={Choose: answer})
    settings = {"clusters": 2, "start": "rejection", "least_share": 0.5, "draws": 3}
    federation, ifca = testing.started("ifca", engine, SPEC, **settings)
    assert len(seen) == draws
    assert [engine.put(weights) for weights in ifca.groups.trained.values()] == list(seen[kept])
    assert federation.traffic.down["draw"] > 0 and "train" not in federation.traffic.down


def test_nobody_answers_to_a_draw() -> None:
    engine = FakeEngine(dict.fromkeys(range(4), 10))
    engine.silent = set(range(4))
    _, ifca = testing.started("ifca", engine, SPEC, clusters=2, start="rejection", draws=2)
    assert len(ifca.groups.trained) == 2


def test_a_warm_start_by_hand() -> None:
    """Client i adds i + 1. FedAvg in the first round, models of no choice in the second and third, then IFCA."""
    engine = FakeEngine(dict.fromkeys(range(4), 10), choices=dict.fromkeys(range(4), 1))
    engine.choices = {}
    settings = {"clusters": 2, "start": "warm", "warm_rounds": 1, "forced_rounds": 2}
    federation, ifca = testing.started("ifca", engine, SPEC, **settings)
    first = ifca.groups.trained[0]
    assert len(ifca.groups.trained) == 1
    one_round(federation, ifca, [0, 1])
    assert len(ifca.groups.trained) == 2 and ifca.clusters() == {} and isinstance(ifca.model_of(0), Choice)
    for number, weights in ifca.groups.trained.items():
        assert moved(first, weights, "encoder") == 1.5  # the warm encoder, everywhere
        fresh = federation.initial_weights(f"cluster {number}")
        assert torch.equal(weights["head.weight"], fresh["head.weight"]) and ifca.groups.served[number] is weights
    one_round(federation, ifca)
    given = dict(ifca.given)
    assert set(given) == set(range(4)) and ifca.clusters() == given
    assert all(len(job.steps[0].models) == 1 for job in engine.jobs)
    one_round(federation, ifca)
    assert ifca.given == given
    one_round(federation, ifca)
    assert ifca.given == {} and all(len(job.steps[0].models) == 2 for job in engine.jobs)
    assert ifca.clusters() == dict.fromkeys(range(4), 0)  # as they choose


@pytest.mark.parametrize("fields", [{"start": "rejection"}, {"start": "warm", "warm_rounds": 1, "forced_rounds": 1}])
def test_on_digits(fields: dict[str, Any]) -> None:
    run = feddag.run(feddag.Experiment(method="ifca", clusters=2, smoothing=0.5, **fields, **QUICK))
    assert run.result["answers_missing"] == 0 and run.result["clusters"] is not None


def test_random_starts_are_kept_under_the_key_that_they_always_had() -> None:
    plain = feddag.Experiment(method="ifca", **QUICK)
    assert plain.key() == plain.with_(start="random", draws=20).key() != plain.with_(start="warm").key()
