"""The baselines on a federation without samples: what they ask, and what they make of the answers."""

import pytest
import torch

from feddag import testing
from feddag.client.train import Anchor
from feddag.experiment import Experiment
from feddag.methods import all_methods
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved
from feddag.weights import Own, Ref

SAMPLES = {0: 10, 1: 30, 2: 20}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(SAMPLES)


def started(name: str, engine: FakeEngine, **settings: float):
    return testing.started(name, engine, ModelSpec("mlp", (2,), 2), truth={0: 0, 1: 0, 2: 1}, **settings)


def test_fedavg_weighs_by_samples(engine) -> None:
    federation, method = started("fedavg", engine)
    before = method.model_of(0)
    method.round(federation, [0, 1, 2])
    assert moved(before, method.model_of(2)) == pytest.approx((10 * 1 + 30 * 2 + 20 * 3) / 60, abs=1e-4)


def test_fairavg_weighs_all_alike(engine) -> None:
    federation, method = started("fairavg", engine)
    before = method.model_of(0)
    method.round(federation, [0, 1, 2])
    assert moved(before, method.model_of(2)) == 2


def test_fedprox_sends_its_mu(engine) -> None:
    federation, method = started("fedprox", engine, mu=0.3)
    method.round(federation, [0])
    step = engine.jobs[0].steps[0]
    assert step.anchors == (Anchor(step.model, 0.3),)


def test_fedavgm_carries_its_velocity_over(engine) -> None:
    federation, method = started("fedavgm", engine, server_momentum=0.5, server_lr=1.0)
    start = method.model_of(0)
    method.round(federation, [0])  # velocity -1
    assert moved(start, method.model_of(0)) == 1
    method.round(federation, [0])  # velocity 0.5 * -1 - 1
    assert moved(start, method.model_of(0)) == 2.5


def test_oracle_trains_one_model_per_true_group(engine) -> None:
    federation, method = started("oracle", engine)
    before = method.model_of(0)
    method.round(federation, [0, 1, 2])
    assert moved(before, method.model_of(0)) == 1.75  # (10 * 1 + 30 * 2) / 40
    assert method.model_of(0) is method.model_of(1)
    assert moved(before, method.model_of(2)) == 3
    assert method.clusters() == {0: 0, 1: 0, 2: 1}


def test_a_group_of_which_nobody_is_sampled_keeps_its_model(engine) -> None:
    federation, method = started("oracle", engine)
    before = method.model_of(2)
    method.round(federation, [0, 1])
    assert method.model_of(2) is before


def test_local_starts_from_the_common_model_and_goes_on_with_its_own(engine) -> None:
    federation, method = started("local", engine)
    assert torch.equal(method.model_of(1)["head.weight"], federation.initial_weights()["head.weight"])
    method.round(federation, [1])
    assert isinstance(engine.jobs[0].steps[0].model, Ref) and not engine.jobs[0].steps[0].send
    assert method.model_of(1) == Own("model")
    method.round(federation, [0, 1])
    assert isinstance(engine.jobs[0].steps[0].model, Ref)
    assert engine.jobs[1].steps[0].model == Own("model")
    assert not list(engine.jobs[1].steps[0].payload())


@pytest.mark.parametrize("name", ["fedavg", "fairavg", "fedprox", "fedavgm", "oracle", "local"])
def test_a_round_that_nobody_answers_changes_nothing(engine, name) -> None:
    federation, method = started(name, engine)
    engine.silent = set(SAMPLES)
    before = method.model_of(1)
    method.round(federation, [0, 1, 2])
    assert method.model_of(1) is before
    assert federation.missing == dict.fromkeys(SAMPLES, "silent")


@pytest.mark.parametrize(("participation", "expected"), [(0.01, 1), (0.5, 2), (1.0, 3)])
def test_sampling_takes_the_share_and_at_least_one(engine, participation, expected) -> None:
    federation, method = started("fedavg", engine)
    federation.participation = participation
    drawn = []
    for number in range(1, 30):
        federation.begin_round(number)
        drawn.append(tuple(method.sample(federation)))
    assert {len(set(sampled)) for sampled in drawn} == {expected}
    assert {client for sampled in drawn for client in sampled} == set(SAMPLES)


# Stabilisers ----------------------------------------------------------------------------------------------------------


def of_client(engine: FakeEngine, client: int, served):
    """The weights that a client uses, as its engine puts them together."""
    layers = served if isinstance(served, tuple) else (served,)
    return engine.resolve(client, tuple(one if isinstance(one, Own) else engine.put(one) for one in layers), {})


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_method_has_the_stabilisers(name) -> None:
    settings = all_methods()[name].Settings()
    off = (settings.sampling, settings.balanced, settings.smoothing) == ("all", False, 0.0)
    stabilised = name in ("feddag", "feddag-star", "feddag-dagger") or name.startswith("fedgwc")
    assert off != stabilised  # not the paper, nor its code; FedGWC samples in clusters
    local = Experiment(method=name, balanced=True, smoothing=0.5, sampling="clusters").local
    assert local.balanced and not Experiment(method=name, balanced=False).local.balanced


@pytest.mark.parametrize("name", ["fedavg", "fairavg", "fedprox", "local", "ditto"])
def test_smoothing_averages_over_rounds_what_a_client_uses(engine, name) -> None:
    federation, method = started(name, engine, smoothing=0.5)
    start = of_client(engine, 1, method.model_of(1))
    used = []
    for _ in range(3):  # client 1 adds 2 in each round: 2, 4, 6
        method.round(federation, [1])
        used.append(moved(start, of_client(engine, 1, method.model_of(1))))
    # The weights of rounds 1, 2, 3 are 1 : 2 : 4 with smoothing 0.5.
    assert used == pytest.approx([2, (2 + 2 * 4) / 3, (2 + 2 * 4 + 4 * 6) / 7], abs=1e-3)
    trained = {"local": Own("model"), "ditto": Own("personal")}.get(name) or method.weights
    assert moved(start, of_client(engine, 1, trained)) == 6  # training goes on from what was trained
    engine.silent = set(SAMPLES)
    before = of_client(engine, 1, method.model_of(1))
    method.round(federation, [1])
    assert moved(before, of_client(engine, 1, method.model_of(1))) == 0


def test_without_smoothing_a_client_keeps_one_model(engine) -> None:
    federation, method = started("local", engine)
    method.round(federation, [1])
    assert {name.partition("/")[0] for name in engine.memory[1][1]} == {"model"}


def test_a_client_that_ditto_never_asked_uses_the_smoothed_common_model(engine) -> None:
    federation, method = started("ditto", engine, smoothing=0.5)
    start = federation.initial_weights()
    method.round(federation, [0])
    method.round(federation, [0])  # the common model moves by 1 in each round
    assert moved(start, of_client(engine, 2, method.model_of(2))) == pytest.approx((1 + 2 * 2) / 3, abs=1e-3)


@pytest.mark.parametrize("name", ["fedavg", "local", "ditto"])
def test_one_model_is_one_cluster_to_sample_from(engine, name) -> None:
    federation, every = started(name, engine)
    _, clusters = started(name, engine, sampling="clusters")
    federation.participation = 0.5
    for number in range(1, 5):
        federation.begin_round(number)
        assert clusters.sample(federation) == every.sample(federation)
