"""The test that knows groups from clients that differ by chance, on made-up losses."""

import numpy as np
import pytest

from feddag.server.interaction import pair_rewards
from feddag.server.split_test import BLOCKS, CLEARLY, blocks, find_groups, interactions, scatter


def made(
    seed: int, groups: tuple[int, ...], apart: float, rounds: int = 16, own: float = 0.4, noise: float = 0.3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses of 3 steps: a level of each group, one of each client that stays, noise of each round; half take part."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(groups)), groups)
    level = apart * truth + own * rng.normal(size=len(truth))
    losses = level[:, None] + noise * rng.normal(size=(rounds, len(truth), 3))
    losses += 5 * np.exp(-np.arange(rounds) / 10)[:, None, None]  # all learn
    present = np.stack([rng.permutation(len(truth)) < len(truth) // 2 for _ in range(rounds)])
    return losses, present, truth


def found(seed: int, *args: object, level: float = 0.05, **kwargs: object) -> tuple[np.ndarray | None, np.ndarray]:
    losses, present, truth = made(seed, *args, **kwargs)  # type: ignore[arg-type]
    return find_groups(losses, present, 4, level, 1.0, np.random.default_rng(seed)), truth


@pytest.mark.parametrize("groups", [(10, 10), (14, 6), (7, 7, 7)])
def test_groups_are_found(groups: tuple[int, ...]) -> None:
    for seed in (100,):
        labels, truth = found(seed, groups, 4.0)
        assert labels is not None
        pairs = {(int(own), int(true)) for own, true in zip(labels, truth, strict=True)}
        # Three levels in a row may be cut in two at first; then no group is torn.
        assert len({true for _, true in pairs}) == len(pairs)


def test_clients_that_differ_without_groups_are_not_split() -> None:
    """Each keeps a level of its own for all rounds: a test of the rewards against noise over rounds would reject."""
    splits = [found(seed, (20,), 0.0)[0] is not None for seed in range(100, 115)]
    assert sum(splits) <= 2  # a twentieth is allowed


def test_parts_that_overlap_are_no_groups_however_unlikely(monkeypatch: pytest.MonkeyPatch) -> None:
    losses, present, _ = made(100, (10, 10), 4.0)
    labels = np.repeat([0, 1], 10)
    for score, split in ((CLEARLY, True), (0.7, False)):
        scores = iter([score, *[9.0] * 1000])
        monkeypatch.setattr("feddag.server.split_test.best_split", lambda *_, scores=scores: (next(scores), labels))
        found = find_groups(losses, present, 4, 0.05, 1.0, np.random.default_rng(0))
        assert (found is not None) == split


def test_too_little_is_no_group() -> None:
    losses, present, _ = made(100, (10, 10), 4.0, rounds=1)
    assert find_groups(losses, present[:1] | True, 4, 0.02, 1.0, np.random.default_rng(0)) is None
    assert scatter(losses, present[:1] | True) is None


def test_equal_losses_are_no_group() -> None:
    losses, present = np.ones((20, 10, 2)), np.ones((20, 10), bool)
    assert find_groups(losses, present, 4, 0.02, 1.0, np.random.default_rng(0)) is None


def test_interactions_are_means_over_meetings() -> None:
    losses = np.array([[[1.0], [2.0], [9.0]], [[5.0], [1.0], [3.0]]])
    present = np.array([[True, True, False], [True, True, True]])
    matrix, known = interactions(losses, present)
    first, second = pair_rewards(losses[0, :2]), pair_rewards(losses[1])
    assert matrix[0, 1] == pytest.approx((first[0, 1] + second[0, 1]) / 2)
    assert matrix[0, 2] == pytest.approx(second[0, 2])
    assert known.all()


def test_scatter_by_hand() -> None:
    """Two clients, standardised losses +-1/sqrt(2) in every round: all scatter is between them."""
    losses = np.stack([np.array([[1.0], [3.0]])] * 4)
    known = scatter(losses, np.ones((4, 2), bool))
    assert known is not None
    between, within = known
    assert within == pytest.approx(np.zeros((1, 1))) and between == pytest.approx(np.ones((1, 1)))
    flipping = np.stack([np.array([[1.0], [3.0]]), np.array([[3.0], [1.0]])] * 2)
    known = scatter(flipping, np.ones((4, 2), bool))
    assert known is not None
    between, within = known  # squares 8 * 1/2 over 8 - 2 degrees of freedom; no levels, less a fourth of it
    assert within == pytest.approx(np.full((1, 1), 4 / 6)) and between == pytest.approx(np.full((1, 1), -1 / 6))


def test_many_steps_become_few_numbers() -> None:
    assert blocks(np.arange(20.0)[None]).shape == (1, BLOCKS)
    assert blocks(np.arange(3.0)[None]).tolist() == [[0.0, 1.0, 2.0]]
