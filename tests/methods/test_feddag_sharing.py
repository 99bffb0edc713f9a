"""FedDAG's secondary encoders by hand: who learns from whom, beside which classifier, and when."""

import pytest
import torch

import feddag
from feddag.errors import FeddagError
from feddag.methods.feddag import FedDAG
from feddag.methods.feddag.sharing import SHARPNESS
from feddag.testing import moved
from feddag.weights import only
from tests.methods.pretend import TWO, started


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
        feddag.Experiment(method="feddag", sharing="encoder", exchange="borrow", schedule="2:1")
