"""FedGroup: decomposed cosines against scikit-learn's, groups by hand, newcomers by their first update."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from sklearn.metrics.pairwise import cosine_similarity

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.models import ModelSpec
from feddag.server.directions import cosine_differences, decomposed_cosines
from feddag.testing import FakeEngine, one_round
from feddag.weights import Weights

SPEC = ModelSpec("mlp", (2,), 2)
QUICK = {"clients": 10, "groups": 5, "rounds": 2, "epochs": 1, "workers": 1, "finetune": False}


@pytest.mark.parametrize("seed", range(3))
def test_decomposed_cosines_are_scikit_learns(seed: int) -> None:
    updates = np.random.default_rng(seed).normal(size=(8, 50))
    directions = TruncatedSVD(3, algorithm="arpack", random_state=0).fit_transform(updates.T)
    expected = cosine_similarity(updates, directions.T)
    np.testing.assert_allclose(np.abs(decomposed_cosines(updates, 3)), np.abs(expected), atol=1e-6)


def test_differences_of_cosines_by_hand() -> None:
    """Unit vectors at 0, 60, 90 and 180 degrees: 0 and 60 differ in their cosines with 90 and with 180."""
    angles = np.radians([0, 60, 90, 180])
    found = cosine_differences(3 * np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert found[0, 1] == pytest.approx((np.sqrt(3) / 2 + 0.5) / 2) and found[0, 0] == 0 == found[1, 0] - found[0, 1]


def two_ways(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
    """Even clients move the first weights, odd ones the second, by their number + 1."""
    start = engine.resolve(client, step.model, current)
    name = sorted(start)[client % 2]
    return Result(weights=start | {name: start[name] + client + 1})


@pytest.mark.parametrize("measure", ["edc", "madc"])
def test_groups_by_direction_start_from_the_mean_of_first_models(measure: str) -> None:
    engine = FakeEngine({client: 10 * (client + 1) for client in range(6)}, answers={Train: two_ways})
    federation, fedgroup = testing.started("fedgroup", engine, SPEC, clusters=2, measure=measure, pretrain_steps=7)
    assert {job.steps[0].steps for job in engine.jobs} == {7}
    assert fedgroup.clusters() == {0: 0, 2: 0, 4: 0, 1: 1, 3: 1, 5: 1}
    first, names = federation.initial_weights(), sorted(federation.initial_weights())
    for cluster, expected in ((0, (1 + 3 + 5) / 3), (1, (2 + 4 + 6) / 3)):  # all count the same
        change = fedgroup.groups.trained[cluster][names[cluster]] - first[names[cluster]]
        torch.testing.assert_close(change, torch.full_like(change, expected))
    one_round(federation, fedgroup, [0])
    assert engine.jobs[0].steps[0].steps is None
    assert fedgroup.diagnostics()["distances"][:2].tolist() == pytest.approx([1.0, 0.0], abs=1e-6)


def test_only_some_are_trained_before_and_the_others_when_they_come() -> None:
    engine = FakeEngine(dict.fromkeys(range(12), 10), answers={Train: two_ways})
    federation, fedgroup = testing.started("fedgroup", engine, SPEC, clusters=2, pretrained=3)
    assert len(fedgroup.clusters()) == 6 == len(engine.jobs)
    late = sorted({*range(12)} - {*fedgroup.clusters()})
    engine.silent = {late[0]}
    one_round(federation, fedgroup, late)
    kind = {client % 2: cluster for client, cluster in fedgroup.clusters().items()}
    assert all(fedgroup.clusters()[client] == kind[client % 2] for client in late[1:])
    assert late[0] not in fedgroup.clusters() and len(kind) == 2


@pytest.mark.parametrize("answering", [0, 1])
def test_too_few_answer(answering: int) -> None:
    engine = FakeEngine(dict.fromkeys(range(4), 10), answers={Train: two_ways})
    engine.silent = set(range(answering, 4))
    federation, fedgroup = testing.started("fedgroup", engine, SPEC, clusters=3)
    assert len(fedgroup.clusters()) == answering and len(fedgroup.groups.trained) == 1
    assert fedgroup.diagnostics() == {}
    engine.silent = set()
    one_round(federation, fedgroup)
    assert fedgroup.clusters() == dict.fromkeys(range(4), 0)


def test_label_skew_on_digits_is_found(tmp_path: Any) -> None:
    run = feddag.run(feddag.Experiment(method="fedgroup", clusters=5, **QUICK), tmp_path / "r")
    assert run.result["ari"] == 1.0 and run.result["sample_passes_by_phase"]["describe"] > 0
