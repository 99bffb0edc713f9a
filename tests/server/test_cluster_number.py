"""FedAC's cluster number: G by hand, and that it settles whatever models do."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddag.errors import FeddagError
from feddag.server.cluster_number import Change, ClusterNumber, _most_urgent_first, granularity, inner_products, nearest
from feddag.server.lrcos import negative_l2

BAND = {"low": 0.2, "high": 0.8, "turns": 4}


def on_a_line(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None] + 50  # far from zero, where sums of squares would cancel


def g(models: Tensor, labels: list[int]) -> list[float]:
    return granularity(inner_products(models), torch.tensor(labels)).tolist()


def change(models: Tensor, labels: list[int], tuner: ClusterNumber | None = None) -> Change | None:
    return (tuner or ClusterNumber(**BAND)).change(models, labels, lambda own: negative_l2)


def test_granularity_by_hand() -> None:
    """Centres 1, 6 and 13. Inside: 1, 0 and 4. Between: (25 + 144) / 2, (25 + 49) / 2, (144 + 49) / 2."""
    models = on_a_line(0, 2, 6, 11, 15)
    np.testing.assert_allclose(g(models, [0, 0, 1, 2, 2]), [1 / 84.5, 0, 4 / 96.5], rtol=1e-6)
    assert nearest(inner_products(models), torch.tensor([0, 0, 1, 2, 2]), 0) == 1
    assert nearest(inner_products(models), torch.tensor([0, 0, 1, 2, 2]), 2) == 1


def test_granularity_where_the_formula_divides_by_zero() -> None:
    assert g(on_a_line(0, 1, 2), [0, 0, 0]) == [math.inf]  # one cluster: K - 1 = 0
    assert g(on_a_line(3), [0]) == [0] and g(on_a_line(3, 3), [0, 0]) == [0]
    assert g(on_a_line(3, 3, 3), [0, 1, 1]) == [0, 0]
    assert g(on_a_line(0, 2, 1), [0, 0, 1]) == [math.inf, 0]  # centres that coincide


def test_a_wide_cluster_is_split_in_two() -> None:
    """G of the first: ((9 + 4 + 1 + 36) / 4) / 14.5 ** 2 is small; beside a centre at 7 it is 12.5 / 9."""
    labels = [0, 0, 0, 0, 1]
    assert g(on_a_line(1, 2, 3, 10, 7), labels)[0] == pytest.approx(12.5 / 9)
    found = change(on_a_line(1, 2, 3, 10, 7), labels)
    assert found == Change(0, pytest.approx(12.5 / 9), None, (3,)) and (found.kind, found.direction) == ("split", 1)


def test_a_narrow_cluster_is_merged_into_the_nearest() -> None:
    """G of the cluster at 0 is 0, and that of 0, 1, 5 with the one at 40 is (4 + 1 + 9) / 3 / 38 ** 2."""
    found = change(on_a_line(0, 1, 5, 39, 41, 40), [0, 1, 1, 2, 2, 2])
    assert found is not None and (found.cluster, found.into, found.leaving, found.kind) == (0, 1, (0,), "merge")


def test_a_merge_that_would_be_split_again_is_not_done() -> None:
    """Merged, 0 and 9 have 4.5 ** 2 inside. To 15 that is 10.5 ** 2, and little; to 9.5 it is 5 ** 2, and too much."""
    assert change(on_a_line(0, 9, 14.9, 15.1), [0, 1, 2, 2])[:3] == (0, 0.0, 1)
    assert g(on_a_line(0, 9, 9.5), [0, 0, 1])[0] == pytest.approx(0.81)
    assert change(on_a_line(0, 9, 9.5, 9.5), [0, 1, 2, 2])[:3] == (1, 0.0, 2)  # so the next in turn is merged
    assert change(on_a_line(0, 0.1, 9, 9.1), [0, 0, 1, 1]) is None  # one cluster would have to be split


def test_one_cluster_is_split_and_one_model_is_left_alone() -> None:
    assert change(on_a_line(0, 1, 9), [0, 0, 0]).leaving == (2,)
    assert change(on_a_line(4), [0]) is None and change(on_a_line(4, 4), [0, 0]) is None


def test_within_the_band_nothing_happens() -> None:
    models, labels = on_a_line(0, 2, 2, 4), [0, 0, 1, 1]
    assert g(models, labels) == [0.25, 0.25] and change(models, labels) is None


def test_the_furthest_out_of_the_band_comes_first() -> None:
    """0.16 is 1.25 times too small, 1.44 is 1.8 times too large, 0 is too small by any factor."""
    assert _most_urgent_first(torch.tensor([0.16, 0.64, 1.44, 0.0]), 0.2, 0.8) == [3, 2, 0]
    assert _most_urgent_first(torch.tensor([0.0, math.inf, 0.5]), 0.0, 0.8) == [1]  # never merged


def test_a_band_that_is_none_is_refused() -> None:
    with pytest.raises(FeddagError, match=r"merge_below = 0.9 has to be less than split_above = 0.8"):
        ClusterNumber(0.9, 0.8, 4)


def applied(labels: Tensor, found: Change) -> Tensor:
    after = labels.clone()
    after[list(found.leaving)] = int(labels.max()) + 1 if found.into is None else found.into
    return torch.unique(after, return_inverse=True)[1]


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3), st.integers(1, 5), st.integers(0, 10_000))
def test_models_that_stay_as_they_are_end_with_a_number_of_clusters_and_every_client(
    count: int, size: int, first: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    models = torch.from_numpy(draw.normal(size=(count, size)) * draw.choice([0.1, 1, 10], size=(count, 1)))
    labels = torch.unique(torch.from_numpy(draw.integers(0, first, count)), return_inverse=True)[1]
    tuner = ClusterNumber(**BAND)
    for _ in range((BAND["turns"] + 1) * count + 1):
        found = tuner.change(models, labels.tolist(), lambda own: negative_l2)
        if found is None:
            return
        if found.kind == "split":  # the merge that would undo it is refused
            halves = applied(labels, found)
            back = tuner._merge(inner_products(models), halves, int(halves[found.leaving[0]]))
            assert back is None or back.into != int(halves[_who_stayed(labels, found)])
        labels = applied(labels, found)
        tuner.note(found.direction)
        assert len(labels) == count and set(labels.tolist()) == set(range(int(labels.max()) + 1))
    raise AssertionError("the number of clusters never settled")


def _who_stayed(labels: Tensor, found: Change) -> int:
    return next(n for n, own in enumerate(labels.tolist()) if own == found.cluster and n not in found.leaving)


@settings(max_examples=8, deadline=None)
@given(st.integers(2, 8), st.integers(0, 4), st.integers(0, 10_000))
def test_models_that_never_rest_change_the_number_finitely_often(count: int, turns: int, seed: int) -> None:
    """Models are thrown anew every round, and clusters are emptied at random: still there are few changes."""
    draw = np.random.default_rng(seed)
    tuner = ClusterNumber(0.2, 0.8, turns)
    labels, changes, quiet = torch.zeros(count, dtype=torch.int64), 0, 0
    for _ in range(100):
        models = torch.from_numpy(draw.normal(size=(count, 2)) * draw.choice([0.01, 1, 100], size=(count, 1)))
        if draw.random() < 0.2 and int(labels.max()) > 0:  # the E-step leaves a cluster empty
            labels = torch.unique(torch.where(labels == 0, 1, labels), return_inverse=True)[1]
            tuner.note(-1)
        found = tuner.change(models, labels.tolist(), lambda own: negative_l2)
        changes, quiet = (changes, quiet + 1) if found is None else (changes + 1, 0)
        if found is not None:
            labels = applied(labels, found)
            tuner.note(found.direction)
    assert changes <= (turns + 2) * count and quiet > 0
    assert tuner.turned <= turns + 1


def test_the_number_turns_so_often_and_no_more() -> None:
    tuner = ClusterNumber(0.2, 0.8, 1)
    wide, narrow = (on_a_line(0, 9, 4), [0, 0, 1]), (on_a_line(0, 1, 5, 39, 41, 40), [0, 1, 1, 2, 2, 2])
    tuner.known = 3
    for direction in (1, -1):
        tuner.note(direction)
    assert tuner.turned == 1 and change(*wide, tuner) is None  # a second turn would be needed
    assert change(*narrow, tuner).kind == "merge"  # other models: as if nothing had been
    assert tuner.turned == 0


def test_what_is_remembered_for_the_page() -> None:
    """Around 0 and 10 with 1 inside each: G is 1 / 100; one cluster alone has none."""
    number = ClusterNumber(0.2, 0.8, 4)
    models = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
    number.change(models, [0, 0, 0, 0], lambda _: negative_l2, 1)
    number.change(models, [0, 0, 3, 3], lambda _: negative_l2, 2)
    curves = number.curves()
    assert curves["clusters"]["number"].tolist() == [[1, 1], [2, 2]]
    np.testing.assert_allclose(curves["G"]["cluster 3"], [[2, 0.01]])
    assert set(curves["G"]) == {"cluster 0", "cluster 3"} and len(curves["G"]["cluster 0"]) == 1
