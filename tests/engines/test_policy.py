"""A node's own policy: what a curious server asks for beyond it is refused, and small classes are never shown."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddag
from feddag.client.evaluate import Evaluate, Monitor
from feddag.client.signature import Signature
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.deploy.app import PACKAGE, write_app
from feddag.deploy.node import answer
from feddag.deploy.policy import NodePolicy
from feddag.deploy.site import Node
from feddag.engines.flower.wire import JobId, WireError, read_reply, write_job
from feddag.errors import FeddagError
from feddag.federation import Job
from feddag.models import ModelSpec
from feddag.weights import Ref, digest, nbytes

SPEC = ModelSpec("mlp", (1, 8, 8), 10)
FIRST = SPEC.initial_weights(0, "model")
REF = Ref(digest(FIRST), nbytes(FIRST))


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """Ask a node that holds ten samples of class 0, three of class 1 and one of class 2."""
    draw = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [10, 3, 1])
    x = draw.integers(0, 255, (len(y), 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "site.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=np.array(list("0123456789")))
    write_app(tmp_path / "app", feddag.Experiment(method="fedavg", clients=1, trainer="torch", epochs=1))
    exchange = iter(range(1, 1000))

    def asked(work: Any, /, repeated: int | None = None, **config: Any) -> Any:
        job = JobId("run1", 0, 1, next(exchange) if repeated is None else repeated)
        own = {"client-id": 0, "data": str(tmp_path / "site.npz"), "state": str(tmp_path / "state")} | config
        message = answer(write_job(job, Job(0, work), lambda ref: FIRST), own, {}, tmp_path / "app" / PACKAGE)
        return read_reply(message, job, len(Job(0, work).steps)).results

    asked.samples = x[:, :, :, 0].reshape(len(y), -1).astype(float)  # type: ignore[attr-defined]
    return asked


def shown(result: Any) -> Signature:
    return Signature.from_tensors(result.arrays)


def closest(made: Signature, samples: np.ndarray) -> float:
    """The largest cosine between what was sent and a sample, as it is or standardised."""
    sent = made.vectors.reshape(-1, made.vectors.shape[-1])
    sent = sent[np.linalg.norm(sent, axis=1) > 0]
    looks = [samples, samples - samples.mean(1, keepdims=True)]
    return max(
        float(np.abs(sent @ look.T / np.linalg.norm(sent, axis=1)[:, None] / np.linalg.norm(look, axis=1)).max())
        for look in looks
    )


def test_a_class_of_few_samples_is_never_shown_whatever_the_server_asks_for(ask: Any) -> None:
    sign = MakeSignature(REF, steps=2, sparsity=0.1, vectors=3)
    open_, shut = shown(ask(sign, **{"least-per-class": 1})[0]), shown(ask(sign)[0])
    assert open_.counts.tolist()[:3] == [10, 3, 1] and closest(open_, ask.samples[13:]) > 0.999  # the sample itself
    assert shut.counts.tolist()[:3] == [10, 0, 0] and not shut.vectors[1:].any()
    assert closest(shut, ask.samples) < 0.95
    assert np.array_equal(shut.vectors[0], open_.vectors[0])
    asked_for = shown(ask(MakeSignature(REF, steps=2, sparsity=0.1, least_per_class=2), **{"least-per-class": 1})[0])
    assert asked_for.counts.tolist()[:3] == [10, 3, 0]


def test_counts_for_drift_leave_small_classes_out_as_well(ask: Any) -> None:
    assert ask(Monitor(REF))[0].arrays["counts"].tolist()[:3] == [10, 0, 0]
    assert ask(Monitor(REF), **{"least-per-class": 1})[0].arrays["counts"].tolist()[:3] == [10, 3, 1]


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (MakeSignature(REF, steps=1, sparsity=0.1, inputs="raw"), "does not allow signatures of raw samples"),
        (MakeSignature(REF, steps=1, sparsity=0.1, vectors=64), "allows 5 vectors of a class"),
        (MakeSignature(REF, steps=10**9, sparsity=0.1), "allows 1000000 steps"),
        (Train(REF, epochs=10**6), "allows 1000 epochs"),
        (Train(REF, steps=10**9), "allows 1000000 steps"),
    ],
)
def test_what_is_beyond_the_policy_is_refused_with_a_reason(ask: Any, step: Any, reason: str) -> None:
    with pytest.raises(WireError, match=f"said: refused: its policy .*{reason}|said: refused: its policy {reason}"):
        ask(step)


def test_only_the_steps_that_a_node_names(ask: Any) -> None:
    assert ask([Train(REF), Evaluate()], steps="Train, Evaluate")
    with pytest.raises(WireError, match="does not allow this kind of step"):
        ask(MakeSignature(REF, steps=1, sparsity=0.1), steps="Train, Evaluate")


def test_signatures_are_counted_and_one_asked_for_again_counts_once(ask: Any) -> None:
    sign = MakeSignature(REF, steps=1, sparsity=0.1)
    for _ in range(3):
        ask(sign, repeated=1, **{"most-signatures": 2})
    ask(sign, repeated=2, **{"most-signatures": 2})
    with pytest.raises(WireError, match="allows 2 signatures in a run"):
        ask(sign, repeated=3, **{"most-signatures": 2})


@pytest.mark.parametrize(
    ("name", "value"), [("least-per-class", -1), ("raw-inputs", 1), ("steps", 3), ("most-epochs", "9")]
)
def test_a_policy_that_cannot_be_is_refused(name: str, value: Any) -> None:
    with pytest.raises(FeddagError, match=f"node config {name} = "):
        NodePolicy.of({name: value})


@pytest.mark.parametrize(
    ("name", "meant"), [("step", "steps"), ("least-per-clas", "least-per-class"), ("dat", "data"), ("frogs", "")]
)
def test_a_misspelt_key_is_refused_and_not_ignored(name: str, meant: str) -> None:
    with pytest.raises(FeddagError, match=f"node config {name} is not known") as refused:
        Node.of({"client-id": 0, "data": "a.npz", name: "Evaluate"}, {})
    assert meant in str(refused.value)


def test_a_simulated_node_has_the_policy_of_a_simulation() -> None:
    made = Node.of({"partition-id": 0}, {"data": "a.npz", "state": "s"})
    assert made.policy.least_per_class == 1 and made.policy.raw_inputs
    assert Node.of({"client-id": 0, "data": "a.npz"}, {}).policy == NodePolicy()


@pytest.mark.parametrize("least", [1, 6])
def test_groups_are_found_with_small_classes_left_out(least: int) -> None:
    fields = {"clients": 12, "groups": 3, "rounds": 1, "epochs": 1, "workers": 1, "finetune": False}
    run = feddag.run(feddag.Experiment(method="feddag-star", least_per_class=least, concentration=10.0, **fields))
    assert run.result["ari"] == 1


@pytest.mark.parametrize("least", [40, 10_000])
def test_clients_without_any_class_large_enough_still_take_part(least: int) -> None:
    fields = {"clients": 12, "groups": 3, "rounds": 1, "epochs": 1, "workers": 1, "finetune": False, "drift_every": 1}
    run = feddag.run(feddag.Experiment(method="feddag", least_per_class=least, **fields))
    assert run.result["answers_missing"] == 0 and None not in (run.clusters or [None])
