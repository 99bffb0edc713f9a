"""How sure a grouping is, on groups chosen by hand."""

import numpy as np
import pytest

from feddag.errors import FeddagError
from feddag.server.clustering import build_tree
from feddag.server.confidence import significance, stability, sureness
from feddag.server.grouping import group
from tests.server.made import condensed
from tests.server.test_grouping import client


def blocks(sizes: list[int], outside: float, noise: float = 0.0, seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    drawn = np.random.default_rng(seed).normal(0, noise, (len(labels), len(labels)))
    return condensed(np.where(labels[:, None] == labels, 0.0, outside) + (drawn + drawn.T) / np.sqrt(2))


def test_a_client_is_sure_of_its_group_as_far_as_the_next_is_farther() -> None:
    distances = np.array([[0, 0.1, 0.4, 0.8], [0.1, 0, 0.4, 0.8], [0.4, 0.4, 0, 0.8], [0.8, 0.8, 0.8, 0]])
    found = sureness(condensed(distances), np.array([0, 0, 1, 2]), threshold=0.2)
    # 1 - 0.1 / 0.4 in the pair; alone: 1 - 0.2 / 0.4 and 1 - 0.2 / 0.8
    assert found.tolist() == pytest.approx([0.75, 0.75, 0.5, 0.75])
    assert sureness(condensed(distances), np.zeros(4, np.int64), 1.0).tolist() == [0, 0, 0, 0]


def test_merges_are_compared_with_what_chance_explains() -> None:
    distances = np.array([-0.1, 0.6, 0.6], np.float32)
    tree = build_tree(distances)
    # The first is below chance. The second joins 2 and 1: 4.46 * 0.1 * sqrt((1/2 + 1) / 2) = 0.386 is what counts.
    assert significance(distances, tree)[0] < 0
    assert significance(distances, tree)[1] == pytest.approx(0.6 / 0.386, rel=2e-3)


def test_groups_that_hang_on_single_clients_are_not_stable() -> None:
    clear = blocks([10, 10], 0.5, 0.02)
    assert stability(clear, np.repeat([0, 1], 10)) == 1.0
    chance = np.random.default_rng(1).permutation(np.repeat([0, 1], 10))
    assert stability(clear, chance) < 0.3
    assert stability(condensed(np.zeros((2, 2))), np.zeros(2, np.int64)) == 1.0


def test_what_is_said() -> None:
    draw = np.random.default_rng(0)
    apart = group([client(draw, [0, 1] if n % 2 else [2, 3]) for n in range(8)])
    assert apart.verdict_ == "2 groups, clear" and len(apart.significance_) == 7 and apart.stability_ == 1.0
    alike = group([client(draw, [0, 1]) for _ in range(8)])
    assert alike.verdict_ == "no groups: clients are alike"


def test_another_level_of_nested_groups() -> None:
    draw = np.random.default_rng(0)
    held = [[0, 1], [0, 1], [0, 2], [0, 2], [3], [3]]
    found = group([client(draw, labels) for labels in held])
    assert found.labels_.tolist() == [0, 0, 1, 1, 2, 2]
    coarse = found.cut(clusters=2)
    assert coarse.labels_.tolist() == [0, 0, 0, 0, 1, 1] and coarse.clusters_ == 2
    assert coarse.graph_ is not None and len(coarse.graph_.scores) == 2
    assert coarse.assign(client(draw, [3])) == 1
    assert found.cut(clusters=3).labels_.tolist() == found.labels_.tolist()
    with pytest.raises(FeddagError, match="more than there are clients"):
        found.cut(clusters=7)
    with pytest.raises(FeddagError, match="clients have joined this grouping since"):
        found.joined_by(client(draw, [3]), 2).cut(clusters=2)
