"""FedDAG's start by default: clients sign without a warm-up, and no model travels before the first round."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import feddag
from feddag import testing
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.federation import Federation, Job
from feddag.methods import find_method
from feddag.methods.feddag import FedDAGStar
from feddag.testing import moved
from feddag.weights import ClientId, only
from tests.methods.pretend import SINGLE, SPEC, TWO, WARM, Pretend, told

ONE_ROUND: dict[str, Any] = {"clients": 4, "rounds": 1, "epochs": 1, "participation": 1.0, "finetune": False}
NAMES = ("feddag", "feddag-star")


def begun(
    held: dict[ClientId, list[int]], name: str = "feddag", participation: float = 1.0, **settings: Any
) -> tuple[Pretend, Federation, FedDAGStar]:
    """A method with its own defaults, beside clients that only pretend."""
    kind = find_method(name)
    single = kind.encoders_for(kind.Settings(**settings)) == 1
    engine = Pretend(held, single)
    federation, method = testing.started(
        name, engine, SINGLE if single else SPEC, participation=participation, **settings
    )
    assert isinstance(method, FedDAGStar)
    return engine, federation, method


# Signing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_by_default_samples_are_compared_and_all_start_alike(name: str) -> None:
    own = find_method(name).Settings()
    assert (own.similarity, own.primary_start, own.softmax) == ("data", "common", "own")
    _, federation, method = begun(TWO, name)
    assert method.clusters() == {0: 0, 1: 1, 2: 0, 3: 1} and not method.warms_up()
    start = only(federation.initial_weights(), ("encoder",))
    for model in method.groups.trained.values():
        assert all(torch.equal(model[name], value) for name, value in start.items())


@pytest.mark.parametrize("name", NAMES)
def test_by_default_no_model_travels_down_and_no_update_up_while_clients_sign(name: str) -> None:
    engine, federation, method = begun(TWO, name)
    steps = [step for job in engine.jobs for step in job.steps]
    assert len(steps) == 4 and all(isinstance(step, MakeSignature) for step in steps)
    assert {(step.model, step.steps, step.epochs, step.send) for step in steps} == {((), 0, 0, False)}
    assert all(signed["update"].numel() == 0 for signed in method.membership.signatures.values())
    assert federation.traffic.down["warm-up"] == 0
    sizes = [sum(array.nbytes for array in signed.values()) for signed in method.membership.signatures.values()]
    assert federation.traffic.up["warm-up"] == sum(sizes) + 4 * 8  # and the number of each one's samples


def test_by_default_a_run_begins_without_training() -> None:
    by_phase = {}
    for how, settings in (("default", {}), ("warm", WARM)):
        run = feddag.run(feddag.Experiment(method="feddag", workers=1, **ONE_ROUND, **settings))
        by_phase[how] = run.result["training_flops_by_phase"], run.result["bytes_by_phase"]
    flops, sizes = by_phase["default"]
    assert flops["warm-up"] == 0 < flops["primary"] and sizes["down"]["warm-up"] == 0 < sizes["up"]["warm-up"]
    flops, sizes = by_phase["warm"]
    assert flops["warm-up"] > 0 < sizes["down"]["warm-up"]


@pytest.mark.parametrize(
    ("settings", "trains"),
    [
        ({"similarity": "fused"}, True),
        ({"similarity": "gradient", "style": False}, True),
        ({"fusion": "mlp"}, True),  # a printed fusion names its own views
        ({"fusion": "data"}, False),
        ({"primary_start": "warm"}, True),
        ({"primary_start": "random"}, False),
        ({"sharing": "encoder"}, True),  # second encoders start warm
        ({"sharing": "encoder", "secondary_start": "random"}, False),
        ({"warmup_epochs": 2}, False),
        ({"warmup_epochs": 2, "similarity": "fused"}, True),
    ],
)
def test_clients_train_before_they_sign_only_for_what_needs_it(settings: dict[str, Any], trains: bool) -> None:
    engine, _, method = begun(TWO, **settings)
    assert method.warms_up() == trains
    for job in engine.jobs:
        [step] = job.steps
        assert isinstance(step, MakeSignature) and step.trains == trains and bool(step.model) == trains


def test_features_are_those_of_a_model_that_is_sent_and_not_trained() -> None:
    run = feddag.run(feddag.Experiment(method="feddag", inputs="features", workers=1, **ONE_ROUND))
    assert run.result["training_flops_by_phase"]["warm-up"] == 0 < run.result["bytes_by_phase"]["down"]["warm-up"]


# Groups that are founded later ----------------------------------------------------------------------------------------

UNEVEN = {0: [0, 1], 1: [2, 3], 2: [2, 3]}


def after_a_round(**settings: Any) -> tuple[Pretend, Federation, FedDAGStar]:
    """Group 0 of one client and group 1 of two, whose encoders have parted; client 5 is like neither."""
    engine, federation, method = begun(UNEVEN, "feddag-star", **settings)
    testing.one_round(federation, method, [0, 1, 2])
    engine.held[5] = [1, 2]
    return engine, federation, method


def test_a_later_group_starts_from_the_largest_groups_encoder_and_a_training_of_its_founder() -> None:
    engine, federation, method = after_a_round()
    largest = method.groups.trained[1]
    assert method.groups.cluster_of == {0: 0, 1: 1, 2: 1}
    assert moved(method.groups.trained[0], largest, "encoder") != 0
    method.join(federation, [5])
    assert method.groups.cluster_of[5] == 2 and told(federation) == ["client 5 joined cluster 2"]
    [job] = engine.jobs  # the last exchange: nobody else is asked
    [step] = job.steps
    assert job.client == 5 and type(step) is Train and step.parts == ("encoder", "head") and step.balanced
    founded = method.groups.trained[2]
    assert moved(largest, founded, "encoder") == 6  # client 5 adds 6 in a training
    assert moved(method.initial_weights(federation, "cluster 2"), founded, "head") == 6  # of its own, and fresh
    assert all(torch.equal(method.groups.served[2][name], value) for name, value in founded.items())
    assert method.groups.trained[1] is largest


def test_a_later_group_whose_founder_does_not_train_has_the_largest_groups_encoder() -> None:
    engine, federation, method = after_a_round()
    perform = engine.perform

    def deaf_to_training(jobs: Sequence[Job], round: int, exchange: int) -> Any:
        engine.silent = {5} if any(isinstance(step, Train) for job in jobs for step in job.steps) else set()
        return perform(jobs, round, exchange)

    engine.perform = deaf_to_training  # type: ignore[method-assign]
    method.join(federation, [5])
    assert method.groups.cluster_of[5] == 2 and federation.missing == {5: "silent"}
    assert moved(method.groups.trained[1], method.groups.trained[2], "encoder") == 0
    assert moved(method.initial_weights(federation, "cluster 2"), method.groups.trained[2], "head") == 0


def test_a_later_group_with_a_warm_up_starts_from_that_and_nobody_trains_again() -> None:
    engine, federation, method = after_a_round(**WARM)
    method.join(federation, [5])
    assert all(isinstance(step, MakeSignature) for job in engine.jobs for step in job.steps)
    assert set(method.groups.trained[2]["encoder.1.weight"].flatten().tolist()) == {5}  # what it pretends to have sent


@pytest.mark.parametrize(("name", "how"), [("feddag-dagger", {}), ("feddag", {"sharing": "encoder"})])
def test_a_later_group_with_two_encoders_has_a_trained_first_one(name: str, how: dict[str, Any]) -> None:
    """The second encoder starts from warm-ups by default, the first one does not."""
    engine, federation, method = begun(UNEVEN, name, **how)
    testing.one_round(federation, method, [0, 1, 2])
    engine.held[5] = [1, 2]
    method.join(federation, [5])
    founded = method.groups.trained[method.groups.cluster_of[5]]
    assert moved(method.groups.trained[1], founded, "encoder") == 6  # client 5 adds 6 in a training
    assert moved(method.initial_weights(federation, "cluster 2"), founded, "head") == 6
    [step] = engine.jobs[0].steps
    assert step.phase == "primary"


def test_founders_train_and_their_kin_have_what_they_trained() -> None:
    """Client 5 founds cluster 2; client 6 founds 3, which is kin of 2 and nobody else."""
    engine, federation, method = begun(UNEVEN, "feddag-star")
    testing.one_round(federation, method, [0, 1, 2])
    before = dict(method.groups.trained)
    engine.held |= {5: [1, 2], 6: [0, 3]}
    method.membership.nearest = lambda client: None  # type: ignore[method-assign]
    method.second.kin = lambda cluster: [2, 3] if cluster == 3 else [cluster]  # type: ignore[method-assign]
    method.second.from_kin = lambda models, cluster: models[2] if cluster == 3 else None  # type: ignore[method-assign]
    asked, perform = [], engine.perform

    def noted(jobs: Sequence[Job], round: int, exchange: int) -> Any:
        asked.extend(job.client for job in jobs if type(job.steps[0]) is Train)
        return perform(jobs, round, exchange)

    engine.perform = noted  # type: ignore[method-assign]
    method.join(federation, [5, 6])
    assert asked == [5]
    founded = method.groups.trained[2]
    assert moved(method.groups.trained[1], founded, "encoder") == 6
    assert method.groups.trained[3] is method.groups.trained[2] and method.groups.served[3] is method.groups.served[2]
    assert {z: method.groups.trained[z] for z in before} == before
