"""The loop: sample clients, let the method do a round, evaluate, record, checkpoint. And what comes out of it."""

import json
import math
import os
import platform
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

import feddag
from feddag import native
from feddag.client.evaluate import Evaluate, balanced_accuracies, mean_loss
from feddag.client.train import Train, load_weights
from feddag.data.clients import count_classes, lay_out
from feddag.data.datasets import Dataset
from feddag.data.datasets import load as load_dataset
from feddag.data.partitions import Partition
from feddag.engines.local import LocalEngine, Workplace
from feddag.errors import FeddagError
from feddag.experiment import Experiment, read_experiment
from feddag.federation import ClientId, Engine, Federation, Job, Own, Ref, Step, Traffic, Weights, kept
from feddag.files import write_atomically
from feddag.history import Record, RunDirectory, save_tree
from feddag.models import DualEncoder, Model, ModelSpec, default_model
from feddag.native import Network
from feddag.outcome import DECIMALS, Accuracy, block, drift_report, over_rounds, placed_right, score_groups, swing, tail

SCHEMA = 1
SMALL_RUN = 1e10  # sample passes x parameters: some seconds of work

Observer = Callable[[Record], None]


class Run:
    """A finished run: what was asked, what came out, and the models."""

    def __init__(self, directory: Path, experiment: Experiment, result: Record, keep_alive: object = None) -> None:
        self.directory = directory
        self.experiment = experiment
        self.result = result
        self._keep_alive = keep_alive  # a temporary directory lives as long as its run

    @property
    def accuracy(self) -> Accuracy:
        """The headline: mean over the last tenth of the rounds."""
        block = self.result["accuracy"]
        return Accuracy(**{**block, "per_client": tuple(block["per_client"])})

    @property
    def clusters(self) -> list[int | None] | None:
        """The group of each client, None for one that has none; None for a method that makes no groups."""
        clusters: list[int | None] | None = self.result["clusters"]
        return clusters

    @property
    def truth(self) -> list[int] | None:
        """The true group of each client, where the partition has one."""
        truth: list[int] | None = self.result["truth"]
        return truth

    @property
    def history(self) -> list[Record]:
        """A record for each round."""
        return RunDirectory(self.directory).read_history()

    def model(self, client: ClientId) -> Model | DualEncoder:
        """The network this client ended with, ready to use."""
        if not 0 <= client < self.result["clients"]:
            raise FeddagError(f"client = {client} is not one of the {self.result['clients']} clients")
        tree, states = RunDirectory(self.directory).load_checkpoint() or ({"round": 0}, {})
        if tree["round"] != self.experiment.rounds:
            raise FeddagError(f"run directory '{self.directory}' has lost its last checkpoint, and with it the models")
        method = self.experiment.method_class(self.experiment.settings)
        method.load_state_dict(tree["method"])
        source = method.model_of(client)
        if isinstance(source, Own):
            if client not in states:
                raise FeddagError(f"client = {client} keeps its model on its own machine")
            source = kept(states[client][1], source.name)
        model = ModelSpec(*tree["model"]).build().eval()
        load_weights(model, source)
        return model

    def save(self, directory: str | Path) -> None:
        """Copy everything the run left into another directory."""
        target = Path(directory)
        if target.exists() and any(target.iterdir()):
            raise FeddagError(f"directory '{target}' is not empty; give a new one")
        shutil.copytree(self.directory, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".lock"))


def load(directory: str | Path) -> Run:
    """A finished run from its directory."""
    files = RunDirectory(Path(directory))
    result = files.read_result()
    if result is None:
        raise FeddagError(f"'{directory}' holds no finished run: it has no result.json")
    return Run(files.path, read_experiment(files.experiment, {}), result)


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, observer: Observer | None = None
) -> Run:
    """Run an experiment, leaving everything in `out` (a temporary directory if none is given).

    With `resume`, an unfinished run in `out` goes on after its last whole round, and ends as if never stopped.
    The observer is called with each round's record.
    """
    keep_alive = tempfile.TemporaryDirectory(prefix="feddag-run-") if out is None else None
    files = RunDirectory(Path(out or keep_alive.name))  # type: ignore[union-attr]
    if not resume and files.path.exists() and any(files.path.iterdir()):
        raise FeddagError(f"run directory '{files.path}' is not empty; give a new one, or go on with --resume")
    result = files.read_result() if resume else None
    if result is not None and result["key"] != experiment.key():
        raise FeddagError(f"run directory '{files.path}' holds the result of another experiment")
    if result is None:
        dataset, partition, place = prepare(experiment)
        data = lay_out(dataset, partition, experiment.seed, experiment.evaluate)
        with files.locked():
            if files.load_checkpoint() is None:  # else they are there, and may be another experiment's: refused below
                write_atomically(files.experiment, experiment.to_toml())
                partition.save(files.partition)
            setting = Setting.of(dataset, partition, place)
            drift = None
            if experiment.drift_round:
                after = partition.drifted(experiment.drift_share, experiment.seed)
                drift = experiment.drift_round, lay_out(dataset, after, experiment.seed, experiment.evaluate)
                counts = count_classes(dataset, after)
                drifting = partition.drifting(experiment.drift_share, experiment.seed)
                setting = replace(setting, truth_at_end=after.truth, class_counts=counts, drifting=drifting)
            workers = experiment.workers or _worthwhile_workers(experiment, partition, place)
            engine = LocalEngine(data, place, workers, drift)
            result = run_on(engine, experiment, files, setting, resume, observer)
    return Run(files.path, experiment, result, keep_alive)


def run_on(
    engine: Engine,
    experiment: Experiment,
    files: RunDirectory,
    setting: "Setting",
    resume: bool = False,
    observer: Observer | None = None,
) -> Record:
    """Let an engine run an experiment to its end, and write down the result; the engine is closed however it ends."""
    try:
        loop = _Loop(experiment, files, setting, engine, observer)
        result = loop.run_to_end(resume)
        write_atomically(files.result, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        if setting.held_out:  # whoever joined after the last round has a model, too
            loop.checkpoint(experiment.rounds)
    finally:
        engine.close()
    return result


def prepare(experiment: Experiment) -> tuple[Dataset, Partition, Workplace]:
    """Load, divide and build what a run needs. Whatever can be refused is refused here, before any work."""
    dataset = load_dataset(experiment.dataset)
    partition = experiment.divide(dataset)
    model = model_for(experiment, dataset.x_train.shape[1:], dataset.num_classes)
    network = native_network(experiment, model)
    if experiment.method_class.needs_truth and partition.truth is None:
        raise FeddagError(
            f"method = '{experiment.method}' needs true groups, and partition = '{experiment.partition}' has none"
        )
    return dataset, partition, Workplace(model, experiment.local, experiment.seed, network)


@dataclass(frozen=True)
class Setting:
    """What a run is told beside its experiment: the network, what trains it, and what is known about the clients."""

    model: ModelSpec
    trainer: str
    clients: int
    """How many there are or may be."""
    truth: tuple[int, ...] | None = None
    """The true group of each client, where the data were divided by us."""
    truth_at_end: tuple[int, ...] | None = None
    """The same after the last round: clients may have drifted."""
    held_out: tuple[ClientId, ...] = ()
    drifting: tuple[ClientId, ...] = ()
    """Who holds other data after the drift."""
    partition_checksum: str | None = None
    class_counts: NDArray[np.int64] | None = None
    """How many samples of each class each client holds, where that is known: clients x classes."""
    classes: tuple[str, ...] | None = None
    """What the classes are called, where that is known."""
    minimum: int = 0
    """Fewest usable answers of an exchange; with fewer the run stops and can be resumed."""

    @classmethod
    def of(cls, dataset: Dataset, partition: Partition, place: Workplace) -> "Setting":
        """What is known where one machine holds the data of all clients."""
        return cls(
            model=place.model,
            trainer="torch" if place.network is None else f"native, {native.instruction_set()}",
            clients=len(partition.train),
            truth=partition.truth,
            truth_at_end=partition.truth,
            held_out=partition.held_out,
            partition_checksum=partition.checksum(),
            class_counts=count_classes(dataset, partition),
            classes=dataset.classes,
        )


class _Loop:
    """One run under way."""

    def __init__(
        self,
        experiment: Experiment,
        files: RunDirectory,
        setting: Setting,
        engine: Engine,
        observer: Observer | None,
    ) -> None:
        self.experiment, self.files, self.setting = experiment, files, setting
        self.engine, self.observer = engine, observer
        truth = None if setting.truth is None else dict(enumerate(setting.truth))
        self.federation = Federation(
            engine,
            setting.model,
            experiment.seed,
            experiment.participation,
            truth,
            setting.held_out,
            setting.minimum,
        )
        self.method = experiment.method_class(experiment.settings)
        self.key = experiment.key()
        self.present: tuple[ClientId, ...] = ()
        self.began = time.perf_counter()
        self.seconds_before = 0.0  # spent before a resume
        self.explained: dict[ClientId, int] | None = None  # the groups that grouping.safetensors tells about

    def run_to_end(self, resume: bool) -> Record:
        done = self._restore() if resume else None
        if done is None:
            self.present = self.federation.clients
            self.method.start(self.federation)
            self._explain()
            self.checkpoint(0)
        for number in range((done or 0) + 1, self.experiment.rounds + 1):
            began = time.perf_counter()
            self.federation.begin_round(number)
            self._welcome()
            sampled = self.method.sample(self.federation)
            self.method.round(self.federation, sampled)
            record = self._record(number)
            record["seconds"] = round(time.perf_counter() - began, 4)
            self.files.append(record)
            if self.method.clusters() != self.explained:
                self._explain()
            self.checkpoint(number)
            if self.observer:
                self.observer(record)
        return self._result()

    def _welcome(self) -> None:
        """Tell the method who came and who went since the last round."""
        before, self.present = self.present, self.federation.clients
        if gone := sorted(set(before) - set(self.present)):
            self.method.leave(self.federation, gone)
        if newcomers := sorted(set(self.present) - set(before)):
            self.method.join(self.federation, newcomers)

    def _explain(self) -> None:
        """Write down what a report needs beside the history: what led to the groups, and who holds which classes."""
        known = {"class_counts": self.setting.class_counts, "classes": self.setting.classes}
        save_tree(self.files.grouping, self.method.evidence() | known)
        self.explained = _copied(self.method.clusters())

    def _record(self, number: int) -> Record:
        clients = self.present
        scores, loss = self._evaluate(clients)
        accuracy = Accuracy.over(scores)
        traffic = self.federation.traffic
        clusters = self.method.clusters()
        return {
            "round": number,
            "accuracy": {name: value for name, value in accuracy.as_dict().items() if name != "per_client"},
            "loss": None if loss is None else round(loss, DECIMALS),
            "clients": list(clients),
            "per_client": list(accuracy.per_client),
            "clusters": None if clusters is None else [clusters.get(client) for client in clients],
            "bytes_up": traffic.up.total(),
            "bytes_down": traffic.down.total(),
            "sample_passes": traffic.samples.total(),
            "missing": {str(client): reason for client, reason in self.federation.missing.items()},
            "events": [*self.engine.events(), *self.method.news()],
        }

    def _evaluate(self, clients: Sequence[ClientId], finetuned: bool = False) -> tuple[list[float], float | None]:
        """Score each client's model on its test samples, as it is or after the client's own local epochs."""
        # Most clients share a few sets of weights: each is hashed once, and held, or another might get its id.
        refs: dict[int, tuple[Ref, Weights]] = {}

        def source(client: ClientId) -> Ref | Own:
            model = self.method.model_of(client)
            if isinstance(model, Own):
                return model
            if id(model) not in refs:
                refs[id(model)] = self.federation.put(model), model
            return refs[id(model)][0]

        def steps(client: ClientId) -> list[Step]:
            model = source(client)
            return [Train(model, send=False), Evaluate()] if finetuned else [Evaluate(model)]

        with self.federation.uncounted():
            replies = self.federation.ask([Job(client, steps(client)) for client in clients])
        if not len(replies):
            return [math.nan] * len(clients), None
        counts = torch.stack([reply.results[-1].arrays["counts"] for reply in replies])
        answered = [reply.client for reply in replies]
        scores = dict(zip(answered, balanced_accuracies(counts), strict=True))
        loss = mean_loss(counts.sum(0))
        return [scores.get(client, math.nan) for client in clients], loss if math.isfinite(loss) else None

    def _finetuned(self, clients: Sequence[ClientId]) -> Accuracy | None:
        return block(self._evaluate(clients, finetuned=True)[0]) if self.experiment.finetune else None

    def checkpoint(self, number: int) -> None:
        """Keep all that a resume needs, and the models."""
        traffic = {name: dict(counter) for name, counter in vars(self.federation.traffic).items()}
        tree = {
            "key": self.key,
            "present": list(self.present),
            "method": self.method.state_dict(),
            "traffic": traffic,
            "missing": dict(self.federation.missing),
            "model": astuple(self.setting.model),
            "seconds": self._seconds(),
        }
        self.files.save_checkpoint(number, tree, self.engine.states())

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _restore(self) -> int | None:
        """Go back to the last whole round; returns its number, None if there is none."""
        tree, states = self.files.load_checkpoint() or (None, {})
        if tree is None:
            self.files.rewind(None)
            return None
        if tree["key"] != self.key:
            raise FeddagError(
                f"run directory '{self.files.path}' belongs to another experiment, or its data have changed"
            )
        self.files.rewind(tree)
        self.seconds_before = tree["seconds"]
        self.method.load_state_dict(tree["method"])
        self.engine.restore(states)
        self.present = tuple(tree["present"])
        self.explained = _copied(self.method.clusters())
        self.federation.traffic = Traffic(**{name: Counter(counts) for name, counts in tree["traffic"].items()})
        self.federation.missing = dict(tree["missing"])
        return int(tree["round"])

    def _result(self) -> Record:
        clients = self.present
        history = self.files.read_history()
        truth = self.setting.truth_at_end
        self.federation.begin_round(self.experiment.rounds + 1)
        blocks: dict[str, Accuracy | None] = {
            "accuracy": over_rounds(np.mean, tail(history), clients),
            "accuracy_last": over_rounds(np.mean, history[-1:], clients),
            "accuracy_finetuned": self._finetuned(clients),
            "accuracy_best": over_rounds(np.max, history, clients),
        }
        if unseen := self.setting.held_out:
            self.federation.admit(unseen)
            self.method.join(self.federation, unseen)
            blocks["accuracy_unseen"] = block(self._evaluate(unseen)[0])
            blocks["accuracy_unseen_finetuned"] = self._finetuned(unseen)
        clusters = self.method.clusters()
        traffic = self.federation.traffic
        clustering = None if clusters is None else score_groups(clusters, truth, self.setting.class_counts)
        return {
            "schema": SCHEMA,
            "key": self.key,
            **{name: getattr(self.experiment, name) for name in ("method", "dataset", "partition", "seed", "rounds")},
            "model": self.setting.model.name,
            "clients": self.setting.clients,
            "participants": list(clients),
            "held_out": list(self.setting.held_out),
            **{name: block.as_dict() if block else None for name, block in blocks.items()},
            "accuracy_by_round": [record["accuracy"]["mean"] for record in history],
            "swing": swing(history, clients),
            "clusters": None if clusters is None else [clusters.get(client) for client in range(self.setting.clients)],
            "truth": None if truth is None else list(truth),
            "ari": clustering and clustering["ari"],
            "clustering": clustering,
            "unseen_placed_right": (
                placed_right(clusters, truth, clients, unseen)
                if clusters is not None and truth is not None and unseen
                else None
            ),
            "drift": self._drift(history) if self.setting.drifting else None,
            "bytes_up": traffic.up.total(),
            "bytes_down": traffic.down.total(),
            "bytes_by_phase": {"up": dict(traffic.up), "down": dict(traffic.down)},
            "sample_passes": traffic.samples.total(),
            "sample_passes_by_phase": dict(traffic.samples),
            "by_client": {
                name: [counted[client] for client in range(self.setting.clients)]
                for name, counted in (
                    ("bytes_up", traffic.up_by_client),
                    ("bytes_down", traffic.down_by_client),
                    ("sample_passes", traffic.samples_by_client),
                )
            },
            "answers_missing": sum(len(record["missing"]) for record in history),
            "partition_checksum": self.setting.partition_checksum,
            "seconds": round(self._seconds(), 3),
            "versions": _versions() | {"trainer": self.setting.trainer},
        }

    def _drift(self, history: Sequence[Record]) -> Record:
        drifting = self.setting.drifting
        others = sorted(set(self.present).difference(drifting))
        return drift_report(history, self.experiment.drift_round, drifting, others, self.method.alarms())


def model_for(experiment: Experiment, sample_shape: tuple[int, ...], num_classes: int) -> ModelSpec:
    """The network of an experiment for samples as they lie in files: images height x width x channels."""
    height, *others = sample_shape
    shape = (others[1], height, others[0]) if len(sample_shape) == 3 else sample_shape
    encoders = experiment.method_class.encoders
    return ModelSpec(experiment.model or default_model(shape), shape, num_classes, encoders)


def native_network(experiment: Experiment, model: ModelSpec) -> Network | None:
    """The model as the native trainer takes it; None where PyTorch is to train it."""
    built = model.build()
    if experiment.trainer == "torch":
        return None
    why_not = native.reason() or native.obstacle(built, model.shape)
    if why_not and experiment.trainer == "native":
        raise FeddagError(f"trainer = 'native' cannot train model = '{model.name}': {why_not}; allowed is 'torch'")
    return None if why_not else native.describe(built, model.shape)


def _worthwhile_workers(experiment: Experiment, partition: Partition, place: Workplace) -> int:
    """One worker per core, but no processes for a run so small that starting them would take longer."""
    local = experiment.local
    by_steps = len(partition.train) * (local.steps or 0) * local.batch_size
    samples = by_steps or local.epochs * sum(map(len, partition.train))
    parameters = sum(weights.numel() for weights in place.model.build().state_dict().values())
    work = experiment.rounds * experiment.participation * samples * parameters
    return len(os.sched_getaffinity(0)) if work > SMALL_RUN or place.network is not None else 1


def _copied(clusters: dict[ClientId, int] | None) -> dict[ClientId, int] | None:
    return None if clusters is None else dict(clusters)


def _versions() -> Record:
    names = ("feddag", "torch", "numpy")
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = feddag.__version__ if name == "feddag" else "unknown"
    return found | {"python": platform.python_version(), "cpu": torch.backends.cpu.get_cpu_capability()}
