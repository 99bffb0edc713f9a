"""What each ingredient of `feddag` is worth: without it, or with another in its place, at the same training FLOPs.

FEDDAG_DATA=... python -m experiments.ingredients                   # every setting, seeds 0-4: kept in results/
FEDDAG_DATA=... python -m experiments.ingredients small-pacs --seeds 0,1,2

`feddag` runs as it stands; every variant then trains for the least number of rounds that take as many FLOPs, warm-up
included. `oracle` is FedAvg inside the true groups with the same stabilisers, with and without head and softmax.
"""

import argparse
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddag.experiment import Experiment, read_experiments
from feddag.records import ResultRecord
from feddag.runner.compare import compare_methods
from feddag.runner.level import stabilisers

FOLDER = Path(__file__).parent
SETTINGS = ("small-concept-shift", "small-label-skew-0.2-q0.25", "small-dirichlet", "small-pacs")
PLAIN = {"head": "random", "softmax": "all"}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "no families": {"sharing": "none"},
    "visiting encoders (§4)": {"sharing": "encoder"},
    "with a warm-up: gradients, Eq. 22": {"similarity": "fused", "primary_start": "warm"},
    "random head": {"head": "random"},
    "softmax over the cluster's classes": {"softmax": "held"},
    "softmax over all classes": {"softmax": "all"},
    "random head, softmax over all": PLAIN,
    "plain batches": {"balanced": False},
    "no smoothing": {"smoothing": 0.0},
    "sampling over all": {"sampling": "all"},
}
ORACLES: Mapping[str, Mapping[str, Any]] = {"`oracle`": {}, "`oracle`, random head, softmax over all": PLAIN}


def measure(setting: str, seed: int, results: Path, runs: Path) -> None:
    """`feddag` and every variant of it, on one setting and seed."""
    file = FOLDER / f"{setting}.toml"
    [ours] = read_experiments(file, {}, ["feddag"], [seed])
    flops = kept(ours, results, runs)["training_flops"]
    budget = {"training_flops": flops}
    for fields in VARIANTS.values():
        kept(read_experiments(file, {**fields, **budget}, ["feddag"], [seed])[0], results, runs)
    if ours.divide(ours.load_dataset()).truth is not None:
        for fields in ORACLES.values():
            kept(read_experiments(file, {**stabilisers(), **fields, **budget}, ["oracle"], [seed])[0], results, runs)


def kept(experiment: Experiment, results: Path, runs: Path) -> ResultRecord:
    """Its result, taken from `results` or run and kept there."""
    [found] = compare_methods(
        [experiment], runs, results, lambda _: contextlib.nullcontext(lambda record: None), keep=True, counted=True
    )
    print(
        f"{experiment.title()}: {found.result['accuracy']['mean']:.3f} in {found.result['rounds']} rounds", flush=True
    )
    return found.result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What each ingredient of feddag is worth, at equal training FLOPs.")
    parser.add_argument("settings", nargs="*", default=SETTINGS)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--results", type=Path, default=FOLDER.parent / "results")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    for seed in map(int, given.seeds.split(",")):
        for setting in given.settings:
            measure(setting, seed, given.results, given.runs)
