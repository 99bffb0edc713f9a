"""The paper's loss (Eq. 9-10), and both rules of where to cut, on distances chosen by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddag.errors import FeddagError
from feddag.server.clustering import build_tree, regrouped_by
from feddag.server.cutting import (
    ALPHAS,
    Candidate,
    CutSettings,
    choose_cut,
    choose_on_plateau,
    clustering_loss,
    cut_into,
    search_thresholds,
)
from feddag.server.similarity import square
from tests.server.made import condensed, on_a_line, same_partition


def two_groups(inside: float = 0.0, outside: float = 0.5, size: int = 3) -> np.ndarray:
    group = np.repeat([0, 1], size)
    return condensed(np.where(group[:, None] == group, inside, outside))


# Eq. 9-10 -------------------------------------------------------------------------------------------------------------


def test_loss_of_unequal_clusters() -> None:
    labels = np.repeat([0, 1, 2, 3, 4], [5, 5, 5, 5, 1])
    distances = np.full((21, 21), 0.5, np.float32) - 0.5 * np.eye(21, dtype=np.float32)
    # L1: a cluster of five has 20 ordered pairs at 0.5 over 25: 0.4, four times; the single one 0.
    # L2: sizes have mean 4.2 and deviation 1.6; the single one misses 2.6 - 1 = 1.6 = 3.80952 tau: e^3.80952 = 45.129.
    expected = 4 * 0.4 + 0.01 * (4 + 45.129) / 5
    assert clustering_loss(distances, labels) == pytest.approx(expected, abs=1e-4)
    assert clustering_loss(distances, labels, balance=0) == pytest.approx(1.6, abs=1e-6)
    assert clustering_loss(distances, labels, gamma=2) == pytest.approx(1.6 + 0.01, abs=1e-6)  # none below 4.2 - 3.2


def test_loss_of_the_extremes() -> None:
    distances = np.array([[0, 0.2, 1], [0.2, 0, 1], [1, 1, 0]], np.float32)
    assert clustering_loss(distances, np.array([0, 1, 2])) == pytest.approx(0.01)
    assert clustering_loss(distances, np.array([0, 0, 0])) == pytest.approx(2 * 2.2 / 9 + 0.01)
    assert clustering_loss(np.zeros((1, 1), np.float32), np.array([0])) == pytest.approx(0.01)


def test_tau_in_clients_as_released_does_not_overflow() -> None:
    labels = np.repeat([0, 1, 2, 3, 4], [5, 5, 5, 5, 1])
    distances = np.zeros((21, 21), np.float32)
    # the single one misses 1.6 clients: e^1.6 = 4.95303
    assert clustering_loss(distances, labels, tau=1.0) == pytest.approx(0.01 * (4 + 4.95303) / 5, abs=1e-6)
    many = np.repeat([*range(99), 99], [*[200] * 99, 1])  # misses 198.01 - 19.8 - 1 = 177.2 clients
    assert np.isfinite(clustering_loss(np.zeros((len(many), 1), np.float32)[:, [0] * len(many)], many, tau=0.1))


def test_a_fixed_threshold_or_number_of_groups() -> None:
    distances = on_a_line(0, 1, 10, 12, 40)  # merges at 1, 2, 10.5 and 34.25
    tree = build_tree(distances)

    def cut(**how: Any) -> list[int]:
        candidates = search_thresholds(square(distances), tree)
        found = choose_cut(distances, tree, candidates, CutSettings(**how), by_noise=False, scaled=False)
        return found.labels.tolist()

    assert cut(threshold=1.5) == [0, 0, 1, 2, 3]
    assert [cut(clusters=number) for number in (1, 2, 3, 5)] == [
        [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [0, 0, 1, 1, 2], [0, 1, 2, 3, 4],
    ]  # fmt: skip
    with pytest.raises(FeddagError, match="clusters = 6 is more than there are clients, and those are 5"):
        cut(clusters=6)
    with pytest.raises(FeddagError, match=r"threshold = 0\.5 and clusters = 2: give one of the two"):
        cut(clusters=2, threshold=0.5)


@given(places=st.lists(st.integers(0, 5), min_size=1, max_size=12), number=st.integers(1, 12))
def test_there_are_as_many_groups_as_asked_for_however_many_tie(places: list[int], number: int) -> None:
    tree = build_tree(on_a_line(*places))
    wanted = min(number, len(places))
    assert cut_into(tree, wanted).clusters == wanted


def test_the_lowest_loss_splits_where_the_plateau_does_not() -> None:
    curve = [Candidate(*row) for row in zip(reversed(ALPHAS), *TABLE_19["cifar10"], strict=True)]
    distances = on_a_line(*np.linspace(0, 1, 20))
    tree = build_tree(distances)
    alphas = [
        choose_cut(distances, tree, curve, CutSettings(rule=rule), by_noise=False, scaled=False).alpha
        for rule in ("lowest", "plateau")
    ]
    assert alphas == [0.1, 0.35]


@pytest.mark.parametrize("algorithm", ["kmeans", "spectral"])
def test_other_algorithms_find_clear_groups(algorithm: str) -> None:
    truth = np.repeat([0, 1, 2], [4, 5, 6])
    found = regrouped_by(algorithm, condensed(np.where(truth[:, None] == truth, 0.1, 1.0)), 3, seed=0)
    assert same_partition(found, truth)
    assert regrouped_by(algorithm, on_a_line(1, 2), 1, seed=0).tolist() == [0, 0]


def test_the_search_records_every_threshold() -> None:
    distances = two_groups(0.1, 1.0)
    found = search_thresholds(square(distances), build_tree(distances), (0.05, 0.5, 1.0))
    assert [(item.alpha, item.clusters) for item in found] == [(0.05, 6), (0.5, 2), (1.0, 1)]
    # two clusters: twice 6 * 0.1 / 9; one: (12 * 0.1 + 18 * 1) / 36
    np.testing.assert_allclose([item.loss for item in found], [0.01, 0.4 / 3 + 0.01, 19.2 / 36 + 0.01], atol=1e-6)


# Table 19 of the paper: 11 class pairs. Thresholds from 1.00 down to 0.05.
TABLE_19 = {
    "cifar10": (
        [1, 1, 2, 3, 3, 3, 4, 4, 5, 6, 11, 11, 11, 11, 11, 11, 12, 13, 14, 14],
        [0.77] * 2 + [1.0] * 8 + [0.149] * 6 + [0.251, 0.161, 0.117, 0.117],
    ),
    "svhn": (
        [1, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 7, 9, 11, 11, 11, 11, 14, 18, 24],
        [0.675] * 4 + [0.866] * 2 + [1.0] * 5 + [0.896, 0.688] + [0.343] * 4 + [0.315, 0.205, 0.141],
    ),
}


@pytest.mark.parametrize("dataset", TABLE_19)
def test_eleven_clusters_from_both_published_curves(dataset) -> None:
    curve = [Candidate(*row) for row in zip(reversed(ALPHAS), *TABLE_19[dataset], strict=True)]
    assert choose_on_plateau(curve).clusters == 11
    assert choose_on_plateau(curve[::-1]).clusters == 11  # the order of the thresholds means nothing
    assert min(curve, key=lambda item: item.loss).clusters in (14, 24)  # what the lowest loss would give


def test_the_middle_of_a_plateau() -> None:
    curve = [Candidate(*row) for row in zip(reversed(ALPHAS), *TABLE_19["cifar10"], strict=True)]
    assert choose_on_plateau(curve).alpha == 0.35  # of 0.25 to 0.50


def test_no_plateau_ties_and_a_bound() -> None:
    no_plateau = [Candidate(0.1, 5, 0.2), Candidate(0.2, 3, 0.2), Candidate(0.3, 2, 0.4)]
    assert choose_on_plateau(no_plateau).clusters == 3  # equal losses: fewer clusters
    assert choose_on_plateau(no_plateau, most=2).clusters == 2
    assert choose_on_plateau(no_plateau, most=1).clusters == 2  # none is allowed: the fewest there are
