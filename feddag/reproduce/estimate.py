"""How long runs will take on this machine: their sample passes, and a short measurement of each network's speed."""

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path

from feddag.client.train import Train
from feddag.data.clients import lay_out
from feddag.data.datasets import Dataset
from feddag.data.datasets import load as load_dataset
from feddag.data.partitions import Partition
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.experiment import Experiment
from feddag.federation import Federation, Job
from feddag.runner.compare import name_of
from feddag.runner.directory import RunDirectory
from feddag.runner.run import prepare
from feddag.testing import FakeEngine
from feddag.weights import ClientId

PROBE_SECONDS = 0.5
START_SECONDS = 2.0  # to load and lay out the data, and to make groups
FORWARD = 1 / 3  # of a training step: scoring has no backward pass
TWO_ENCODERS = 2 * (1 + FORWARD)  # two phases, in each of which the other encoder only runs forward


def estimate(experiments: Iterable[Experiment], runs: Path) -> dict[str, float]:
    """Seconds that each of these runs will still take, by key. Refuses what cannot be run, before anything is."""
    speeds: dict[tuple[object, ...], float] = {}
    seconds = {}
    for experiment, (dataset, partition, config) in prepared(experiments):
        network = (replace(config.model, encoders=1), experiment.batch_size, experiment.trainer)
        if network not in speeds:
            speeds[network] = measure_speed(experiment, dataset, partition, config)
        lines = RunDirectory(runs / name_of(experiment)).count_rounds()
        begun = min(1.0, lines * experiment.evaluate_every / experiment.rounds)
        work = (1 - begun) * passes_of(experiment, dataset, partition, config)
        seconds[experiment.key()] = START_SECONDS + work / speeds[network]
    return seconds


def prepared(experiments: Iterable[Experiment]) -> Iterator[tuple[Experiment, tuple[Dataset, Partition, WorkerConfig]]]:
    """What each of them needs to run; a dataset is loaded once for all that follow each other on it."""
    for name, same in groupby(experiments, lambda experiment: experiment.dataset):
        dataset = load_dataset(name)
        for experiment in same:
            yield experiment, prepare(experiment, dataset)


def passes_of(experiment: Experiment, dataset: Dataset, partition: Partition, config: WorkerConfig) -> float:
    """Sample passes of a whole run, as if all were training steps of a single encoder."""
    sizes = {client: len(held) for client, held in enumerate(partition.train) if client not in partition.held_out}
    local, encoders, rounds = experiment.local, config.model.encoders, experiment.rounds
    by_steps = [local.steps * min(local.batch_size, size) for size in sizes.values()] if local.steps else []
    once = sum(by_steps) if local.steps else local.epochs * sum(sizes.values())
    training = rounds * sampled_share(experiment, sizes, config) * once * (TWO_ENCODERS if encoders == 2 else 1)
    scoring = rounds * len(dataset.y_test) * encoders * FORWARD
    tuning = once * encoders if experiment.finetune else 0
    return training + scoring + tuning + warmup_epochs(experiment) * sum(sizes.values())


def warmup_epochs(experiment: Experiment) -> int:
    """Epochs that every client trains before the first round; a warm-up of a few steps does not count.

    >>> warmup_epochs(Experiment(method="feddag-released")), warmup_epochs(Experiment(method="fedavg"))
    (20, 0)
    """
    settings = experiment.settings
    return int(getattr(settings, "warmup_rounds", 0) * getattr(settings, "warmup_epochs", 0))


def sampled_share(experiment: Experiment, sizes: Mapping[ClientId, int], config: WorkerConfig) -> float:
    """The share of clients that a method asks in a round: some ask all, whatever `participation` says."""
    federation = Federation(FakeEngine(sizes), config.model, experiment.seed, experiment.participation)
    method = experiment.method_class(experiment.settings)
    try:
        method.setup(federation)
        return len(method.sample(federation)) / len(sizes)
    except Exception:  # a method of the user's own may have to be started before it can sample
        return experiment.participation


def measure_speed(experiment: Experiment, dataset: Dataset, partition: Partition, config: WorkerConfig) -> float:
    """Sample passes per second of local training on all cores, for the single-encoder form of the network."""
    workers = experiment.workers or config.most_workers()
    model = replace(config.model, encoders=1)
    largest = sorted(range(len(partition.train)), key=lambda client: -len(partition.train[client]))[:workers]
    engine = LocalEngine(lay_out(dataset, partition, experiment.seed), experiment.worker_config(model), workers)
    try:
        federation = Federation(engine, model, experiment.seed, 1.0)
        start = federation.put(federation.initial_weights())
        passes, seconds, steps = 0, 0.0, 8
        for turn in count():
            before, began = federation.traffic.samples.total(), time.perf_counter()
            federation.ask(Job(client, Train(start, steps=steps)) for client in largest)
            if turn > 0:  # the first one also starts whatever has to be started
                seconds += time.perf_counter() - began
                passes += federation.traffic.samples.total() - before
            if seconds > PROBE_SECONDS:
                break
            steps *= 2
    finally:
        engine.close()
    return passes / seconds


def in_words(seconds: float) -> str:
    """A time as one says it.

    >>> in_words(20), in_words(100), in_words(2500), in_words(10_000), in_words(500_000)
    ('20 seconds', '2 minutes', '42 minutes', '3 hours', '6 days')
    """
    for unit, name, least in ((86400, "days", 2), (3600, "hours", 2), (60, "minutes", 1.5)):
        if seconds >= least * unit:
            return f"{round(seconds / unit)} {name}"
    return f"{round(seconds)} seconds" if seconds >= 1.5 else "1 second"
