"""Trees of merges, mean distances and silhouettes, on distances chosen by hand."""

import numpy as np
import pytest

from feddag.server.clustering import build_tree, clarity, cluster_means, fill_unknown
from feddag.server.noise import cut_by_noise
from tests.server.made import on_a_line

# Trees ----------------------------------------------------------------------------------------------------------------


def test_merges_of_average_linkage() -> None:
    tree = build_tree(on_a_line(0, 1, 10, 12))
    assert tree.heights.tolist() == [1, 2, 10.5]  # 10.5: the mean of 10, 12, 9 and 11
    assert [sizes.tolist() for sizes in tree.sizes()] == [[1, 1, 2], [1, 1, 2]]
    assert [tree.cut(alpha).tolist() for alpha in (0.5, 1, 2, 10.6)] == [
        [0, 1, 2, 3],
        [0, 0, 1, 2],
        [0, 0, 1, 1],
        [0] * 4,
    ]


@pytest.mark.parametrize(("linkage", "last"), [("single", 9), ("complete", 12), ("average", 10.5)])
def test_linkage_is_an_option(linkage, last) -> None:
    assert build_tree(on_a_line(0, 1, 10, 12), linkage).heights[-1] == last


def test_heights_below_zero_are_kept() -> None:
    tree = build_tree(np.array([-0.5, 0.25, 0.75], np.float32))
    assert tree.heights.tolist() == [-0.5, 0.5]
    assert tree.cut(-0.6).tolist() == [0, 1, 2] and tree.cut(0).tolist() == [0, 0, 1]


def test_unknown_distances_become_the_mean_of_the_known() -> None:
    assert fill_unknown(np.array([1, np.nan, 3], np.float32)).tolist() == [1, 2, 3]
    assert fill_unknown(np.full(3, np.nan, np.float32)).tolist() == [0, 0, 0]
    assert build_tree(np.array([1, np.nan, 3], np.float32)).heights.tolist() == [1, 2.5]


def test_a_single_client_is_a_tree_and_a_group() -> None:
    nothing = np.zeros(0, np.float32)
    tree = build_tree(nothing)
    assert (tree.clients, len(tree.heights), tree.cut(0.3).tolist()) == (1, 0, [0])
    assert cut_by_noise(nothing, tree).labels.tolist() == [0]


# A partition of the clients -------------------------------------------------------------------------------------------


def test_mean_distances_of_clusters() -> None:
    distances = np.array([[0, 2, 4], [2, 0, 6], [4, 6, 0]], np.float32)
    sizes, means = cluster_means(distances, np.array([0, 0, 1]))
    assert sizes.tolist() == [2, 1]
    assert means.tolist() == [[1, 5], [5, 0]]


def test_clarity_by_hand() -> None:
    # group 0 at 0, 1, 3; group 1 at 10, 12. Client 0: inside (1 + 3) / 2 = 2, outside 11, times 1 - 2/3.
    found = clarity(on_a_line(0, 1, 3, 10, 12), np.array([0, 0, 0, 1, 1]))
    np.testing.assert_allclose(found, [(1 - 2 / 11) / 3, (1 - 1.5 / 10) / 3, (1 - 2.5 / 8) / 3, 0, 0], atol=1e-6)


def test_nothing_is_clear_without_groups() -> None:
    distances = on_a_line(0, 1, 5)
    assert clarity(distances, np.array([0, 0, 0])).tolist() == [0, 0, 0]
    assert clarity(distances, np.array([0, 1, 2])).tolist() == [0, 0, 0]
