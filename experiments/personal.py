"""Is any client worse off with the model it chose than alone, or with a model common to all?

FEDDAG_DATA=... python -m experiments.personal                 # every setting, seeds 0-2: results/bench-personal.json
FEDDAG_DATA=... python -m experiments.personal "Fashion-MNIST, Dirichlet, validation" --seeds 100,101,102,103 --out FILE

`feddag-star` with `personal = "auto"` beside `local` and `fedavg` on the same partition, both of which train on all
samples of each client and set none aside. Every client's models are compared on its own test samples, sample by sample.
"""

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import feddag
from experiments.natural_series import japanese_vowels, watch
from feddag.client.evaluate import balanced_accuracy
from feddag.data.clients import lay_out
from feddag.data.datasets import Dataset, load
from feddag.files import write_atomically
from feddag.runner.run import Run, prepare

FILE = Path(__file__).parent.parent / "results" / "bench-personal.json"
DIGITS = {"dataset": "digits", "clients": 20, "rounds": 15}
FASHION = {"dataset": "fmnist", "fraction": 0.05, "clients": 10, "rounds": 10, "epochs": 5}
SERIES = {"rounds": 10, "participation": 0.5, "epochs": 5, "workers": 1}
SETTINGS: dict[str, dict[str, Any]] = {
    "digits, label skew": {**DIGITS, "partition": "label-skew"},
    "digits, concept shift": {**DIGITS, "partition": "concept-shift"},
    "digits, Dirichlet": {**DIGITS, "partition": "dirichlet", "concentration": 0.25},
    "Fashion-MNIST, label skew": {**FASHION, "partition": "label-skew"},
    "Fashion-MNIST, concept shift": {**FASHION, "partition": "concept-shift"},
    "Fashion-MNIST, Dirichlet": {**FASHION, "partition": "dirichlet", "concentration": 0.25},
    "Japanese vowels, by speaker": SERIES,
    "watch, by subject": SERIES,
}
VALIDATION = {**FASHION, "fraction": 0.1, "model": "lenet5"}  # of half as many images
CHOSEN_BY: dict[str, dict[str, Any]] = {
    f"{name}, validation": {**SETTINGS[name], **VALIDATION} for name in SETTINGS if name.startswith("Fashion-MNIST")
}


def unseen_images() -> Dataset:
    """Training images alone: half of them for clients, and some that no client has to test with.

    What a client sets aside holds few samples of its rare classes or none; these count every class alike, as test
    samples do.
    """
    known = load("fmnist")
    order = np.random.default_rng(7).permutation(len(known.y_train))
    clients, tests = order[:30_000], order[30_000:35_000]
    x, y = known.x_train, known.y_train
    return replace(
        known, name="fmnist-unseen", x_train=x[clients], y_train=y[clients], x_test=x[tests], y_test=y[tests]
    )


OWN: dict[str, Callable[[], Any]] = {
    "Japanese vowels, by speaker": japanese_vowels,
    "watch, by subject": watch,
    **dict.fromkeys(CHOSEN_BY, unseen_images),
}


def compare(name: str, seed: int) -> dict[str, Any]:
    """Every client's accuracy with what it chose, alone and with the common model, on one seed."""
    fields = {**(SETTINGS | CHOSEN_BY)[name], "seed": seed, "finetune": False}
    if name in OWN:
        fields["dataset"] = OWN[name]()
    ours = feddag.run(feddag.Experiment(method="feddag-star", personal="auto", **fields))
    others = {method: feddag.run(feddag.Experiment(method=method, **fields)) for method in ("local", "fedavg")}
    told = ours.result["personal"]
    found: dict[str, Any] = {
        **{kind: block["per_client"] for kind, block in told["accuracy"].items()},
        "choice": told["choice"],
        **{method: [] for method in others},
        **{f"error of the difference to {method}": [] for method in others},
        "training FLOPs": ours.result["training_flops_by_phase"],
    }
    samples = _test_samples(ours)
    found["test samples"] = [len(y) for _, y in samples]
    for client, (x, y) in enumerate(samples):
        chosen = ours.model(client, tuned=True).scores(x).argmax(axis=1)
        for method, run in others.items():
            answers = run.model(client).scores(x).argmax(axis=1)
            found[method].append(round(balanced_accuracy(answers, y), 6))
            error = standard_error((chosen == y).astype(float) - (answers == y), y)
            found[f"error of the difference to {method}"].append(round(error, 6))
    return found


def standard_error(differences: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    """Of the mean over classes of the mean difference in each, by the scatter inside classes."""
    parts = [differences[y == label] for label in np.unique(y)]
    scatter = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / max(1, len(y) - len(parts))
    return math.sqrt(scatter * sum(1 / len(part) for part in parts)) / len(parts)


def _test_samples(run: Run) -> list[tuple[NDArray[Any], NDArray[np.int64]]]:
    dataset, partition, _ = prepare(run.experiment)
    data = lay_out(dataset, partition, run.experiment.seed)
    blocks = [[data.block(number) for number in data.blocks(client)] for client in range(len(partition.train))]
    return [(np.concatenate([x for x, _ in held]), np.concatenate([y for _, y in held])) for held in blocks]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--out", type=Path, default=FILE)
    asked = parser.parse_args()
    for seed in asked.seeds.split(","):
        for name in asked.settings or SETTINGS:
            known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
            if seed in known.get(name, {}):
                continue
            found = compare(name, int(seed))
            known = json.loads(asked.out.read_text()) if asked.out.exists() else {}
            known.setdefault(name, {})[seed] = found
            write_atomically(asked.out, json.dumps(known, indent=1) + "\n")
            means = {kind: round(float(np.mean(found[kind])), 3) for kind in ("group", "chosen", "alone", "local")}
            print(f"{name}, seed {seed}: {means}", flush=True)


if __name__ == "__main__":
    main()
