"""FeSEM and CGPFL, which groups as FeSEM does: k-means of models, by hand, against scikit-learn, and on digits."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.cluster import KMeans

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.methods.cgpfl import FollowPersonal
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Choice, Own, Weights, flat
from tests.methods.beside import RealClients, linear_spec

SPEC = ModelSpec("mlp", (2,), 2)
QUICK = {"clients": 8, "groups": 2, "rounds": 3, "epochs": 1, "workers": 1, "finetune": False}


def apart(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
    """Clients 0-2 add 0.1, 0.2 and 0.3 to every weight, 3-5 take away as much and 5 more."""
    start = engine.resolve(client, step.model, current)
    by = 0.1 * (client + 1) if client < 3 else -5 - 0.1 * (client - 2)
    return Result(weights={name: value + by for name, value in start.items()})


def started(**settings: Any) -> Any:
    engine = FakeEngine({client: 10 * (client + 1) for client in range(6)}, answers={Train: apart})
    return engine, *testing.started("fesem", engine, SPEC, **({"clusters": 2} | settings))


def test_the_first_centres_are_the_means_of_k_means() -> None:
    _, federation, fesem = started()
    first = fesem.groups.trained[0]
    assert fesem.sample(federation) == list(range(6)) and isinstance(fesem.model_of(0), Choice)
    one_round(federation, fesem)
    assert fesem.clusters() == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    assert moved(first, fesem.model_of(0)) == pytest.approx(0.2)  # all count the same, whatever samples they hold
    assert moved(first, fesem.model_of(5)) == pytest.approx(-5.2)


def test_clients_go_to_the_centre_nearest_to_what_they_trained() -> None:
    engine, federation, fesem = started()
    first = fesem.groups.trained[0]
    one_round(federation, fesem)  # centres at 0.2 and -5.2
    engine.answers[Train] = lambda e, client, step, w: Result(
        weights={name: value - (2.6 if client else 2.8) for name, value in e.resolve(client, step.model, w).items()}
    )
    one_round(federation, fesem, [0, 1])  # the middle is at -2.5: client 0 is at -2.6, client 1 at -2.4
    assert fesem.clusters()[0] == 1 and fesem.clusters()[1] == 0
    assert moved(first, fesem.groups.trained[1]) == pytest.approx(-2.6)  # of those who took part
    assert moved(first, fesem.groups.trained[0]) == pytest.approx(-2.4)


def test_the_centres_after_a_round_are_an_iteration_of_scikit_learns_k_means() -> None:
    """With all clients taking part, E- and M-step move the centres as Lloyd's algorithm does from those before."""
    goals = torch.tensor(np.random.default_rng(0).normal(size=(9, 26))).float()

    def answer(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
        start = engine.resolve(client, step.model, current)
        return Result(weights=unflat((flat(start) + goals[client]) / 2, start))

    spec = linear_spec(12)  # 26 weights
    engine = FakeEngine(dict.fromkeys(range(9), 10), answers={Train: answer})
    federation, fesem = testing.started("fesem", engine, spec, clusters=3)
    one_round(federation, fesem)
    for _ in range(3):
        before = torch.stack([flat(weights) for weights in fesem.groups.trained.values()])
        models = torch.stack([(before[fesem.clusters()[client]] + goals[client]) / 2 for client in range(9)])
        lloyd = KMeans(3, init=before.double().numpy(), n_init=1, max_iter=1).fit(models.double().numpy())
        nearest = torch.cdist(models.double(), before.double()).argmin(1)
        one_round(federation, fesem)
        assert [fesem.clusters()[client] for client in range(9)] == nearest.tolist()
        after = torch.stack([flat(weights) for weights in fesem.groups.trained.values()])
        np.testing.assert_allclose(after.numpy(), lloyd.cluster_centers_, atol=1e-5)


def unflat(row: torch.Tensor, like: Weights) -> Weights:
    parts = row.split([value.numel() for value in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def test_distances_may_be_those_of_the_head_alone() -> None:
    _, federation, fesem = started(compared="head")
    one_round(federation, fesem)
    far = {n: v + 100 if n.startswith("encoder") else v for n, v in fesem.groups.trained[1].items()}
    assert fesem.nearest(far) == 1
    _, federation, fesem = started()
    one_round(federation, fesem)
    assert fesem.nearest(far) == 0


def test_silence_an_empty_centre_and_a_newcomer() -> None:
    engine, federation, fesem = started()
    first = fesem.groups.trained[0]
    engine.silent = set(range(6))
    one_round(federation, fesem)
    assert not fesem.founded and fesem.clusters() == {}
    engine.silent = {1}
    one_round(federation, fesem)
    assert fesem.founded and 1 not in fesem.clusters()
    fesem.leave(federation, [3, 4, 5])
    one_round(federation, fesem, [0])
    assert len(fesem.groups.trained) == 2 and moved(first, fesem.groups.trained[1]) == pytest.approx(-5.2)  # kept
    engine.silent = set()
    centres = [moved(first, weights) for weights in fesem.groups.trained.values()]
    one_round(federation, fesem, [1])  # from the mean of the centres, 0.2 up: nearer to the upper one
    assert fesem.clusters()[1] == 0
    assert moved(first, fesem.groups.trained[0]) == pytest.approx(sum(centres) / 2 + 0.2, abs=1e-3)
    engine.samples[7] = 10
    fesem.join(federation, [7])
    assert fesem.clusters()[7] == 1  # it takes away 5.5


# CGPFL ----------------------------------------------------------------------------------------------------------------


def test_the_local_work_is_pfedmes_and_the_personal_model_is_near_the_envelopes_minimum() -> None:
    """With many inner steps theta is where SciPy finds the minimum of loss + lambda / 2 ||theta - omega||^2."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(40, 3)), draw.integers(0, 2, 40)
    spec = linear_spec(3)
    engine = RealClients(spec, {0: (x, y)}, lr=0.05, weight_decay=0.0, epochs=2)
    omega = spec.initial_weights(0, "omega")
    client = engine.client(0)
    result = FollowPersonal(engine.put(omega), pull=2.0, personal_steps=400).run(client)
    assert result.samples == 2 * 400 * 40 and result.weights is not None

    def envelope(theta: np.ndarray, centre: np.ndarray) -> float:
        scores = x @ theta[:6].reshape(2, 3).T + theta[6:]
        losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(40), y]
        return float(losses.mean() + np.sum((theta - centre) ** 2))  # lambda / 2 = 1

    at = np.concatenate([omega["head.weight"].numpy().ravel(), omega["head.bias"].numpy()]).astype(float)
    for _ in range(2):  # batches; omega takes lr * lambda = 0.1 of the way to theta
        theta = minimize(envelope, at, args=(at,), tol=1e-10).x
        at = at - 0.1 * (at - theta)
    np.testing.assert_allclose(flat(result.weights).numpy(), at, atol=1e-4)
    kept = {name.removeprefix("personal/"): value for name, value in client.state.items()}
    np.testing.assert_allclose(flat(kept).numpy(), theta, atol=1e-3)


def test_contexts_move_by_beta_and_clients_use_their_own() -> None:
    def answer(engine: FakeEngine, client: int, step: FollowPersonal, current: Weights) -> Result:
        by = 1.0 if client < 3 else -1.0
        return Result(weights={name: value + by for name, value in engine.weights[step.model.digest].items()})

    engine = FakeEngine(dict.fromkeys(range(6), 10), answers={FollowPersonal: answer})
    federation, cgpfl = testing.started("cgpfl", engine, SPEC, clusters=2, server_step=0.5, pull=3.0)
    first = cgpfl.groups.trained[0]
    one_round(federation, cgpfl)
    assert cgpfl.clusters() == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    assert moved(first, cgpfl.groups.trained[0]) == 0.5 and moved(first, cgpfl.groups.trained[1]) == -0.5
    assert cgpfl.model_of(0) == (cgpfl.groups.served[0], Own("personal"))
    [step] = engine.jobs[0].steps
    assert step.pull == 3.0 and step.personal_steps == 5


@pytest.mark.parametrize("method", ["fesem", "cgpfl"])
def test_two_concepts_on_digits_are_found(method: str) -> None:
    fields = QUICK | {"partition": "concept-shift", "concepts": 2, "epochs": 2}
    run = feddag.run(feddag.Experiment(method=method, clusters=2, balanced=True, smoothing=0.5, **fields))
    assert run.result["ari"] == 1.0 and run.result["answers_missing"] == 0
