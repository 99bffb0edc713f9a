"""FedGWC's equations, each by hand."""

import math

import numpy as np
import pytest

from feddag.server.interaction import (
    affinity,
    best_split,
    davies_bouldin,
    gaussian_rewards,
    min_max,
    pair_rewards,
    perception_distances,
    spectral_labels,
    spectral_vectors,
    updated,
)


def test_rewards_are_eq_1_averaged_over_steps() -> None:
    """Step 1: losses 0, 1, 5, mean 2, unbiased variance (4 + 1 + 9) / 2 = 7. Step 2: 1, 1, 4, mean 2, variance 3."""
    first = [math.exp(-4 / 14), math.exp(-1 / 14), math.exp(-9 / 14)]
    second = [math.exp(-1 / 6), math.exp(-1 / 6), math.exp(-4 / 6)]
    expected = [(one + two) / 2 for one, two in zip(first, second, strict=True)]
    assert gaussian_rewards(np.array([[0.0, 1.0], [1.0, 1.0], [5.0, 4.0]])) == pytest.approx(expected)


def test_released_rewards_weigh_clients_by_samples() -> None:
    """Losses 0 and 4, samples 1 and 3: mean 3, population variance (9 + 3 * 1) / 4 = 3."""
    expected = [math.exp(-9 / 6), math.exp(-1 / 6)]
    assert gaussian_rewards(np.array([[0.0], [4.0]]), [10, 30]) == pytest.approx(expected)


def test_equal_losses_and_a_single_client_divide_by_nothing() -> None:
    assert gaussian_rewards(np.full((3, 2), 0.7)).tolist() == [1.0, 1.0, 1.0]
    assert gaussian_rewards(np.full((1, 2), 0.7)).tolist() == [1.0]
    assert gaussian_rewards(np.full((3, 2), 0.7), [1, 2, 3]) == pytest.approx(1.0)
    assert pair_rewards(np.full((2, 2), 0.7)).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_eq_1_cannot_tell_above_from_below_and_pairs_can() -> None:
    losses = np.array([[1.0], [1.0], [3.0], [3.0]])  # variance 4 / 3
    assert np.ptp(gaussian_rewards(losses)) < 1e-12
    rewards = pair_rewards(losses)
    assert rewards[0, 1] == 1.0
    assert rewards[0, 2] == pytest.approx(math.exp(-4 / (4 * 4 / 3)))


def test_the_matrix_moves_where_both_were_sampled() -> None:
    """Eq. 3 with alpha 0.25 from 0.4: 0.75 * 0.4 + 0.25 * reward, and rows are the clients whose reward it is."""
    new = updated(np.full((3, 3), 0.4), [1, 2], np.array([0.8, 0.0]), 0.25)
    assert new == pytest.approx(np.array([[0.4, 0.4, 0.4], [0.4, 0.5, 0.5], [0.4, 0.3, 0.3]]))


def test_perception_vectors_leave_out_the_two_compared() -> None:
    matrix = np.array([[90.0, 91.0, 1.0, 2.0], [92.0, 93.0, 3.0, 5.0], [0.0, 1.0, 94.0, 4.0], [7.0, 7.0, 7.0, 95.0]])
    distances = perception_distances(matrix)
    assert distances[0, 1] == pytest.approx((1 - 3) ** 2 + (2 - 5) ** 2)  # columns 2 and 3
    assert distances[0, 2] == pytest.approx((91 - 1) ** 2 + (2 - 4) ** 2)  # columns 1 and 3
    assert distances == pytest.approx(distances.T)
    assert np.diag(distances).tolist() == [0, 0, 0, 0]


def test_only_what_both_rows_know_is_compared() -> None:
    matrix = np.array([[0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 3.0, 9.0], [1.0, 3.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0]])
    known = matrix > 0
    distances = perception_distances(matrix, known)
    assert distances[0, 1] == pytest.approx(((1 - 3) ** 2 + (2 - 9) ** 2) / 2)  # a mean over columns 2 and 3
    assert distances[2, 3] == pytest.approx((1 - 2) ** 2)  # client 3 has not met client 1
    assert distances[0, 2] == distances[1, 3] == pytest.approx((26.5 + 1) / 2)  # nothing in common: as usual


def test_the_kernel_and_the_released_scaling() -> None:
    assert affinity(np.array([[0.0, 3.0], [3.0, 0.0]]), 2.0)[0, 1] == pytest.approx(math.exp(-6))
    assert min_max(np.array([[2.0, 4.0], [3.0, 2.0]])).tolist() == [[0.0, 1.0], [0.5, 0.0]]
    assert min_max(np.full((2, 2), 0.3)).tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_davies_bouldin_by_hand() -> None:
    """Centres 1, 10, 21; spreads 1, 0, 2: ratios 1/9 (0 with 1), 3/20 (0 with 2), 2/11 (1 with 2)."""
    points, labels = np.array([[0.0], [2.0], [10.0], [19.0], [23.0]]), np.array([0, 0, 1, 2, 2])
    assert davies_bouldin(points, labels) == pytest.approx((3 / 20 + 2 / 11 + 2 / 11) / 3)
    assert davies_bouldin(np.zeros((4, 1)), np.array([0, 0, 1, 1])) == np.inf


def blocks_of(*sizes: int, near: float = 0.9, far: float = 0.1) -> np.ndarray:
    group = np.repeat(np.arange(len(sizes)), sizes)
    kernel = np.where(group[:, None] == group[None], near, far)
    np.fill_diagonal(kernel, 1.0)
    return kernel


@pytest.mark.parametrize("scored_on", ["affinity", "embedding"])
def test_clear_blocks_are_found_with_their_number(scored_on: str) -> None:
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.02, (12, 12))
    kernel = np.clip(blocks_of(5, 4, 3) + (noise + noise.T) / 2, 0, 1)
    score, labels = best_split(kernel, 5, scored_on=scored_on)
    assert score < 0.5
    assert labels.tolist() == np.repeat([labels[0], labels[5], labels[9]], [5, 4, 3]).tolist()
    assert len(set(labels)) == 3


def test_spectral_vectors_of_two_blocks_by_hand() -> None:
    """Two pairs, 1 inside and 0 outside: degrees 1, eigenvalue 1 twice, spanned by the indicators."""
    vectors, embedding = spectral_vectors(blocks_of(2, 2, near=1.0, far=0.0), 2)
    assert (vectors @ vectors.T) == pytest.approx(np.kron(np.eye(2), np.full((2, 2), 0.5)))
    assert embedding == pytest.approx(vectors)
    labels = spectral_labels(vectors)
    assert labels[0] == labels[1] != labels[2] == labels[3]


def test_small_clusters_are_left_alone() -> None:
    for clients in (0, 1, 2):
        score, labels = best_split(np.ones((clients, clients)), 4)
        assert score == np.inf and set(labels.tolist()) <= {0}
    score, labels = best_split(blocks_of(5, 1), 4, least_size=3)  # the only split there is has a part of one
    assert score == np.inf or np.bincount(labels).min() >= 3
