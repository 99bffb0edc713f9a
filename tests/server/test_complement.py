"""Who learns from whom (Eq. 11-14), on counts and angles small enough to follow with a pencil."""

import numpy as np
import pytest

from feddag.server.complement import (
    affinity_alignment,
    complement_graph,
    demand_and_supply,
    paper_alignment,
)
from tests.server.made import direction, made


def test_demand_is_summed_and_supply_averaged() -> None:
    # (5, 9, 0): ranks 0, 1, none: demand 2, 1 and 2, supply 1, 2 and 0. (4, 4, 4): all at the mean rank 1: 2 and 2.
    demand, supply = demand_and_supply(np.array([[5, 9, 0], [4, 4, 4], [0, 0, 7]]), np.array([0, 0, 1]))
    assert demand.tolist() == [[4, 3, 4], [1, 1, 1]]
    assert supply.tolist() == [[1.5, 2, 1], [0, 0, 1]]


def test_a_client_without_samples_wants_and_supplies_nothing() -> None:
    demand, supply = demand_and_supply(np.array([[0, 0]]), np.array([0]))
    assert demand.tolist() == supply.tolist() == [[0, 0]]


def test_scores_by_quantity_alone() -> None:
    clients = [made([5, 9, 0]), made([7, 0, 0]), made([0, 0, 6])]
    graph = complement_graph(clients, np.array([0, 1, 2]), sources=1, alignment="none")
    # demand (2, 1, 2), (1, 1, 1), (1, 1, 1); supply (1, 2, 0), (1, 0, 0), (0, 0, 1)
    no = -np.inf
    assert graph.scores.tolist() == [[no, 2, 2], [3, no, 1], [3, 1, no]]
    # 0 finds 1 and 2 equal and takes 1, which has 7 samples and not 6
    assert [graph.sources_of(learner) for learner in range(3)] == [[1], [0], [0]]
    assert graph.learners_of(0) == [1, 2] and graph.tied == (0,)


def test_alignment_as_printed() -> None:
    clients = [made([4, 0], {0: direction(0)}), made([4, 0], {0: direction(30)}), made([0, 4], {1: direction(0)})]
    labels = np.array([0, 1, 1])
    found = paper_alignment(clients, labels)
    # class 0: 30 degrees give 2/3, a one-sided class 0: 1/3 on average. Class 1: held by neither gives 1, one-sided 0.
    np.testing.assert_allclose(found[0, 1], [1 / 3, 1 / 2], atol=1e-6)
    np.testing.assert_allclose(found[1, 0], [1 / 3, 1 / 2], atol=1e-6)
    # within cluster 1, class 0: 1 with itself, 0 twice, and 1 where neither of two has it
    np.testing.assert_allclose(found[1, 1], [1 / 2, 1 / 2], atol=1e-6)
    graph = complement_graph(clients, labels, alignment="paper")
    # 0 wants (1, 1), 1 supplies (1/2, 1/2): 1/6 + 1/4. 1 wants (2, 2), 0 supplies (1, 0): 2/3
    assert graph.scores[0, 1] == pytest.approx(5 / 12) and graph.scores[1, 0] == pytest.approx(2 / 3)


def test_printed_alignment_ties_where_no_class_is_shared() -> None:
    clients = [made([3, 0, 0, 0]), made([0, 5, 0, 0]), made([0, 0, 9, 0]), made([0, 0, 0, 7])]
    graph = complement_graph(clients, np.arange(4), sources=2, alignment="paper")
    assert (graph.scores[~np.eye(4, dtype=bool)] == 0).all()
    assert graph.tied == (0, 1, 2, 3)  # said, and decided by the samples that a source supplies
    assert [graph.sources_of(learner) for learner in range(4)] == [[2, 3], [2, 3], [1, 3], [1, 2]]


def test_what_decides_when_even_samples_are_equal_is_the_seed() -> None:
    clients = [made([4, 0, 0]), made([0, 4, 0]), made([0, 0, 4])]

    def edges(seed: int) -> list[list[bool]]:
        generator = np.random.default_rng(seed)
        return complement_graph(clients, np.arange(3), 1, "paper", generator).edges.tolist()

    assert edges(0) == edges(0)
    assert len({str(edges(seed)) for seed in range(20)}) > 1


def test_affinity_also_compares_classes_that_are_not_shared() -> None:
    learner = made([5, 5, 0], {0: direction(0), 1: direction(90)})
    source = made([5, 0, 5], {0: direction(60), 2: direction(30)})
    found = affinity_alignment([learner, source], np.array([0, 1]))
    # class 0: cos² 60 = 1/4. Class 2, of the source alone: the mean of cos² 30 = 3/4 and cos² 60 = 1/4.
    assert found[0, 1, 0] == pytest.approx(0.25, abs=1e-6)
    assert found[0, 1, 2] == pytest.approx(0.5, abs=1e-6)


def test_affinity_pools_the_clients_of_a_cluster_by_their_samples() -> None:
    clients = [
        made([3], {0: [[1, 0]]}, shape=(2, 2)),
        made([1], {0: [[0, 1]]}, shape=(2, 2)),
        made([9], {0: [[1, 0]]}, shape=(2, 2)),
    ]
    found = affinity_alignment(clients, np.array([0, 0, 1]))
    assert found[0, 1, 0] == pytest.approx(3 / np.sqrt(10))  # diag(3, 1) against diag(1, 0)


def test_affinity_prefers_the_source_that_looks_alike_among_equals_in_quantity() -> None:
    learner = made([6, 0, 0], {0: direction(0)})
    near, far = made([0, 6, 0], {1: direction(10)}), made([0, 0, 60], {2: direction(80)})
    graph = complement_graph([learner, far, near], np.arange(3), sources=1)
    assert graph.sources_of(0) == [2] and graph.tied == ()


@pytest.mark.parametrize("alignment", ["affinity", "paper", "none"])
def test_nobody_learns_from_itself(alignment) -> None:
    clients = [made([5, 1], {0: direction(0), 1: direction(50)}), made([1, 5], {0: direction(9), 1: direction(80)})]
    alone = complement_graph(clients, np.array([0, 0]), alignment=alignment)
    assert alone.edges.tolist() == [[False]] and alone.sources_of(0) == [] and alone.tied == ()
    two = complement_graph(clients, np.array([0, 1]), sources=2, alignment=alignment)
    assert two.edges.tolist() == [[False, True], [True, False]] and two.tied == ()
    assert np.isneginf(two.scores.diagonal()).all() and np.isfinite(two.scores[0, 1])


def test_a_class_nobody_has_changes_nothing() -> None:
    with_it = [
        made([5, 2, 0], {0: direction(0), 1: direction(9)}),
        made([1, 8, 0], {0: direction(3), 1: direction(70)}),
    ]
    without = [made([5, 2], {0: direction(0), 1: direction(9)}), made([1, 8], {0: direction(3), 1: direction(70)})]
    for alignment in ("affinity", "paper", "none"):
        scores = [complement_graph(items, np.arange(2), 2, alignment).scores for items in (with_it, without)]
        np.testing.assert_allclose(*scores, atol=1e-6)


def test_a_class_that_is_not_there_may_be_wanted_not_at_all() -> None:
    demand, supply = demand_and_supply(np.array([[5, 9, 0], [4, 4, 4], [0, 0, 7]]), np.array([0, 0, 1]), "none")
    assert demand.tolist() == [[4, 3, 2], [0, 0, 1]]
    assert supply.tolist() == [[1.5, 2, 1], [0, 0, 1]]
