"""What a signature gives away of small classes, and what leaving them out costs the groups.

The principal vectors of a class are mixtures of its samples: of one sample the vector is that sample.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from feddag.bench.groups import SIGNED, signatures_of
from feddag.client.signature import signature, standardised
from feddag.data.datasets import load
from feddag.experiment import Experiment
from feddag.server.grouping import group

Row = dict[str, Any]

SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 20, 50)
DRAWS = 20  # of so many samples, from each class
LEAST = (1, 6)
SETTINGS: dict[str, dict[str, Any]] = {
    "label-skew 0.2, quantity 1": {"partition": "label-skew", "label_fraction": 0.2, "concentration": 1.0},
    "label-skew 0.2, quantity 0.25": {"partition": "label-skew", "label_fraction": 0.2, "concentration": 0.25},
    "concept-shift": {"partition": "concept-shift"},
}
CLIENTS = {"digits": 20, "fmnist": 100}


def measure(datasets: Sequence[str], seeds: Sequence[int]) -> dict[str, list[Row]]:
    """How like a sample the most telling vector is, by the size of a class; the groups without small classes."""
    likeness = [{"dataset": name, "samples": size, **_likeness(name, size)} for name in datasets for size in SIZES]
    groups = [
        {"dataset": name, "setting": setting, **{str(least): _ari(name, setting, least, seeds) for least in LEAST}}
        for name in datasets
        for setting in SETTINGS
    ]
    return {"likeness": likeness, "groups": groups}


def _likeness(dataset: str, size: int) -> Row:
    """|cosine| of the nearest pair of a released vector and a sample of its class, over random classes of this size.

    A class's mean is like any of its samples: so the same is measured for as many samples that are not the client's.
    """
    data, draw = load(dataset), np.random.default_rng(0)
    own, others = [], []
    for label in range(data.num_classes):
        held = np.flatnonzero(data.y_train == label)
        for _ in range(DRAWS):
            drawn = data.x_train[draw.choice(held, 2 * size, replace=False)]
            vectors = signature(drawn[:size], np.zeros(size, np.int64), 1).vectors[0]
            own.append(_nearest(vectors, drawn[:size]))
            others.append(_nearest(vectors, drawn[size:]))
    told_apart = np.mean(np.array(own) > np.array(others))
    return {
        **{"own": round(float(np.median(own)), 4), "others": round(float(np.median(others)), 4)},
        "told_apart": round(float(told_apart), 3),
    }


def _nearest(vectors: NDArray[np.float32], x: NDArray[Any]) -> float:
    samples, vectors = standardised(x.reshape(len(x), -1)), vectors.astype(np.float64)
    norms = np.linalg.norm(samples, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)[None]
    return float(np.abs(samples @ vectors.T / np.maximum(norms, 1e-12)).max())


def _ari(dataset: str, setting: str, least: int, seeds: Sequence[int]) -> list[float]:
    scores = []
    for seed in seeds:
        experiment = Experiment(dataset=dataset, seed=seed, clients=CLIENTS.get(dataset, 100), **SETTINGS[setting])
        signatures, truth = signatures_of(experiment, SIGNED["samples"] | {"least_per_class": least})
        scores.append(round(float(adjusted_rand_score(truth, group(signatures, seed=seed).labels_)), 4))
    return scores


LIKENESS_COLUMNS = ("dataset", "samples of the class", "the client's own", "not its own", "own is nearer")
GROUP_COLUMNS = ("dataset", "setting", "seeds", *(f"least_per_class = {least}" for least in LEAST))


def likeness_table(rows: Sequence[Row]) -> list[list[str]]:
    """The first table's rows as text."""
    keys = ("own", "others", "told_apart")
    return [[row["dataset"], str(row["samples"]), *(f"{row[key]:.3f}" for key in keys)] for row in rows]


def group_table(rows: Sequence[Row]) -> list[list[str]]:
    """The second table's rows as text: means over seeds."""
    keys = [str(least) for least in LEAST]
    return [
        [row["dataset"], row["setting"], str(len(row[keys[0]])), *(f"{np.mean(row[key]):.3f}" for key in keys)]
        for row in rows
    ]
