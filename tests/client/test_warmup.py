"""The warm-up: halves, balanced batches, how far two updates agree, and the step beside the data."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from feddag.client.signature import Signature, signature, sparsified
from feddag.client.step import to_tensor
from feddag.client.train import balanced_batches
from feddag.client.warmup import MakeSignature, agreement, divide
from feddag.data.clients import ClientData, lay_out
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.federation import Federation, Job, Reply
from feddag.models import ModelSpec
from feddag.weights import Ref, Weights


@pytest.mark.parametrize(
    ("one", "other", "share"),
    [
        ([1, 0], [3, 0], 1.0),
        ([1, 0], [0.5, np.sqrt(0.75)], 2 / 3),  # cosine 1/2: 2 * 0.5 / 1.5
        ([3, 4], [4, 3], 48 / 49),  # cosine 24/25: 48/25 over 49/25
        ([1, 0], [-1, 0], 0.0),  # worse than nothing in common is not less than nothing
        ([1, 0], [0, 0], 0.0),  # an update of zeros tells nothing
        ([0, 0], [0, 0], 0.0),
    ],
)
def test_agreement_of_two_halves(one, other, share) -> None:
    assert agreement(np.array(one, np.float32), np.array(other, np.float32)) == pytest.approx(share, abs=1e-6)


@given(y=st.lists(st.integers(0, 4), min_size=1, max_size=40), seed=st.integers(0, 999))
def test_halves_hold_every_sample_once(y, seed) -> None:
    one, other = divide(np.array(y), np.random.default_rng(seed))
    assert abs(len(one) - len(other)) <= 1 and set(one) | set(other) == set(range(len(y)))
    assert not set(one) & set(other) or len(y) == 1  # a single sample is in both


def test_halves_differ_in_the_classes_that_they_happen_to_hold() -> None:
    """As two clients do: of two classes with one sample each, no half has both."""
    one, other = divide(np.array([0, 1]), np.random.default_rng(0))
    assert sorted([*one, *other]) == [0, 1] and len(one) == 1


@given(
    y=st.lists(st.integers(0, 4), min_size=1, max_size=30), steps=st.integers(1, 4), size=st.integers(1, 12),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_batches_take_classes_in_turn(y, steps, size, seed) -> None:
    labels = np.array(y)
    batches = balanced_batches(labels, np.arange(len(y)), [size] * steps, np.random.default_rng(seed))
    assert [len(batch) for batch in batches] == [size] * steps
    often = np.bincount(labels[np.concatenate(batches)], minlength=5)[np.unique(labels)]
    assert often.max() - often.min() <= 1


def test_a_half_is_seen_whole_before_a_sample_comes_again() -> None:
    y = np.array([0, 0, 0, 1])
    (batch,) = balanced_batches(y, np.arange(4), [6], np.random.default_rng(0))
    assert sorted(batch.tolist()) == [0, 1, 2, 3, 3, 3]


def signed(
    data: ClientData, worker_config: WorkerConfig, workers: int = 1, **options: object
) -> tuple[list[Reply], Weights]:
    engine = LocalEngine(data, worker_config, workers)
    try:
        federation = Federation(engine, worker_config.model, 0, 1.0)
        weights = federation.initial_weights()
        step = MakeSignature(federation.put(weights), **{"steps": 5, "sparsity": 1.0, **options})  # type: ignore[arg-type]
        return list(federation.ask(Job(client, step) for client in federation.clients)), weights
    finally:
        engine.close()


def test_a_client_tells_its_counts_its_vectors_and_the_mean_update(small_data, worker_config) -> None:
    replies, start = signed(small_data, worker_config, parts=("encoder", "head"))
    assert len(replies) == 3
    for reply, samples in zip(replies, (10, 15, 20), strict=True):
        (result,) = reply.results
        made = Signature.from_tensors(result.arrays)
        assert made.counts.sum() == samples and made.vectors.shape == (3, 3, 16)
        assert 0 < made.update_reliability <= 1 and ((made.reliability > 0) & (made.reliability <= 1)).all()
        assert result.samples == 2 * 5 * 4  # two halves, five steps of four samples
        weights, before = ({name: tensor.numpy() for name, tensor in w.items()} for w in (result.weights, start))
        np.testing.assert_allclose(made.update, sparsified(before, weights, 1.0, seed=0), atol=1e-6)
        assert np.abs(made.update).max() > 1e-4


@pytest.mark.parametrize(("asked", "drawn"), [(4, 4), (1024, 1024), (50_000, 1024)])
def test_no_batch_is_filled_with_copies_beyond_a_thousand(small_data, worker_config, asked: int, drawn: int) -> None:
    settings = dataclasses.replace(worker_config.settings, batch_size=asked)
    replies, _ = signed(small_data, dataclasses.replace(worker_config, settings=settings))
    assert {reply.results[0].samples for reply in replies} == {2 * 5 * drawn}


def test_only_the_asked_share_of_coordinates_travels_and_weights_only_if_wanted(small_data, worker_config) -> None:
    whole, start = signed(small_data, worker_config)
    replies, _ = signed(small_data, worker_config, sparsity=0.1, send=False)
    coordinates = sum(tensor.numel() for tensor in start.values())
    for reply in replies:
        assert reply.results[0].weights is None
        assert len(Signature.from_tensors(reply.results[0].arrays).update) == round(0.1 * coordinates)
    assert replies[0].nbytes < whole[0].nbytes / 2


@pytest.mark.parametrize("options", [{}, {"sketch": 8}, {"sketch": 8, "inputs": "raw"}])
def test_without_steps_only_the_samples_are_told_about(small_data, worker_config, options: dict[str, Any]) -> None:
    step = MakeSignature((), steps=0, sparsity=1.0, send=False, **options)
    assert not step.trains and step.shapes(worker_config.model)["update"] == (0,)
    engine = LocalEngine(small_data, worker_config, 1)
    federation = Federation(engine, worker_config.model, 0, 1.0)
    replies = list(federation.ask(Job(client, step) for client in federation.clients))
    engine.close()
    assert federation.traffic.down.total() == federation.traffic.flops.total() == 0 == len(federation.missing)
    for reply in replies:
        x, y = small_data.samples(reply.client)
        seen = x if "inputs" in options else to_tensor(x, small_data.mean, small_data.std).numpy()
        expected = signature(seen, y, 3, style=False, seed=0, **options)
        (result,) = reply.results
        assert result.weights is None and result.samples == 0
        told = Signature.from_tensors(result.arrays)
        assert told.counts.tolist() == np.bincount(y, minlength=3).tolist() == expected.counts.tolist()
        assert told.vectors.any() and np.array_equal(told.vectors, expected.vectors)
        assert np.array_equal(told.reliability, expected.reliability)
        assert told.update.shape == (0,) and told.update_reliability == 0


def test_epochs_alone_are_a_warm_up_too(worker_config) -> None:
    ref = Ref("0" * 64, 0)
    one, whole = (MakeSignature(ref, steps=steps, epochs=1 - steps, sparsity=1.0) for steps in (0, 1))
    assert one.trains and whole.trains
    assert one.shapes(worker_config.model)["update"] == whole.shapes(worker_config.model)["update"] != (0,)


def test_of_the_trained_weights_only_the_encoder_travels(small_data, worker_config) -> None:
    (reply, *_), start = signed(small_data, worker_config)
    assert set(reply.results[0].weights) == {name for name in start if name.startswith("encoder")}


def test_a_plain_warm_up_trains_once_on_all_samples(small_data, worker_config) -> None:
    replies, start = signed(
        small_data, worker_config, halves=False, balanced=False, epochs=2, rounds=2, parts=("encoder", "head")
    )
    for reply, samples in zip(replies, (10, 15, 20), strict=True):
        made = Signature.from_tensors(reply.results[0].arrays)
        assert reply.results[0].samples == 2 * 2 * samples  # two rounds of two epochs, in batches that may be smaller
        assert made.update_reliability == 0  # nothing to compare with
    # The update is what the second round changed: less than what both did, and not the same.
    weights, before = ({n: t.numpy() for n, t in w.items()} for w in (replies[0].results[0].weights, start))
    whole, last = sparsified(before, weights, 1.0, seed=0), Signature.from_tensors(replies[0].results[0].arrays).update
    assert np.linalg.norm(last) > 1e-5 and np.abs(whole - last).max() > 1e-5
    (single, *_), _ = signed(
        small_data, worker_config, halves=False, balanced=False, epochs=2, rounds=1, parts=("encoder", "head")
    )
    after = {name: tensor.numpy() for name, tensor in single.results[0].weights.items()}
    alone = Signature.from_tensors(single.results[0].arrays).update
    np.testing.assert_allclose(alone, sparsified(before, after, 1.0, seed=0), atol=1e-6)


def test_vectors_of_samples_as_they_are_stored(small_data, worker_config) -> None:
    replies, _ = signed(small_data, worker_config, inputs="raw", vectors=1)
    x, y = small_data.samples(0)
    for label in np.unique(y):
        _, _, expected = np.linalg.svd(x[y == label].reshape((y == label).sum(), -1).astype(float))
        found = replies[0].results[0].arrays["vectors"][label, 0].numpy()
        np.testing.assert_allclose(np.abs(found), np.abs(expected[0]), atol=1e-5)


def test_vectors_of_features(small_data, worker_config) -> None:
    replies, start = signed(small_data, worker_config, inputs="features", vectors=1)
    model = worker_config.model.build()
    model.load_state_dict(start)
    x, y = small_data.samples(0)
    features = model.encoder(to_tensor(x, small_data.mean, small_data.std)).detach().numpy()
    _, _, expected = np.linalg.svd(features[y == 0].astype(float))
    found = replies[0].results[0].arrays["vectors"][0, 0].numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(expected[0]), atol=1e-4)


def test_the_other_concept_moves_the_model_elsewhere(small_data, worker_config) -> None:
    """Clients a and b share a concept, c labels the other way round."""
    replies, _ = signed(small_data, worker_config, steps=30)
    a, b, c = (Signature.from_tensors(reply.results[0].arrays).update for reply in replies)
    unit = np.stack([update / np.linalg.norm(update) for update in (a, b, c)])
    cosines = unit @ unit.T
    assert cosines[0, 1] > 0.2 + max(cosines[0, 2], cosines[1, 2])


def test_the_same_signature_with_any_number_of_workers(small_data, native_worker_config) -> None:
    one, two = (signed(small_data, native_worker_config, workers)[0] for workers in (1, 2))
    for reply, other in zip(one, two, strict=True):
        for name, tensor in reply.results[0].arrays.items():
            assert torch.equal(tensor, other.results[0].arrays[name]), name


def test_a_model_that_does_not_move_gives_an_update_of_zeros(small_data, worker_config) -> None:
    still = dataclasses.replace(worker_config, settings=dataclasses.replace(worker_config.settings, lr=0.0))
    replies, _ = signed(small_data, still)
    made = Signature.from_tensors(replies[0].results[0].arrays)
    assert not made.update.any() and made.update_reliability == 0


def test_halves_that_are_the_same_samples_prove_nothing(small_dataset, small_partition, worker_config) -> None:
    alone = (np.arange(3), *small_partition.train[1:])  # one sample of each class
    data = lay_out(small_dataset, dataclasses.replace(small_partition, train=alone), seed=0)
    replies, _ = signed(data, worker_config)
    found = [float(Signature.from_tensors(reply.results[0].arrays).update_reliability) for reply in replies]
    assert found[0] == 0 and min(found[1:]) > 0


def normed(shape: tuple[int, ...], classes: int) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, classes)


def test_a_layer_that_counts_its_batches_is_no_obstacle(small_data, worker_config) -> None:
    counting = dataclasses.replace(worker_config, model=ModelSpec(f"{__name__}:normed", worker_config.model.shape, 3))
    replies, start = signed(small_data, counting)
    learnt = sum(value.numel() for value in start.values() if value.is_floating_point())
    assert all(len(Signature.from_tensors(reply.results[0].arrays).update) == learnt for reply in replies)
