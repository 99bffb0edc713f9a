"""FedRC: the E-step against NumPy, the M-step by hand, an EM that finds concepts, and runs on digits."""

from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.methods.fedrc import Share, responsibilities
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Choice, Mixture, Weights
from tests.methods.beside import RealClients, classifier, linear_spec

SPEC = ModelSpec("mlp", (2,), 2)
QUICK = {"clients": 6, "groups": 2, "rounds": 3, "epochs": 1, "workers": 1, "finetune": False}


def test_the_shares_of_samples_are_what_numpy_computes_directly() -> None:
    """gamma_jk = omega_k p(y_j | x_j, k) / C_k(y_j), normalised: computed from probabilities, not from losses."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(7, 2)), np.array([0, 1, 2, 0, 1, 2, 2])
    models = [draw.normal(size=(3, 2)) for _ in range(2)]
    omega, labels = np.array([0.7, 0.3]), draw.dirichlet([1, 1, 1], size=2)
    engine = RealClients(linear_spec(2, 3), {0: (x, y)})
    refs = tuple(engine.put(classifier(rows.tolist())) for rows in models)
    client = engine.client(0)
    told = Share(refs, tuple(omega), torch.tensor(labels)).run(client)
    expected = np.zeros((7, 2))
    for k, rows in enumerate(models):
        scores = np.exp(x @ rows.T)
        expected[:, k] = omega[k] * (scores / scores.sum(1, keepdims=True))[np.arange(7), y] / labels[k, y]
    expected /= expected.sum(1, keepdims=True)
    for k in range(2):
        np.testing.assert_allclose(client.scratch[f"share {k}"].numpy(), expected[:, k], atol=1e-5)
        by_label = [expected[y == label, k].sum() for label in range(3)]
        np.testing.assert_allclose(told.arrays["labels"][k].numpy(), by_label, atol=1e-5)
    np.testing.assert_allclose(told.arrays["shares"].numpy(), expected.mean(0), atol=1e-6)
    assert told.scored == 14


def test_a_rare_label_counts_for_a_cluster_and_not_against_it() -> None:
    """Equal losses: without the division by label frequencies (FedEM) both clusters would get a half."""
    losses, y = torch.ones(2, 2, dtype=torch.float64), torch.tensor([0, 1])
    labels = torch.tensor([[0.9, 0.1], [0.5, 0.5]], dtype=torch.float64)
    gamma = responsibilities(losses, y, torch.tensor([0.5, 0.5]), labels)
    assert gamma[0].tolist() == pytest.approx([5 / 14, 9 / 14]) and gamma[1].tolist() == pytest.approx([5 / 6, 1 / 6])


def told(shares: dict[int, list[float]]) -> Any:
    def answer(engine: FakeEngine, client: int, step: Share, current: Weights) -> Result:
        own = torch.tensor(shares[client], dtype=torch.float64)
        return Result(arrays={"shares": own, "labels": own[:, None] * torch.tensor([[3.0, 1.0]]).double()})

    return answer


@pytest.mark.parametrize("pace", ["paper", "cluster"])
def test_the_m_step_by_hand(pace: str) -> None:
    """Clients 0 and 1 hold 10 and 30 samples and add 1 and 2; shares of cluster 0 are 0.8 and 0.6, so 8 + 18 of 40."""
    engine = FakeEngine({0: 10, 1: 30}, answers={Share: told({0: [0.8, 0.2], 1: [0.6, 0.4]})})
    federation, fedrc = testing.started("fedrc", engine, SPEC, clusters=2, pace=pace)
    before = dict(fedrc.groups.trained)
    assert isinstance(fedrc.model_of(0), Choice)
    one_round(federation, fedrc)
    moves = [(8 * 1 + 18 * 2) / 40, (2 * 1 + 12 * 2) / 40]
    if pace == "cluster":
        moves = [moves[0] / 0.65, moves[1] / 0.35]
    assert [moved(before[n], fedrc.groups.trained[n]) for n in (0, 1)] == pytest.approx(moves, abs=1e-3)
    share, *trains = engine.jobs[0].steps
    assert share.shares == (0.5, 0.5) and [step.sample_weights for step in trains] == ["share 0", "share 1"]
    served = fedrc.model_of(1)
    assert isinstance(served, Mixture) and served.shares == (0.6, 0.4) and fedrc.clusters() == {0: 0, 1: 0}
    one_round(federation, fedrc, [1])
    share = engine.jobs[0].steps[0]
    assert share.shares == (0.6, 0.4) and share.labels[0].tolist() == pytest.approx([0.75, 0.25])  # C: of what all told


def test_training_follows_the_shares() -> None:
    """A sample without a share in a cluster does not move its model."""
    spec = linear_spec(2)
    engine = RealClients(spec, {0: ([[1.0, 0.0], [0.0, 1.0]], [0, 1])}, lr=1.0, weight_decay=0.0)
    ref = engine.put(classifier([[0.0, 0.0], [0.0, 0.0]]))
    client = engine.client(0)
    client.scratch["share 0"] = torch.tensor([1.0, 1e-6])
    weights = Train(ref, sample_weights="share 0").run(client).weights
    assert weights is not None  # the gradient of the first sample alone: p - onehot = -0.5 and 0.5
    np.testing.assert_allclose(weights["head.weight"].numpy(), [[0.5, 0.0], [-0.5, 0.0]], atol=1e-5)


def test_em_sends_swapped_labels_to_different_models() -> None:
    """Two concepts over the same samples. A logistic regression for all of them can do no better than guess."""
    draw = np.random.default_rng(3)
    held = {}
    for number in range(6):
        x = draw.normal(size=(60, 2))
        y = (x[:, 0] > 0).astype(int)
        held[number] = x, y if number < 3 else 1 - y
    spec = linear_spec(2)
    engine = RealClients(spec, held, lr=1.0, weight_decay=0.0)
    federation, fedrc = testing.started("fedrc", engine, spec, clusters=2, pace="cluster")
    for _ in range(30):
        one_round(federation, fedrc)
    assert [fedrc.clusters()[c] == fedrc.clusters()[0] for c in range(6)] == [True] * 3 + [False] * 3
    for client, (x, y) in held.items():
        served = fedrc.model_of(client)
        mixed = sum(
            share * torch.softmax(engine.trainer.logits(model, torch.tensor(x).float()), 1)
            for model, share in zip(served.models, served.shares, strict=True)
        )
        assert (mixed.argmax(1).numpy() == y).mean() > 0.9


def test_silence_a_newcomer_and_those_who_leave() -> None:
    shares = {0: [0.8, 0.2], 1: [0.6, 0.4], 2: [0.1, 0.9]}
    engine = FakeEngine({0: 10, 1: 30}, answers={Share: told(shares)})
    federation, fedrc = testing.started("fedrc", engine, SPEC, clusters=2, hard=True)
    before = dict(fedrc.groups.trained)
    engine.silent = {0, 1}
    one_round(federation, fedrc)
    assert fedrc.groups.trained == before and fedrc.clusters() == {}
    engine.silent, engine.samples[2] = set(), 10
    fedrc.join(federation, [2])
    assert fedrc.clusters() == {2: 1} and fedrc.model_of(2) is fedrc.groups.served[1]
    fedrc.leave(federation, [2])
    assert fedrc.shares == {} == fedrc.labels


def test_a_client_that_lies_about_its_shares_is_missing() -> None:
    engine = FakeEngine({0: 10, 1: 30}, answers={Share: told({0: [0.8, 0.2], 1: [60.0, 0.4]})})
    federation, fedrc = testing.started("fedrc", engine, SPEC, clusters=2)
    one_round(federation, fedrc)
    assert federation.missing == {1: "told shares that cannot be"} and set(fedrc.clusters()) == {0}


def test_on_digits_every_sample_is_scored_and_trained_for_every_model() -> None:
    run = feddag.run(feddag.Experiment(method="fedrc", clusters=2, balanced=True, smoothing=0.5, **QUICK))
    assert run.result["samples_scored"] == run.result["sample_passes"] > 0 == run.result["answers_missing"]
