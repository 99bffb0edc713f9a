"""FL+HC: its tree against SciPy's, clusters by hand, those who come later by their own update."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.errors import FeddagError
from feddag.server.clustering import relabel
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Weights, flat
from tests.methods.beside import linear_spec

SPEC = linear_spec(3)  # 8 weights
QUICK = {"clients": 6, "groups": 3, "rounds": 3, "epochs": 1, "workers": 1, "finetune": False}


def moving(updates: np.ndarray) -> Any:
    """Client i always adds row i to the model it is sent."""

    def answer(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
        start = engine.resolve(client, step.model, current)
        row = flat(start) + torch.tensor(updates[client]).float()
        return Result(weights={"head.weight": row[:6].reshape(2, 3), "head.bias": row[6:]})

    return answer


def started(updates: np.ndarray, **settings: Any) -> Any:
    engine = FakeEngine(dict.fromkeys(range(len(updates)), 10), answers={Train: moving(updates)})
    return engine, *testing.started("fl-hc", engine, SPEC, **settings)


@pytest.mark.parametrize("tree", ["single", "complete", "average"])
@pytest.mark.parametrize(("metric", "called"), [("l1", "cityblock"), ("l2", "euclidean"), ("cosine", "cosine")])
def test_the_clusters_are_scipys(tree: str, metric: str, called: str) -> None:
    updates = np.random.default_rng(1).normal(size=(9, 8))
    merges = linkage(pdist(updates, called), tree)
    middle = float(merges[5, 2] + merges[6, 2]) / 2  # leaves three
    for settings, expected in (
        ({"clusters": 4}, fcluster(merges, 4, "maxclust")),
        ({"threshold": middle}, fcluster(merges, middle, "distance")),
    ):
        _, federation, flhc = started(updates, rounds_before=0, metric=metric, linkage=tree, **settings)
        one_round(federation, flhc)
        assert [flhc.clusters()[client] for client in range(9)] == relabel(expected).tolist()
        np.testing.assert_allclose(flhc.diagnostics()["merges"][:, 2], merges[:, 2], atol=1e-4)


def test_fedavg_first_then_everybody_is_asked_once_and_clusters_go_on_apart() -> None:
    updates = np.repeat([[1.0], [1.0], [-1.0], [-1.0]], 8, axis=1)
    _, federation, flhc = started(updates, rounds_before=2, clusters=2, participation=0.5)
    first = flhc.model_of(0)
    for expected in (2, 2, 4, 2):
        federation.begin_round(federation.round + 1)
        sampled = flhc.sample(federation)
        assert len(sampled) == expected
        flhc.round(federation, [0, 2] if expected == 2 else sampled)
        if federation.round < 3:
            assert set(flhc.clusters().values()) == {0} and flhc.diagnostics() == {}
    assert flhc.clusters() == {0: 0, 1: 0, 2: 1, 3: 1}
    assert [event.kind for event in federation.events()] == ["split"]
    assert moved(first, flhc.model_of(1)) == 1 and moved(first, flhc.model_of(3)) == -1  # only the last round apart


@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
def test_who_was_missing_and_a_newcomer_are_placed_by_their_update(metric: str) -> None:
    updates = np.repeat([[1.0], [1.1], [-1.0], [-1.2], [0.9], [-0.8], [0.0]], 8, axis=1)
    engine, federation, flhc = started(updates, rounds_before=1, clusters=2, metric=metric)
    engine.samples = dict.fromkeys(range(5), 10)
    engine.silent = {4}
    for _ in range(2):
        one_round(federation, flhc)
    reference = flhc.reference
    assert 4 not in flhc.clusters()
    engine.silent = set()
    one_round(federation, flhc, [0, 4])
    assert flhc.clusters()[4] == flhc.clusters()[0]
    engine.samples |= {5: 10, 6: 10}
    flhc.join(federation, [5, 6])
    assert engine.weights[engine.jobs[0].steps[0].model.digest] is reference  # from the model of that time
    assert flhc.clusters()[5] == flhc.clusters()[2] and 6 in flhc.clusters()  # even one that did not move at all


def test_too_few_answers_wait_for_another_round_and_early_newcomers_join_all() -> None:
    engine, federation, flhc = started(np.eye(8)[:4], rounds_before=0, clusters=2)
    engine.silent = {1, 2, 3}
    one_round(federation, flhc)
    assert not flhc.reference
    engine.samples[4] = 10
    flhc.join(federation, [4])
    assert flhc.clusters()[4] == 0
    del engine.samples[4]
    flhc.leave(federation, [4])
    engine.silent = set()
    one_round(federation, flhc)
    assert len(flhc.groups.trained) == 2


def test_ward_needs_euclidean_distances() -> None:
    with pytest.raises(FeddagError, match="linkage = 'ward' is for metric = 'l2', not for 'l1'"):
        feddag.run(feddag.Experiment(method="fl-hc", linkage="ward", metric="l1", **QUICK))


def test_label_skew_on_digits_is_found_by_the_cosine() -> None:
    run = feddag.run(feddag.Experiment(method="fl-hc", rounds_before=1, metric="cosine", smoothing=0.5, **QUICK))
    assert run.result["ari"] == 1.0 and run.result["answers_missing"] == 0
