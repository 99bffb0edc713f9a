"""Several methods on identical partitions, with every finished result kept and taken again."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from feddag.experiment import Experiment
from feddag.history import Record, write_atomically
from feddag.run import run
from feddag.screen import progress, say


def compare_methods(
    experiments: Sequence[Experiment], runs: Path, keep: Path | None, known: Iterable[Path], console: Console
) -> list[Record]:
    """The result of every experiment, run only where no result is known.

    Results are found by key in `known` folders (run directories, and small JSON files). With `keep`, each result is
    also written there as one small file that can be committed.
    """
    finished = find_results(known)
    results = []
    for experiment in experiments:
        key = experiment.key()
        title = f"{experiment.method} seed {experiment.seed}"
        if key in finished:
            result = finished[key]
            say(console, f"{title}: kept result {key}")
        else:
            directory = runs / f"{experiment.title()}-{key[:8]}"
            with progress(console, title, experiment.rounds) as observer:
                result = run(experiment, directory, resume=True, observer=observer).result
        if keep:
            write_atomically(keep / f"{experiment.title()}-{key[:8]}.json", json.dumps(result) + "\n")
        results.append(result)
    return results


def find_results(folders: Iterable[Path]) -> dict[str, Record]:
    """Every finished result in these folders, by key: `*.json` files and `*/result.json` of run directories."""
    found = {}
    for folder in folders:
        for path in sorted([*folder.glob("*.json"), *folder.glob("*/result.json")]):
            try:
                result = json.loads(path.read_text())
                found[result["key"]] = result
            except (ValueError, KeyError, TypeError):
                continue  # not a result, or damaged: it is simply run again
    return found
