"""CFL-GP: gradients against their formula, projections against NumPy's SVD, clusters that keep their numbers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.methods.cfl_gp import CFLGP
from feddag.models import ModelSpec
from feddag.server.directions import matched, projected
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Ref, Weights
from tests.methods.beside import RealClients, linear_spec

SPEC = ModelSpec("mlp", (2,), 2)
QUICK = {"clients": 10, "groups": 5, "rounds": 3, "epochs": 1, "workers": 1, "finetune": False}


@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_projections_are_those_onto_numpys_singular_vectors(dimensions: int) -> None:
    gradients = np.random.default_rng(0).normal(size=(6, 30))
    left = np.linalg.svd(gradients.T, full_matrices=False)[0]
    expected = gradients @ left[:, :dimensions]
    np.testing.assert_allclose(np.abs(projected(gradients, dimensions)), np.abs(expected), atol=1e-8)


def test_the_gradient_is_that_of_a_logistic_regression_at_the_criterion() -> None:
    draw = np.random.default_rng(0)
    held = {client: (draw.normal(size=(20, 3)), draw.integers(0, 2, 20)) for client in range(3)}
    spec = linear_spec(3)
    engine = RealClients(spec, held, lr=0.5, weight_decay=0.0)
    federation, method = testing.started("cfl-gp", engine, spec, clusters=2)
    start = method.groups.trained[0]
    one_round(federation, method)
    for client, (x, y) in held.items():
        scores = x @ start["head.weight"].numpy().T + start["head.bias"].numpy()
        wrong = np.exp(scores) / np.exp(scores).sum(1, keepdims=True) - np.eye(2)[y]
        expected = 0.5 * np.concatenate([(wrong.T @ x / 20).ravel(), wrong.mean(0)])  # learning rate times gradient
        np.testing.assert_allclose(method.held[client]["gradient"].numpy(), expected, atol=1e-5)


def test_clusters_keep_the_numbers_of_those_they_overlap_with() -> None:
    assert matched([0, 1, 1, 0], [2, 0, 0, 2], 3) == [2, 0, 0, 2]
    assert matched([0, 1, 1, 1], [0, 0, 0, 0], 2) == [1, 0, 0, 0]  # most stay
    assert sorted(set(matched([0, 1, 2], [0, 0, 0], 3))) == [0, 1, 2]


def two_ways(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
    """Even clients add 1 to the first weights, odd ones to the second."""
    start = engine.resolve(client, step.model, current)
    name = sorted(start)[client % 2]
    return Result(weights=start | {name: start[name] + 1 + 0.01 * client})


def started(kind: str | type[CFLGP] = "cfl-gp", **settings: Any) -> Any:
    engine = FakeEngine(dict.fromkeys(range(6), 10), answers={Train: two_ways})
    return engine, *testing.started(kind, engine, SPEC, **({"clusters": 2} | settings))


def test_clusters_by_hand_and_when_gradients_are_asked_for() -> None:
    engine, federation, method = started(every=2, until=3, participation=0.5)
    asked = []
    for _ in range(5):
        federation.begin_round(federation.round + 1)
        sampled = method.sample(federation)
        method.round(federation, sampled)
        asked.append((len(sampled), len(engine.jobs[0].steps)))
    assert asked == [(6, 2), (3, 1), (3, 2), (3, 1), (3, 1)]
    assert len({method.clusters()[client] for client in (0, 2, 4)}) == 1 != len(set(method.clusters().values()))
    assert len({method.clusters()[client] for client in (1, 3, 5)}) == 1


class AtOwnModel(CFLGP):
    """The released code's defect: the gradient is taken at the client's own model, whatever model is asked for."""

    def local_work(self, client: int, models: Mapping[int, Ref]) -> Any:
        steps = list(super().local_work(client, models))
        own = models[self.groups.cluster_of[client]]
        return [self.gradient_step(own), *steps[1:]] if len(steps) == 2 else steps


@pytest.mark.parametrize(("kind", "right"), [(CFLGP, True), (AtOwnModel, False)])
def test_gradients_are_taken_at_one_model_for_all(kind: type[CFLGP], right: bool) -> None:
    engine, federation, method = started(kind, every=1)
    for _ in range(3):  # the first groups, the second tells their models apart
        one_round(federation, method)
    asked = {job.client: job.steps for job in engine.jobs}
    assert (len({steps[0].model for steps in asked.values()}) == 1) == right
    assert len({steps[1].model for steps in asked.values()}) == 2  # and each trains its own


def test_a_gradient_is_the_mean_over_rounds() -> None:
    engine, federation, method = started(every=1)
    for by in (1.0, 4.0):
        engine.answers[Train] = lambda e, client, step, w, by=by: Result(
            weights={name: value - by for name, value in e.resolve(client, step.model, w).items()}
        )
        one_round(federation, method)
    assert method.told[0] == 2 and set(method.held[0]["gradient"].numpy().round(4).tolist()) == {2.5}


def test_the_number_of_clusters_by_silhouette() -> None:
    _, federation, method = started(clusters=0)
    one_round(federation, method)
    assert len(method.groups.trained) == 2


def test_silence_newcomers_and_those_who_leave() -> None:
    engine, federation, method = started()
    first = method.groups.trained[0]
    engine.silent = set(range(6))
    one_round(federation, method)
    assert method.groups.trained[0] is first and method.diagnostics() == {}
    method.leave(federation, [5])
    method.join(federation, [5])
    assert method.clusters() == dict.fromkeys(range(6), 0)  # nothing to compare with yet
    engine.silent = {5}
    one_round(federation, method)
    assert set(method.held) == set(range(5)) and len(method.groups.trained) == 2
    engine.samples |= {6: 10, 7: 10}
    method.join(federation, [6, 7])
    assert method.clusters()[6] == method.clusters()[0] and method.clusters()[7] == method.clusters()[1]
    method.leave(federation, [1, 3, 5, 7])
    one_round(federation, method, [0])  # a cluster that all have left keeps its model
    assert len(method.groups.trained) == 2 and len(method.diagnostics()["distances"]) == 3


def test_a_single_client() -> None:
    engine = FakeEngine({0: 10}, answers={Train: two_ways})
    for clusters in (0, 4):
        federation, method = testing.started("cfl-gp", engine, SPEC, clusters=clusters)
        before = method.model_of(0)
        one_round(federation, method)
        assert method.clusters() == {0: 0}
        assert moved(before, method.model_of(0), "head") in (0, 1)


def test_label_skew_on_digits_is_found() -> None:
    run = feddag.run(feddag.Experiment(method="cfl-gp", clusters=5, smoothing=0.5, balanced=True, **QUICK))
    assert run.result["ari"] == 1.0 and run.result["bytes_by_phase"]["up"]["gradient"] > 0
