"""What runs beside the data: a node reads its samples, does a job, and keeps the client's memory on its own disk."""

import contextlib
import os
import pkgutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feddag.client.step import Step
from feddag.data.clients import Array, ClientData, of_one_client, set_aside
from feddag.data.datasets import load as load_dataset
from feddag.deploy.app import EXPERIMENT, Task
from feddag.deploy.site import Node
from feddag.engines.flower.grid import from_record, reply
from feddag.engines.flower.wire import (
    JobId,
    Message,
    ReceivedJob,
    WireError,
    class_path,
    read_job,
    spoken,
    write_hello,
    write_refusal,
    write_reply,
)
from feddag.engines.worker import Done, Work, Worker
from feddag.errors import FeddagError
from feddag.experiment import Experiment, read_experiment
from feddag.federation import Job, Reply
from feddag.methods import all_methods, find_method
from feddag.own_code import source_files
from feddag.runner.trees import DamagedError, load_tree, save_tree
from feddag.weights import Ref, Weights

Moment = tuple[int, int]


class Memory:
    """What a client remembers, on its own disk: a file for each moment it changed, so that it never runs ahead.

    A job sees what was remembered before its own moment. So a job done twice gives the same answer twice, and a server
    that goes back to an earlier round finds the memory of that round.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def recall(self, moment: Moment) -> Weights:
        """What was remembered before this moment."""
        before = [path for path in self._files() if _moment(path) < moment]
        if not before:
            return {}
        state: Weights = load_tree(before[-1])
        return state

    def remember(self, moment: Moment, state: Weights) -> None:
        """Keep this, and what the two newest checkpoints of the server may still ask for."""
        save_tree(self.folder / f"round-{moment[0]:06d}-exchange-{moment[1]:04d}.safetensors", state)
        older = [path for path in self._files() if _moment(path) < (moment[0] - 1, 0)]
        undone = [path for path in self._files() if _moment(path) > moment]
        for path in [*older[:-1], *undone]:
            path.unlink()

    @property
    def folder(self) -> Path:
        """Where this client's files are; only its owner may read them."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self._folder

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("round-*-exchange-*.safetensors"))


def _moment(path: Path) -> Moment:
    _, round, _, exchange = path.stem.split("-")
    return int(round), int(exchange)


def hello(message: Any, context: Any) -> Any:
    """Flower's handler: say which client this node is."""
    protocol = spoken(from_record(message.content))
    try:
        return reply(write_hello(Node.of(context.node_config, context.run_config).client, protocol), message)
    except FeddagError as error:
        _log(f"feddag: {error}")
        return reply(write_refusal(None, "its node config cannot be used; the node's log says why", protocol), message)


def work(message: Any, context: Any, folder: Path) -> Any:
    """Flower's handler: do a job with the app in this folder. Errors are reported without any value in them."""
    return reply(answer(from_record(message.content), context.node_config, context.run_config, folder), message)


def answer(message: Message, node_config: Mapping[str, Any], run_config: Mapping[str, Any], folder: Path) -> Message:
    """The answer to a job."""
    job_id: JobId | None = None
    protocol = spoken(message)
    try:
        node = Node.of(node_config, run_config)
        experiment = read_experiment(folder / EXPERIMENT, {})
        job = read_job(message, known_steps(experiment.method))
        job_id = job.id
        if job_id.client != node.client:
            raise WireError("the job is for another client")
        node.policy.check(job.steps, experiment.local, node.memory(job_id.run))
        return write_reply(job_id, do(job, node, experiment, Task.read(folder)), protocol)
    except WireError as error:
        _log(f"feddag: {error}")
        return write_refusal(job_id, str(error), protocol)
    except (FeddagError, DamagedError) as error:
        _log(f"feddag: {error}")  # it names files of this node, so it is not sent
        reason = "its configuration, data or memory cannot be used; the node's log says why"
        return write_refusal(job_id, reason, protocol)
    except Exception as error:  # its text may hold a sample or a label: only its type is sent, only lines are logged
        kind = _kind(error)
        _log("".join(traceback.format_tb(error.__traceback__)), kind)
        return write_refusal(job_id, f"its work failed with {kind}; the node's log says where", protocol)


def _log(*words: str) -> None:
    """Into the node's log, if it has room: a log on a full disk must not become an error of its own."""
    with contextlib.suppress(OSError):
        print(f"ERROR {time.strftime('%Y-%m-%d %H:%M:%S')}", *words, file=sys.stderr, flush=True)


def _kind(error: Exception) -> str:
    """The type of an error; of the system's errors also which one it was, in the system's own words.

    >>> _kind(OSError(28, "a secret")), _kind(ValueError("a secret"))
    ('OSError (No space left on device)', 'ValueError')
    """
    number = error.errno if isinstance(error, OSError) else None
    return f"{type(error).__name__} ({os.strerror(number)})" if isinstance(number, int) else type(error).__name__


def do(job: ReceivedJob, node: Node, experiment: Experiment, task: Task) -> Reply:
    """Do a job with the samples and the memory of this node."""
    torch.set_num_threads(node.threads)
    model = task.model(experiment)
    config = replace(experiment.worker_config(model), least_per_class=node.policy.least_per_class)
    data = read_site(node, task, experiment.columns)
    if experiment.personal != "none":
        data = set_aside(data, experiment.seed)

    def fetch(ref: Ref) -> Weights:
        return job.weights[ref.digest]

    moment = (job.id.round, job.id.exchange)
    memory = Memory(node.memory(job.id.run))
    work = Work(Job(node.client, job.steps), memory.recall(moment), moment)
    with _limited(node.policy.most_seconds):
        done = Worker(data, config, fetch).do(work)
    node.policy.note(job.steps, memory.folder, moment)
    assert isinstance(done, Done)
    if done.state is not None:
        memory.remember(moment, done.state)
    for step, result in zip(job.steps, done.results, strict=True):
        step.write_down(result, memory.folder)
    return Reply(node.client, done.results, data.size(node.client))


@contextlib.contextmanager
def _limited(seconds: int) -> Iterator[None]:
    """End this program when the work inside takes longer: native code cannot be asked to stop."""

    def end() -> None:
        _log(f"feddag: a job took longer than its policy allows ({seconds} s); this program ends")
        os._exit(3)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def read_site(node: Node, task: Task, columns: str = "") -> ClientData:
    """This node's samples, with labels numbered as in the whole federation."""
    if ":" in node.data and not Path(node.data).exists():
        x_train, y_train, x_test, y_test = _call(node.data)
        labels = np.asarray(y_train, np.int64), np.asarray(y_test, np.int64)
        samples: tuple[Array, Array] = np.asarray(x_train), np.asarray(x_test)
    else:
        dataset = load_dataset(node.data, columns)
        unknown = set(dataset.classes) - set(task.classes)
        if unknown:
            raise FeddagError(f"the node's data have {len(unknown)} classes that are not among the app's classes")
        number = np.array([task.classes.index(word) for word in dataset.classes])
        labels = number[dataset.y_train], number[dataset.y_test]
        samples = dataset.x_train, dataset.x_test
    for x, y in zip(samples, labels, strict=True):
        if x.shape[1:] != task.sample_shape or x.shape[0] != y.shape[0] or x.dtype not in (np.uint8, np.float32):
            raise FeddagError(
                f"the node's samples are {x.dtype} of shape {x.shape[1:]}, and the app's are uint8 or float32 of shape "
                f"{task.sample_shape}"
            )
        if len(y) and not 0 <= y.min() <= y.max() < len(task.classes):
            raise FeddagError(f"the node's data have a label outside 0 .. {len(task.classes) - 1}")
    return of_one_client(node.client, samples, labels, task.mean, task.std, len(task.classes))


def _call(entry: str) -> Any:
    try:
        return pkgutil.resolve_name(entry)()
    except (ImportError, AttributeError, ValueError) as error:
        raise FeddagError(f"node config data = '{entry}' could not be imported: {type(error).__name__}") from None


def known_steps(method: str) -> dict[str, type[Step]]:
    """Every step of this package and of the user's own modules that the experiment's method consists of, by class path.

    >>> known_steps("fedavg")["feddag.client.train:Train"].__name__
    'Train'
    """
    all_methods()  # a method's file may define steps: all are imported now, none later
    modules = {find_method(method).__module__}
    if ":" in method:
        modules |= set(source_files(method.partition(":")[0]))
    found = {}
    waiting = Step.__subclasses__()
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if kind.__module__.startswith("feddag.") or kind.__module__ in modules:
            found[class_path(kind)] = kind
    return found
