"""What a run has recorded so far, read from its directory for a report."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from feddag.data.partitions import Partition
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.files import check_plain
from feddag.records import ResultRecord, RoundRecord
from feddag.report.diagnostics import NO_CLUSTER, compared_clients, sound_parts
from feddag.runner.checked import damaged, parse_experiment
from feddag.runner.directory import RunDirectory
from feddag.runner.trees import DamagedError, load_tree
from feddag.runner.verdict import Verdict, verdict, verdict_of
from feddag.weights import ClientId

LARGEST_PARTITION = 2**32  # bytes


@dataclass(frozen=True)
class RecordedRun:
    """Everything of a run that a report shows. All but the experiment may be missing while the run is under way."""

    name: str
    experiment: dict[str, Any]
    toml: str = ""
    result: ResultRecord | None = None
    history: list[RoundRecord] = field(default_factory=list)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    directory: Path | None = None

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return len(self.history)

    @property
    def finished(self) -> ResultRecord:
        """The result, of a run that must have finished."""
        if self.result is None:
            raise FeddagError(f"run '{self.name}' has not finished: only finished runs can be compared")
        return self.result

    def verdict(self, runs: Path | None = None) -> Verdict:
        """What the result of a finished run means, beside the baselines that lie in the same folder, called `runs`."""
        if self.directory is None:
            return verdict(self.finished)
        return verdict_of(self.directory, self.experiment, self.finished, runs)

    def clusters(self) -> dict[ClientId, int]:
        """The group of each client that has one now; empty for a method that makes no groups."""
        if self.result and self.result["clusters"] and len(self.result["clusters"]) == self.result["clients"]:
            return _grouped(range(self.result["clients"]), self.result["clusters"])
        for record in self.history[-1:]:
            if record["clusters"] is not None:
                return _grouped(record["clients"], record["clusters"])
        told = compared_clients(self.diagnostics, {})
        return _grouped(told.clients, (None if label == NO_CLUSTER else label for label in told.labels))

    def counts(self) -> dict[ClientId, list[int]]:
        """How many samples of each class each client holds: from the data, or as the client said."""
        known, told = self.diagnostics.get("class_counts"), self.diagnostics.get("counts") or {}
        by_client = sorted(told.items()) if known is None else enumerate(known)
        found = {client: np.asarray(counts, np.int64).tolist() for client, counts in by_client}
        classes = max(map(len, found.values()), default=0)
        return {client: counts + [0] * (classes - len(counts)) for client, counts in found.items() if classes}

    def class_names(self) -> list[str]:
        """What the classes are called; their numbers where they have no names."""
        held = len(next(iter(self.counts().values()), []))
        told = [str(name) for name in self.diagnostics.get("classes") or ()]
        names = [*told[:held], *map(str, range(len(told), held))]
        return [f"class {name}" if name.isdigit() else name for name in names]

    def client_name(self, client: ClientId) -> str:
        """The number, and the name if there is one that says more."""
        name = self.names[client] if client < len(self.names) else ""
        return f"client {client}" if name in ("", str(client)) else f"client {client} · {name}"


def _grouped(clients: Iterable[ClientId], groups: Iterable[int | None]) -> dict[ClientId, int]:
    return {client: group for client, group in zip(clients, groups, strict=True) if group is not None}


def find_run(experiment: Experiment, result: ResultRecord, runs: Path) -> RecordedRun:
    """The run that had this result, from a folder of runs; the result alone where only that was kept."""
    for directory in sorted(runs.glob("*/")):
        with contextlib.suppress(FeddagError):  # another run there may be damaged
            if RunDirectory(directory).read_result() == result:
                return read_run(directory)
    return RecordedRun(experiment.title(), experiment.resolved(), experiment.to_toml(), result)


def read_run(directory: Path) -> RecordedRun:
    """Read a run directory, whether the run has finished or not. No name that stands in it is imported."""
    files = RunDirectory(directory)
    try:
        experiment, toml = parse_experiment(files.experiment)
    except FileNotFoundError:
        raise FeddagError(f"'{directory}' is not a run directory: it has no experiment.toml") from None
    result = files.read_result()
    history = files.read_history(result)
    names = _client_names(files.partition)
    told, name = _diagnostics(files.grouping), directory.resolve().name
    return RecordedRun(name, experiment, toml, result, history, told, names, directory)


def _diagnostics(path: Path) -> dict[str, Any]:
    """What the method told about its clusters, as far as it can be used; nothing where it has told nothing yet."""
    if not path.exists():
        return {}
    try:
        return sound_parts(load_tree(path))
    except DamagedError as error:
        raise damaged(path, str(error)) from None


def _client_names(path: Path) -> tuple[str, ...]:
    if not path.exists():
        return ()
    check_plain(path, LARGEST_PARTITION)
    try:
        names = Partition.load(path).names
    except Exception:  # a file that is whole can still hold anything
        raise damaged(path, "it holds no partition") from None
    if not all(isinstance(name, str) for name in names):
        raise damaged(path, "the name of a client is not text")
    return names
