"""A node by itself: its configuration, its data, its memory, and what leaves it when something goes wrong."""

import contextlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag.client.evaluate import Evaluate
from feddag.client.signature import Signature
from feddag.client.step import Client, Result, Step, to_tensor
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.data.clients import lay_out
from feddag.deploy import node as node_module
from feddag.deploy.app import PACKAGE, Task, write_app
from feddag.deploy.launch import write_site
from feddag.deploy.node import Memory, answer, known_steps, read_site
from feddag.deploy.site import Node
from feddag.engines.flower.wire import JobId, WireError, read_reply, write_job
from feddag.engines.local import LocalEngine
from feddag.errors import FeddagError
from feddag.federation import Job
from feddag.runner.run import prepare
from feddag.weights import Own, Ref, Weights, digest, nbytes

QUICK = {"clients": 3, "groups": 3, "epochs": 1, "trainer": "torch", "partition": "concept-shift", "concepts": 2}


@pytest.fixture
def experiment() -> feddag.Experiment:
    return feddag.Experiment(**QUICK)


@pytest.fixture
def site(experiment, tmp_path: Path):
    """An app and the three clients' files; returns what a node with this client number answers."""
    dataset, partition, _ = prepare(experiment)
    data = lay_out(dataset, partition, experiment.seed)
    write_app(tmp_path / "app", experiment)
    for client in range(3):
        write_site(tmp_path / f"{client}.npz", data, client)

    def ask(client: int, moment: tuple[int, int], steps: Any, weights: Weights | None = None, **config: Any) -> Any:
        job_id = JobId("run1", client, *moment)
        own = {"client-id": client, "data": str(tmp_path / f"{client}.npz"), "state": str(tmp_path / "state")}
        own |= {"least-per-class": 1} | config
        job = write_job(job_id, Job(client, steps), lambda ref: weights or {})
        message = answer(job, own, {}, tmp_path / "app" / PACKAGE)
        return read_reply(message, job_id, len(Job(client, steps).steps))

    return ask


def start_of(experiment) -> tuple[Weights, Ref]:
    worker_config = prepare(experiment)[2]
    weights = worker_config.model.initial_weights(0, "model")
    return weights, Ref(digest(weights), nbytes(weights))


def test_a_node_gives_the_same_bytes_as_the_local_engine(experiment, site) -> None:
    dataset, partition, worker_config = prepare(experiment)
    engine = LocalEngine(lay_out(dataset, partition, experiment.seed), worker_config)
    weights, ref = start_of(experiment)
    engine.put(weights)
    jobs = [Job(client, [Train(ref, keep="mine"), Evaluate()]) for client in range(3)]
    expected = sorted(engine.perform(jobs, 2, 1)[0], key=lambda reply: reply.client)
    scored = sorted(engine.perform([Job(c, Evaluate(Own("mine"))) for c in range(3)], 2, 2)[0], key=lambda r: r.client)
    engine.close()
    for client in range(3):
        reply = site(client, (2, 1), jobs[client].steps, weights)
        assert reply.samples == expected[client].samples
        assert reply.results[0].numbers == expected[client].results[0].numbers
        assert digest(reply.weights) == digest(expected[client].weights)
        assert digest(reply.results[1].arrays) == digest(expected[client].results[1].arrays)
        own = site(client, (2, 2), Evaluate(Own("mine")))
        assert digest(own.results[0].arrays) == digest(scored[client].results[0].arrays)


def test_a_job_done_twice_gives_the_same_answer_twice(experiment, site) -> None:
    weights, ref = start_of(experiment)
    site(0, (1, 1), Train(ref, keep="mine"), weights)
    first = site(0, (2, 1), Train(Own("mine"), keep="mine"))
    again = site(0, (2, 1), Train(Own("mine"), keep="mine"))  # the server did not get the first answer
    assert digest(first.weights) == digest(again.weights)
    later = site(0, (3, 1), Train(Own("mine"), keep="mine"))
    assert digest(later.weights) != digest(first.weights)


def test_memory_never_runs_ahead(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "m")
    for moment in ((1, 1), (2, 1), (2, 2), (5, 1)):
        memory.remember(moment, {"n": torch.tensor(10 * moment[0] + moment[1])})
    assert memory.recall((1, 1)) == {}
    assert {m: int(memory.recall(m)["n"]) for m in ((5, 1), (5, 2), (9, 1))} == {(5, 1): 22, (5, 2): 51, (9, 1): 51}
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [  # the rest nobody can ask for any more
        "round-000002-exchange-0002.safetensors",
        "round-000005-exchange-0001.safetensors",
    ]
    memory.remember((3, 1), {"n": torch.tensor(31)})  # the server went back to an earlier round
    assert int(memory.recall((9, 1))["n"]) == 31


def test_a_signature_stays_on_the_node_too(experiment, site, tmp_path: Path) -> None:
    weights, ref = start_of(experiment)
    reply = site(2, (0, 1), MakeSignature(ref, steps=2, sparsity=0.1), weights)
    [file] = (tmp_path / "state").rglob("signature.safetensors")
    kept = Signature.load(file)
    assert kept.counts.tolist() == reply.results[0].arrays["counts"].tolist()
    assert kept.update.tobytes() == reply.results[0].arrays["update"].numpy().tobytes()
    model = prepare(experiment)[2].model
    assert MakeSignature(ref, 2, 0.1).shapes(model) == {n: tuple(a.shape) for n, a in reply.results[0].arrays.items()}


def test_damaged_memory_is_told_and_not_used(experiment, site, tmp_path: Path, capfd) -> None:
    weights, ref = start_of(experiment)
    site(1, (1, 1), Train(ref, keep="mine"), weights)
    [file] = (tmp_path / "state").rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(WireError, match="memory cannot be used"):
        site(1, (2, 1), Train(Own("mine")))
    assert str(file.name) in capfd.readouterr().err


@contextlib.contextmanager
def no_room_beyond(size: int) -> Iterator[None]:
    """Files cannot grow beyond so many bytes, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_and_loses_nothing(experiment, site, tmp_path: Path) -> None:
    weights, ref = start_of(experiment)
    work = [Train(ref, keep="mine"), MakeSignature(ref, steps=1, sparsity=0.1)]
    site(1, (1, 1), work, weights)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()}
    with no_room_beyond(5), pytest.raises(WireError, match=r"^said: its work failed with OSError \(File too large\)"):
        site(1, (2, 1), work, weights)
    assert {path.name: path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()} == kept
    site(1, (2, 1), work, weights)


@dataclass(frozen=True)
class Blab(Step):
    def run(self, client: Client) -> Result:
        raise ValueError(f"the first sample is {client.x[0].tolist()} and its label {int(client.y[0])}")


def test_an_exception_tells_only_its_type(site, monkeypatch, capfd) -> None:
    monkeypatch.setattr(node_module, "known_steps", lambda method: known_steps(method) | {f"{__name__}:Blab": Blab})
    with pytest.raises(WireError, match=r"^said: its work failed with ValueError; the node's log says where$"):
        site(0, (1, 1), Blab())
    log = capfd.readouterr().err
    assert "in run" in log and "first sample is [" not in log


def test_no_sample_leaves_the_node(experiment, site, tmp_path: Path) -> None:
    weights, ref = start_of(experiment)
    reply = site(1, (1, 1), [MakeSignature(ref, steps=2, sparsity=1.0), Train(ref, keep="mine"), Evaluate()], weights)
    tensors = [t for result in reply.results for t in (*(result.weights or {}).values(), *result.arrays.values())]
    sent = b"".join(tensor.numpy().tobytes() for tensor in tensors)
    held = read_site(Node(1, str(tmp_path / "1.npz"), tmp_path), Task.of(feddag.data.datasets.load("digits")))
    samples = held.samples(1)[0]
    normalised = to_tensor(samples, held.mean, held.std)
    assert len(sent) > 50_000 and len(samples) > 100
    for raw, seen in zip(samples, normalised, strict=True):
        assert raw.tobytes() not in sent and seen.numpy().tobytes() not in sent


def test_a_job_for_somebody_else_is_refused(site) -> None:
    with pytest.raises(WireError, match="for another client"):
        site(0, (1, 1), Evaluate(Own("mine")), **{"client-id": 1})


def test_where_a_nodes_files_lie_stays_on_the_node(site, tmp_path: Path, capfd) -> None:
    with pytest.raises(WireError) as refused:
        site(0, (1, 1), Evaluate(Own("mine")), data=str(tmp_path / "absent.npz"))
    assert str(tmp_path) not in str(refused.value) and "absent.npz" in capfd.readouterr().err


@pytest.mark.parametrize("client", [None, -1, "0", 1.5, True])
def test_a_node_must_say_who_it_is(client: Any) -> None:
    with pytest.raises(FeddagError, match="client-id"):
        Node.of({"client-id": client, "data": "x.npz"}, {})


def test_a_real_node_takes_nothing_from_the_run_config() -> None:
    with pytest.raises(FeddagError, match="data is missing"):
        Node.of({"client-id": 0}, {"data": "/etc/{client}"})
    simulated = Node.of({"partition-id": 4, "num-partitions": 9}, {"data": "/d/{client}.npz", "state": "/s"})
    assert (simulated.client, simulated.data, simulated.state) == (4, "/d/4.npz", Path("/s"))


TASK = Task((2, 2, 1), ("cat", "dog", "owl"), (1.0,), (2.0,))


def test_labels_are_numbered_as_in_the_whole_federation(tmp_path: Path) -> None:
    x = np.arange(16, dtype=np.uint8).reshape(4, 2, 2, 1)
    np.savez(tmp_path / "s.npz", x_train=x, y_train=["owl", "cat", "owl", "owl"], x_test=x[:2], y_test=["owl", "cat"])
    data = read_site(Node(1, str(tmp_path / "s.npz"), tmp_path), TASK)
    assert data.samples(1)[1].tolist() == [2, 0, 2, 2]
    assert [data.block(number)[1].tolist() for number in data.blocks(1)] == [[0], [2]]
    assert data.size(0) == 0 and data.size(1) == 4


def test_data_from_an_entry_point(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "clinic.py").write_text(
        "import numpy as np\n"
        "def rows():\n"
        "    x = np.zeros((3, 2, 2, 1), np.float32)\n"
        "    return x, [0, 2, 2], x[:1], [1]\n"
        "def wrong():\n"
        "    return np.zeros((3, 5), np.float32), [0, 1, 2], np.zeros((1, 5), np.float32), [1]\n"
        "def unknown():\n"
        "    return np.zeros((1, 2, 2, 1), np.float32), [3], np.zeros((1, 2, 2, 1), np.float32), [1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert read_site(Node(0, "clinic:rows", tmp_path), TASK).size(0) == 3
    for entry, reason in (("wrong", "shape"), ("unknown", "label outside 0 .. 2"), ("absent", "could not be imported")):
        with pytest.raises(FeddagError, match=reason):
            read_site(Node(0, f"clinic:{entry}", tmp_path), TASK)
    sys.modules.pop("clinic")


def test_a_class_that_the_app_does_not_know_is_refused_unnamed(tmp_path: Path) -> None:
    x = np.zeros((4, 2, 2, 1), np.uint8)
    np.savez(tmp_path / "s.npz", x_train=x, y_train=["owl", "emu", "owl", "owl"], x_test=x[:2], y_test=["owl", "cat"])
    with pytest.raises(FeddagError, match="1 classes that are not among") as refused:
        read_site(Node(1, str(tmp_path / "s.npz"), tmp_path), TASK)
    assert "emu" not in str(refused.value)


def test_the_task_file_says_what_it_said(tmp_path: Path) -> None:
    task = Task.of(feddag.data.datasets.load("digits"))
    (tmp_path / "task.toml").write_text(task.to_toml())
    assert Task.read(tmp_path) == task
    (tmp_path / "task.toml").write_text("classes = 3")
    with pytest.raises(FeddagError, match=r"task\.toml"):
        Task.read(tmp_path)
