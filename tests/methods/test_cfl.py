"""CFL: when a cluster is split and how, twins with known defects, newcomers down the tree of splits."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.methods.cfl import CFL, bipartition
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, one_round
from tests.methods.beside import RealClients, linear_spec

SPEC = ModelSpec("mlp", (2,), 2)
SIX = dict.fromkeys(range(6), 10)


def started(name: str | type[CFL], engine: FakeEngine, **settings: Any) -> Any:
    return testing.started(name, engine, SPEC, **settings)


def congruent_or_not(engine: FakeEngine, client: int, step: Train, current: Any) -> Any:
    """Clients 0-2 pull one way, the others as far the other way; 5 a little apart from its own."""
    start = engine.resolve(client, step.model, current)
    names = sorted(start)
    sign = 1.0 if client < 3 else -1.0
    pulled = {name: value + sign * (name == names[0]) for name, value in start.items()}
    if client == 5:
        pulled[names[1]] = pulled[names[1]] + 0.5
    return Result(weights=pulled)


def test_cfl_splits_what_pulls_apart_and_its_second_split_names_the_right_clients() -> None:
    engine = FakeEngine(dict.fromkeys(range(6), 10), answers={Train: congruent_or_not})
    federation, cfl = started("cfl", engine, eps1=1e3, eps2=1.0, first_split=1)
    one_round(federation, cfl)
    assert set(cfl.clusters().values()) == {0}  # not before the first split is allowed
    one_round(federation, cfl)
    assert cfl.clusters() == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1}
    assert [event.kind for event in federation.events()] == ["split"]
    one_round(federation, cfl)  # cluster 1 splits again: its clients are 3, 4 and 5, not positions 0, 1 and 2
    assert len({cfl.clusters()[client] for client in (3, 4)}) == 1 != len(set(cfl.clusters().values()))
    assert cfl.clusters()[5] not in (cfl.clusters()[3], cfl.clusters()[0])
    assert set(cfl.clusters()) == set(range(6))


def test_cfl_keeps_congruent_clients_together_and_waits_for_a_standstill() -> None:
    engine = FakeEngine(dict.fromkeys(range(6), 10), answers={Train: congruent_or_not})
    federation, cfl = started("cfl", engine, eps1=1e-3, eps2=1.0, first_split=0)
    assert cfl.is_due(1, torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 0.0]]))
    assert not cfl.is_due(1, torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0]]))  # they still move, and together
    assert not cfl.is_due(1, torch.tensor([[0.2, 0.0], [-0.2, 0.0], [0.0, 0.0]]))  # nobody pulls
    assert not cfl.is_due(1, torch.tensor([[2.0, 0.0], [-2.0, 0.0]]))  # two are too few
    engine.silent = {1}
    cfl._settings = cfl.Settings(eps1=1e3, eps2=1.0, first_split=0)
    one_round(federation, cfl)
    assert 1 not in cfl.clusters() and len(cfl.clusters()) == 5  # it gave no update to be sorted by
    engine.silent = set()
    one_round(federation, cfl)
    assert 1 in cfl.clusters()


@pytest.mark.parametrize("angles", [(0, 10, 180, 190), (5, 170, 0, 200)])
def test_the_parts_of_a_split_keep_the_most_alike_together(angles: tuple[int, ...]) -> None:
    turned = torch.tensor([[np.cos(np.radians(a)), np.sin(np.radians(a))] for a in angles])
    assert bipartition(turned) == [int(90 < angle < 270) for angle in angles]


# Twins ----------------------------------------------------------------------------------------------------------------


class ByPosition(CFL):
    """The released code's defect, copied in PACFL, FL-bench and FedRC: parts hold positions inside the cluster."""

    def divide(self, federation: Any, cluster: int, model: Any, clients: Sequence[int], updates: Tensor) -> None:
        super().divide(federation, cluster, model, range(len(clients)), updates)


def test_positions_in_place_of_clients_are_refused_at_the_second_split() -> None:
    engine = FakeEngine(SIX, answers={Train: congruent_or_not})
    federation, twin = started(ByPosition, engine, eps1=1e3, eps2=1.0, first_split=0)
    one_round(federation, twin)  # positions are clients, the first time
    with pytest.raises(ValueError, match="not disjoint, not empty and made of its members"):
        one_round(federation, twin)


class WrongAxis(CFL):
    """FedRC's copy: the norm is taken over the axis of learners, of which there is one: the largest coordinate."""

    def is_due(self, round: int, updates: Tensor) -> bool:
        together, alone = updates.mean(0).norm(), updates[:, None].norm(dim=1).max()
        enough = len(updates) > 2 and round > self._settings.first_split
        return bool(enough and together < self._settings.eps1 and alone > self._settings.eps2)


@pytest.mark.parametrize(("kind", "due"), [(CFL, True), (WrongAxis, False)])
def test_the_norm_of_an_update_is_over_all_its_weights(kind: type[CFL], due: bool) -> None:
    """Three weights of 0.6: the norm is 1.04, and no weight is above 1."""
    _, cfl = started(kind, FakeEngine(SIX), eps1=0.4, eps2=1.0, first_split=0)
    assert cfl.is_due(1, 0.6 * torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]])) == due


# The two parts --------------------------------------------------------------------------------------------------------


def crossing(cosines: np.ndarray, part: Sequence[int]) -> float:
    """The largest cosine between a part and the rest."""
    rest = [i for i in range(len(cosines)) if i not in part]
    return float(cosines[np.ix_(list(part), rest)].max())


@pytest.mark.parametrize("seed", range(4))
def test_single_linkage_is_the_papers_optimum_over_all_ways_to_divide(seed: int) -> None:
    updates = torch.tensor(np.random.default_rng(seed).normal(size=(7, 4)))
    unit = torch.nn.functional.normalize(updates, dim=1)
    cosines = (unit @ unit.T).numpy()
    best = min(crossing(cosines, part) for size in (1, 2, 3) for part in combinations(range(7), size))
    for linkage, optimal in (("single", True), ("complete", False)):
        sides = bipartition(updates, linkage)
        found = crossing(cosines, [i for i, side in enumerate(sides) if side == 0])
        assert found == pytest.approx(best) if optimal else found >= best - 1e-9


def test_incongruent_clients_are_told_apart_and_congruent_ones_are_not_split() -> None:
    """Logistic regressions on the same samples: at the optimum of a shared model congruent updates vanish; those of
    clients with swapped labels point in opposite directions and stay as long as they are."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, 2))
    y = (x[:, 0] > 0).astype(int)
    spec = linear_spec(2)
    for swapped in (False, True):
        held = {client: (x, 1 - y if swapped and client >= 2 else y) for client in range(4)}
        engine = RealClients(spec, held, lr=1.0, weight_decay=0.2)
        settings = {"eps1": 0.02, "eps2": 0.1, "first_split": 0}
        federation, cfl = testing.started("cfl", engine, spec, **settings)
        for _ in range(25):
            one_round(federation, cfl)
        assert cfl.clusters() == ({0: 0, 1: 0, 2: 1, 3: 1} if swapped else dict.fromkeys(range(4), 0))


# Newcomers ------------------------------------------------------------------------------------------------------------


def pulls(engine: FakeEngine, client: int, step: Train, current: Any) -> Result:
    """Clients pull up, down, or sideways by their number modulo three."""
    start = engine.resolve(client, step.model, current)
    one, two = sorted(start)[:2]
    by = [(1.0, 0.1), (-1.0, 2.0), (-1.0, -2.0)][client % 3]
    return Result(weights=start | {one: start[one] + by[0], two: start[two] + by[1]})


def test_a_newcomer_goes_down_the_tree_of_splits() -> None:
    engine = FakeEngine(dict.fromkeys(range(9), 10), answers={Train: pulls})
    federation, cfl = started("cfl", engine, eps1=1e3, eps2=0.1, first_split=0)
    for _ in range(2):
        one_round(federation, cfl)
    kinds = [{cfl.clusters()[client] for client in range(kind, 9, 3)} for kind in range(3)]
    assert len(cfl.splits) >= 2 and not kinds[0] & kinds[1] and not kinds[1] & kinds[2] and not kinds[0] & kinds[2]
    engine.samples |= dict.fromkeys((9, 10, 11, 12), 10)
    engine.silent = {12}
    cfl.join(federation, [9, 10, 11, 12])
    assert all(cfl.clusters()[9 + kind] in kinds[kind] for kind in range(3)) and 12 not in cfl.clusters()
    _, fresh = started("cfl", engine)
    fresh.join(federation, [9])
    assert fresh.clusters()[9] == 0  # before any split there is nothing to ask
