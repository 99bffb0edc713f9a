"""FedDAG in a federation that changes: newcomers, leavers, drift and growth, by hand and in real runs."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag.client.warmup import MakeSignature
from feddag.federation import Federation, Job
from feddag.methods.feddag import FedDAG
from tests.methods.pretend import SPEC, TWO, Pretend, alarms, started, told


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
