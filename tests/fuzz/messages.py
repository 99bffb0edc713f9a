"""What a node or a server may send: honest messages with something changed, read as the other side reads them.

A server that was sent an answer it did not refuse also uses it: counts it, averages it, groups by it.
"""

import atexit
import contextlib
import io
import json
import random
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddag import group
from feddag.client.evaluate import Choose, Evaluate, EvaluateMixture, Monitor, balanced_accuracies
from feddag.client.signature import Signature, signature
from feddag.client.step import Result, Step
from feddag.client.train import Anchor, Train
from feddag.client.warmup import MakeSignature
from feddag.deploy.app import PACKAGE, write_app
from feddag.deploy.node import answer, known_steps
from feddag.deploy.site import Node
from feddag.engines.flower.grid import from_record, size_of
from feddag.engines.flower.wire import (
    JobId,
    Message,
    read_hello,
    read_job,
    read_reply,
    write_hello,
    write_job,
    write_reply,
)
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.federation import Engine, Federation, Job, Reply
from feddag.models import ModelSpec
from feddag.packing import pack, unpack
from feddag.server.aggregate import weighted_mean
from feddag.weights import Own, Ref, Weights, digest, nbytes
from tests.fuzz.damage import Try, damage
from tests.fuzz.trees import JUNK, changed

MODEL = ModelSpec("mlp", (1, 2, 2), 3)
HERE = JobId("abc123", 2, 1, 1)
DTYPES = ("float32", "float64", "int64", "uint8", "bool", "object", "V8", "float32,int8", "datetime64[s]", "", "U4")
SHAPES: tuple[Any, ...] = (
    *((), (0,), (1,), (3,), (-1,), (1,) * 65, (0, 2**62, 2**62), (2**40, 2**40), (2**31, 0), (1.0,), (None,)),
    *(None, "3", ("3",), [[3]], (True,), (10**400,), 7),
)


@dataclass
class SentArray:
    """What of an array of Flower's is looked at, with anything in it."""

    data: Any
    dtype: Any
    shape: Any


@dataclass
class SentRecord:
    """What of Flower's RecordDict is looked at."""

    config_records: Any
    array_records: Any


def arrived(chance: random.Random, message: Message) -> Message:
    """The message as the other side reads it, after something was changed on its way."""
    way = chance.choice((_other_text, _other_tree, _other_content, _other_array, _other_numbers))
    text, arrays = way(chance, message)
    record: Any = SentRecord({"text": {"feddag": text}}, {"arrays": arrays})
    if chance.random() < 0.02:
        record = chance.choice((None, SentRecord(None, {}), SentRecord({"text": None}, {"arrays": arrays}), 7))
    assert size_of(record) >= 0
    return from_record(record)


def _sent_arrays(arrays: Mapping[str, np.ndarray]) -> dict[Any, Any]:
    return {name: SentArray(array.tobytes(), str(array.dtype), array.shape) for name, array in arrays.items()}


def _other_text(chance: random.Random, message: Message) -> tuple[Any, dict[Any, Any]]:
    damaged = damage(np.random.default_rng(chance.getrandbits(32)), message.text.encode())
    text = damaged.decode(errors=chance.choice(("replace", "ignore", "surrogateescape")))
    deep = chance.choice(("[" * 50_000, '{"$dict":' * 20_000, "9" * 5000, 7, None, b"{}"))
    return deep if chance.random() < 0.02 else text, _sent_arrays(message.arrays)


def _other_tree(chance: random.Random, message: Message) -> tuple[str, dict[Any, Any]]:
    return _dumped(chance, json.loads(message.text)), _sent_arrays(message.arrays)


def _dumped(chance: random.Random, tree: Any) -> str:
    for _ in range(chance.choice((1, 1, 2, 3))):
        tree = changed(chance, tree)
    return json.dumps(tree)


def _other_content(chance: random.Random, message: Message) -> tuple[str, dict[Any, Any]]:
    """Well-formed, with other content; steps are changed as trees, for they are no plain content."""
    if '"$step"' in message.text:
        return _other_tree(chance, message)
    for _ in range(100):
        try:
            text, arrays = pack(changed(chance, unpack(message.text, dict(message.arrays))))
            return text, _sent_arrays(arrays)
        except (TypeError, ValueError, OverflowError):  # not everything can be packed
            continue
    return "", {}


def _other_numbers(chance: random.Random, message: Message) -> tuple[str, dict[Any, Any]]:
    """Arrays of the same shapes and kinds, with other numbers in one of them: what a careful liar sends."""
    arrays = dict(message.arrays)
    if arrays:
        name = chance.choice(list(arrays))
        factor = chance.choice((-1, 0, 0.5, 2, 1e3, 1e9, 1e37, 1e-40))
        with np.errstate(all="ignore"):
            other = arrays[name] * factor if chance.random() < 0.7 else arrays[name] + factor
            arrays[name] = other.astype(arrays[name].dtype)
    return message.text, _sent_arrays(arrays)


def _other_array(chance: random.Random, message: Message) -> tuple[str, dict[Any, Any]]:
    arrays = _sent_arrays(message.arrays)
    if not arrays:
        return message.text, {chance.choice(("000000", 7, "")): chance.choice(JUNK)}
    name = chance.choice(list(arrays))
    what = chance.choice(("data", "dtype", "shape", "gone", "junk", "bits"))
    if what == "gone":
        del arrays[name]
    elif what == "junk":
        arrays[name] = chance.choice(JUNK)
    elif what == "bits":
        arrays[name].data = damage(np.random.default_rng(chance.getrandbits(32)), arrays[name].data)
    else:
        content = {"data": (b"", b"\xff" * 7, None, "text", arrays[name].data * 2), "dtype": DTYPES, "shape": SHAPES}
        setattr(arrays[name], what, chance.choice(content[what]))
    return message.text, arrays


# From nodes to a server ----------------------------------------------------------------------------------------------


class Answering(Engine):
    """Three honest clients, and one whose answer was changed on its way."""

    chance = random.Random()

    def population(self) -> tuple[int, ...]:
        return (0, 1, 2, 3)

    def put(self, weights: Weights) -> Ref:
        return Ref(digest(weights), nbytes(weights))

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[int, str]]:
        honest = [Reply(job.client, [_honest(step, job.client) for step in job.steps], 10) for job in jobs]
        mine = honest.pop(HERE.client)
        return [*honest, read_reply(arrived(self.chance, write_reply(HERE, mine)), HERE, len(mine.results))], {}

    def states(self) -> dict[int, tuple[int, Weights]]:
        return {}

    def restore(self, states: dict[int, tuple[int, Weights]]) -> None:
        pass

    def close(self) -> None:
        pass


@cache
def _weights(client: int) -> Weights:
    return MODEL.initial_weights(0, f"client {client}")


@cache
def _signature(client: int, update: int) -> Signature:
    random = np.random.default_rng(client)
    sent = random.normal(size=update).astype(np.float32)
    return signature(random.normal(size=(12, 4)), np.arange(12) % 3, 3, update=sent, update_reliability=0.5)


def _honest(step: Step, client: int) -> Result:
    """What a step gives back, without the work."""
    weights = {name: value for name, value in _weights(client).items() if not step.parts or name.startswith(step.parts)}
    if isinstance(step, Train):
        losses = {"losses": torch.ones(3, dtype=torch.float64)} if step.losses else {}
        return Result(weights if step.send else None, {"loss": 0.5}, losses, samples=30)
    if isinstance(step, MakeSignature):
        asked = step.shapes(MODEL)
        made = vars(_signature(client, asked["update"][0]))
        arrays = {name: torch.from_numpy(np.atleast_1d(made[name]).copy()) for name in asked}
        return Result(weights, arrays=arrays, samples=20)
    shapes = step.shapes(MODEL) or {}
    arrays = {name: torch.ones(shape, dtype=torch.float64) for name, shape in shapes.items()}
    if isinstance(step, Choose):
        arrays["chosen"] = torch.tensor([1])
    return Result(arrays=arrays, scored=7)


@cache
def _federation() -> tuple[Answering, Federation]:
    engine = Answering()
    federation = Federation(engine, MODEL, 0, 1.0)
    federation.put(_weights(0))
    return engine, federation


@cache
def _start() -> Ref:
    weights = _weights(0)
    return Ref(digest(weights), nbytes(weights))


def some_steps(chance: random.Random) -> list[Step]:
    """Steps of every kind that a method may ask for."""
    start = _start()
    kinds: tuple[Step, ...] = (
        *(Train(start), Train(start, losses=True, balanced=True), Train(start, parts=("head",), epochs=1)),
        Train(start, anchors=(Anchor(start, 0.1),), keep="mine", send=False),
        *(MakeSignature(start, 2, 0.1), Evaluate(start), Choose((start, Own("mine"))), Monitor(start)),
        EvaluateMixture((start, start), (0.5, 0.5)),
    )
    return [chance.choice(kinds) for _ in range(chance.choice((1, 1, 1, 2)))]


def try_reply(chance: random.Random, scratch: Path) -> None:
    """An answer: refused, or used by the server as any other."""
    engine, federation = _federation()
    engine.chance = chance
    steps = some_steps(chance)
    measuring = chance.random() < 0.2
    with np.errstate(all="ignore"):
        if measuring:
            with federation.uncounted():
                replies = federation.ask([Job(client, steps) for client in range(4)])
        else:
            replies = federation.ask([Job(client, steps) for client in range(4)])
    if HERE.client in replies.missing:
        raise FeddagError(replies.missing[HERE.client])
    for number, step in enumerate(steps):
        results = [reply.results[number] for reply in replies]
        if isinstance(step, Evaluate | EvaluateMixture):
            scores = balanced_accuracies(torch.stack([result.arrays["counts"] for result in results]))
            assert not any(score < 0 or score > 1 for score in scores)  # nan: one that says it has no samples
        if isinstance(step, MakeSignature) and not measuring:
            found = group([Signature.from_tensors(result.arrays) for result in results])
            assert np.isfinite(found.distances_).all()
        if step.sends() and not measuring:
            mean = weighted_mean([Reply(r.client, [r.results[number]], r.samples) for r in replies])
            assert mean is not None and all(torch.isfinite(value).all() for value in mean.values())


def try_hello(chance: random.Random, scratch: Path) -> None:
    """A node's introduction."""
    assert 0 <= read_hello(arrived(chance, write_hello(chance.choice((0, 7, 10**6))))).client < 2**53


# From a server to nodes ----------------------------------------------------------------------------------------------


@cache
def _steps_of(method: str) -> dict[str, type[Step]]:
    return known_steps(method)


@cache
def _node(least: int) -> Node:
    return Node.of({"client-id": 2, "data": "site.npz", "state": "/nowhere", "least-per-class": least}, {})


def try_job(chance: random.Random, scratch: Path) -> None:
    """A job, as a node reads it."""
    job = write_job(HERE, Job(HERE.client, some_steps(chance)), lambda ref: _weights(0))
    received = read_job(arrived(chance, job), _steps_of(chance.choice(("fedavg", "feddag"))))
    assert all(isinstance(step, Step) for step in received.steps) and received.id.run.isalnum()
    memory = _node(6).memory(received.id.run)
    assert memory.is_relative_to(_node(6).state) and ".." not in memory.parts


@cache
def _site() -> Path:
    """An app, and the samples of one client of it."""
    folder = Path(tempfile.mkdtemp(prefix="feddag-fuzz-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(24, 2, 2, 1)).astype(np.float32), np.arange(24) % 3
    np.savez(folder / "site.npz", x=x, y=y)
    write_app(
        folder / "app", Experiment(method="fedavg", dataset=str(folder / "site.npz"), clients=3, epochs=1, model="mlp")
    )
    return folder


def try_node(chance: random.Random, scratch: Path) -> None:
    """A job that the node's own program does if it can; its answer is one that a server can read."""
    job = write_job(HERE, Job(HERE.client, some_steps(chance)), lambda ref: _weights(0))
    site = {"client-id": 2, "data": str(_site() / "site.npz"), "state": str(scratch), "least-per-class": 1}
    limits = {"most-steps": 50, "most-epochs": 3, "most-seconds": 250}
    with contextlib.redirect_stderr(io.StringIO()), np.errstate(all="ignore"):
        answered = answer(arrived(chance, job), site | limits, {}, _site() / "app" / PACKAGE)
    for memory in scratch.iterdir():
        shutil.rmtree(memory)
    job_id = HERE
    content = unpack(answered.text, answered.arrays)
    if "run" in content:
        job_id = JobId(content["run"], content["client"], content["round"], content["exchange"])
    read_reply(answered, job_id, len(content.get("results", ())))


MESSAGES: dict[str, Try] = {"hello": try_hello, "reply": try_reply, "job": try_job, "node": try_node}


def replay_message(kind: str, text: str) -> None:
    """Read a kept message, which has no arrays."""
    message = from_record(SentRecord({"text": {"feddag": text}}, {"arrays": {}}))
    if kind == "hello":
        read_hello(message)
    elif kind == "reply":
        read_reply(message, HERE, 1)
    else:
        read_job(message, _steps_of("feddag"))
