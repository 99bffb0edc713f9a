"""FedGWC's three forms with clients whose losses are made up."""

import numpy as np
import pytest
import torch

from feddag.client.step import Result
from feddag.client.train import Train
from feddag.models import ModelSpec
from feddag.server.evidence import CHANGE, LEAST_SEEN, LossHistory, Seen, SettledMatrix
from feddag.server.interaction import gaussian_rewards
from feddag.testing import FakeEngine, moved, one_round, started
from feddag.weights import Weights

SPEC = ModelSpec("mlp", (4,), 2)


def engine_of(level: dict[int, float], noise: float = 0.1, steps: int = 3) -> FakeEngine:
    """Client i adds i + 1 to every weight, and its losses scatter around a level that falls from round to round."""
    draw = np.random.default_rng(0)
    rounds = {"seen": 0}

    def train(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
        assert step.losses
        rounds["seen"] += 1
        losses = level[client] + noise * draw.normal(size=steps) + 100 / (100 + rounds["seen"])
        weights = {name: value + client + 1 for name, value in engine.resolve(client, step.model, current).items()}
        return Result(weights, {"loss": float(losses.mean())}, {"losses": torch.from_numpy(losses)})

    return FakeEngine(dict.fromkeys(level, 10), answers={Train: train})


def two_groups(clients: int = 12, apart: float = 3.0) -> dict[int, float]:
    spread = np.random.default_rng(1).normal(0, 0.2, clients)
    return {client: apart * (client % 2) + float(spread[client]) for client in range(clients)}


def test_groups_in_the_losses_become_clusters_that_go_on_from_the_model() -> None:
    federation, method = started("fedgwc", engine_of(two_groups()), SPEC, participation=0.5, level=0.05)
    told = []
    for _ in range(20):
        before = method.groups.trained[0]
        one_round(federation, method)
        told += federation.events()
        if told:
            break
    assert [event.kind for event in told] == ["split"] and sorted(told[0].clients) == list(range(12))
    assert federation.round >= 10
    assert {method.clusters()[client] for client in range(0, 12, 2)} != {method.clusters()[client] for client in (1,)}
    assert len({(client % 2, cluster) for client, cluster in method.clusters().items()}) == 2
    assert all(moved(before, method.groups.trained[cluster]) > 0 for cluster in (0, 1))
    assert method.groups.trained[0] == method.groups.trained[1]
    shown = method.diagnostics()
    assert shown["clients"] == list(range(12))
    assert {name: len(view) for name, view in shown["views"].items()} == {"interaction": 66, "affinity": 66}
    assert [number for number, _ in shown["by_round"][CHANGE]["all clients"]] == list(range(1, federation.round + 1))
    for _ in range(15):  # each group is one
        one_round(federation, method)
    assert len(method.groups.trained) == 2


def test_alike_clients_stay_together() -> None:
    federation, method = started("fedgwc", engine_of(two_groups(apart=0.0)), SPEC, participation=0.5)
    for _ in range(40):
        one_round(federation, method)
    assert set(method.clusters().values()) == {0}


def test_three_of_each_cluster_take_part_the_rarest_first() -> None:
    federation, method = started("fedgwc", engine_of(two_groups(20)), SPEC, participation=0.1)
    federation.begin_round(1)
    assert len(method.sample(federation)) == 3  # Eq. 26: more than a tenth of twenty
    method.divide(federation, 0, [list(range(12)), [12, 13], list(range(14, 20))])
    federation.begin_round(2)
    sampled = method.sample(federation)
    assert [sum(method.clusters()[client] == cluster for client in sampled) for cluster in (0, 1, 2)] == [3, 2, 3]
    method.participations = dict.fromkeys(range(20), 5) | {3: 1, 7: 0, 9: 4}
    assert {3, 7, 9} <= set(method.sample(federation))


def test_every_client_has_had_its_turn_before_any_has_a_second() -> None:
    federation, method = started("fedgwc", engine_of(two_groups(12)), SPEC, participation=0.25)
    for _ in range(4):
        one_round(federation, method)
    assert set(method.participations.values()) == {1} and len(method.participations) == 12


def test_the_released_form_samples_a_number_and_uniformly() -> None:
    federation, method = started("fedgwc-released", engine_of(two_groups(30)), SPEC, participation=0.1)
    federation.begin_round(1)
    assert len(method.sample(federation)) == 10
    method.participations = dict.fromkeys(range(30), 5) | {3: 0}
    drawn = []
    for number in range(2, 32):
        federation.begin_round(number)
        drawn += method.sample(federation)
    assert drawn.count(3) < 20  # about ten of thirty rounds: who was rare is not preferred


def test_momentum_and_mu_are_those_of_fedavgm_and_fedprox() -> None:
    engine = engine_of({0: 1.0, 1: 2.0, 2: 3.0})
    federation, method = started("fedgwc", engine, SPEC, participation=1.0, mu=0.1, server_momentum=0.5)
    first = method.model_of(0)
    one_round(federation, method)
    [anchor] = engine.jobs[0].steps[0].anchors
    assert anchor.strength == 0.1 and anchor.to == engine.jobs[0].steps[0].model
    one_round(federation, method)
    assert moved(first, method.model_of(0)) == 2 + (2 + 0.5 * 2)  # the mean of 1, 2, 3, then with half of the last
    method.divide(federation, 0, [[0, 1], [2]])
    assert method.velocity[1] == method.velocity[0] and method.evidence.age == {0: 0, 1: 0}


def test_silent_and_single_clients_are_no_evidence() -> None:
    engine = engine_of(two_groups())
    federation, method = started("fedgwc", engine, SPEC, participation=0.5)
    engine.silent = set(range(1, 12))
    one_round(federation, method, [0, 1, 2])
    assert method.evidence.rounds == []
    engine.silent = set(range(12))
    one_round(federation, method, [0, 1, 2])
    assert method.evidence.rounds == [] and method.diagnostics() == {}


def test_whoever_was_never_seen_is_placed_when_next_sampled() -> None:
    federation, method = started("fedgwc", engine_of(two_groups()), SPEC, participation=0.25)
    method.divide(federation, 0, [[0, 2, 4], [1, 3, 5]])
    assert 11 not in method.clusters()
    federation.begin_round(1)
    assert len(set(method.sample(federation)) & set(range(6, 12))) == 3  # who has no cluster counts as one
    one_round(federation, method, [0, 11])
    assert method.clusters()[11] in (0, 1)


def seen(number: int, members: list[int], sampled: list[int], losses: np.ndarray, cluster: int = 0) -> Seen:
    return Seen(number, cluster, members, sampled, losses, [10 * (client + 1) for client in sampled])


def test_the_printed_matrix_and_its_mean_squared_error() -> None:
    """Rewards exp(-1/2), 1 and exp(-1/2) of three of four clients, alpha 0.1 from 0: nine of sixteen entries move."""
    matrix = SettledMatrix("paper", alpha=0.1, epsilon=1e-5, beta=0.5, most=10)
    losses = np.array([[1.0], [2.0], [3.0]])
    matrix.observe(seen(1, [0, 1, 2, 3], [0, 1, 3], losses))
    low, high = 0.1 * np.exp(-0.5), 0.1
    expected = np.array([[low, low, 0, low], [high, high, 0, high], [0, 0, 0, 0], [low, low, 0, low]])
    assert matrix.matrix.numpy() == pytest.approx(expected)
    assert matrix.mse[0] == pytest.approx((3 * high**2 + 6 * low**2) / 16)
    assert matrix.parts(seen(1, [0, 1, 2, 3], [0, 1, 3], losses), np.random.default_rng(0)) == [[0, 1, 2, 3]]


def test_gaussian_weights_are_the_diagonal() -> None:
    """Eq. 2 from 0 with alpha 0.1: client 0 has rewards exp(-1/2) and then, when all losses are equal, 1."""
    matrix = SettledMatrix("paper", alpha=0.1, epsilon=1e-5, beta=0.5, most=10)
    for number, losses in enumerate(([[1.0], [2.0], [3.0]], [[2.0], [2.0], [2.0]]), 1):
        matrix.observe(seen(number, [0, 1, 2, 3], [0, 1, 3], np.array(losses)))
    weight = 0.9 * (0.1 * np.exp(-0.5)) + 0.1
    assert np.diag(matrix.matrix.numpy()) == pytest.approx([weight, 0.9 * 0.1 + 0.1, 0, weight])


def test_how_the_matrix_settles_is_told_by_cluster_and_round() -> None:
    matrix = SettledMatrix("paper", alpha=0.1, epsilon=1e-5, beta=0.5, most=10)
    losses = np.array([[1.0], [2.0], [3.0]])
    first, second = seen(1, [0, 1, 2], [0, 1, 2], losses), seen(2, [3, 4, 5], [3, 4, 5], losses, cluster=1)
    assert matrix.diagnostics() == {}
    matrix.observe(first)
    matrix.observe(second)
    told = matrix.diagnostics()["by_round"][CHANGE]
    assert {name: rows[:, 0].tolist() for name, rows in told.items()} == {"cluster 0": [1.0], "cluster 1": [2.0]}
    assert told["cluster 1"][0, 1] == matrix.mse[1]


def test_how_mean_rewards_settle_by_hand() -> None:
    """Two clients, differences 2 and then 0 of losses: rewards exp(-1/2) and 1, the mean of both in the end."""
    history = LossHistory(level=0.01, beta=1.0, most=4)
    low = float(np.exp(-0.5))  # variance 2, so a difference of sqrt(2) deviations: exp(-2 / 4)
    for number, losses in enumerate(([[1.0], [3.0]], [[2.0], [2.0]]), 1):
        history.observe(seen(number, [0, 1], [0, 1], np.array(losses)))
    first, second = (1 + 1 + 2 * low**2) / 4, 2 * ((1 - low) / 2) ** 2 / 4
    assert history.changes() == [(1, pytest.approx(first)), (2, pytest.approx(second))]


def test_every_further_look_is_stricter(monkeypatch: pytest.MonkeyPatch) -> None:
    levels = []
    for test in ("find_movers", "find_groups"):
        monkeypatch.setattr(f"feddag.server.evidence.{test}", lambda *args: levels.append(args[3]))
    history, everybody = LossHistory(level=0.06, beta=1.0, most=4), list(range(8))
    for number in range(1, 24):
        last = seen(number, everybody, everybody, np.ones((8, 2)))
        history.observe(last)
        history.parts(last, np.random.default_rng(0))
    # 1/2, 1/6, 1/12: so on for ever, all of it, of which a tenth is for the test of movements.
    assert levels == pytest.approx([0.1 * 0.03, 0.9 * 0.03, 0.1 * 0.01, 0.9 * 0.01, 0.1 * 0.005, 0.9 * 0.005])
    history.divided([0])
    assert history.looks == {0: 0}


def test_clusters_whose_members_leave_and_newcomers() -> None:
    federation, method = started("fedgwc-paper", engine_of(two_groups()), SPEC, participation=0.5)
    method.divide(federation, 0, [list(range(0, 12, 2)), list(range(1, 12, 2))])
    gone = [*range(1, 12, 2), 0]
    method.leave(federation, gone)
    assert set(method.clusters()) == {2, 4, 6, 8, 10}
    one_round(federation, method, [2, 4, 6])
    assert method.evidence.interactions([2, 4]).shape == (2, 2)
    method.join(federation, [1, 3])
    assert set(method.clusters()) == {1, 2, 3, 4, 6, 8, 10}
    one_round(federation, method)
    one_round(federation, method)


def test_the_released_matrix_its_smoothed_error_and_its_patience() -> None:
    """Two of four clients: alpha 1/2, start 1/16, rewards that add up to 1."""
    matrix = SettledMatrix("released", alpha=0.0, epsilon=0.9, beta=0.1, most=4)
    losses = np.array([[1.0], [5.0]])
    rewards = gaussian_rewards(losses, [10, 20])
    new = 0.5 / 16 + 0.5 * rewards / rewards.sum()
    observed = seen(1, [0, 1, 2, 3], [0, 1], losses)
    matrix.observe(observed)
    assert matrix.matrix.numpy()[:2, :2] == pytest.approx(np.repeat(new[:, None], 2, axis=1))
    assert matrix.matrix.numpy()[2, 3] == 1 / 16
    assert matrix.mse[0] == pytest.approx(0.5 + 0.5 * ((new - 1 / 16) ** 2).mean())
    assert matrix.patience == {0: 1}  # two rounds below epsilon are asked for: 4 clients, 2 a round
    assert len(matrix.parts(observed, np.random.default_rng(0))) == 1 and matrix.mse[0] < 1
    matrix.observe(observed)
    matrix.parts(observed, np.random.default_rng(0))
    assert matrix.mse[0] == 1.0  # it was tried, and has to settle again


def test_children_inherit_rows_and_columns_and_settle_afresh() -> None:
    matrix = SettledMatrix("paper", alpha=0.5, epsilon=1.0, beta=0.5, most=2)
    matrix.observe(seen(1, [3, 5, 8, 9], [3, 5, 8, 9], np.array([[1.0], [2.0], [3.0], [9.0]])))
    whole = matrix.interactions([3, 5, 8, 9])
    matrix.divided([0, 1])
    assert matrix.interactions([5, 9]) == pytest.approx(whole[np.ix_([1, 3], [1, 3])])
    assert matrix.mse == {0: 1.0, 1: 1.0} and matrix.patience == {0: 0, 1: 0}
    matrix.observe(seen(2, [5, 9], [5, 9], np.array([[1.0], [1.0]]), cluster=1))
    two = seen(2, [5, 9], [5, 9], np.array([[1.0], [1.0]]), cluster=1)
    assert matrix.parts(two, np.random.default_rng(0)) == [[5, 9]]  # two clients have no perception vectors


def test_a_settled_matrix_is_split_as_printed() -> None:
    """A mix as in the paper: most clients near the mean, four far from it, so that their rewards are small."""
    levels = np.array([0.0, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, 5.0, 5.01, 4.99, 5.0])[:, None]
    matrix = SettledMatrix("paper", alpha=0.5, epsilon=1e-5, beta=0.5, most=4)
    everybody = list(range(12))
    for number in range(1, 30):
        last = seen(number, everybody, everybody, levels)
        matrix.observe(last)
        parts = matrix.parts(last, np.random.default_rng(0))
        if len(parts) > 1:
            break
    assert number > 5 and parts == [list(range(8)), [8, 9, 10, 11]]


def test_losses_are_looked_at_ever_more_rarely_and_forgotten() -> None:
    history = LossHistory(level=0.02, beta=1.0, most=4)
    draw, looks = np.random.default_rng(0), []
    everybody = list(range(8))
    for number in range(1, 60):
        last = seen(number, everybody, everybody, draw.normal(size=(8, 2)))
        history.observe(last)
        before = dict(history.next_look)
        history.parts(last, np.random.default_rng(0))
        looks += [number] if history.next_look != before else []
    assert looks == [10, 15, 23, 35, 53]
    history.observe(seen(1000, everybody, everybody, draw.normal(size=(8, 2))))
    assert len(history.rounds) == 1
    rare = LossHistory(level=0.02, beta=1.0, most=4)
    for number in range(1, 30):
        last = seen(number, everybody, [number % 8, (number + 1) % 8], draw.normal(size=(2, 2)))
        rare.observe(last)
        rare.parts(last, np.random.default_rng(0))
        assert bool(rare.next_look) == (2 * number >= LEAST_SEEN * 8)
