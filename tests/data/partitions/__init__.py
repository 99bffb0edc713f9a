"""Small made-up data, and partitions of it."""

import numpy as np

from feddag.data.datasets import Dataset
from feddag.data.partitions import make_partition
from feddag.rng import rng

ENOUGH = {
    "sized": {"samples_min": 3, "samples_max": 8},
    "dirichlet": {"concentration": 1.0},
    "feature-skew": {"concentration": 1},
}


def toy(per_class=60, classes=10, *, tests=4, images=True, owners=0, domains=0):
    """`per_class` samples of each class, shuffled; sample n belongs to owner n mod owners and domain n mod domains."""

    def labels(count, name):
        return rng(0, "toy", name).permutation(np.repeat(np.arange(classes), count))

    def contents(count):
        return np.zeros((count, 1, 1, 1), np.uint8) if images else np.zeros((count, 3), np.float32)

    def columns(y):
        return {
            "owner": np.arange(len(y)) % owners if owners else None,
            "domain": np.arange(len(y)) % domains if domains else None,
        }

    train, test = labels(per_class, "train"), labels(tests, "test")
    return Dataset(
        "toy",
        contents(len(train)),
        train,
        contents(len(test)),
        test,
        classes,
        (0.0,),
        (1.0,),
        owners=tuple(f"writer {n}" for n in range(owners)),
        domains=tuple(f"style {n}" for n in range(domains)),
        **{f"{name}_train": column for name, column in columns(train).items()},
        **{f"{name}_test": column for name, column in columns(test).items()},
    )


def part(dataset, name, clients, seed=0, **options):
    return make_partition(dataset, partition=name, clients=clients, seed=seed, settings=options)


def label_sets(dataset, partition):
    return [frozenset(dataset.y_train[indices].tolist()) for indices in partition.train]


def table(dataset, partition):
    """Counts, clients x classes."""
    return np.array([np.bincount(dataset.y_train[i], minlength=dataset.num_classes) for i in partition.train])


def groups(partition):
    """The clients of each true group."""
    return [np.flatnonzero(np.array(partition.truth) == group) for group in range(max(partition.truth) + 1)]
