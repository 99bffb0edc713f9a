"""Data stay home: all that nodes send in a whole FedDAG run is recorded, and no sample and no label list is in it.

What signatures do give away is said in docs/security.md: leading directions of classes of at least `least-per-class`
samples, their counts, and a model update. A leading direction is close to any typical sample of its class; it must not
be closer to those it was made of than to others.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import feddag
from feddag.deploy.app import PACKAGE
from feddag.deploy.node import answer
from feddag.engines.flower.wire import Message
from tests.engines import in_process

CLOSE = 0.95
LEAST = 6


class RecordedTransport(in_process.InProcessTransport):
    """Nodes with the usual policy, and everything that leaves them."""

    sent: list[tuple[int, Message]] = []  # noqa: RUF012  of one test

    def send(self, node: str, message: Message) -> str:
        site = {"client-id": int(node), "data": str(self.folder / f"{node}.npz"), "state": str(self.folder / "state")}
        told = answer(message, site, {}, self.folder / "app" / PACKAGE)
        self.sent.append((int(node), told))
        return self._keep(told)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> tuple[Path, list[tuple[int, Message]]]:
    """A run of FedDAG with everything that nodes send by themselves: signatures, weights, counts."""
    folder = tmp_path_factory.mktemp("leaks")
    chosen = feddag.Experiment(
        **{"method": "feddag", "clients": 4, "groups": 2, "rounds": 3, "epochs": 1, "participation": 1.0},
        **{"least_per_class": LEAST, "finetune": False},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_process, "InProcessTransport", RecordedTransport)
        RecordedTransport.sent = []
        finished = in_process.run_on_nodes(chosen, folder, patch)
    assert finished.result["answers_missing"] == 0
    return folder, RecordedTransport.sent


def vectors_of(array: np.ndarray, size: int) -> np.ndarray:
    """Every run of `size` numbers in an array, whatever its shape, centred and of length one."""
    flat = array.astype(np.float64).ravel()
    if len(flat) < size:
        return np.empty((0, size))
    return unit(np.lib.stride_tricks.sliding_window_view(flat, size))


def unit(rows: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths > 0, lengths, 1)


Sent = list[tuple[int, Message]]
ALL = ("x_train", "x_test")


def closest(sent: Sent, folder: Path, names: tuple[str, ...] = ALL) -> float:
    """The largest cosine between a sample, as it is or standardised, and anything in the arrays that were sent."""
    most = 0.0
    for client in sorted({client for client, _ in sent}):
        samples = np.concatenate([np.load(folder / f"{client}.npz")[name] for name in names])
        rows = samples.reshape(len(samples), -1).astype(np.float64)
        known = np.concatenate([unit(rows), unit(rows - rows.mean(axis=1, keepdims=True))]).T
        for _, message in (item for item in sent if item[0] == client):
            for array in message.arrays.values():
                for part in np.array_split(vectors_of(array, rows.shape[1]), 64):
                    most = max(most, float(np.abs(part @ known).max(initial=0.0)))
    return most


def is_direction(array: np.ndarray) -> bool:
    """Whether an array holds principal vectors: classes x vectors x features. Models here are matrices and vectors."""
    return array.ndim == 3


def only(sent: Sent, directions: bool) -> Sent:
    """The same messages with the principal vectors of signatures alone, or with everything else."""
    return [
        (client, Message(told.text, {n: a for n, a in told.arrays.items() if is_direction(a) == directions}))
        for client, told in sent
    ]


def bytes_of(message: Message) -> bytes:
    return message.text.encode() + b"".join(array.tobytes() for array in message.arrays.values())


def test_no_vector_that_is_sent_is_close_to_a_sample(recorded) -> None:
    folder, sent = recorded
    assert len(sent) > 4 * 3  # signatures, training and evaluation of every client
    assert closest(only(sent, directions=False), folder) < CLOSE


def test_directions_of_classes_tell_about_the_class_and_not_about_a_sample(recorded) -> None:
    folder, sent = recorded
    signatures = [item for item in only(sent, directions=True) if item[1].arrays]
    assert len(signatures) == 4
    for item in signatures:
        used, unused = (closest([item], folder, (name,)) for name in ALL)
        assert used < unused + 0.02


def test_a_sample_that_is_sent_would_be_found(recorded) -> None:
    folder, _ = recorded
    samples = np.load(folder / "0.npz")["x_train"].reshape(-1, 64)
    for hidden in (samples[3] * 2.5, samples[3] - samples[3].mean(), -samples[3].astype(np.float32)):
        array = np.concatenate([np.zeros(7), np.asarray(hidden, np.float64).ravel(), np.ones(5)])
        assert closest([(0, Message("", {"a": array}))], folder) > 0.99


def test_no_sample_and_no_list_of_labels_is_among_the_bytes(recorded) -> None:
    folder, sent = recorded
    for client, message in sent:
        content = bytes_of(message)
        site = np.load(folder / f"{client}.npz")
        for kind in (np.uint8, np.float32, np.float64):
            for sample in np.concatenate([site["x_train"], site["x_test"]]):
                assert sample.astype(kind).tobytes() not in content
        for labels in (site["y_train"], site["y_test"]):
            for kind in (np.uint8, np.int32, np.int64, np.float32, np.float64):
                assert labels[:16].astype(kind).tobytes() not in content
            told = json.dumps(labels[:16].tolist())
            assert told.strip("[]") not in message.text and told.replace(" ", "").strip("[]") not in message.text


def test_only_classes_of_enough_samples_are_counted(recorded) -> None:
    _, sent = recorded
    counts = [array for _, message in sent for array in message.arrays.values() if array.dtype == np.int64]
    assert counts
    for array in counts:
        assert not ((array > 0) & (array < LEAST)).any()
