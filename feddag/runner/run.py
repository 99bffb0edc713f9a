"""From an experiment to a finished run, and back from its directory."""

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from feddag import native
from feddag.client.trainer import load_weights, native_network
from feddag.data.clients import count_classes, lay_out
from feddag.data.datasets import Dataset
from feddag.data.datasets import load as load_dataset
from feddag.data.partitions import Partition
from feddag.engines.attacks import AttackedEngine, draw_attackers, flip_labels
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.federation import Engine
from feddag.files import write_atomically
from feddag.models import DualEncoder, MixtureOfModels, Model, ModelSpec, default_model
from feddag.records import ResultRecord, RoundRecord
from feddag.runner.checked import own_code, parse_experiment
from feddag.runner.directory import Checkpoint, RunDirectory
from feddag.runner.loop import Loop, Observer, RunContext
from feddag.runner.results import Accuracy
from feddag.weights import Choice, ClientId, Mixture, Own, Weights, kept, overlaid

MOST_FEATURES = 2**31  # of a sample; images of 8 megapixels have 2**25
LARGE = 2**20  # features or classes: memory enough to look twice before it is taken
SMALL_RUN = 1e10  # sample passes x parameters: some seconds of work


class Run:
    """A finished run: what was asked, what came out, and the models."""

    def __init__(
        self, directory: Path, experiment: Experiment, result: ResultRecord, keep_alive: object = None
    ) -> None:
        self.directory = directory
        self.experiment = experiment
        self.result = result
        self._keep_alive = keep_alive  # a temporary directory lives as long as its run

    @property
    def accuracy(self) -> Accuracy:
        """The headline: mean over the last tenth of the rounds."""
        block = self.result["accuracy"]
        return Accuracy(block["mean"], block["std"], block["worst_decile"], tuple(block["per_client"]))

    @property
    def clusters(self) -> list[int | None] | None:
        """The group of each client, None for one that has none; None for a method that makes no groups."""
        return self.result["clusters"]

    @property
    def truth(self) -> list[int] | None:
        """The true group of each client, where the partition has one."""
        return self.result["truth"]

    @property
    def history(self) -> list[RoundRecord]:
        """A record for each round."""
        return RunDirectory(self.directory).read_history(self.result)

    def model(self, client: ClientId) -> Model | DualEncoder | MixtureOfModels:
        """The network this client ended with, ready to use."""
        if not 0 <= client < self.result["clients"]:
            raise FeddagError(f"client = {client} is not one of the {self.result['clients']} clients")
        saved = RunDirectory(self.directory).load_checkpoint()
        if saved is None or saved.tree["round"] != self.result["rounds"]:
            raise FeddagError(f"run directory '{self.directory}' has lost its last checkpoint, and with it the models")
        try:
            return self._model(saved, client)
        except FeddagError:
            raise
        except Exception as error:  # a checkpoint can be whole and still not hold what this method saves
            raise FeddagError(
                f"run directory '{self.directory}' holds no model of client {client} that method = "
                f"'{self.experiment.method}' could use"
            ) from error

    def _model(self, saved: Checkpoint, client: ClientId) -> Model | DualEncoder | MixtureOfModels:
        method = self.experiment.method_class(self.experiment.settings)
        method.load_state_dict(saved.tree["method"])
        method.held = saved.held
        spec = self._network(saved.tree)
        served = method.model_of(client)
        if isinstance(served, Mixture):
            members = [_loaded(spec, weights) for weights in served.models]
            return MixtureOfModels(members, served.shares).eval()
        if isinstance(served, Choice):
            if client not in saved.tree["chosen"]:
                raise FeddagError(f"client = {client} has not chosen among its {len(served.models)} models yet")
            served = served.models[saved.tree["chosen"][client]]
        layers = served if isinstance(served, tuple) else (served,)
        if not saved.tree["holds_states"] and any(isinstance(layer, Own) for layer in layers):
            raise FeddagError(f"client = {client} keeps its model on its own machine")
        state = saved.states.get(client, (0, {}))[1]
        return _loaded(spec, overlaid(kept(state, x.name) if isinstance(x, Own) else x for x in layers))

    def _network(self, tree: Mapping[str, Any]) -> ModelSpec:
        """The network that the experiment names; what a checkpoint says about it only has to agree."""
        told = ModelSpec(*tree["model"])
        if not told.shape or math.prod(told.shape) > MOST_FEATURES:
            raise FeddagError(f"the checkpoints in '{self.directory}' are of samples of the shape {told.shape}")
        name = self.experiment.model or default_model(told.shape)
        meant = replace(told, name=name, encoders=self.experiment.method_class.encoders)
        if told != meant:
            raise FeddagError(
                f"the checkpoints in '{self.directory}' are of another network than the experiment's model = '{name}'"
            )
        return meant

    def save(self, directory: str | Path) -> None:
        """Copy everything the run left into another directory."""
        target = Path(directory)
        if target.exists() and any(target.iterdir()):
            raise FeddagError(f"directory '{target}' is not empty; give a new one")
        shutil.copytree(self.directory, target, dirs_exist_ok=True, ignore=_not_to_copy)


def _not_to_copy(folder: str, names: list[str]) -> list[str]:
    """The lock, and whatever is neither a plain file nor a folder: a link's target is not part of the run."""
    paths = [Path(folder, name) for name in names]
    return [path.name for path in paths if path.name == ".lock" or path.is_symlink() or not _is_plain(path)]


def _is_plain(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _loaded(spec: ModelSpec, weights: Weights) -> Model | DualEncoder:
    if ":" not in spec.name and max(spec.num_classes, math.prod(spec.shape)) > LARGE:
        with torch.device("meta"):  # takes no memory, whatever a checkpoint says; but a while to get ready
            _check_shapes(spec.build(), weights)
    model = spec.build().eval()
    _check_shapes(model, weights)
    load_weights(model, weights)
    return model


def _check_shapes(model: torch.nn.Module, weights: Weights) -> None:
    for name, value in model.state_dict().items():
        if name not in weights or weights[name].shape != value.shape:
            raise ValueError(f"there are no weights '{name}' of the shape {tuple(value.shape)}")


def load(directory: str | Path, trust: bool = False) -> Run:
    """A finished run from its directory.

    A run whose method or model is code of its own (`module:name`) is refused unless you `trust` it: that code is
    imported, and whoever wrote the directory chose its name.
    """
    files = RunDirectory(Path(directory))
    result = files.read_result()
    if result is None:
        raise FeddagError(f"'{directory}' holds no finished run: it has no result.json")
    experiment = recorded_experiment(files, trust)
    files.read_history(result)  # refuses one that is not what the result was made of
    return Run(files.path, experiment, result)


def recorded_experiment(files: RunDirectory, trust: bool = False) -> Experiment:
    """The experiment of a run directory. Before one is refused that names code of its own, nothing is imported."""
    try:
        values, _ = parse_experiment(files.experiment)
    except FileNotFoundError:
        raise FeddagError(f"'{files.path}' is not a run directory: it has no experiment.toml") from None
    named = own_code(values)
    if named and not trust:
        raise FeddagError(
            f"the run in '{files.path}' uses code that does not come with feddag ({', '.join(named)}), which would be "
            "imported; if you trust it, say trust=True in Python or --trust on the command line"
        )
    try:
        return Experiment(**values)
    except FeddagError as error:
        raise FeddagError(f"'{files.experiment}': {error}") from None


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, observer: Observer | None = None
) -> Run:
    """Run an experiment, leaving everything in `out` (a temporary directory if none is given).

    With `resume`, an unfinished run in `out` goes on after its last whole round, and ends as if never stopped.
    The observer is called with each round's record.
    """
    keep_alive = tempfile.TemporaryDirectory(prefix="feddag-run-") if out is None else None
    files = RunDirectory(Path(out or keep_alive.name))  # type: ignore[union-attr]
    if not resume and files.has_content():
        raise FeddagError(f"run directory '{files.path}' is not empty; give a new one, or go on with --resume")
    result = files.read_final_result() if resume else None
    if result is not None and result["key"] != experiment.key():
        raise FeddagError(f"run directory '{files.path}' holds the result of another experiment")
    if result is not None:
        files.read_history(result)  # refuses one that is not what the result was made of
    else:
        result = _run_here(experiment, files, resume, observer)
    return Run(files.path, experiment, result, keep_alive)


def _run_here(experiment: Experiment, files: RunDirectory, resume: bool, observer: Observer | None) -> ResultRecord:
    """Run all clients on this machine."""
    dataset, partition, worker_config = prepare(experiment)
    data = lay_out(dataset, partition, experiment.seed, experiment.evaluate)
    with files.locked():
        if files.load_checkpoint() is None:  # else they are there, and may be another experiment's: refused below
            write_atomically(files.experiment, experiment.to_toml())
            partition.save(files.partition)
        context = context_of(dataset, partition, worker_config)
        drift = None
        if experiment.drift_round:
            after = partition.drifted(experiment.drift_share, experiment.seed)
            drift = experiment.drift_round, lay_out(dataset, after, experiment.seed, experiment.evaluate)
            counts = count_classes(dataset, after)
            drifting = partition.drifting(experiment.drift_share, experiment.seed)
            context = replace(context, truth_at_end=after.truth, class_counts=counts, drifting=drifting)
        workers = experiment.workers or _worthwhile_workers(experiment, partition, worker_config)
        engine: Engine = LocalEngine(data, worker_config, workers, drift)
        if experiment.attack != "none":
            attackers = draw_attackers(experiment.seed, len(partition.train), experiment.attackers)
            if experiment.attack == "label-flip":
                flip_labels(data, attackers)
            engine = AttackedEngine(engine, experiment.attack, attackers, experiment.seed)
            context = replace(context, attackers=attackers)
        return run_on(engine, experiment, files, context, resume, observer)


def run_on(
    engine: Engine,
    experiment: Experiment,
    files: RunDirectory,
    context: RunContext,
    resume: bool = False,
    observer: Observer | None = None,
) -> ResultRecord:
    """Let an engine run an experiment to its end, and write down the result; the engine is closed however it ends."""
    try:
        loop = Loop(experiment, files, context, engine, observer)
        result = files.finish(loop.run_to_end(resume))
        if result["held_out"]:  # whoever joined after the last round has a model, too
            loop.checkpoint(result["rounds"])
            files.make_durable()
    finally:
        engine.close()
    return result


def prepare(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Dataset, Partition, WorkerConfig]:
    """Load, divide and build what a run needs. Whatever can be refused is refused here, before any work.

    The experiment's dataset may be given where it is loaded already.
    """
    dataset = dataset or load_dataset(experiment.dataset)
    partition = experiment.divide(dataset)
    model = experiment.network(dataset.x_train.shape[1:], dataset.num_classes)
    network = native_network(model, experiment.trainer)
    if experiment.method_class.needs_truth and partition.truth is None:
        raise FeddagError(
            f"method = '{experiment.method}' needs true groups, and partition = '{experiment.partition}' has none"
        )
    return dataset, partition, WorkerConfig(model, experiment.local, experiment.seed, network)


def context_of(dataset: Dataset, partition: Partition, worker_config: WorkerConfig) -> RunContext:
    """What is known where one machine holds the data of all clients."""
    return RunContext(
        model=worker_config.model,
        trainer="torch" if worker_config.network is None else f"native, {native.instruction_set()}",
        clients=len(partition.train),
        truth=partition.truth,
        truth_at_end=partition.truth,
        held_out=partition.held_out,
        partition_checksum=partition.checksum(),
        class_counts=count_classes(dataset, partition),
        classes=dataset.classes,
    )


def _worthwhile_workers(experiment: Experiment, partition: Partition, worker_config: WorkerConfig) -> int:
    """One worker per core, but no processes for a run so small that starting them would take longer."""
    local = experiment.local
    by_steps = len(partition.train) * (local.steps or 0) * local.batch_size
    samples = by_steps or local.epochs * sum(map(len, partition.train))
    parameters = sum(weights.numel() for weights in worker_config.model.build().state_dict().values())
    work = experiment.rounds * experiment.participation * samples * parameters
    return len(os.sched_getaffinity(0)) if work > SMALL_RUN or worker_config.releases_gil else 1
