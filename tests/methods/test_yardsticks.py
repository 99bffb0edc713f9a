"""The yardsticks on a federation without samples: what they ask, and what they make of the answers."""

from collections.abc import Sequence

import pytest
import torch

from feddag.client.step import Result
from feddag.client.train import Anchor, Train
from feddag.federation import Engine, Federation, Job, Reply
from feddag.methods import all_methods
from feddag.models import ModelSpec
from feddag.weights import ClientId, Own, Ref, Weights, digest, nbytes

SAMPLES = {0: 10, 1: 30, 2: 20}


class Pretend(Engine):
    """Clients that answer with the model they got plus their number + 1; the silent ones do not answer."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.weights: dict[str, Weights] = {}
        self.silent: set[ClientId] = set()

    def population(self) -> tuple[ClientId, ...]:
        return tuple(SAMPLES)

    def put(self, weights: Weights) -> Ref:
        self.weights[digest(weights)] = weights
        return Ref(digest(weights), nbytes(weights))

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        self.jobs = list(jobs)
        replies = []
        for job in jobs:
            step = job.steps[0]
            assert isinstance(step, Train)
            sent = self.weights[step.model.digest] if isinstance(step.model, Ref) else {}
            moved = {name: value + job.client + 1 for name, value in sent.items()}
            if job.client not in self.silent:
                replies.append(Reply(job.client, [Result(weights=moved if step.send else None)], SAMPLES[job.client]))
        return replies, dict.fromkeys(self.silent, "silent")

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return {}

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def engine() -> Pretend:
    return Pretend()


def started(name: str, engine: Pretend, **settings: float):
    federation = Federation(engine, ModelSpec("mlp", (2,), 2), 0, participation=1.0, truth={0: 0, 1: 0, 2: 1})
    kind = all_methods()[name]
    method = kind(kind.Settings(**settings))
    method.start(federation)
    return federation, method


def moved_by(before: Weights, after: Weights) -> float:
    [step] = {round(float(value), 4) for name in before for value in (after[name] - before[name]).flatten()}
    return step


def test_fedavg_weighs_by_samples(engine) -> None:
    federation, method = started("fedavg", engine)
    before = method.model_of(0)
    method.round(federation, [0, 1, 2])
    assert moved_by(before, method.model_of(2)) == pytest.approx((10 * 1 + 30 * 2 + 20 * 3) / 60, abs=1e-4)


def test_fairavg_weighs_all_alike(engine) -> None:
    federation, method = started("fairavg", engine)
    before = method.model_of(0)
    method.round(federation, [0, 1, 2])
    assert moved_by(before, method.model_of(2)) == 2


def test_fedprox_sends_its_mu(engine) -> None:
    federation, method = started("fedprox", engine, mu=0.3)
    method.round(federation, [0])
    step = engine.jobs[0].steps[0]
    assert step.anchors == (Anchor(step.model, 0.3),)


def test_fedavgm_carries_its_velocity_over(engine) -> None:
    federation, method = started("fedavgm", engine, server_momentum=0.5, server_lr=1.0)
    start = method.model_of(0)
    method.round(federation, [0])  # velocity -1
    assert moved_by(start, method.model_of(0)) == 1
    method.round(federation, [0])  # velocity 0.5 * -1 - 1
    assert moved_by(start, method.model_of(0)) == 2.5


def test_oracle_trains_one_model_per_true_group(engine) -> None:
    federation, method = started("oracle", engine)
    before = method.model_of(0)
    method.round(federation, [0, 1, 2])
    assert moved_by(before, method.model_of(0)) == 1.75  # (10 * 1 + 30 * 2) / 40
    assert method.model_of(0) is method.model_of(1)
    assert moved_by(before, method.model_of(2)) == 3
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
