"""Tables about clusters and not about accuracy: the search for a threshold (§3.4), without any training after it."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from sklearn.metrics import adjusted_rand_score
from typing_extensions import TypedDict

from feddag.data.clients import lay_out
from feddag.engines.local import LocalEngine
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.federation import Federation
from feddag.files import read_plain, write_atomically
from feddag.runner.compare import name_of
from feddag.runner.run import prepare

LARGEST_SEARCH = 2**20  # bytes


class Candidate(TypedDict):
    """A threshold of the search: alpha, how many clusters it gives, and at which loss (Eq. 10)."""

    alpha: float
    clusters: int
    loss: float


class Search(TypedDict):
    """What one search for groups found."""

    search: str
    """The key of its experiment."""
    candidates: list[Candidate]
    clusters: int
    """How many were chosen."""
    true: int | None
    ari: float | None


def search(experiment: Experiment) -> Search:
    """Let a method do what comes before its first round: warm-up, signatures, groups."""
    dataset, partition, config = prepare(experiment)
    workers = experiment.workers or config.most_workers()
    engine = LocalEngine(lay_out(dataset, partition, experiment.seed), config, workers)
    method = experiment.method_class(experiment.settings)
    try:
        federation = Federation(
            engine, config.model, experiment.seed, experiment.participation, held_out=partition.held_out
        )
        method.setup(federation)
        method.start(federation)
        found = method.diagnostics()
    finally:
        engine.close()
    if "candidates" not in found:
        raise FeddagError(f"method = '{experiment.method}' does not search for a threshold before its first round")
    labels, clients = found["labels"].tolist(), found["clients"]
    truth = None if partition.truth is None else [partition.truth[client] for client in clients]
    return {
        "search": experiment.key(),
        "candidates": [{"alpha": a, "clusters": int(n), "loss": loss} for a, n, loss in found["candidates"].tolist()],
        "clusters": len(set(labels)),
        "true": None if truth is None else len(set(truth)),
        "ari": None if truth is None else round(float(adjusted_rand_score(truth, labels)), 6),
    }


def searched(
    experiments: Sequence[Experiment], runs: Path, results: Path, *, keep: bool = False, fresh: bool = False
) -> Iterator[tuple[Experiment, Search]]:
    """The search of every experiment, one by one; those that `runs` or `results` know are taken from there."""
    known = {} if fresh else find_searches([runs, results])
    for experiment in experiments:
        found, folders = known.get(experiment.key()), [results] if keep else []
        if found is None:
            found, folders = search(experiment), [runs, *folders]
        for folder in folders:
            write_atomically(folder / f"groups-{name_of(experiment)}.json", json.dumps(found) + "\n")
        yield experiment, found


def find_searches(folders: Iterable[Path]) -> dict[str, Search]:
    """Every search in these folders, by key."""
    reader = TypeAdapter(Search)
    found = {}
    for path in (path for folder in folders for path in sorted(folder.glob("groups-*.json"))):
        with contextlib.suppress(FeddagError, OSError, ValidationError):  # not a search, or damaged: done again
            known = reader.validate_json(read_plain(path, LARGEST_SEARCH))
            found[known["search"]] = known
    return found
