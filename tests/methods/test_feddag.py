"""FedDAG on clients that only pretend to train, by hand: groups, rounds and what a setting changes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag.client.signature import Signature
from feddag.client.step import Result
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings, NativeTrainer, TorchTrainer
from feddag.errors import FeddagError
from feddag.federation import Reply
from feddag.methods.feddag import FedDAG
from feddag.models import ModelSpec
from feddag.testing import moved
from feddag.weights import only
from tests.methods.pretend import TWO, started


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


def test_a_printed_fusion_names_its_own_views() -> None:
    with pytest.raises(FeddagError, match="similarity = 'gradient' does nothing with fusion = 'mlp'"):
        FedDAG.Settings(similarity="gradient", fusion="mlp")


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
