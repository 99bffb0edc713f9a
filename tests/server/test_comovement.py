"""Clients whose losses move together, on made-up losses: what is taken off, what is compared, and what is a group."""

import numpy as np
import pytest

from feddag.server.comovement import LEAST_ROUNDS, Slow, best_parts, explained, find_movers, reordered, together


def made(
    seed: int, groups: tuple[int, ...], shared: float, rounds: int = 60, noise: float = 0.05
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Losses of 3 steps: a level and a pace of each client, and what a round is for its group; a third takes part."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(groups)), groups)
    own = rng.normal(size=len(truth)) * 0.3 + np.linspace(0, 1, rounds)[:, None] * rng.normal(size=len(truth)) * 0.2
    rounds_of_groups = rng.normal(size=(rounds, len(groups)))[:, truth] * shared
    logs = own + rounds_of_groups + noise * rng.normal(size=own.shape) - np.linspace(0, 2, rounds)[:, None]
    present = np.stack([rng.permutation(len(truth)) < len(truth) // 3 for _ in range(rounds)])
    return np.exp(logs)[..., None] * np.array([1.1, 1.0, 0.9]), present, truth


def movers(seed: int, *args: object, level: float = 0.01, **kwargs: object) -> tuple[np.ndarray | None, np.ndarray]:
    losses, present, truth = made(seed, *args, **kwargs)  # type: ignore[arg-type]
    return find_movers(losses, present, 4, level, np.random.default_rng(seed)), truth


def least_squares(values: np.ndarray, present: np.ndarray) -> np.ndarray:
    """What rounds and parabolas of clients leave, by one regression on all of them."""
    (rounds, clients), (at, who) = present.shape, np.nonzero(present)
    when, row = np.linspace(-1, 1, rounds), np.arange(len(at))
    design = np.zeros((len(at), rounds + 3 * clients))
    design[row, at] = 1
    for power in range(3):
        design[row, rounds + 3 * who + power] = when[at] ** power
    left = np.zeros(present.shape)
    left[at, who] = values[at, who] - design @ np.linalg.lstsq(design, values[at, who], rcond=None)[0]
    return left


def test_surprises_are_what_least_squares_leave() -> None:
    losses, present, _ = made(100, (6, 6), 0.2, rounds=25)
    values = np.log(losses.mean(axis=2))
    left = least_squares(values, present)
    variance = (left**2).sum(axis=1, keepdims=True) / (present.sum(axis=1, keepdims=True) - 1)
    scale = np.sqrt((variance + variance.mean()) / 2)
    assert Slow(present).surprises(values) == pytest.approx(left / (scale + 1e-6), abs=1e-8)


@pytest.mark.parametrize("seed", range(100, 105))
def test_levels_paces_and_rounds_leave_no_surprise(seed: int) -> None:
    """Whatever level, parabola and round are added, what is left is the same."""
    losses, present, _ = made(seed, (8, 7), 0.2)
    values, rng, when = np.log(losses.mean(axis=2)), np.random.default_rng(seed), np.linspace(-1, 1, 60)[:, None]
    level, pace, bend = rng.normal(size=(3, 15))
    added = level + pace * when + bend * when**2 + rng.normal(size=(60, 1))
    slow = Slow(present)
    assert slow.surprises(values + added) == pytest.approx(slow.surprises(values), abs=1e-6)
    assert (slow.surprises(values)[~present] == 0).all()


def test_a_random_order_keeps_what_is_a_clients_own() -> None:
    losses, present, _ = made(100, (6, 6), 0.2)
    surprise = Slow(present).surprises(np.log(losses.mean(axis=2)))
    mixed = reordered(surprise, present, np.random.default_rng(0))
    assert (mixed[~present] == 0).all() and not np.array_equal(mixed, surprise)
    for client in range(12):
        there = present[:, client]
        assert sorted(mixed[there, client]) == sorted(surprise[there, client])


def test_parts_and_their_share_by_hand() -> None:
    """Two groups of three with opposite surprises, all in both rounds: 1 inside, -1 across."""
    surprise = np.array([[1.0] * 3 + [-1.0] * 3, [-2.0] * 3 + [2.0] * 3])
    moves, meetings = together(surprise, np.ones((2, 6), bool))
    assert moves[0].tolist() == pytest.approx([0, 2, 2, -2, -2, -2])
    truth = np.repeat([0, 1], 3)
    # 12 ordered pairs inside and 18 across, 2 meetings each.
    assert explained(moves, meetings, truth) == pytest.approx((2.0, 2 / np.sqrt(1 / 24 + 1 / 36)))
    share, labels = best_parts(moves, meetings, 4)
    assert share == pytest.approx(2.0) and labels is not None
    assert len(set(labels[:3])) == len(set(labels[3:])) == 1 and len(set(labels)) == 2


@pytest.mark.parametrize("groups", [(10, 10), (14, 6), (8, 8, 8)])
def test_groups_that_move_together_are_found(groups: tuple[int, ...]) -> None:
    for seed in (100, 101, 102):
        labels, truth = movers(seed, groups, 0.3)
        assert labels is not None
        pairs = {(int(own), int(true)) for own, true in zip(labels, truth, strict=True)}
        assert len(pairs) == len(groups)


def test_clients_with_levels_and_paces_of_their_own_are_no_groups() -> None:
    assert all(movers(seed, (20,), 0.3)[0] is None for seed in range(100, 130))


def test_a_little_in_common_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """However sure it is: groups that explain a third of what happens to a client do not pay for a split."""
    weak = made(100, (12, 12), 0.035, rounds=200)
    assert find_movers(*weak[:2], 4, 0.01, np.random.default_rng(0)) is None
    monkeypatch.setattr("feddag.server.comovement.LEAST_SHARE", 0.1)
    assert find_movers(*weak[:2], 4, 0.01, np.random.default_rng(0)) is not None


def test_too_little_is_no_group() -> None:
    losses, present, _ = made(100, (10, 10), 0.3)
    few = int(LEAST_ROUNDS * 20 / present.sum(axis=1).mean()) - 1
    assert find_movers(losses[:few], present[:few], 4, 0.01, np.random.default_rng(0)) is None
    everybody = np.ones((20, 10), bool)
    assert find_movers(np.ones((20, 10, 2)), everybody, 4, 0.01, np.random.default_rng(0)) is None
    assert find_movers(np.ones((20, 4, 2)), everybody[:, :4], 4, 0.01, np.random.default_rng(0)) is None
