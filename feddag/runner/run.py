"""From an experiment to a finished run."""

import tempfile
from dataclasses import replace
from pathlib import Path

from feddag import native
from feddag.data.clients import ClientData, count_classes, lay_out, set_aside
from feddag.data.datasets import Dataset
from feddag.data.partitions import Partition
from feddag.engines.attacks import AttackedEngine, draw_attackers, flip_labels
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.federation import Engine
from feddag.files import write_atomically
from feddag.records import ResultRecord
from feddag.runner.directory import RunDirectory
from feddag.runner.finished import Run, load, recorded_experiment
from feddag.runner.loop import Loop, Observer, RunContext
from feddag.runner.serving import SampleFormat

__all__ = ["Run", "context_of", "load", "prepare", "recorded_experiment", "run", "run_on"]

SMALL_RUN = 1e10  # sample passes x parameters: some seconds of work


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, observer: Observer | None = None
) -> Run:
    """Run an experiment, leaving everything in `out` (a temporary directory if none is given).

    With `resume`, an unfinished run in `out` goes on after its last whole round, and ends as if never stopped.
    The observer is called with each round's record. Where it has a method `answered`, that is told on the way how many
    of how many clients have answered: `answered(phase, round, done, of)`, with round 0 before the first.
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
    data = _laid_out(experiment, dataset, partition)
    with files.locked():
        if files.load_checkpoint() is None:  # else they are there, and may be another experiment's: refused below
            write_atomically(files.experiment, experiment.to_toml())
            partition.save(files.partition)
        context = context_of(dataset, partition, worker_config)
        drift = None
        if experiment.drift_round:
            after = partition.drifted(experiment.drift_share, experiment.seed)
            drift = experiment.drift_round, _laid_out(experiment, dataset, after)
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


def _laid_out(experiment: Experiment, dataset: Dataset, partition: Partition) -> ClientData:
    data = lay_out(dataset, partition, experiment.seed, experiment.evaluate)
    return data if experiment.personal == "none" else set_aside(data, experiment.seed)


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
        result = loop.run_to_end(resume)
        if context.samples is not None:  # before the result: whoever has that has a model that serves
            context.samples.save(files.serving)
        result = files.finish(result)
        if result["held_out"] or "personal" in result:  # of who joined, and what was tuned, after the last round
            loop.checkpoint(result["rounds"])
            files.make_durable()
    finally:
        engine.close()
    return result


def prepare(experiment: Experiment, dataset: Dataset | None = None) -> tuple[Dataset, Partition, WorkerConfig]:
    """Load, divide and build what a run needs. Whatever can be refused is refused here, before any work.

    The experiment's dataset may be given where it is loaded already.
    """
    dataset = dataset or experiment.load_dataset()
    partition = experiment.divide(dataset)
    model = experiment.network(dataset.x_train.shape[1:], dataset.num_classes)
    config = experiment.worker_config(model)
    if experiment.method_class.needs_truth and partition.truth is None:
        raise FeddagError(
            f"method = '{experiment.method}' needs true groups, and partition = '{experiment.partition}' has none"
        )
    return dataset, partition, config


def context_of(dataset: Dataset, partition: Partition, worker_config: WorkerConfig) -> RunContext:
    """What is known where one machine holds the data of all clients."""
    on_torch = "torch" if worker_config.device == "cpu" else f"torch, {worker_config.device}"
    return RunContext(
        model=worker_config.model,
        trainer=on_torch if worker_config.network is None else f"native, {native.instruction_set()}",
        clients=len(partition.train),
        truth=partition.truth,
        truth_at_end=partition.truth,
        held_out=partition.held_out,
        partition_checksum=partition.checksum(),
        class_counts=count_classes(dataset, partition),
        samples=SampleFormat.of(dataset),
    )


def _worthwhile_workers(experiment: Experiment, partition: Partition, worker_config: WorkerConfig) -> int:
    """One worker per core, but no processes for a run so small that starting them would take longer."""
    local = experiment.local
    by_steps = len(partition.train) * (local.steps or 0) * local.batch_size
    samples = by_steps or local.epochs * sum(map(len, partition.train))
    parameters = sum(weights.numel() for weights in worker_config.model.build().state_dict().values())
    work = experiment.rounds * experiment.participation * samples * parameters
    return worker_config.most_workers() if work > SMALL_RUN or worker_config.releases_gil else 1
