"""FedDAG on clients that only pretend to train, by hand; then real runs of a federation that changes."""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag import testing
from feddag.client.evaluate import Monitor
from feddag.client.signature import Signature
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings, NativeTrainer, TorchTrainer
from feddag.client.warmup import MakeSignature
from feddag.errors import FeddagError
from feddag.federation import Federation, Job, Reply
from feddag.methods import find_method
from feddag.methods.feddag import FedDAG, FedDAGStar
from feddag.methods.feddag.sharing import SHARPNESS
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved
from feddag.weights import ClientId, Weights, only

SPEC = ModelSpec("mlp", (8,), 4, encoders=2)
SINGLE = ModelSpec("mlp", (8,), 4)


def signed(labels: Sequence[int], coordinates: int) -> Signature:
    """Thirty samples of each label, in a direction that belongs to the label."""
    y = np.repeat(labels, 30)
    x = np.eye(8)[y] * 5 + np.random.default_rng(0).normal(size=(len(y), 8))
    update = np.eye(4, coordinates)[list(labels)].sum(0)
    return feddag.signature(x, y, 4, inputs="raw", update=update, update_reliability=0.99)


class Pretend(FakeEngine):
    """Fake clients that hold these labels; warm-ups answer with their number in place of every weight."""

    def __init__(self, held: Mapping[ClientId, Sequence[int]], single: bool = False) -> None:
        samples = {client: 10 * (client + 1) for client in range(10)}
        super().__init__(samples, answers={MakeSignature: self.sign, Monitor: self.look})
        self.held = dict(held)
        self.loss = dict.fromkeys(held, 0.1)
        self.single = single

    def population(self) -> tuple[ClientId, ...]:
        return tuple(sorted(self.held))

    def look(self, _: FakeEngine, client: ClientId, step: Monitor, current: Weights) -> Result:
        counts = np.bincount(np.repeat(self.held[client], 30), minlength=4)
        return Result(arrays={"counts": torch.tensor(counts), "loss": torch.tensor([self.loss[client]])})

    def sign(self, _: FakeEngine, client: ClientId, step: MakeSignature, current: Weights) -> Result:
        asked = step.shapes(SINGLE if self.single else SPEC)
        made = signed(self.held[client], asked["update"][0])
        arrays = {name: torch.from_numpy(np.atleast_1d(array)) for name, array in vars(made).items() if name in asked}
        start = only(self.weights[step.model.digest], step.parts)
        sent = {name: torch.full_like(value, client) for name, value in start.items()}
        return Result(weights=sent if step.send else None, arrays=arrays)


def started(
    held: Mapping[ClientId, Sequence[int]], name: str = "feddag", participation: float = 1.0, **settings: Any
) -> tuple[Pretend, Federation, FedDAG]:
    kind = find_method(name)
    engine = Pretend(held, kind.encoders == 1)
    wanted = {name: value for name, value in (PAPER | settings).items() if name in kind.Settings.model_fields}
    model = SPEC if kind.encoders == 2 else SINGLE
    federation, method = testing.started(name, engine, model, participation=participation, **wanted)
    assert isinstance(method, FedDAGStar)
    return engine, federation, method


TWO = {0: [0, 1], 1: [2, 3], 2: [0, 1], 3: [2, 3]}
PAPER = {"smoothing": 0.0, "classifier": "source", "secondary_start": "random"}
"""What is computed by hand here follows the paper where our defaults do not."""


def told(federation: Federation) -> list[str]:
    return [event.text for event in federation.events()]


def alarms(federation: Federation) -> list[ClientId]:
    return [client for event in federation.events() if event.kind == "drift" for client in event.clients]


def test_the_groups_and_the_first_models() -> None:
    _, federation, method = started(TWO)
    assert method.clusters() == {0: 0, 1: 1, 2: 0, 3: 1}
    first = method.model_of(0)
    assert float(first["encoder.1.weight"][0, 0]) == pytest.approx(
        (10 * 0 + 30 * 2) / 40
    )  # Eq. 22, weighted by samples
    fresh = federation.initial_weights("cluster 0")
    for name in only(fresh, ("secondary", "head")):
        assert torch.equal(first[name], fresh[name])


def test_a_round_by_hand() -> None:
    _, federation, method = started(TWO)
    assert sorted(method.second.graph) == [(0, 1), (1, 0)]  # two clusters: each learns from the other
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2, 3])
    # Eq. 18: clients 0 and 2 move by 1 and 3 and have 10 and 30 samples; 1 and 3 by 2 and 4 with 20 and 40.
    assert (
        moved(before[0], method.groups.trained[0], "encoder")
        == moved(before[0], method.groups.trained[0], "head")
        == 2.5
    )
    assert moved(before[1], method.groups.trained[1], "encoder") == pytest.approx(10 / 3, abs=1e-4)
    # Eq. 21: a learner moves as its source's clients did.
    assert moved(before[0], method.groups.trained[0], "secondary") == pytest.approx(10 / 3, abs=1e-4)
    assert moved(before[1], method.groups.trained[1], "secondary") == 2.5
    assert {"primary", "secondary"} <= set(federation.traffic.up)


def test_one_exchange_trains_what_it_should() -> None:
    engine, federation, method = started(TWO, secondary_beside="own")
    federation.begin_round(1)
    method.round(federation, [0, 1])
    for job in engine.jobs:
        primary, secondary = job.steps
        assert isinstance(primary, Train) and isinstance(secondary, Train)
        assert primary.parts == ("encoder", "head") and secondary.parts == ("secondary",)
        beside, visiting = secondary.model
        assert beside is None and visiting is not None  # beside what was just trained here


@pytest.mark.parametrize(("combined", "expected"), [("mean", 1.0), ("sum", 2.0)])
def test_learners_encoders_are_combined(combined: str, expected: float) -> None:
    _, _, method = started({0: [0], 1: [1], 2: [2]}, learner_encoders=combined, sources=2)
    for model in method.groups.trained.values():
        model.update({name: torch.ones_like(value) for name, value in only(model, ("secondary",)).items()})
    assert method.second.learners(0) == [1, 2]
    assert {float(v) for w in method.second.combined(method.groups.trained, [1, 2]).values() for v in w.flatten()} == {
        expected
    }


@pytest.mark.parametrize(("several", "expected"), [("mean", 2.5), ("sum", 5.0)])
def test_updates_of_several_sources(several: str, expected: float) -> None:
    _, federation, method = started({0: [0], 1: [1], 2: [2]}, source_updates=several)
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2])
    assert moved(before[0], method.groups.trained[0], "secondary") == expected  # from clusters 1 and 2: 2 and 3


def test_a_source_after_another_sees_what_the_one_before_left() -> None:
    engine, federation, method = started({0: [0], 1: [1], 2: [2]}, source_updates="sequence")
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2])
    [last] = engine.jobs
    assert last.client == 2  # everyone is asked once, cluster by cluster
    seen = engine.weights[last.steps[1].model[1].digest]
    start = method.second.combined(before, [0, 1])
    assert moved(start, seen, "secondary") == 1.5  # its learners had moved by 2 (from cluster 1) and 1 (from 0)
    assert moved(before[0], method.groups.trained[0], "secondary") == 5.0
    assert [moved(before[z], method.groups.trained[z], "encoder") for z in range(3)] == [1, 2, 3]


def test_against_a_common_classifier_everyone_asks_the_same_of_an_encoder() -> None:
    engine, federation, method = started(TWO, classifier="common")
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2, 3])
    heads = []
    for job in engine.jobs:
        visiting = engine.weights[job.steps[1].model[1].digest]
        assert set(only(visiting, ("head",))) == {"head.weight", "head.bias"}
        assert job.steps[1].parts == ("secondary",)  # the classifier itself stands still
        heads.append(visiting["head.weight"])
    width = heads[0].shape[1] // 2
    assert all(torch.equal(heads[0], head) for head in heads)
    assert not heads[0][:, :width].any()  # blind to the primary encoder
    assert torch.allclose(heads[0] @ heads[0].T, SHARPNESS**2 * torch.eye(len(heads[0])), atol=1e-4)
    # A cluster is a source for itself, too: both moved by the mean of 2.5 and 10 / 3.
    assert moved(before[0], method.groups.trained[0], "secondary") == pytest.approx((2.5 + 10 / 3) / 2, abs=1e-4)
    assert moved(before[0], method.groups.trained[0], "head") == 2.5  # its own head, by its own clients


def test_a_cluster_with_other_names_is_asked_for_the_same_looks() -> None:
    _, _, method = started(TWO, classifier="common")
    method.second.matched[1] = [3, 2, 1, 0]
    plain, turned = method.second.common_classifier(0)["head.weight"], method.second.common_classifier(1)["head.weight"]
    assert torch.equal(turned, plain.flip(0)) and not torch.equal(turned, plain)


def added_head(method: FedDAG, client: int) -> torch.Tensor:
    return (
        method.model_of(client)["head.weight"] - method.groups.trained[method.groups.cluster_of[client]]["head.weight"]
    )


def test_clients_use_the_common_classifier_beside_their_own() -> None:
    _, federation, method = started(TWO, classifier="common")
    method.second.matched[1] = [3, 2, 1, 0]
    for number in (1, 2):
        federation.begin_round(number)
        method.round(federation, [0, 1, 2, 3])
        for client, cluster in ((0, 0), (1, 1), (3, 1)):
            # Nobody has trained the first secondary encoders towards its directions: they have no say yet.
            expected = (number - 1) * method.second.common_classifier(cluster)["head.weight"]
            assert torch.allclose(added_head(method, client), expected, atol=1e-4)
        assert method.model_of(1) is method.model_of(3)  # one set of weights for all of a cluster
    _, federation, alone = started(TWO, classifier="common", scores="own")
    for number in (1, 2):
        federation.begin_round(number)
        alone.round(federation, [0, 1, 2, 3])
    assert not added_head(alone, 0).any()


def test_the_common_classifier_waits_for_the_first_secondary_round() -> None:
    _, federation, method = started(TWO, classifier="common", schedule="2:1", smoothing=0.5)
    for number, share in enumerate((0, 0, 0, 4 / 7), 1):  # one of three rounds, the one that counts most
        federation.begin_round(number)
        method.round(federation, [0, 1, 2, 3])
        primary = method.second.common_classifier(0)["head.weight"]
        told = added_head(method, 0)[:, primary.any(0)]
        aside = added_head(method, 0)[:, ~primary.any(0)]
        assert torch.allclose(told - aside.mean(), share * primary[:, primary.any(0)], atol=1e-3)


def test_what_is_used_has_the_secondary_encoder_that_its_head_knows() -> None:
    _, federation, method = started(TWO)
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2, 3])
    assert moved(before[0], method.model_of(0), "secondary") == 0 < moved(before[0], method.model_of(0), "head")


def test_the_ablations() -> None:
    engine, federation, star = started(TWO, "feddag-star")
    federation.begin_round(1)
    star.round(federation, [0])
    assert len(engine.jobs[0].steps) == 1 and not only(star.model_of(0), ("secondary",))
    engine, federation, dagger = started(TWO, "feddag-dagger")
    federation.begin_round(1)
    before = dict(dagger.groups.trained)
    dagger.round(federation, [0, 1, 2, 3])
    assert moved(before[0], dagger.groups.trained[0], "secondary") == 2.5  # by its own clients


def test_by_schedule_a_round_trains_the_one_or_the_other() -> None:
    engine, federation, method = started(TWO, schedule="2:1", secondary_beside="own")
    trained = []
    for number in range(1, 7):
        federation.begin_round(number)
        before = dict(method.groups.trained)
        method.round(federation, [0, 1, 2, 3])
        trained.append([step.phase for step in engine.jobs[0].steps])
    assert trained == [["primary"], ["primary"], ["secondary"]] * 2
    assert engine.jobs[0].steps[0].model is not None  # nothing was just trained that it could stand beside
    assert (
        moved(before[0], method.groups.trained[0], "encoder") == moved(before[0], method.groups.trained[0], "head") == 0
    )
    assert moved(before[0], method.groups.trained[0], "secondary") == pytest.approx(10 / 3, abs=1e-4)


@pytest.mark.parametrize(
    ("held", "clusters"),
    [
        ({0: [0, 1], 1: [0, 1], 2: [0, 1]}, 1),
        ({0: [0], 1: [1]}, 2),
        ({0: [0, 1]}, 1),
    ],
)
@pytest.mark.parametrize("name", ["feddag", "feddag-star", "feddag-dagger"])
def test_one_cluster_and_as_many_as_clients(held: dict[int, list[int]], clusters: int, name: str) -> None:
    _, federation, method = started(held, name, sources=7)  # more sources than there are clusters
    assert len(method.groups.trained) == clusters
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, method.sample(federation))
    assert moved(before[0], method.groups.trained[0], "encoder") > 0
    if name == "feddag" and clusters == 1:  # a learner with no source keeps its secondary encoder
        assert moved(before[0], method.groups.trained[0], "secondary") == 0


def test_a_cluster_of_which_nobody_is_sampled_or_answers_stays() -> None:
    engine, federation, method = started(TWO)
    federation.begin_round(1)
    before = dict(method.groups.trained)
    method.round(federation, [0])  # nobody of cluster 1, and so nobody trains cluster 0's secondary encoder
    assert (
        moved(before[1], method.groups.trained[1], "encoder")
        == 0
        == moved(before[0], method.groups.trained[0], "secondary")
    )
    engine.silent = set(TWO)
    before = dict(method.groups.trained)
    method.round(federation, [0, 1, 2, 3])
    assert all(torch.equal(before[z][name], method.groups.trained[z][name]) for z in before for name in before[z])


def test_sampling_inside_clusters_and_over_all() -> None:
    held = {client: [0, 1] if client < 8 else [2, 3] for client in range(10)}
    _, federation, method = started(held, participation=0.25)
    for number in range(1, 20):
        federation.begin_round(number)
        drawn = method.sample(federation)
        assert len([c for c in drawn if c < 8]) == 2 and len([c for c in drawn if c >= 8]) == 1
    _, federation, method = started(held, participation=0.25, sampling="all")
    assert len(method.sample(federation)) == 2


def test_smoothing_mixes_what_clients_use_and_not_what_is_trained() -> None:
    _, federation, method = started({0: [0, 1]}, smoothing=0.5)
    first = method.model_of(0)
    for number in (1, 2):
        federation.begin_round(number)
        method.round(federation, [0])
    assert moved(first, method.groups.trained[0], "encoder") == 2
    # The start counts for nothing, the second round twice as much as the first.
    assert moved(first, method.model_of(0), "encoder") == pytest.approx((1 * 1 + 2 * 2) / 3, abs=1e-3)


def test_a_cluster_that_nobody_was_asked_of_is_used_as_it_was() -> None:
    _, federation, method = started(TWO, smoothing=0.5)
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    before, other = method.model_of(0), method.model_of(1)
    federation.begin_round(2)
    method.round(federation, [1, 3])
    assert method.model_of(0) is before and method.model_of(1) is not other


def test_a_newcomer_joins_its_group_and_disturbs_nobody() -> None:
    engine, federation, method = started(TWO)
    before, labels = dict(method.groups.trained), dict(method.groups.cluster_of)
    engine.held |= {4: [2, 3], 5: [1, 2]}
    method.join(federation, [4, 5])
    assert method.groups.cluster_of == labels | {4: 1, 5: 2}  # the second is unlike both and founds its own
    assert all(method.groups.trained[z] is before[z] for z in before)
    assert method.model_of(4) is before[1]
    assert float(method.model_of(5)["encoder.1.weight"][0, 0]) == 5  # from its own warm-up
    assert sorted(source for learner, source in method.second.graph if learner == 2) == [0, 1]
    assert told(federation) == ["client 4 joined cluster 1", "client 5 joined cluster 2"] and told(federation) == []
    engine.held[6] = [1, 2]
    method.join(federation, [6])
    assert method.groups.cluster_of[6] == 2  # later ones find the new group


def test_newcomers_are_placed_alike_after_a_resume() -> None:
    engine, federation, method = started(TWO, drift_every=1)
    for number, held in enumerate(([0, 1], [1, 2], [0, 1]), 1):  # a founder goes to a group of its own, and comes back
        engine.held[0] = held
        federation.begin_round(number)
        method.round(federation, [])
    assert method.groups.cluster_of[0] == 0 and len(method.groups.trained) == 3
    resumed = FedDAG(method._settings)
    resumed.load_state_dict(copy.deepcopy(method.state_dict()))
    engine.held |= {5: [1, 2], 6: [0, 1]}
    for one in (method, resumed):
        one.join(federation, [5, 6])
        assert one.groups.cluster_of == {0: 0, 1: 1, 2: 0, 3: 1, 5: 2, 6: 0}


@pytest.mark.parametrize("fusion", ["mlp", "projected", "data", "gradient", "stacked"])
@pytest.mark.parametrize("classifier", ["common", "source"])
def test_newcomers_and_the_printed_fusions(fusion: str, classifier: str) -> None:
    engine, federation, method = started(TWO, fusion=fusion, classifier=classifier)
    groups = dict(method.groups.cluster_of)
    federation.begin_round(1)
    method.round(federation, [0, 1])
    engine.held |= {4: [2, 3]}
    method.join(federation, [4])
    assert method.groups.cluster_of == groups | {4: groups[1]}


def test_a_printed_fusion_names_its_own_views() -> None:
    with pytest.raises(FeddagError, match="similarity = 'data' does nothing with fusion = 'mlp'"):
        FedDAG.Settings(similarity="data", fusion="mlp")


def test_a_later_group_starts_its_secondary_encoder_among_the_others() -> None:
    engine, federation, method = started(TWO, secondary_start="warm")
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    engine.held |= {4: [1, 2]}
    expected = method.second.combined(method.groups.trained, [0, 1])
    method.join(federation, [4])
    assert all(torch.equal(value, method.groups.trained[2][name]) for name, value in expected.items())


def test_one_that_stays_silent_does_not_stop_a_federation_with_a_minimum() -> None:
    engine, _, method = started(TWO)
    federation = Federation(engine, SPEC, 0, 1.0, minimum=2)
    federation.put(method.groups.trained[0])
    engine.held |= {4: [2, 3]}
    engine.silent = {4}
    method.join(federation, [4])
    assert 4 not in method.groups.cluster_of and federation.missing == {4: "silent"}
    federation.begin_round(1)
    assert 4 in method.sample(federation)
    engine.silent = set()
    method.round(federation, [0, 4])  # it is sampled, and signs
    assert method.groups.cluster_of[4] == 1 and {job.client for job in engine.jobs} == {0, 4}


def test_a_client_that_leaves_has_no_group_and_one_without_has_the_first_model() -> None:
    _, federation, method = started(TWO)
    method.leave(federation, [0])
    assert 0 not in method.clusters()
    assert method.model_of(0) is method.unsigned


def test_a_client_that_does_not_sign_is_asked_again_when_it_is_sampled() -> None:
    engine = Pretend(TWO)
    engine.silent = {3}
    federation = Federation(engine, SPEC, 0, 1.0)
    method = FedDAG(FedDAG.Settings())
    method.start(federation)
    assert 3 not in method.groups.cluster_of
    federation.begin_round(1)
    assert method.sample(federation) == [0, 1, 2, 3]
    method.round(federation, [0, 1, 2, 3])
    assert [job.client for job in engine.jobs] == [0, 1, 2]
    engine.silent = set()
    federation.begin_round(2)
    method.round(federation, [0, 1, 2, 3])
    assert [job.client for job in engine.jobs] == [0, 1, 2, 3] and method.groups.cluster_of[
        3
    ] == method.groups.cluster_of[1]


@pytest.mark.parametrize("what", ["labels", "loss"])
def test_drift_is_seen_and_followed(what: str) -> None:
    engine, federation, method = started(TWO, drift_every=1)
    federation.begin_round(1)
    method.round(federation, [])
    assert told(federation) == []
    engine.held[0] = [2, 3]
    if what == "loss":  # as after a change of concept: the histogram that is compared stays what it was
        method.monitor.last[0]["counts"] = torch.tensor([0, 0, 30, 30])
        engine.loss[0] = 2.0
    federation.begin_round(2)
    method.round(federation, [])
    assert method.groups.cluster_of == {0: 1, 1: 1, 2: 0, 3: 1}
    assert told(federation) == ["client 0 drifted and moved from cluster 0 to 1"]


def test_no_drift_no_alarm_and_the_printed_rule_on_request() -> None:
    _, federation, method = started(TWO, drift_every=1)
    for number in (1, 2, 3):
        federation.begin_round(number)
        method.round(federation, [])
    assert told(federation) == []
    engine, federation, printed = started(TWO, drift_every=1, drift_rule="paper", drift_histogram=10.0)
    engine.held[0] = [1, 2]  # W1 of counts is 60; Eq. 41 asks for more than 0.2 / 4 * 60 = 3 only
    federation.begin_round(1)
    printed.round(federation, [])
    assert alarms(federation) == [0]


def test_a_change_before_the_first_look_is_seen_and_a_return_is_no_drift() -> None:
    engine, federation, method = started(TWO, drift_every=5)
    engine.held[0] = [2, 3]
    federation.begin_round(5)
    method.round(federation, [])
    assert alarms(federation) == [0] and method.groups.cluster_of[0] == 1
    method.leave(federation, [1])
    engine.held[1] = [0, 1]
    method.join(federation, [1])
    federation.begin_round(10)
    method.round(federation, [])
    assert alarms(federation) == [] and method.groups.cluster_of[1] == 0


def test_one_that_drifted_and_does_not_sign_is_asked_again() -> None:
    engine, federation, method = started(TWO, drift_every=1)
    signed_then = method.membership.signatures[0]
    engine.held[0] = [2, 3]
    perform = engine.perform

    def deaf_to_signing(jobs: Sequence[Job], round: int, exchange: int) -> Any:
        signing = any(isinstance(step, MakeSignature) for job in jobs for step in job.steps)
        engine.silent = {0} if round == 1 and signing else set()
        return perform(jobs, round, exchange)

    engine.perform = deaf_to_signing  # type: ignore[method-assign]
    for number in (1, 2):
        federation.begin_round(number)
        method.round(federation, [])
        assert (method.membership.signatures[0] is signed_then) == (number == 1)
    assert method.groups.cluster_of[0] == 1 and alarms(federation) == [0]


def test_borrowed_encoders_are_not_judged_by_a_classifier_they_never_saw() -> None:
    _, federation, method = started(TWO, exchange="borrow", classifier="common")
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    assert method.model_of(0) is method.groups.served[0]


def test_a_learner_borrows_the_primary_encoder_of_its_first_source() -> None:
    _, federation, method = started(TWO, exchange="borrow")
    method.groups.trained[2] = federation.initial_weights("cluster 2")
    method.second.graph = [(0, 2), (0, 1), (1, 0)]
    before = dict(method.groups.trained)
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    for learner, source in ((0, 2), (1, 0)):
        lent = only(method.groups.trained[source], ("encoder",))
        got = only(method.groups.trained[learner], ("secondary",))
        assert all(torch.equal(a, b) for a, b in zip(lent.values(), got.values(), strict=True))
    kept = only(before[2], ("secondary",))  # it has no source
    assert all(torch.equal(method.groups.trained[2][name], value) for name, value in kept.items())


@pytest.mark.parametrize("balanced", [True, False])
@pytest.mark.parametrize("diversity", [0.0, 0.3])
def test_clients_are_told_how_to_train(balanced: bool, diversity: float) -> None:
    engine, federation, method = started(TWO, balanced=balanced, diversity=diversity)
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    for job in engine.jobs:
        primary, secondary = job.steps
        assert (primary.balanced, secondary.balanced) == (balanced, balanced)
        assert getattr(primary, "diversity", 0.0) == diversity and type(secondary) is Train
        assert (primary.parts, secondary.parts) == (("encoder", "head"), ("secondary",))
        assert (primary.phase, secondary.phase) == ("primary", "secondary")


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"similarity": "data"}, {"views": ("classes", "data", "style"), "fusion": "clarity"}),
        ({"similarity": "gradient", "style": False}, {"views": ("gradient",)}),
        ({"fusion": "data", "linkage": "single"}, {"fusion": "data", "linkage": "single"}),
        ({"sources": 1, "alignment": "none"}, {"sources": 1, "alignment": "none", "linkage": "average"}),
    ],
)
def test_groups_are_made_as_asked(monkeypatch, settings: dict[str, Any], asked: dict[str, Any]) -> None:
    seen: list[dict[str, Any]] = []

    def noted(signatures: Sequence[Signature], **how: Any) -> feddag.Grouping:
        seen.append(how)
        return feddag.group(signatures, **how)

    monkeypatch.setattr("feddag.server.membership.group", noted)
    started(TWO, **settings)
    assert seen[0] | asked == seen[0]


def test_a_random_first_primary_encoder() -> None:
    _, federation, method = started(TWO, primary_start="random")
    fresh = federation.initial_weights("cluster 1")
    assert all(torch.equal(method.groups.trained[1][name], value) for name, value in only(fresh, ("encoder",)).items())


@pytest.mark.parametrize(("threshold", "drifted"), [(0.1, [0]), (0.9, [])])
def test_how_far_a_loss_must_rise_is_a_setting(threshold: float, drifted: list[int]) -> None:
    engine, federation, method = started(TWO, drift_every=1, drift_loss=threshold)
    for number, loss in ((1, 0.1), (2, 0.6)):  # a rise of 0.36 ln(4)
        engine.loss[0] = loss
        federation.begin_round(number)
        method.round(federation, [])
    assert alarms(federation) == drifted


@pytest.mark.parametrize(("threshold", "drifted"), [(0.2, [0]), (5.0, [])])
def test_how_far_classes_must_move_is_a_setting(threshold: float, drifted: list[int]) -> None:
    engine, federation, method = started(TWO, drift_every=1, drift_histogram=threshold)
    engine.held[0] = [2, 3]
    federation.begin_round(1)
    method.round(federation, [])
    assert alarms(federation) == drifted
    assert "watch" in federation.traffic.down  # counted apart from training


@pytest.mark.parametrize(
    ("name", "settings", "on"),
    [("feddag-dagger", {}, True), ("feddag-dagger", {"secondary_beside": "cluster"}, False), ("feddag", {}, False)],
)
def test_beside_which_model_the_secondary_encoder_is_trained(name: str, settings: dict[str, str], on: bool) -> None:
    engine, federation, method = started(TWO, name, **settings)
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    assert all((job.steps[1].model[0] is None) == on for job in engine.jobs)  # none: what the step before has left


def test_borrowing_has_no_schedule() -> None:
    with pytest.raises(FeddagError, match="schedule = '2:1' does nothing with exchange = 'borrow'"):
        feddag.Experiment(method="feddag", exchange="borrow", schedule="2:1")


def test_counters_of_batches_stay_counters() -> None:
    _, _, method = started(TWO)
    count = {"secondary.9.num_batches_tracked": torch.tensor(7)}
    method.groups.trained = {z: model | count for z, model in method.groups.trained.items()}
    answered = [Reply(0, [Result(weights=only(method.groups.trained[0], ("secondary",)))], samples=10)]
    after = method.second.returned(method.groups.trained, [(0, answered)], method.groups.trained)
    assert after[1]["secondary.9.num_batches_tracked"].dtype == torch.int64


def test_with_diversity_both_encoders_start_at_random() -> None:
    for start in ("copy", "warm"):
        _, federation, method = started(TWO, diversity=0.1, secondary_start=start)
        fresh = federation.initial_weights("cluster 0")
        assert all(torch.equal(value, fresh[name]) for name, value in method.groups.trained[0].items())


def test_growth_groups_anew_and_keeps_what_was_learnt() -> None:
    _, federation, method = started(TWO, classifier="common")
    federation.begin_round(1)
    method.round(federation, [0, 1, 2, 3])
    learnt, used, matched = method.groups.trained[1], method.model_of(1), method.second.matched[1]
    # One of a pair was taken for something new and has not trained since: it comes back, and leaves no trace.
    assert method.groups.found({name: value + 100 for name, value in learnt.items()}, [3]) == 2
    method.monitor.last = {0: {"counts": torch.ones(4), "loss": torch.ones(1)}}
    told(federation)
    method.regroup(federation)
    assert told(federation) == ["4 clients grouped anew: 3 clusters became 2"]
    assert method.groups.cluster_of == {0: 0, 1: 1, 2: 0, 3: 1} and set(method.groups.trained) == {0, 1}
    assert all(torch.allclose(method.groups.trained[1][name], value) for name, value in learnt.items())
    assert all(torch.allclose(method.model_of(3)[name], value) for name, value in used.items())
    assert method.second.matched[1] == matched and method.monitor.last == {}


def test_growth_begins_after_so_many_arrivals() -> None:
    engine, federation, method = started(TWO, regroup_after=2)
    engine.held |= {4: [0, 1], 5: [0, 1]}
    method.join(federation, [4])
    assert method.arrivals == 1
    method.join(federation, [5])
    assert method.arrivals == 0


def test_the_common_classifier_keeps_its_names_when_clusters_are_renumbered() -> None:
    _, _, method = started(TWO, classifier="common")
    assert method.second.matched[0] == [0, 1, 2, 3]
    turned = {"vectors": method.membership.signatures[0]["vectors"][[1, 0, 2, 3]]}
    method.second.first_cluster = [
        method.membership.signatures[0] | turned
    ]  # the first of all called 1 what today's first cluster calls 0
    assert method.second.match(method.membership.grouping)[0] == [1, 0, 2, 3]


@pytest.mark.parametrize("parts", [("encoder", "head"), ("secondary",)])
def test_frozen_means_frozen(parts: tuple[str, ...]) -> None:
    spec = ModelSpec("mlp", (6,), 3, encoders=2)
    model, weights = spec.build(), spec.initial_weights(0, "m")
    generator = np.random.default_rng(0)
    x, y = torch.from_numpy(generator.normal(size=(20, 6)).astype(np.float32)), torch.arange(20) % 3
    batches = [np.arange(10), np.arange(10, 20)] * 3
    settings = LocalSettings(lr=0.1, momentum=0.9, weight_decay=0.1)
    work = (weights, x, y, batches, settings)
    trained, _ = TorchTrainer(spec).fit(*work, parts=parts)
    for name, value in weights.items():
        assert torch.equal(trained[name], value) == (name.partition(".")[0] not in parts)
    network = feddag.native.describe(model, (6,)) if feddag.native.available() else None
    if network is not None:
        again, _ = NativeTrainer(spec, network).fit(*work, parts=parts)
        assert all(torch.allclose(again[name], trained[name], atol=1e-5) for name in weights)


def test_diversity_drives_encoders_apart() -> None:
    from feddag.client.trainer import load_weights
    from feddag.methods.feddag import TrainDiversely

    spec = ModelSpec("mlp", (6,), 3, encoders=2)
    model, weights = spec.build(), spec.initial_weights(0, "m")
    x, y = torch.from_numpy(np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)), torch.arange(20) % 3
    aligned = []
    for diversity in (0.0, 5.0):
        penalty = TrainDiversely(diversity=diversity).penalty()
        trained, _ = TorchTrainer(spec).fit(
            *(weights, x, y, [np.arange(20)] * 30, LocalSettings(lr=0.1)), parts=("encoder", "head"), penalty=penalty
        )
        load_weights(model, trained)
        aligned.append(float(TrainDiversely(diversity=1.0).penalty()(model, x).detach()))
    assert aligned[1] < aligned[0] / 2


# Real runs -----------------------------------------------------------------------------------------------------------

DIGITS = {"clients": 12, "groups": 3, "rounds": 8, "epochs": 3, "participation": 0.5, "workers": 1, "finetune": False}


def test_groups_are_found_and_pay_on_digits() -> None:
    runs = {name: feddag.run(feddag.Experiment(method=name, **DIGITS)) for name in ("fedavg", "feddag", "feddag-star")}
    for name in ("feddag", "feddag-star"):
        assert runs[name].result["ari"] == 1
        assert runs[name].accuracy.mean > runs["fedavg"].accuracy.mean + 0.05


def test_a_drift_in_a_real_run_is_followed_and_pays() -> None:
    fields = DIGITS | {"partition": "concept-shift", "groups": None, "drift_round": 5, "rounds": 10}
    followed = feddag.run(feddag.Experiment(method="feddag-star", **fields, drift_every=1))
    ignored = feddag.run(feddag.Experiment(method="feddag-star", **fields))
    assert followed.result["ari"] == 1 and ignored.result["ari"] < 1
    assert followed.accuracy.mean > ignored.accuracy.mean
    assert [e for record in followed.history for e in record["events"]]
    seen, unseen = followed.result["drift"], ignored.result["drift"]
    assert (seen["noticed"], seen["missed"], seen["false_alarms"]) == (seen["clients"], 0, 0)
    assert (unseen["noticed"], unseen["missed"], unseen["false_alarms"]) == (0, unseen["clients"], 0)
    assert unseen["accuracy_drifting"]["at"] < unseen["accuracy_others"]["at"]
    assert seen["accuracy_drifting"]["after"] > unseen["accuracy_drifting"]["after"]


def test_newcomers_are_placed_with_their_like() -> None:
    run = feddag.run(feddag.Experiment(method="feddag-star", **DIGITS | {"holdout": 0.25, "rounds": 2}))
    truth, groups = run.result["truth"], run.result["clusters"]
    mates = {g: {truth[c] for c in run.result["participants"] if groups[c] == g} for g in set(groups)}
    assert all(len(kinds) == 1 for kinds in mates.values())
    right = [mates[groups[c]] == {truth[c]} for c in run.result["held_out"]]
    assert run.result["unseen_placed_right"] == pytest.approx(sum(right) / len(right), abs=1e-6)
    assert run.result["unseen_placed_right"] == 1
    late = run.result["held_out"][0]
    mate = next(client for client in run.result["participants"] if groups[client] == groups[late])
    ours, theirs = run.network(late).state_dict(), run.network(mate).state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())  # not the start: it joined a group


def test_a_stopped_run_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 5:  # after the drift
            raise Stop

    fields = DIGITS | {"rounds": 6, "drift_round": 4, "holdout": 0.25}
    experiment = feddag.Experiment(method="feddag", **fields, drift_every=1)
    whole = feddag.run(experiment)
    with pytest.raises(Stop):
        feddag.run(experiment, tmp_path / "r", observer=stop)
    resumed = feddag.run(experiment, tmp_path / "r", resume=True)
    for result in (whole.result, resumed.result):
        del result["seconds"], result["history_sha256"]
    assert resumed.result == whole.result
