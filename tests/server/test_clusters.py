"""Clusters by hand, and over random splits, merges, moves, newcomers and departures."""

import copy
import random

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from feddag.server.clusters import Clusters
from feddag.weights import Weights


def model(value: float) -> Weights:
    return {"w": torch.tensor([float(value)])}


def value(weights: Weights) -> float:
    return round(float(weights["w"]), 5)


@pytest.fixture
def two() -> Clusters:
    clusters = Clusters()
    clusters.found(model(0), [7, 9, 4])
    clusters.found(model(10), [2])
    return clusters


def test_smoothing_leaves_out_the_start_and_weighs_the_newest_most(two: Clusters) -> None:
    two.update(0, model(1), smoothing=0.5)
    assert value(two.served[0]) == 1
    two.update(0, model(4), smoothing=0.5)
    assert value(two.served[0]) == pytest.approx((1 * 1 + 2 * 4) / 3, abs=1e-4)
    assert value(two.trained[0]) == 4 and two.rounds == {0: 2, 1: 0}
    two.update(1, model(11), served=model(99))
    assert (value(two.trained[1]), value(two.served[1])) == (11, 99)


def test_a_second_split_names_clients_and_not_positions(two: Clusters) -> None:
    assert two.split(0, [[9], [7, 4]]) == [0, 2]
    assert two.split(2, [[4], [7]]) == [2, 3]
    assert two.cluster_of == {2: 1, 9: 0, 4: 2, 7: 3}
    assert value(two.trained[3]) == value(two.trained[0]) == 0


def test_who_is_in_no_part_belongs_to_no_cluster(two: Clusters) -> None:
    two.split(0, [[9], [7]])
    assert two.cluster_of == {2: 1, 9: 0, 7: 2}


@pytest.mark.parametrize("parts", [[[7], [7, 9]], [[7], [2]], [[7, 9, 4], []]])
def test_parts_that_are_no_division_are_refused(two: Clusters, parts: list[list[int]]) -> None:
    before = dict(two.cluster_of)
    with pytest.raises(ValueError, match="the parts of cluster 0"):
        two.split(0, parts)
    assert two.cluster_of == before


def test_a_merge_averages_models_and_keeps_members(two: Clusters) -> None:
    two.merge(1, into=0, shares=(1, 3))
    assert value(two.trained[0]) == 2.5 and set(two.cluster_of.values()) == {0}
    assert two.found(model(5)) == 2  # the number of one that is gone is not given again
    with pytest.raises(ValueError, match="into itself"):
        two.merge(0, into=0)


def test_a_new_grouping_inherits_from_what_was_trained(two: Clusters) -> None:
    two.update(0, model(4))
    inherited = two.regroup({7: 0, 2: 0, 9: 1, 4: 1}, {7: 1, 2: 1, 9: 1, 4: 3})
    assert inherited == {0: [0], 1: [0]}  # cluster 1 was never trained: it leaves nothing
    assert value(two.trained[0]) == value(two.trained[1]) == 4
    assert two.rounds == {0: 1, 1: 1} and two.next_number == 2


def test_a_client_cannot_move_to_a_cluster_that_is_not_there(two: Clusters) -> None:
    with pytest.raises(LookupError, match="there is no cluster 5"):
        two.move(7, 5)


class Life(RuleBasedStateMachine):
    """Whatever happens, every client is in exactly the cluster it was put into, and every cluster has its models."""

    @initialize(clients=st.integers(1, 8))
    def begin(self, clients: int) -> None:
        self.clusters, self.expected, self.next_client = Clusters(), {}, 100
        self.clusters.found(model(0.0), range(100, 100 + clients))
        for _ in range(clients):
            self.expected[self.next_client] = 0
            self.next_client += 1

    @rule(seed=st.integers(0, 1000), leave_out=st.booleans())
    def split(self, seed: int, leave_out: bool) -> None:
        draw = random.Random(seed)
        cluster = draw.choice(sorted(self.clusters.trained))
        members = self.clusters.members(cluster)
        draw.shuffle(members)
        if len(members) < 2:
            return
        middle = draw.randrange(1, len(members))
        parts = [members[:middle], members[middle:]]
        if leave_out and len(parts[1]) > 1:
            gone = parts[1].pop()
            del self.expected[gone]
        for number, part in zip(self.clusters.split(cluster, parts), parts, strict=True):
            self.expected.update(dict.fromkeys(part, number))

    @precondition(lambda self: len(self.clusters.trained) > 1)
    @rule(seed=st.integers(0, 1000))
    def merge(self, seed: int) -> None:
        one, other = random.Random(seed).sample(sorted(self.clusters.trained), 2)
        self.clusters.merge(one, into=other)
        self.expected = {client: other if own == one else own for client, own in self.expected.items()}

    @precondition(lambda self: self.expected)
    @rule(seed=st.integers(0, 1000))
    def move(self, seed: int) -> None:
        draw = random.Random(seed)
        client, cluster = draw.choice(sorted(self.expected)), draw.choice(sorted(self.clusters.trained))
        self.clusters.move(client, cluster)
        self.expected[client] = cluster

    @rule(seed=st.integers(0, 1000), own=st.booleans())
    def join(self, seed: int, own: bool) -> None:
        client, self.next_client = self.next_client, self.next_client + 1
        if own:
            self.expected[client] = self.clusters.found(model(seed), [client])
        else:
            self.expected[client] = random.Random(seed).choice(sorted(self.clusters.trained))
            self.clusters.move(client, self.expected[client])

    @precondition(lambda self: self.expected)
    @rule(seed=st.integers(0, 1000))
    def leave(self, seed: int) -> None:
        client = random.Random(seed).choice(sorted(self.expected))
        self.clusters.leave(client)
        del self.expected[client]

    @precondition(lambda self: self.expected)
    @rule(seed=st.integers(0, 1000))
    def regroup(self, seed: int) -> None:
        draw = random.Random(seed)
        drawn = {client: draw.randrange(3) for client in self.expected}
        numbers = sorted(set(drawn.values()))
        self.expected = {client: numbers.index(own) for client, own in drawn.items()}
        self.clusters.regroup(self.expected, dict.fromkeys(self.expected, 1.0))

    @rule()
    def resume(self) -> None:
        again = Clusters()
        again.load_state_dict(copy.deepcopy(self.clusters.state_dict()))
        self.clusters = again

    @invariant()
    def all_is_well(self) -> None:
        clusters = self.clusters
        assert clusters.cluster_of == self.expected
        assert set(clusters.trained) == set(clusters.served) == set(clusters.rounds) >= set(self.expected.values())
        everybody = [client for cluster in clusters.trained for client in clusters.members(cluster)]
        assert sorted(everybody) == sorted(self.expected)
        assert max(clusters.trained) < clusters.next_number


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
