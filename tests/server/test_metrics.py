"""Scores of clusterings, by hand."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import davies_bouldin_score

from feddag.server.metrics import (
    adjusted_rand,
    class_silhouette,
    davies_bouldin,
    rand,
    score_clustering,
    silhouette,
    wasserstein_davies_bouldin,
    wasserstein_silhouette,
)

# Shares of the first class: 0.8, 0.1 | 0.5, 0.4. Largest share: 0.8, 0.9 | 0.5, 0.6.
COUNTS = np.array([[8, 2], [3, 27], [5, 5], [40, 60]])
PAIRS = [7, 7, 3, 3]
BY_CLASSES = [class_silhouette, wasserstein_silhouette, wasserstein_davies_bouldin]


def on_a_line(*places: float) -> np.ndarray:
    return np.abs(np.subtract.outer(places, places))


def test_agreement_with_the_true_groups() -> None:
    """Of six pairs one is together in both, one together in the first only, four apart in both."""
    labels, truth = [4, 4, 9, 9], [0, 0, 1, 2]
    assert rand(labels, truth) == pytest.approx(5 / 6)
    # 1 pair in both; by chance 2 * 1 / 6; at most (2 + 1) / 2
    assert adjusted_rand(labels, truth) == pytest.approx((1 - 1 / 3) / (3 / 2 - 1 / 3))
    assert adjusted_rand([0, 0, 0, 0], truth) == 0
    assert adjusted_rand([0, 1, 2, 3], truth) == 0


def test_silhouette_of_distances() -> None:
    distances = on_a_line(0, 1, 4, 6)
    by_client = [(5 - 1) / 5, (4 - 1) / 4, (3.5 - 2) / 3.5, (5.5 - 2) / 5.5]
    assert silhouette(distances, [0, 0, 1, 1]) == pytest.approx(np.mean(by_client))
    by_client = [(4 - 1) / 4, (3 - 1) / 3, 0, 0]  # those alone count 0
    assert silhouette(distances, [0, 0, 1, 2]) == pytest.approx(np.mean(by_client))


def test_davies_bouldin_of_distances() -> None:
    """Medoids at 1, 10 (the first of two) and 30, spreads 1, 2 and 0."""
    distances = on_a_line(0, 1, 3, 10, 14, 30)
    worst = [3 / 9, 3 / 9, 2 / 20]
    assert davies_bouldin(distances, [5, 5, 5, 1, 1, 0]) == pytest.approx(np.mean(worst))
    assert davies_bouldin(1e-12 * distances, [5, 5, 5, 1, 1, 0]) == pytest.approx(np.mean(worst))
    assert davies_bouldin(on_a_line(0, 0, 0, 0, 8), [0, 0, 1, 1, 2]) is None  # two medoids in one place


def test_scores_by_classes() -> None:
    by_client = [(0.35 - 0.7) / 0.7, (0.35 - 0.7) / 0.7, (0.35 - 0.1) / 0.35, (0.35 - 0.1) / 0.35]
    assert class_silhouette(COUNTS, PAIRS) == pytest.approx(np.mean(by_client))
    by_client = [(0.25 - 0.1) / 0.25, (0.35 - 0.1) / 0.35, (0.35 - 0.1) / 0.35, (0.25 - 0.1) / 0.25]
    assert wasserstein_silhouette(COUNTS, PAIRS) == pytest.approx(np.mean(by_client))
    assert wasserstein_davies_bouldin(COUNTS, PAIRS) == pytest.approx((0.05 + 0.05) / 0.3)


def test_neither_the_order_of_classes_nor_the_number_of_samples_counts_in_the_wasserstein_scores() -> None:
    changed = COUNTS * [[1], [5], [20], [3]]
    changed[[0, 3]] = changed[[0, 3], ::-1]
    for score in (wasserstein_silhouette, wasserstein_davies_bouldin):
        assert score(changed, PAIRS) == pytest.approx(score(COUNTS, PAIRS))
    assert class_silhouette(changed, PAIRS) != pytest.approx(class_silhouette(COUNTS, PAIRS))


def test_was_is_the_silhouette_under_optimal_transport() -> None:
    counts = np.random.default_rng(0).integers(1, 50, (12, 5))
    labels = np.arange(12) % 3
    shares = counts / counts.sum(axis=1, keepdims=True)
    distances = np.zeros((12, 12))
    for one in range(12):
        for other in range(12):
            cost = np.subtract.outer(shares[one], shares[other]) ** 2
            distances[one, other] = np.sqrt(cost[linear_sum_assignment(cost)].mean())
    assert wasserstein_silhouette(counts, labels) == pytest.approx(silhouette(distances, labels))


def test_wadb_is_scikit_learns_score_of_ranked_shares() -> None:
    counts = np.random.default_rng(1).integers(1, 50, (12, 5))
    labels = np.arange(12) % 3
    ranked = np.sort(counts / counts.sum(axis=1, keepdims=True), axis=1)
    assert wasserstein_davies_bouldin(counts, labels) == pytest.approx(davies_bouldin_score(ranked, labels))


@pytest.mark.parametrize("score", [*BY_CLASSES, silhouette, davies_bouldin])
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]], ids=["one cluster", "a cluster each"])
def test_nothing_inside_or_nothing_outside_is_undefined(score: Callable, labels: list[int]) -> None:
    given = COUNTS if score in BY_CLASSES else on_a_line(0, 1, 4, 6)
    assert score(given, labels) is None
    assert score(given, PAIRS) is not None


def test_clients_that_do_not_differ_at_all() -> None:
    """Their means differ by rounding errors, and so do quick Euclidean distances: neither must be scored."""
    sizes = np.arange(1, 24)
    alike = sizes[:, None] * np.random.default_rng(0).permuted(np.tile([1, 2, 3, 5], (23, 1)), axis=1)
    labels = np.repeat([0, 1], [10, 13])
    assert wasserstein_silhouette(alike, labels) == 0
    assert wasserstein_davies_bouldin(alike, labels) is None


def test_a_client_without_samples_is_still_scored() -> None:
    """Largest shares 0 | 0.5, 0.5; then 0, 0.5 | 0.5."""
    counts = np.array([[0, 0], [5, 5], [2, 2]])
    assert wasserstein_silhouette(counts, [0, 1, 1]) == pytest.approx(2 / 3)
    assert wasserstein_silhouette(counts, [0, 0, 1]) == pytest.approx((0 - 1 + 0) / 3)


def test_all_scores_together() -> None:
    scores = score_clustering(PAIRS, [0, 0, 1, 1], COUNTS)
    assert scores.pop("was") == pytest.approx((1.2 + 10 / 7) / 4)
    assert scores.pop("wadb") == pytest.approx(1 / 3)
    assert scores.pop("silhouette_classes") == pytest.approx(3 / 28)
    assert scores == {"found": 2, "true": 2, "ari": 1.0, "rand": 1.0}
    unknown = score_clustering(PAIRS, None, None)
    assert unknown.pop("found") == 2 and set(unknown.values()) == {None}
