"""Several methods on identical partitions, with every finished result kept and taken again."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from feddag.experiment import Experiment
from feddag.files import free_directory, write_atomically
from feddag.history import Record
from feddag.run import prepare, run
from feddag.screen import progress, say, show_results


def compare_methods(
    experiments: Sequence[Experiment], runs: Path, results: Path, console: Console, keep: bool, fresh: bool
) -> list[Record]:
    """The result of every experiment, run only where no result is known.

    Results are found by key in `runs` (run directories) and `results` (small JSON files); `fresh` runs everything anew.
    With `keep`, each result is also written to `results`, to be committed and found again elsewhere.
    """
    finished = {} if fresh else find_results([runs, results])
    found, directories = [], []
    for experiment in {experiment.method: experiment for experiment in experiments}.values():
        if experiment.key() not in finished:
            prepare(experiment)  # refuse what cannot be run before anything is
    for experiment in experiments:
        key = experiment.key()
        title = f"{experiment.method} seed {experiment.seed}"
        if key in finished:
            result = finished[key]
            say(console, f"{title}: kept result {key}")
        else:
            directory = runs / f"{experiment.title()}-{key[:8]}"
            directory = free_directory(directory) if fresh else directory
            with progress(console, title, experiment.rounds) as observer:
                result = run(experiment, directory, resume=not fresh, observer=observer).result
            directories.append(f"run directory of {title}: {directory}")
        if keep:
            write_atomically(results / f"{experiment.title()}-{key[:8]}.json", json.dumps(result) + "\n")
        found.append(result)
    show_results(console, found, experiments[0])
    for line in directories:
        say(console, line)
    return found


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
