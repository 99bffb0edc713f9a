"""FedAC, by hand on fake clients, and as it goes on real ones."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.client.train import Anchor, Train
from feddag.errors import FeddagError
from feddag.heads import OUT_OF_REACH
from feddag.methods.fedac import FedAC
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Choice, Own, Weights
from tests.engines.in_process import run_on_nodes

SPEC = ModelSpec("mlp", (2,), 2)
EIGHT = dict.fromkeys(range(8), 10)


def two_kinds(engine: FakeEngine, client: int, step: Train, current: Weights) -> Result:
    """Clients 0-3 pull the first weight up, the others down; each adds a little of its own to the second."""
    start = engine.resolve(client, step.model, current)
    first, second = sorted(start)[:2]
    pulled = {first: start[first] + (1.0 if client < 4 else -1.0), second: start[second] + 0.01 * client}
    return Result(weights=start | pulled)


def started(engine: FakeEngine, **settings: Any) -> Any:
    return testing.started("fedac", engine, SPEC, **({"tuning": False, "clusters": 2} | settings))


def kinds(**settings: Any) -> Any:
    return started(FakeEngine(EIGHT, answers={Train: two_kinds}), **settings)


# Algorithm 1 ----------------------------------------------------------------------------------------------------------


def test_local_updates_start_from_the_own_model_and_have_two_pulls() -> None:
    engine = FakeEngine(EIGHT, answers={Train: two_kinds})
    federation, fedac = started(engine, pull=0.3, pull_encoder=0.7)
    first = fedac.common
    one_round(federation, fedac)
    [train] = engine.jobs[0].steps
    centre, embedding = (engine.weights[anchor.to.digest] for anchor in train.anchors)
    assert centre == first and [anchor.strength for anchor in train.anchors] == [0.3, 0.7]
    assert set(embedding) == {name for name in first if name.startswith("encoder")}  # what travels is no more than that
    assert train.anchors[0].parts == () and train.anchors[1].parts == ("encoder",)
    assert train.model == (train.anchors[0].to,) and train.keep == "personal" and train.send  # no own model yet
    centres, common = dict(fedac.groups.trained), fedac.common
    one_round(federation, fedac, [0, 5])
    for job in engine.jobs:
        [train] = job.steps
        assert train.model == (train.anchors[0].to, Own("personal"))
        own = engine.weights[train.anchors[0].to.digest]
        assert own is centres[fedac.clusters()[job.client]]
        encoder = engine.weights[train.anchors[1].to.digest]
        assert all(torch.equal(value, common[name]) for name, value in encoder.items())


def test_a_pull_of_no_strength_costs_nothing() -> None:
    engine = FakeEngine(EIGHT)
    federation, fedac = started(engine, pull=0.5, pull_encoder=0.0)
    one_round(federation, fedac, [0, 1])
    [train] = engine.jobs[0].steps
    assert train.anchors == (Anchor(train.anchors[0].to, 0.5),)


def test_the_global_embedding_is_a_mean_of_all_or_of_a_rounds_models() -> None:
    """Client i adds i + 1. After it, 0 and 1 are at 1 and 2; then 1 alone goes on to 4."""
    for which, expected in (("all", 2.5), ("sampled", 4.0)):
        federation, fedac = started(FakeEngine({0: 10, 1: 90}), embedding=which, clusters=1)
        first = fedac.common
        one_round(federation, fedac, [0, 1])
        assert moved(first, fedac.common) == 1.5  # Algorithm 1 would sum them: 3
        one_round(federation, fedac, [1])
        assert moved(first, fedac.common) == expected


def test_the_clusters_are_found_and_their_centres_are_plain_means_over_all_members() -> None:
    federation, fedac = kinds()
    first = fedac.common
    one_round(federation, fedac, [0, 1, 4, 5])
    assert fedac.clusters() == {0: 0, 1: 0, 4: 1, 5: 1}
    one_round(federation, fedac, [2, 6])  # they have no cluster yet: from the mean of all
    assert fedac.clusters() == {0: 0, 1: 0, 2: 0, 4: 1, 5: 1, 6: 1}
    name = sorted(first)[0]
    for cluster, sign in ((0, 1.0), (1, -1.0)):
        torch.testing.assert_close(fedac.groups.trained[cluster][name], first[name] + sign)
    one_round(federation, fedac, [0])  # 0 is at 2, and 1 and 2, who were not asked, still at 1 (Eq. 5)
    torch.testing.assert_close(fedac.groups.trained[0][name], first[name] + 4 / 3)


def test_a_client_that_changes_is_moved() -> None:
    federation, fedac = kinds()
    one_round(federation, fedac)
    name = sorted(fedac.common)[0]
    fedac.held[0] = fedac.held[0] | {name: fedac.held[4][name].clone()}
    one_round(federation, fedac, [1])
    assert fedac.clusters()[0] == fedac.clusters()[4] != fedac.clusters()[1]


def test_a_cluster_that_all_have_left_is_dissolved() -> None:
    federation, fedac = kinds(metric="l2")
    one_round(federation, fedac)
    for client in range(4):
        fedac.held[client] = fedac.held[4]
    one_round(federation, fedac, [5])
    assert set(fedac.clusters().values()) == {1} == set(fedac.groups.trained) and len(fedac.clusters()) == 8
    assert [event.kind for event in federation.events()] == ["merge"] and fedac.number.direction == -1


def test_the_number_is_tuned_and_told() -> None:
    federation, fedac = kinds(clusters=1, tuning=True)
    one_round(federation, fedac)
    assert fedac.clusters() == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}
    [event] = federation.events()
    assert event.kind == "split" and event.clients == (4, 5, 6, 7) and "its G is inf" in event.text
    name = sorted(fedac.common)[0]
    gap = fedac.groups.trained[0][name] - fedac.groups.trained[1][name]
    torch.testing.assert_close(gap, torch.full_like(gap, 2.0))  # new centres are means of their own members
    one_round(federation, fedac)
    assert len(fedac.groups.trained) == 2  # both are narrow, and one cluster would have to be split


@pytest.mark.parametrize("fields", [{"metric": "l2"}, {"centred": False}, {"map_every": 100}, {"dimensions": 1}])
def test_other_similarities_find_two_kinds_as_well(fields: dict[str, Any]) -> None:
    federation, fedac = kinds(**fields)
    for _ in range(3):
        one_round(federation, fedac)
    assert fedac.clusters() == {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1, 6: 1, 7: 1}


# Who comes, goes or is silent -----------------------------------------------------------------------------------------


def test_nobody_answers() -> None:
    engine = FakeEngine(EIGHT)
    federation, fedac = started(engine, tuning=True)
    engine.silent = set(EIGHT)
    one_round(federation, fedac)
    assert fedac.clusters() == {} and isinstance(fedac.model_of(0), Choice) and fedac.diagnostics() == {}
    engine.silent = set(EIGHT) - {3}
    one_round(federation, fedac)
    assert fedac.clusters() == {3: 0}  # one model, one cluster
    one_round(federation, fedac)
    assert fedac.clusters() == {3: 0} and len(fedac.diagnostics()["distances"]) == 0


def test_after_a_lost_answer_a_client_goes_on_from_what_is_held() -> None:
    """Its own may be one that was refused, say because it is not finite."""
    engine = FakeEngine(EIGHT, answers={Train: two_kinds})
    federation, fedac = started(engine)
    one_round(federation, fedac)
    held = fedac.held[2]
    engine.silent = {2}
    one_round(federation, fedac, [2, 3])
    assert fedac.held[2] is held and fedac.model_of(2) is held and isinstance(fedac.model_of(3), tuple)
    assert 2 in fedac.clusters()
    engine.silent = set()
    one_round(federation, fedac, [2])
    [train] = engine.jobs[0].steps
    assert [engine.weights[layer.digest] for layer in train.model] == [held]
    assert isinstance(fedac.model_of(2), tuple)


def test_newcomers_and_departures() -> None:
    engine = FakeEngine(EIGHT, choices={8: 1}, answers={Train: two_kinds})
    federation, fedac = started(engine)
    one_round(federation, fedac)
    engine.samples[8] = 10
    fedac.join(federation, [8])
    assert fedac.clusters()[8] == 1 and fedac.model_of(8) is fedac.groups.served[1]  # by loss; no model of its own yet
    one_round(federation, fedac, [0])
    assert fedac.clusters()[8] == 1
    one_round(federation, fedac, [8])
    assert 8 in fedac.held and 8 in fedac.clusters()
    fedac.leave(federation, [0, 1, 2, 3])
    assert set(fedac.held) == {4, 5, 6, 7, 8} == set(fedac.clusters())
    one_round(federation, fedac, [4])
    assert set(fedac.groups.trained) == {1}  # theirs is no more


def test_a_band_that_is_none_is_refused_before_the_run() -> None:
    with pytest.raises(FeddagError, match="has to be less than split_above"):
        feddag.run(feddag.Experiment(method="fedac", merge_below=0.9, **QUICK))


# Real runs ------------------------------------------------------------------------------------------------------------

QUICK: Mapping[str, Any] = {"clients": 6, "groups": 3, "rounds": 4, "epochs": 1, "participation": 0.5, "workers": 1}


def test_the_same_bytes_on_flowers_engine_and_with_a_map_that_outlives_a_stop(tmp_path: Path, monkeypatch: Any) -> None:
    experiment = feddag.Experiment(method="fedac", map_every=3, smoothing=0.5, **QUICK)
    there, here = run_on_nodes(experiment, tmp_path, monkeypatch), feddag.run(experiment)

    class Stop(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 2:
            raise Stop

    with pytest.raises(Stop):
        feddag.run(experiment, tmp_path / "stopped", observer=stop)
    resumed = feddag.run(experiment, tmp_path / "stopped", resume=True)
    skipped = ("seconds", "versions", "history_sha256", "partition_checksum")
    for other in (there, resumed):
        assert {name: value for name, value in here.result.items() if name not in skipped} == {
            name: value for name, value in other.result.items() if name not in skipped
        }
    one, two = here.model(0).state_dict(), here.model(1).state_dict()
    assert any(not torch.equal(value, two[name]) for name, value in one.items())  # personal


def test_rows_of_classes_that_a_client_does_not_hold_stay_out_of_the_centres() -> None:
    method = FedAC(FedAC.Settings(softmax="held"))
    method.common = {"head.weight": torch.tensor([[1.0], [2.0]]), "head.bias": torch.tensor([3.0, 4.0])}
    sent = {"head.weight": torch.tensor([[9.0], [5.0]]), "head.bias": torch.tensor([OUT_OF_REACH, 6.0])}
    whole = method.whole(SimpleNamespace(client=0, weights=sent))
    assert whole["head.bias"].tolist() == [3.0, 6.0] and whole["head.weight"].tolist() == [[1.0], [5.0]]
    told = sent | {"head.bias": torch.tensor([5.0, 6.0])}
    assert method.whole(SimpleNamespace(client=1, weights=told)) is told  # it answers with all
