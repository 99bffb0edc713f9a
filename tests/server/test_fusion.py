"""Fusion in which a view counts as much as it is clear."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.server.clustering import build_tree, clarity
from feddag.server.fusion import _refined, blend, fuse_by_clarity
from feddag.server.noise import cut_by_noise
from tests.server.made import condensed


def grouped(truth: list[int], outside: float = 0.6) -> np.ndarray:
    group = np.array(truth)
    return condensed(np.where(group[:, None] == group, 0, outside))


def test_a_view_that_is_unknown_is_left_out() -> None:
    views = {"a": np.array([np.nan, 0.2, np.nan], np.float32), "b": np.array([0.8, 0.6, np.nan], np.float32)}
    weights = {"a": np.array([0.5, 0.5, 1.0]), "b": np.array([0.5, 0.5, 0.0])}
    # pair 01: only b. Pair 02: a weighs 0.75, b 0.25: 0.3. Pair 12 is unknown to both: at no distance
    np.testing.assert_allclose(blend(views, weights), [0.8, 0.3, 0], atol=1e-6)


def test_a_view_without_groups_does_not_count() -> None:
    views = {"clear": grouped([0] * 4 + [1] * 4), "flat": np.zeros(28, np.float32)}
    found = fuse_by_clarity(views)
    np.testing.assert_array_equal(found.weights["clear"], 1)
    np.testing.assert_array_equal(found.weights["flat"], 0)
    np.testing.assert_array_equal(found.distances, views["clear"])
    assert (found.cuts["clear"].clusters, found.cuts["flat"].clusters) == (2, 1)


def test_views_that_are_clear_about_different_things_both_count() -> None:
    one, other = [0] * 6 + [1] * 6, [0, 1] * 6
    found = fuse_by_clarity({"one": grouped(one), "other": grouped(other)})
    np.testing.assert_allclose(found.weights["one"], 0.5)
    # alike in both: 0; in one of them: half of 0.6; in none: 0.6
    table = np.zeros((12, 12))
    table[np.triu_indices(12, 1)] = found.distances
    np.testing.assert_allclose(table[0, [2, 1, 6, 7]], [0, 0.3, 0.3, 0.6], atol=1e-6)


def test_where_no_view_is_clear_all_count_the_same() -> None:
    found = fuse_by_clarity({"one": np.zeros(3, np.float32), "other": np.full(3, 0.02, np.float32)})
    np.testing.assert_allclose(found.weights["one"], 0.5)
    np.testing.assert_allclose(found.distances, 0.01)


def test_one_client() -> None:
    found = fuse_by_clarity({"one": np.zeros(0, np.float32)})
    assert found.distances.shape == (0,) and found.weights["one"].tolist() == [1]


@given(clients=st.integers(2, 12), unknown=st.floats(0, 1), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_every_clients_weights_sum_to_one(clients, unknown, seed) -> None:
    draw = np.random.default_rng(seed)
    pairs = clients * (clients - 1) // 2
    views = {name: draw.normal(0.2, 0.3, pairs).astype(np.float32) for name in ("a", "b", "c")}
    views["b"][draw.random(pairs) < unknown] = np.nan
    found = fuse_by_clarity(views)
    np.testing.assert_allclose(sum(found.weights.values()), np.ones(clients))
    assert np.isfinite(found.distances).all()


def test_the_gate_of_a_pair_is_the_mean_of_two() -> None:
    draw = np.random.default_rng(0)
    views = {name: draw.normal(size=45).astype(np.float32) for name in ("a", "b")}
    gates = draw.random(10)
    expected = [
        (gates[i] + gates[j]) / 2 * a + (2 - gates[i] - gates[j]) / 2 * b
        for (i, j), a, b in zip(zip(*np.triu_indices(10, 1), strict=True), views["a"], views["b"], strict=True)
    ]
    np.testing.assert_allclose(blend(views, {"a": gates, "b": 1 - gates}), expected, atol=1e-6)


def test_views_that_blur_each_other_are_not_averaged() -> None:
    """Two domains; how many classes the clients lack puts them into groups across the domains, nearer and farther."""
    draw = np.random.default_rng(0)
    domains, lacking = np.arange(40) % 2, np.repeat([0, 1, 2, 3], [22, 6, 6, 6])
    data = grouped(domains.tolist(), 0.4) + draw.normal(0, 0.08, 780).astype(np.float32)
    classes = condensed(0.15 * np.abs(lacking[:, None] - lacking)) + draw.normal(0, 0.02, 780).astype(np.float32)
    found = fuse_by_clarity({"data": data, "classes": classes})
    assert found.cuts["data"].clusters == 2 and found.cuts["classes"].clusters == 4  # both are clear by themselves
    assert found.weights["data"].all() and not found.weights["classes"].any()
    np.testing.assert_allclose(found.distances, data, rtol=1e-6)
    both = fuse_by_clarity({"data": data, "classes": classes}, least_silhouette_ratio=0.0)
    assert both.weights["data"].all() and both.weights["classes"].all()


def test_looks_decide_over_classes_that_clients_were_left_with() -> None:
    """Twenty looks of five clients each, which are exact; few classes lacking makes larger groups, so clearer ones."""
    draw = np.random.default_rng(0)
    looks, lacking = np.arange(100) % 20, np.repeat([0, 1, 2, 3], [64, 14, 12, 10])
    style = grouped(looks.tolist(), 0.8)
    classes = condensed(0.15 * np.abs(lacking[:, None] - lacking)) + draw.normal(0, 0.005, 4950).astype(np.float32)
    found = fuse_by_clarity({"classes": classes, "style": style})
    clear = {
        name: clarity(view, found.cuts[name].labels).mean() for name, view in (("classes", classes), ("style", style))
    }
    assert clear["classes"] > clear["style"]
    assert found.weights["style"].all() and not found.weights["classes"].any()
    other = fuse_by_clarity({"classes": classes, "data": style})
    assert other.weights["classes"].all() and not other.weights["data"].any()


def looks_and_concepts(each: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two looks with two concepts in each: looks and data of every pair, and the four groups.

    The data view sees concepts among clients of one look, and nothing but a blur between looks.
    """
    look, concept = np.repeat([0, 1], 2 * each), np.tile(np.repeat([0, 1], each), 2)
    draw = np.random.default_rng(0)
    noise = draw.normal(0, 0.02, (4 * each, 4 * each))
    same = look[:, None] == look
    blurred = np.where(same, 0.5 * (concept[:, None] != concept), draw.uniform(0.2, 0.6, same.shape))
    table = blurred + noise
    return grouped(list(look)), condensed((table + table.T) / 2 * ~np.eye(4 * each, dtype=bool)), 2 * look + concept


def test_among_clients_of_one_look_the_data_view_says_whether_there_are_groups() -> None:
    style, data, truth = looks_and_concepts(6)
    distances, weights = _refined(data, style, {"style": np.ones(24), "data": np.zeros(24)}, "average")
    assert cut_by_noise(distances, build_tree(distances)).labels.tolist() == truth.tolist()
    np.testing.assert_allclose(weights["style"], 0.5)
    np.testing.assert_allclose(weights["data"], 0.5)
    alone = np.triu(np.ones((24, 24), bool), 1)
    alone[:12, 12:] = False
    inside = alone[np.triu_indices(24, 1)]
    np.testing.assert_array_equal(distances[inside], data[inside])
    np.testing.assert_array_equal(distances[~inside], style[~inside])


def test_few_clients_of_one_look_stay_together() -> None:
    style, data, _ = looks_and_concepts(4)
    distances, weights = _refined(data, style, {"style": np.ones(16), "data": np.zeros(16)}, "average")
    np.testing.assert_array_equal(weights["style"], 1)
    np.testing.assert_array_equal(distances, style)
