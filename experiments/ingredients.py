"""What each ingredient of `feddag` is worth: without it, or with another in its place, at the same training FLOPs.

FEDDAG_DATA=... python -m experiments.ingredients                   # against others, every small setting, seeds 0-4
FEDDAG_DATA=... python -m experiments.ingredients --apart           # without each ingredient, on four of them
FEDDAG_DATA=... python -m experiments.ingredients --rates           # two of them at four learning rates, seeds 100, 101
FEDDAG_DATA=... python -m experiments.ingredients fmnist-concept-shift cifar10-concept-shift fmnist-label-skew-q1.0 \
    --seeds 0,1,2                                                   # full size

`feddag` runs as it stands; everything else then trains for the least number of rounds that take as many FLOPs, warm-up
included. Results are kept in results/.
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
PLAIN = {"head": "random", "softmax": "all"}
WARM = {"similarity": "fused", "primary_start": "warm"}
BEFORE: Mapping[str, Any] = {**PLAIN, **WARM, "style": False, "sharing": "encoder"}
"""`feddag` as it was: with a warm-up and visiting encoders, without looks, a sharp head and own classes."""

INGREDIENTS: Mapping[str, Mapping[str, Any]] = {
    "with a warm-up: gradients, Eq. 22": WARM,
    "random head": {"head": "random"},
    "softmax over the cluster's classes": {"softmax": "held"},
    "softmax over all classes": {"softmax": "all"},
    "random head, softmax over all": PLAIN,
    "plain batches": {"balanced": False},
    "no smoothing": {"smoothing": 0.0},
    "sampling over all": {"sampling": "all"},
}
OTHERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "`feddag-star`: no families": ("feddag-star", {}),
    "visiting encoders (§4)": ("feddag", {"sharing": "encoder"}),
    "`feddag` before": ("feddag", BEFORE),
    "`feddag-paper`": ("feddag-paper", stabilisers("feddag-paper")),
    "`oracle`": ("oracle", stabilisers()),
    "`oracle`, random head, softmax over all": ("oracle", stabilisers() | PLAIN),
    "`fedavg`": ("fedavg", stabilisers()),
}
"""Method and fields; `oracle` is FedAvg inside the true groups. Baselines have FedDAG's stabilisers, the paper none."""

RATES = (0.003, 0.01, 0.03, 0.1)
STEPPED: Mapping[str, Mapping[str, Any]] = {
    "`feddag`": {},
    "random head": {"head": "random"},
    "softmax over all classes": {"softmax": "all"},
    "random head, softmax over all": PLAIN,
}
"""Whether a sharp head and a softmax over own classes are more than a larger step: each at every learning rate."""
STEPPED_ON = ("small-concept-shift", "small-label-skew-0.2-q0.25")
VALIDATED = {"validation": 0.2, "evaluate": "validation", "finetune": False, "evaluate_every": 3}

TAKEN_APART = ("small-concept-shift", "small-label-skew-0.2-q0.25", "small-dirichlet", "small-pacs")
SETTINGS = (
    *TAKEN_APART,
    *("small-label-skew-0.2-q1", "small-label-skew-0.3-q1", "small-label-skew-0.3-q0.25"),
    *("small-corruptions", "small-tenth", "cifar10-few"),
)


def measure(setting: str, seed: int, apart: bool, results: Path, runs: Path) -> None:
    """`feddag` and everything that is held against it, or itself taken apart, on one setting and seed."""
    file = FOLDER / f"{setting}.toml"
    [ours] = read_experiments(file, {}, ["feddag"], [seed])
    budget = {"training_flops": kept(ours, results, runs)["training_flops"]}
    for method, fields in [("feddag", fields) for fields in INGREDIENTS.values()] if apart else OTHERS.values():
        [one] = read_experiments(file, {**fields, **budget}, [method], [seed])
        if method != "oracle" or ours.divide(ours.load_dataset()).truth is not None:
            kept(one, results, runs)


def measure_rates(seed: int, results: Path, runs: Path) -> None:
    """`feddag` with and without the two, at every learning rate, on validation samples."""
    for setting in STEPPED_ON:
        for fields in STEPPED.values():
            for lr in RATES:
                file = FOLDER / f"{setting}.toml"
                [one] = read_experiments(file, {**fields, **VALIDATED, "lr": lr}, ["feddag"], [seed])
                kept(one, results, runs)


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
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--apart", action="store_true", help="without each ingredient, not against others")
    parser.add_argument("--rates", action="store_true", help="two ingredients at four learning rates")
    parser.add_argument("--seeds", default=None, help="by default 0-4, of --rates 100 and 101")
    parser.add_argument("--results", type=Path, default=FOLDER.parent / "results")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    given = parser.parse_args()
    for seed in map(int, (given.seeds or ("100,101" if given.rates else "0,1,2,3,4")).split(",")):
        if given.rates:
            measure_rates(seed, given.results, given.runs)
            continue
        for setting in given.settings or (TAKEN_APART if given.apart else SETTINGS):
            measure(setting, seed, given.apart, given.results, given.runs)
