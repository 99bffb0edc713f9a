"""What chance explains: the noise of distances, and the cut that it gives, on distances chosen by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import stdtr

from feddag.server.clustering import build_tree, relabel
from feddag.server.noise import (
    LEAST_DIFFERENCE,
    Held,
    confidence,
    cut_by_noise,
    estimate_noise,
    least_significant_distance,
    merge_insignificant,
    misjudged,
    missing_by_chance,
    with_few_samples_joined,
)
from tests.server.made import condensed, same_partition
from tests.server.test_cutting import two_groups


def test_noise_is_read_from_distances_below_zero() -> None:
    assert estimate_noise(np.array([-0.3, 0.4, -0.4, np.nan, 7], np.float32)) == pytest.approx(np.sqrt(0.125))
    assert estimate_noise(np.array([0, 1], np.float32)) == 0


def test_larger_clusters_are_told_apart_at_smaller_distances() -> None:
    sizes = np.array([1.0, 4.0, 10_000.0])
    # times 0.1 * sqrt((1/n + 1/n) / 2): 4.297, Student's t at 1 in 1,000, then 3.115, as unlikely
    # for ten clients as 2.5 standard deviations; of two equal
    # halves of one normal distribution (1.5958 - 1.1284) / 0.67 = 0.6976 is to be expected, times 1.5
    least = least_significant_distance(0.1, sizes, sizes, clients=10)
    np.testing.assert_allclose(least, [0.4297, 0.15575, 0.10464], rtol=1e-3)
    assert least_significant_distance(0.0, sizes, sizes, clients=10).tolist() == [1 / 30] * 3  # 3 of 90 degrees


def test_the_more_clients_the_surer_one_that_strays_has_to_be() -> None:
    """With ten times the clients, chance has ten times the trials: each may fail a tenth as often."""
    for clients in (6, 100, 100_000):
        assert stdtr(clients - 1, -confidence(clients)) * clients == pytest.approx(0.01)
    assert stdtr(5, -confidence(2)) * 2 == pytest.approx(0.01)  # with fewer clients, as if they were six


def test_a_handful_of_samples_is_no_group() -> None:
    """Clients 0-2 are one group, 3 and 4 stray: at 0.4 with few samples, at 0.4 with enough, at 0.6 with few."""
    labels = np.array([0, 0, 0, 1, 2])
    for far, samples, expected in ((0.4, 19, [0, 0, 0, 0, 1]), (0.4, 20, [0, 0, 0, 1, 2]), (0.6, 19, [0, 0, 0, 1, 2])):
        distances = np.zeros((5, 5))
        distances[3] = distances[:, 3] = far
        distances[4] = distances[:, 4] = 0.9
        found = with_few_samples_joined(condensed(distances), labels, Held(np.array([30, 30, 30, samples, 30])))
        assert found.tolist() == expected


def test_one_with_fewer_samples_than_usual_has_more_noise() -> None:
    """100 samples are usual. A ninth of them is three times the noise: 4.46 * 0.1 * sqrt((1/3 + 1) / 2) * 3 = 1.09."""
    distances = np.zeros((4, 4))
    distances[3] = distances[:, 3] = 0.8
    for samples, expected in ((1000, [0, 0, 0, 1]), (100, [0, 0, 0, 1]), (25, [0, 0, 0, 1]), (11, [0, 0, 0, 0])):
        counts = np.array([100, 100, 100, samples])
        found = with_few_samples_joined(condensed(distances), np.array([0, 0, 0, 1]), Held(counts), noise=0.1)
        assert found.tolist() == expected


def test_two_strays_of_few_samples_find_their_way_together() -> None:
    distances = np.full((6, 6), 0.0)
    distances[3:5, :] = distances[:, 3:5] = 0.4
    distances[5] = distances[:, 5] = 0.3
    distances[5, 3:5] = distances[3:5, 5] = 0.5
    found = with_few_samples_joined(
        condensed(distances), np.array([0, 0, 0, 1, 1, 2]), Held(np.array([30, 30, 30, 5, 5, 5]))
    )
    assert found.tolist() == [0] * 6


def test_two_groups_and_the_threshold_between_them() -> None:
    inside = np.array([-0.02, 0.02, 0.0])
    distances = two_groups(0.0, 0.5)
    distances[[0, 1, 5]] = distances[[12, 13, 14]] = inside  # the pairs within each group
    cut = cut_by_noise(distances, build_tree(distances))
    assert cut.labels.tolist() == [0, 0, 0, 1, 1, 1] and cut.clusters == 2
    assert cut.alpha == pytest.approx(np.sqrt(LEAST_DIFFERENCE * 0.5))  # amid the gap, on a logarithmic scale


def test_identical_clients_are_one_group() -> None:
    distances = np.zeros(10, np.float32)
    cut = cut_by_noise(distances, build_tree(distances))
    assert cut.labels.tolist() == [0] * 5
    assert cut.alpha == pytest.approx(np.sqrt(LEAST_DIFFERENCE * 1))


@pytest.mark.parametrize(("distance", "groups"), [(-0.4, [0, 0]), (0.03, [0, 0]), (0.5, [0, 1])])
def test_two_clients(distance, groups) -> None:
    distances = np.array([distance], np.float32)
    assert cut_by_noise(distances, build_tree(distances)).labels.tolist() == groups


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.4])
def test_noise_alone_is_one_group_at_any_scale(noise) -> None:
    draw = np.random.default_rng(0)
    distances = draw.normal(0, noise, 40 * 39 // 2).astype(np.float32)
    assert cut_by_noise(distances, build_tree(distances)).clusters == 1


def test_groups_that_are_not_really_apart_are_joined() -> None:
    group = np.repeat([0, 1, 2], [4, 4, 1])
    between = np.array([[0, 0.5, 0.02], [0.5, 0, 0.4], [0.02, 0.4, 0]])
    distances = between[np.ix_(group, group)].astype(np.float32)
    assert merge_insignificant(distances, group, noise=0.0).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0]
    # With noise 0.6, 4 against 4 clients differ from 2.5 * 0.6 * 0.5 = 0.75 on: all is one
    assert merge_insignificant(distances, group, noise=0.6).tolist() == [0] * 9


# Properties -----------------------------------------------------------------------------------------------------------


@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5), seed=st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_the_order_of_clients_does_not_change_the_groups(sizes, seed) -> None:
    draw = np.random.default_rng(seed)
    truth = np.repeat(np.arange(len(sizes)), sizes)
    noise = draw.normal(0, 0.05, (len(truth), len(truth)))
    distances = np.where(truth[:, None] == truth, 0, 0.6) + noise + noise.T
    order = draw.permutation(len(truth))
    plain, moved = (condensed(matrix) for matrix in (distances, distances[np.ix_(order, order)]))
    found, again = (cut_by_noise(item, build_tree(item)).labels for item in (plain, moved))
    assert same_partition(found[order], again)
    assert sorted(set(found.tolist())) == list(range(found.max() + 1))  # a partition, numbered without gaps
    assert relabel(found).tolist() == found.tolist()  # in the order of first members


def test_clients_that_miss_classes_by_chance_are_no_group() -> None:
    distances = np.full((6, 6), 0.0)
    distances[:4, 4:] = distances[4:, :4] = 0.1  # the last two miss one class of ten
    labels, few = np.array([0, 0, 0, 0, 1, 1]), np.array([[30] * 10] * 4 + [[4] * 9 + [0]] * 2)
    for counts, clusters in ((few, 1), (10 * few, 2)):  # of 360 samples, none of a class is no chance
        known = Held(counts.sum(1), condensed(distances), missing_by_chance(counts))
        assert with_few_samples_joined(condensed(distances), labels, known, 0.001).max() + 1 == clusters


def test_what_few_samples_misjudge_is_taken_off_unless_groups_explain_it() -> None:
    few, many = np.full((5, 10), 2), np.full((5, 10), 200)
    alike, groups = np.full(10, 0.05, np.float32), np.full(10, 0.5, np.float32)
    assert misjudged({"data": alike}, few) == {"data": pytest.approx(0.05)}
    assert misjudged({"data": alike}, many) == {"data": 0.0}
    assert misjudged({"data": groups}, few) == {"data": 0.0}
    assert misjudged({"data": -alike, "gradient": np.full(10, np.nan, np.float32)}, few) == {"data": 0, "gradient": 0}
