"""Several methods on identical partitions, with every finished result kept and taken again."""

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.files import free_directory, write_atomically
from feddag.records import ResultRecord
from feddag.runner.checked import read_result
from feddag.runner.loop import Observer
from feddag.runner.run import prepare, run


@dataclass(frozen=True)
class Compared:
    """One experiment's result, and the directory of the run that it took; None where the result was known."""

    experiment: Experiment
    result: ResultRecord
    directory: Path | None


def compare_methods(
    experiments: Sequence[Experiment],
    runs: Path,
    results: Path,
    watching: Callable[[Experiment], AbstractContextManager[Observer]],
    *,
    keep: bool = False,
    fresh: bool = False,
    counted: bool = False,
) -> Iterator[Compared]:
    """The result of every experiment, one by one, run only where no result is known.

    Results are found by key in `runs` (run directories) and `results` (small JSON files); `fresh` runs everything anew.
    With `keep`, each result is also written to `results`, to be committed and found again elsewhere. `watching` gives
    the observer of each run. Where FLOPs must be `counted`, a result that is too old to tell them is not used.
    """
    finished = {} if fresh else find_results([runs, results])
    if counted:
        finished = {key: result for key, result in finished.items() if "training_flops" in result}
    for experiment in {experiment.method: experiment for experiment in experiments}.values():
        if experiment.key() not in finished:
            prepare(experiment)  # refuse what cannot be run before anything is
    for experiment in experiments:
        key, directory = experiment.key(), None
        if key in finished:
            result = finished[key]
        else:
            directory = runs / name_of(experiment)
            anew = fresh or (counted and (directory / "result.json").exists())
            directory = free_directory(directory) if anew else directory
            with watching(experiment) as observer:
                result = run(experiment, directory, resume=not anew, observer=observer).result
        if keep:
            write_atomically(results / f"{name_of(experiment)}.json", json.dumps(result) + "\n")
        yield Compared(experiment, result, directory)


def name_of(experiment: Experiment) -> str:
    """What a run's directory and a kept result are called, so that they are found again."""
    return f"{experiment.title()}-{experiment.key()[:8]}"


def find_results(folders: Iterable[Path]) -> dict[str, ResultRecord]:
    """Every finished result in these folders, by key: `*.json` files and `*/result.json` of run directories."""
    found = {}
    for folder in folders:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*/result.json")]):
            with contextlib.suppress(FeddagError):  # not a result, or damaged: it is simply run again
                if (result := read_result(path)) is not None:
                    found[result["key"]] = result
    return found
