"""Clients whose samples look different: the analysis of variance by hand, and what is found of groups and of none."""

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import chi2

from feddag.client.signature import Signature, signature
from feddag.server.grouping import group
from feddag.server.style import (
    LEAST_SEEN,
    LEVEL,
    Looks,
    Styles,
    directions,
    largest_eigenvalue,
    looks_of,
    merged_while_alike,
    style_distance,
    style_space,
    two_way,
)
from tests.server.made import same_partition

SIZE = 8


def images(draw: np.random.Generator, labels: np.ndarray, look: str = "plain") -> np.ndarray:
    """Each class is a pattern of its own; a look changes samples whatever they show."""
    patterns = np.random.default_rng(7).normal(size=(10, SIZE, SIZE))
    x = patterns[labels] * draw.gamma(9, 1 / 9, (len(labels), 1, 1)) + draw.normal(size=(len(labels), SIZE, SIZE))
    if look == "noisy":
        return x + 0.8 * draw.normal(size=x.shape)
    return x * {"loud": 1.5, "faint": 1.08}.get(look, 1.0)


def client(draw: np.random.Generator, look: str, classes: Sequence[int] = range(5), samples: int = 60) -> Signature:
    labels = draw.choice(classes, samples)
    return signature(images(draw, labels, look), labels, 10)


def clients(looks: Sequence[str], seed: int = 0, **how: object) -> list[Signature]:
    draw = np.random.default_rng(seed)
    return [client(draw, look, **how) for look in looks]  # type: ignore[arg-type]


# The equations -------------------------------------------------------------------------------------------------------


def test_effects_of_clients_and_classes_are_told_apart() -> None:
    """Client effects -1 and 1, class effects 0, 4 and 9; the third class only at the second client. Nothing is left."""
    counts = np.array([[2.0, 2.0, 0.0], [2.0, 2.0, 6.0]])
    means = (np.array([-1.0, 1.0])[:, None] + np.array([0.0, 4.0, 9.0]))[..., None]
    effects, residuals, between, within = two_way(means, counts)
    assert (between, within) == (1, 5 - 2 - 3 + 1)
    np.testing.assert_allclose(residuals, 0, atol=1e-12)
    roots = np.sqrt(counts[counts > 0])
    # what is fitted beyond the mean of each class: -1 and 1 in the first two, and nothing in the third
    np.testing.assert_allclose(effects[:, 0] / roots, [-1, -1, 1, 1, 0], atol=1e-12)


def test_what_client_and_class_do_not_explain_is_left_over() -> None:
    """Deviations +1, -1 / -1, +1: an interaction and nothing else."""
    means = np.array([[1.0, -1.0], [-1.0, 1.0]])[..., None]
    effects, residuals, between, within = two_way(means, np.full((2, 2), 4.0))
    assert (between, within) == (1, 1)
    np.testing.assert_allclose(effects, 0, atol=1e-12)
    np.testing.assert_allclose(residuals[:, 0], [2, -2, -2, 2])


def test_clients_that_share_no_class_are_not_compared() -> None:
    effects, _, between, _ = two_way(np.array([[5.0, 0.0], [0.0, 9.0]])[..., None], np.array([[3.0, 0.0], [0.0, 3.0]]))
    assert between == 0 and np.allclose(effects, 0)


def test_the_edge_is_what_noise_reaches_once_in_a_hundred() -> None:
    draw = np.random.default_rng(0)
    size, freedom = 12, 60
    edge = largest_eigenvalue(size, freedom)
    tops = [
        np.linalg.eigvalsh((sample := draw.normal(size=(freedom, size))).T @ sample / freedom)[-1] for _ in range(1500)
    ]
    assert np.mean(np.array(tops) > edge) == pytest.approx(0.01, abs=0.008)


def test_an_excess_by_hand() -> None:
    """Means 1 and 3 of ten and forty samples of variance 2: 4 - 2/10 - 2/40; chance exceeds chi-square at 0.01 / 2."""
    counts = np.array([[10.0], [40.0]])
    looks = Looks(counts, counts[..., None] * [[[1.0]], [[3.0]]], counts[..., None] * 2.0)
    excess, deviation, bound = looks.compared(0, np.array([1]))
    assert excess == pytest.approx(3.75)
    assert deviation == pytest.approx(np.sqrt(2 * 0.25**2 + 4 * 3.75 * 0.25))
    assert bound == pytest.approx(0.25 * chi2.isf(LEVEL / 2, 1) - 0.25)
    assert style_distance(excess) == pytest.approx(1 - np.exp(-3.75 / 8))


def test_a_faint_difference_counts_where_it_is_far_beyond_chance() -> None:
    """Means 0 and 0.4 of variance 1: 0.16 minus chance, which reaches 6.88 times the variance of the difference."""
    for samples, apart in ((1000, True), (200, False)):
        counts = np.full((2, 1), float(samples))
        looks = Looks(counts, counts[..., None] * [[[0.0]], [[0.4]]], counts[..., None] * 1.0)
        chance = 2 / samples * (chi2.isf(LEVEL / 2, 1) - 1)
        assert (4 * chance < 0.16 - 2 / samples) == apart
        distance, cost = looks.told_apart(0, np.array([1]))
        assert np.isinf(cost[0]) == apart and distance[0] == pytest.approx(
            LEAST_SEEN if apart else style_distance(np.array(0.16 - 2 / samples))
        )
        assert len(np.unique(merged_while_alike(looks))) == 1 + apart


def test_however_sure_a_difference_can_be_too_small_and_a_clear_one_need_not_be_so_sure() -> None:
    for square, samples, apart in ((0.07, 10**6, False), (0.5, 100, True), (0.5, 20, False)):
        counts = np.full((2, 1), float(samples))
        looks = Looks(counts, counts[..., None] * [[[0.0]], [[np.sqrt(square)]]], counts[..., None] * 1.0)
        assert np.isinf(looks.told_apart(0, np.array([1]))[1][0]) == apart


def test_classes_count_by_how_much_both_hold_of_them() -> None:
    """Weights 10 * 10 / 20 = 5 and 10 * 90 / 100 = 9; the third class is only at one of them."""
    counts = np.array([[10.0, 10.0, 5.0], [10.0, 90.0, 0.0]])
    means = np.array([[[0.0], [0.0], [99.0]], [[14.0], [0.0], [0.0]]])
    looks = Looks(counts, counts[..., None] * means, np.zeros_like(means))
    assert looks.compared(0, np.array([1]))[0] == pytest.approx((5 / 14 * 14) ** 2)


def test_merging_adds_sums_up() -> None:
    counts = np.array([[10.0], [30.0], [10.0]])
    means = np.array([0.0, 0.1, 50.0])[:, None, None]
    looks = Looks(counts, counts[..., None] * means, counts[..., None] * 1.0)
    rows = merged_while_alike(looks)
    assert rows[0] == rows[1] != rows[2]
    assert looks.counts[rows[0]] == 40 and looks.sums[rows[0], 0, 0] == pytest.approx(3.0)


# What is found -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"samples": 25}, {"classes": [1, 2]}])
def test_looks_become_groups(how: dict[str, object]) -> None:
    truth = ["plain", "noisy", "loud"] * 6
    for seed in (0, 1):
        people = clients(truth, seed, **how)
        space = style_space(people)
        assert space is not None and same_partition(space.labels, np.unique(truth, return_inverse=True)[1])
        assert same_partition(group(people).labels_, space.labels)


def test_one_client_that_looks_different_is_found() -> None:
    space = style_space(clients(["plain"] * 20 + ["noisy"], samples=300))
    assert space is not None and np.bincount(space.labels).tolist() == [20, 1]


def test_a_faint_difference_is_seen_beside_a_clear_one_and_not_by_itself() -> None:
    """A twelfth louder: the excess is 0.2, far beyond chance with 600 samples each."""
    truth = ["plain", "faint", "loud"] * 6
    people = clients(truth, samples=600)
    space = style_space(people)
    assert space is not None and same_partition(space.labels, np.arange(18) % 3)
    assert 0.08 < space.looks.compared(0, np.array([1]))[0][0] < 0.27
    assert same_partition(group(people).labels_, space.labels)
    few = [people[number] for number in range(18) if truth[number] != "loud"]
    assert style_space(few) is None and group(few).clusters_ == 1


def test_silent_where_clients_look_alike_whatever_they_hold() -> None:
    for seed in range(6):
        draw = np.random.default_rng(seed)
        holds = [draw.choice(10, int(draw.integers(1, 5)), replace=False) for _ in range(20)]
        people = [client(draw, "plain", classes, int(draw.integers(5, 80))) for classes in holds]
        assert directions(Styles.of(people, people[0].style.shape[1])).shape[1] == 0 and style_space(people) is None
        assert "style" not in group(people).views_


def test_a_newcomer_is_placed_by_its_looks_and_a_new_look_is_none_of_them() -> None:
    found = group(clients(["plain", "noisy"] * 8))
    draw = np.random.default_rng(9)
    assert [found.assign(client(draw, look)) for look in ("plain", "noisy", "noisy")] == [0, 1, 1]
    assert found.assign(client(draw, "loud")) is None
    joined = found.joined_by(client(draw, "noisy"), 1).joined_by(client(draw, "loud"), 2)
    assert joined.style_ is not None and joined.style_.labels[-2:].tolist() == [found.style_.labels[1], 2]
    assert joined.assign(client(draw, "loud")) == 2


def test_who_does_not_tell_is_compared_in_other_ways() -> None:
    people = clients(["plain", "noisy"] * 6)
    draw = np.random.default_rng(3)
    labels = draw.choice(5, 60)
    silent = signature(images(draw, labels), labels, 10, style=False)
    found = group([*people, silent])
    assert same_partition(found.labels_[:12], np.arange(12) % 2) and np.isfinite(found.distances_).all()
    assert found.assign(silent) is not None


def test_a_client_that_lies_about_its_spread_does_not_silence_the_others() -> None:
    people = clients(["plain", "noisy"] * 10)
    people[0] = Signature(**(vars(people[0]) | {"style_spread": people[0].style_spread * np.float32(1e12)}))
    people[1] = Signature(**(vars(people[1]) | {"counts": people[1].counts * 2**30}))
    space = style_space(people)
    assert space is not None and same_partition(space.labels[2:], np.arange(18) % 2)


def test_a_clients_own_noise_counts_as_far_as_it_has_samples() -> None:
    """Own variance 5 of 20 degrees of freedom, usual variance 1, trusted from 20 on: half of each."""
    styles = Styles(np.array([[21.0]]), np.array([[[2.0]]]), np.array([[[5.0]]]))
    looks = looks_of(styles, np.eye(1), np.ones(1))
    assert looks.noise[0, 0, 0] == pytest.approx(21 * 3.0) and looks.sums[0, 0, 0] == pytest.approx(42)
