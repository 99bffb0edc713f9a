"""The paper's angles (Eq. 3-6) and our excesses over chance, against values worked out on paper."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.client.signature import Signature, signature
from feddag.client.warmup import agreement
from feddag.server import similarity
from feddag.server.similarity import (
    class_excess,
    counts_of,
    data_angles,
    data_excess,
    gradient_angles,
    gradient_excess,
    min_max,
    quantity_ratio,
    reliabilities,
    square,
    stacked_angles,
    weight_scale,
)
from tests.server.made import direction, made

# Eq. 3 ---------------------------------------------------------------------------------------------------------------


def test_angles_between_updates() -> None:
    clients = [made([1], update=update) for update in ([1, 0], [3, 3], [-2, 0], [0, 0])]
    # 01: 45, 02: opposite, 12: 135; the update of zeros is at a right angle to all others
    np.testing.assert_allclose(gradient_angles(clients), [45, 180, 90, 135, 90, 90], atol=1e-3)


def test_identical_updates_are_at_no_angle_whatever_their_length() -> None:
    angles = gradient_angles([made([1], update=[0.3, 0.4]), made([1], update=[30, 40])])
    assert angles == pytest.approx([0], abs=0.05)  # arccos of a float32 next to 1


# Eq. 4 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "degrees"),
    [
        ([[0.6, 0.8]], [[0.8, 0.6]], 16.2602),  # cos = 24 / 25
        ([[1, 0]], [[-1, 0]], 0),  # signs mean nothing
        ([[1, 0]], [[0, 1]], 90),
        ([[1, 0, 0], [0, 1, 0]], [[0, 0, 1], [0, 0.6, 0.8]], 53.1301),  # the smallest of 90, 90, 90 and arccos 0.6
        ([[1, 0]], [[0, 0]], 90),  # a vector of zeros is near nothing
    ],
)
def test_the_smallest_angle_of_two_classes(one, other, degrees) -> None:
    shape = np.shape(one)
    clients = [made([5], {0: one}, shape=shape), made([5], {0: other}, shape=shape)]
    assert data_angles(clients, delta=0.0) == pytest.approx([degrees], abs=0.05)


# Eq. 5 ---------------------------------------------------------------------------------------------------------------


def test_ratios_of_log_counts() -> None:
    # ln(0 + e) = 1, ln(1 + e) = 1.31326, ln(10 + e) = 2.54304, ln(100 + e) = 4.63199
    found = quantity_ratio(np.array([0, 1, 1, 10]), np.array([0, 0, 10, 100]))
    np.testing.assert_allclose(found, [1, 1.31326, 1.93643, 1.82144], atol=1e-4)
    np.testing.assert_array_equal(quantity_ratio(3, 700), quantity_ratio(700, 3))


def test_weights_reach_from_one_minus_delta_to_one_plus_delta() -> None:
    scale = weight_scale(np.array([[1, 5], [10, 5], [100, 0]]), delta=0.5)
    # greatest ratio: 4.63199 / 1.31326 = 3.52709. In between: 0.5 + (1.93643 - 1) / (3.52709 - 1) = 0.87056
    np.testing.assert_allclose(scale(1, np.array([1, 10, 100])), [0.5, 0.87056, 1.5], atol=1e-4)


def test_equal_counts_all_have_the_least_weight() -> None:
    assert weight_scale(np.array([[7], [7]]), delta=0.25)(7, 7) == pytest.approx(0.75)


def test_released_weights_are_ratios_of_counts_from_one_up() -> None:
    scale = weight_scale(np.array([[1, 5], [10, 5], [100, 0]]), delta=0.5, angles="released")
    # ratios 1, 10 and 100, of which the greatest is 100: 1 + 0.5 * 9 / 99 = 1.045455
    np.testing.assert_allclose(scale(1, np.array([1, 10, 100])), [1, 1.045455, 1.5], atol=1e-5)


# Eq. 6 ---------------------------------------------------------------------------------------------------------------


def test_mean_of_weighted_angles() -> None:
    one = made([1, 4, 0], {0: direction(0), 1: direction(0)})
    other = made([100, 0, 0], {0: direction(60)})
    # class 0: 60 degrees at the greatest weight 1.5; class 1 on one side: 90 at the same; class 2 on neither: 0
    assert data_angles([one, other], delta=0.5) == pytest.approx([(90 + 135 + 0) / 3], abs=1e-3)
    assert data_angles([one, other], delta=0.0) == pytest.approx([(60 + 90 + 0) / 3], abs=1e-3)


@pytest.mark.parametrize("delta", [0.0, 0.3, 0.5, 1.0])
def test_no_shared_class_is_as_unlike_as_one_that_only_one_side_holds(delta: float) -> None:
    # Two clients share a class at right angles and at the most unequal counts there are; of two others, one lacks it.
    shared = [made([1, 5], {0: direction(0), 1: direction(0)}), made([1000, 5], {0: direction(90), 1: direction(0)})]
    lacking = made([0, 5], {1: direction(0)})
    found = square(data_angles([*shared, lacking], delta))
    # 90 (1 + delta) and 0, over two classes, in both
    np.testing.assert_allclose([found[0, 1], found[0, 2]], 90 * (1 + delta) / 2, atol=1e-3)
    nearer = [made([1, 5], {0: direction(0), 1: direction(0)}), made([1000, 5], {0: direction(80), 1: direction(0)})]
    found = square(data_angles([*nearer, lacking], delta))
    assert found[0, 1] < found[0, 2]


def test_classes_on_one_side_count_more_than_frequencies() -> None:
    # One class in common and one each on one side: 0 * (1 - delta), and twice 90 * 1.5, over four classes.
    one = made([5, 5, 0, 0], {0: direction(0), 1: direction(0)})
    other = made([5, 0, 5, 0], {0: direction(0), 2: direction(0)})
    assert data_angles([one, other], delta=0.5) == pytest.approx([(0 + 135 + 135 + 0) / 4], abs=1e-3)


def test_the_released_angles() -> None:
    one = made([1, 4, 0], {0: direction(0), 1: direction(0)})
    other = made([100, 0, 0], {0: direction(240)})
    # class 0: arccos(-1/2) = 120 degrees, signs being minded, times 1.5 is 180; class 1: 180; class 2: 0
    assert data_angles([one, other], 0.5, angles="released") == pytest.approx([(180 + 180 + 0) / 3], abs=1e-3)
    third = made([100, 0, 0], {0: direction(310)})  # with `other` alone: 70 degrees at weight 1, equal counts
    found = square(data_angles([one, other, third], 0.5, angles="released"))
    np.testing.assert_allclose(found[1, 2], 70 / 3, atol=1e-3)
    np.testing.assert_allclose(found[0, 2], (50 * 1.5 + 180) / 3, atol=1e-3)


def test_released_angles_leave_out_vectors_that_are_not_there() -> None:
    one = made([2], {0: [[1, 0], [0, 0]]}, shape=(2, 2))
    other = made([2], {0: [[-1, 0], [0, 0]]}, shape=(2, 2))
    assert data_angles([one, other], 0.0, angles="released") == pytest.approx([180], abs=1e-3)  # 90 by a row of zeros


def test_angles_of_three_clients_stand_in_the_order_of_pairs() -> None:
    clients = [made([5], {0: direction(degrees)}) for degrees in (0, 20, 50)]
    np.testing.assert_allclose(data_angles(clients, delta=0.0), [20, 50, 30], atol=1e-3)
    np.testing.assert_allclose(square(data_angles(clients, 0.0))[2], [50, 30, 0], atol=1e-3)


def test_pacfl_compares_whatever_the_classes() -> None:
    one = made([3, 3], {0: direction(0), 1: direction(90)})
    other = made([0, 3], {1: direction(10)})
    assert stacked_angles([one, other]) == pytest.approx([10], abs=1e-3)


# Scaling -------------------------------------------------------------------------------------------------------------


def test_scaling_leaves_out_what_is_unknown_and_survives_equal_pairs() -> None:
    np.testing.assert_allclose(min_max(np.array([3, np.nan, 5, 4], np.float32)), [0, np.nan, 1, 0.5])
    assert min_max(np.full(3, 7, np.float32)).tolist() == [0, 0, 0]
    assert min_max(np.zeros(0, np.float32)).tolist() == []
    assert square(np.zeros(0, np.float32)).tolist() == [[0]]  # one client


# Excess over chance --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "excess"),
    [
        # Nothing in common: each class is a quarter of 40 samples, missed by 20 of them with probability e^-5 = 0.0067,
        # by exactly one side with 2 * 0.00674 * 0.99326 = 0.01339.
        ([[10, 10, 0, 0], [0, 0, 10, 10]], 1 - 0.013385),
        # One sample each, of different classes: missed with e^-0.5 = 0.60653; 2 * 0.60653 * 0.39347 = 0.47730.
        ([[1, 0], [0, 1]], 1 - 0.477302),
        # One sample each, of the same class: 2 * e^-1 * (1 - e^-1) = 0.46509 was to be expected, and did not happen.
        ([[1, 0], [1, 0]], -0.465088),
        # Half in common: classes have shares 1/4, 1/2, 1/4; chance 0.013385 for the outer two and 0.000091 inside.
        ([[10, 10, 0], [0, 10, 10]], (2 - 2 * 0.013385 - 0.0000908) / 3),
        ([[500], [3]], 0 - (1 - np.exp(-500)) * np.exp(-3)),
        ([[0, 0], [5, 5]], np.exp(-5)),  # a client without samples misses everything by chance: next to nothing
        ([[0, 0], [0, 0]], 0.0),
    ],
)
def test_classes_beyond_chance(counts, excess) -> None:
    assert class_excess(np.array(counts)) == pytest.approx([excess], abs=2e-5)


def test_looks_beyond_chance() -> None:
    # 20 samples of reliability 0.8: two such samples of one distribution are expected at arccos 0.8 = 36.8699 degrees.
    at = {degrees: made([20], {0: direction(degrees)}, reliability=0.8) for degrees in (0, 60, 90)}
    found = data_excess([at[0], at[0], at[60], at[90]])
    # cosines of moments are squares: 1 -> 0 degrees, 1/4 -> 75.5225, 0 -> 90; 30 degrees apart: 3/4 -> 41.4096
    same, sixty, ninety, thirty = (0 - 36.8699) / 90, (75.5225 - 36.8699) / 90, 53.1301 / 90, (41.4096 - 36.8699) / 90
    np.testing.assert_allclose(found, [same, sixty, ninety, sixty, ninety, thirty], atol=2e-3)


def test_a_second_moment_is_compared_whole() -> None:
    # diag(0.6, 0.8) against diag(0.8, 0.6), both of norm 1: cosine 0.48 + 0.48 = 0.96, 16.2602 degrees
    one, other = ({0: np.diag(np.sqrt(eigenvalues))} for eigenvalues in ([0.6, 0.8], [0.8, 0.6]))
    clients = [made([20], vectors, reliability=0.8, shape=(2, 2)) for vectors in (one, other)]
    assert data_excess(clients) == pytest.approx([(16.2602 - 36.8699) / 90], abs=1e-4)


def test_classes_count_by_how_reliable_they_are_and_only_where_both_hold_them() -> None:
    reliability = (0.8, 0.5, 0.9)
    one = made([20, 20, 20], {0: direction(0), 1: direction(0), 2: direction(0)}, reliability=reliability)
    other = made([20, 20, 0], {0: direction(90), 1: direction(0)}, reliability=reliability)
    # class 0: 90 - arccos 0.8 = 53.1301 with trust 0.64; class 1: 0 - arccos 0.5 = -60 with trust 0.25
    expected = (0.64 * 53.1301 - 0.25 * 60) / 0.89 / 90
    assert data_excess([one, other]) == pytest.approx([expected], abs=1e-4)


def test_no_common_class_is_unknown_and_not_far() -> None:
    found = data_excess([made([9, 0], {0: direction(0)}), made([0, 9], {1: direction(0)})])
    assert np.isnan(found).tolist() == [True]


def test_updates_beyond_chance() -> None:
    updates = [([1, 0], 1.0), ([0, 1], 0.64), ([-1, 0], 1.0), ([2, 0], 0.64)]
    clients = [made([1], update=update, update_reliability=trust) for update, trust in updates]
    # expected: arccos of the root of 0.64 = 36.8699 degrees where one side is noisy, arccos 0.64 = 50.2082 where both
    noisy, same, both = (90 - 36.8699) / 90, -36.8699 / 90, (90 - 50.2082) / 90
    np.testing.assert_allclose(gradient_excess(clients), [noisy, 1, same, noisy, both, 1], atol=1e-4)


def test_reliabilities_lean_on_the_class_where_samples_are_few() -> None:
    # noise = n (1 - r) / r: 5 and 20 samples, median 12.5; at 20 samples a client's own counts half (on a log scale)
    clients = [
        made([20, 0], reliability=[0.8, 0]),
        made([20, 0], reliability=[0.5, 0]),
        made([1, 0], reliability=[0, 0]),  # one sample has no noise of its own: the median
        made([0, 3], reliability=[0, 0]),  # nobody knows the noise of class 1: the median of all
    ]
    own, other = 20 / (20 + np.sqrt(5 * 12.5)), 20 / (20 + np.sqrt(20 * 12.5))
    expected = [[own, 0], [other, 0], [1 / 13.5, 0], [0, 3 / 15.5]]
    np.testing.assert_allclose(reliabilities(clients), expected, atol=1e-5)


def test_nobody_knows_any_noise() -> None:
    found = reliabilities([made([1, 0]), made([1, 0])])
    np.testing.assert_allclose(found, [[0.5, 0], [0.5, 0]])


@pytest.mark.parametrize("view", [gradient_angles, gradient_excess, data_angles, data_excess, stacked_angles])
def test_one_client_has_no_pairs(view) -> None:
    assert view([made([3], {0: direction(0)}, update=[1.0])]).shape == (0,)


def test_identical_clients_are_alike_in_every_view() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(60, 5)), np.arange(60) % 3
    twins = [signature(x, y, 3, update=np.ones(4), update_reliability=0.9)] * 3
    for view in (gradient_angles, data_angles, stacked_angles):
        np.testing.assert_allclose(view(twins), 0, atol=0.05)
    for excess in (data_excess, gradient_excess, lambda items: class_excess(counts_of(items))):
        assert (excess(twins) <= 1e-6).all()


# Properties ----------------------------------------------------------------------------------------------------------


def linear_update(x: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    """The first step of a linear model from zero: minus the gradient of the cross-entropy."""
    return (x.T @ (np.eye(classes)[y] - 1 / classes) / len(x)).ravel().astype(np.float32)


def signed(x: np.ndarray, y: np.ndarray, classes: int) -> Signature:
    halves = [linear_update(x[part::2], y[part::2], classes) for part in (0, 1)]
    return signature(x, y, classes, inputs="raw", update=np.mean(halves, axis=0), update_reliability=agreement(*halves))


@given(sizes=st.lists(st.integers(20, 200), min_size=20, max_size=20), seed=st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_clients_of_one_distribution_are_at_no_distance_on_average_whatever_their_sizes(sizes, seed) -> None:
    draw = np.random.default_rng(seed)
    means = np.random.default_rng(1).normal(size=(4, 8))
    clients = []
    for size in sizes:
        y = draw.integers(0, 4, size)
        clients.append(signed(means[y] + draw.normal(size=(size, 8)), y, 4))
    for view in (class_excess(counts_of(clients)), data_excess(clients), gradient_excess(clients)):
        assert abs(float(np.nanmean(view))) < 0.12  # clients with nothing in common are near 1


@given(clients=st.integers(2, 13), block=st.integers(1, 6), width=st.integers(1, 9), seed=st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_blocks_change_nothing(clients, block, width, seed) -> None:
    draw = np.random.default_rng(seed)
    people = []
    for _ in range(clients):
        y = draw.choice(draw.permutation(4)[: draw.integers(1, 5)], draw.integers(1, 30))
        people.append(
            signature(draw.normal(size=(len(y), 5)), y, 4, update=draw.normal(size=6), update_reliability=0.5)
        )

    def everything() -> list[np.ndarray]:
        views = [view(people) for view in (gradient_angles, data_angles, stacked_angles, data_excess, gradient_excess)]
        return [*views, class_excess(counts_of(people))]

    whole = everything()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(similarity, "BLOCK", block)
        patch.setattr(similarity, "WIDTH", width)
        for one, other in zip(whole, everything(), strict=True):
            np.testing.assert_allclose(one, other, atol=5e-3)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_the_order_of_clients_only_moves_the_numbers(seed) -> None:
    draw = np.random.default_rng(seed)
    people = []
    for _ in range(7):
        y = draw.integers(0, draw.integers(1, 4), draw.integers(1, 20))
        people.append(
            signature(draw.normal(size=(len(y), 5)), y, 3, update=draw.normal(size=6), update_reliability=0.5)
        )
    order = draw.permutation(7)
    moved = [people[client] for client in order]
    views = (gradient_angles, data_angles, stacked_angles, data_excess, gradient_excess)
    for view in (*views, lambda items: class_excess(counts_of(items))):
        np.testing.assert_allclose(square(view(people))[np.ix_(order, order)], square(view(moved)), atol=1e-2)
