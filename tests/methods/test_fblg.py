"""FBLG: distances by hand, its choice against all subsets, and who takes part."""

from itertools import combinations

import numpy as np
import pytest
import torch

from feddag import testing
from feddag.client.evaluate import Choose
from feddag.client.step import Result
from feddag.client.trainer import TorchTrainer
from feddag.methods.fblg import EmbedNoise
from feddag.models import ModelSpec
from feddag.server import diversity
from feddag.server.diversity import divergences, graph_distances, most_diverse, worth
from feddag.testing import FakeEngine, one_round
from tests.methods.least_squares import client_of

SPEC = ModelSpec("mlp", (2,), 2)


@pytest.mark.parametrize("seed", range(18))
def test_the_choice_is_the_best_of_all_subsets(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, count = int(draw.integers(4, 10)), int(draw.integers(1, 5))
    apart = graph_distances(draw.random((rows, 6))) / (rows * (rows - 1) if seed % 3 else 1)
    gains = draw.dirichlet(np.ones(rows)) if seed % 2 else np.full(rows, 1 / rows)
    best = max(worth(apart, gains, subset) for subset in combinations(range(rows), min(count, rows)))
    chosen = most_diverse(apart, gains, count)
    assert len(set(chosen)) == min(count, rows) and worth(apart, gains, chosen) == pytest.approx(best, rel=1e-6)


def test_one_by_one_is_not_enough() -> None:
    """Row 0 adds most at first, but the best pair is without it."""
    apart = np.array([[0, 1, 1], [1, 0, 3], [1, 3, 0.0]])
    gains = [1.5, 1.0, 1.0]
    assert diversity._one_by_one(apart, gains, 2)[0] == 0
    assert most_diverse(apart, gains, 2) == [1, 2]


def test_where_the_search_finds_nothing_rows_are_taken_one_by_one(monkeypatch) -> None:
    class Nothing:
        x = None

    monkeypatch.setattr("scipy.optimize.milp", lambda *_, **__: Nothing())
    assert most_diverse(np.zeros((3, 3)), [0.1, 0.3, 0.2], 2) == [1, 2]


def test_distances_by_hand() -> None:
    """Divergences of 1 bit (nothing in common), and the way round by a third client that is like both."""
    features = np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    middle = (0.75 * np.log2(4 / 3) + 0.25 * 2) - (0 + 1) / 2  # entropy of (3/4, 1/4) less the mean entropy
    assert divergences(features)[[0, 0, 1], [1, 2, 2]] == pytest.approx([1, middle, middle], abs=1e-6)
    apart = graph_distances(features)
    # 0 and 1 are the least alike, so that no edge joins them, and the way round by 2 is twice an edge
    assert apart[[0, 0, 1], [1, 2, 2]] == pytest.approx([1, 0.5, 0.5], abs=1e-6) and (apart == apart.T).all()
    assert graph_distances(np.ones((3, 2)))[0, 1] == 1  # all alike
    assert graph_distances(np.ones((1, 2))).tolist() == [[0]]


def test_noise_is_the_same_for_all_clients_and_means_are_sent() -> None:
    start = SPEC.initial_weights(0, "start")
    found = []
    for number in range(2):
        client = client_of(torch.randn(3, 2), torch.zeros(3, dtype=torch.int64), TorchTrainer(SPEC), {}, id=number)
        client.current = start
        found.append(EmbedNoise().run(client).arrays["embedding"])
    assert torch.equal(found[0], found[1]) and tuple(found[0].shape) == EmbedNoise().shapes(SPEC)["embedding"]


LOSSES = {0: 9.0, 1: 8.0, 2: 7.0, 3: 1.0}


def fake() -> FakeEngine:
    def embed(engine: FakeEngine, client: int, step: EmbedNoise, current) -> Result:
        shares = {0: [1.0, 0.0], 1: [0.0, 1.0], 2: [0.9, 0.1], 3: [0.5, 0.5]}[client]
        return Result(arrays={"embedding": torch.tensor([*shares, *[0.0] * 126], dtype=torch.float64)})

    def look(engine: FakeEngine, client: int, step: Choose, current) -> Result:
        losses = torch.tensor([LOSSES[client]], dtype=torch.float64)
        return Result(arrays={"losses": losses, "chosen": torch.tensor([0])})

    return FakeEngine({0: 30, 1: 28, 2: 30, 3: 1000}, answers={EmbedNoise: embed, Choose: look})


def test_those_with_high_losses_who_are_unlike_and_hold_much_take_part() -> None:
    engine = fake()
    federation, method = testing.started("fblg", engine, SPEC, participation=0.5, candidates=0.75)
    federation.begin_round(1)
    assert method.sample(federation) == [0, 1] or method.sample(federation) == [1, 2]  # 3 is no candidate, 0 like 2
    engine.silent = {1}
    federation.begin_round(2)
    assert method.sample(federation) == [0, 3] or method.sample(federation) == [2, 3]
    engine.silent = set(LOSSES)
    federation.begin_round(3)
    assert len(method.sample(federation)) == 2  # nobody says anything: at random
    engine.silent = set()
    one_round(federation, method)
    method.leave(federation, [0])
    assert 0 not in method.embeddings
    federation.begin_round(5)
    assert method.sample(federation) and 0 in method.embeddings  # it is asked again
