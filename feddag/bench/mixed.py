"""Are the groups right where clients differ in several ways at once, where groups are rare, and how small a difference
is still seen? Partitions made by changing others, so that the truth is known.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from feddag.bench.groups import signatures_of
from feddag.data.datasets import load
from feddag.data.partitions.partition import Partition
from feddag.experiment import Experiment
from feddag.files import write_atomically
from feddag.rng import rng
from feddag.server.grouping import group

Row = dict[str, Any]
Change = Callable[[Partition, np.random.Generator], Partition]
NOISE, BLUR = {"corruption": "gaussian_noise"}, {"corruption": "gaussian_blur"}


def numbered(keys: Iterable[Any]) -> tuple[int, ...]:
    """Groups numbered in the order in which they appear.

    >>> numbered(["b", "a", "b"])
    (0, 1, 0)
    """
    seen: dict[Any, int] = {}
    return tuple(seen.setdefault(key, len(seen)) for key in keys)


def shifted(partition: Partition, chosen: Iterable[int], **shift: Any) -> Partition:
    """These clients' samples changed in one more way; the truth is what it was, times that."""
    those = set(chosen)
    shifts = tuple(replace(old, **shift) if n in those else old for n, old in enumerate(partition.shifts))
    truth = partition.truth or (0,) * len(partition.train)
    return replace(partition, shifts=shifts, truth=numbered((t, n in those) for n, t in enumerate(truth)))


def every_second(partition: Partition) -> list[int]:
    """Half of the clients of each true group."""
    truth = np.array(partition.truth or (0,) * len(partition.train))
    return [int(client) for one in np.unique(truth) for client in np.flatnonzero(truth == one)[1::2]]


def smaller(partition: Partition, keep: Callable[[int, NDArray[np.int64]], NDArray[np.int64]]) -> Partition:
    """The same clients with fewer samples: `keep` is asked for each."""
    return replace(partition, train=tuple(np.sort(keep(n, own)) for n, own in enumerate(partition.train)))


def unequal(partition: Partition, draw: np.random.Generator) -> Partition:
    """Every client keeps a tenth to all of its samples."""
    shares = draw.uniform(0.1, 1, len(partition.train))
    return smaller(partition, lambda n, own: draw.permutation(own)[: max(2, round(shares[n] * len(own)))])


def with_noise(partition: Partition, _: np.random.Generator) -> Partition:
    """Half of each group with noisy images."""
    return shifted(partition, every_second(partition), **NOISE)


def few_of(count: int, **shift: Any) -> Change:
    """So many clients that differ."""
    return lambda partition, draw: shifted(partition, draw.choice(len(partition.train), count, replace=False), **shift)


def half_of_the_classes(dataset: str) -> Change:
    """Every client keeps the half of the classes, the first or the second, of which it holds more samples."""

    def change(partition: Partition, _: np.random.Generator) -> Partition:
        known = load(dataset)
        second = [known.y_train[own] >= known.num_classes // 2 for own in partition.train]
        halves = [bool(each.mean() > 0.5) for each in second]
        kept = smaller(partition, lambda n, own: own[second[n] == halves[n]])
        truth = partition.truth or (0,) * len(partition.train)
        return replace(kept, truth=numbered(zip(truth, halves, strict=True)))

    return change


def then(*changes: Change) -> Change:
    """One after the other."""

    def change(partition: Partition, draw: np.random.Generator) -> Partition:
        for one in changes:
            partition = one(partition, draw)
        return partition

    return change


@dataclass(frozen=True)
class Setting:
    """A partition and what is done to it."""

    dataset: str
    change: Change
    fields: dict[str, Any] = field(default_factory=dict)
    coarse: bool = False
    """Whether the truth before the change is a level above the one after it."""


CONCEPTS: dict[str, Any] = {"partition": "concept-shift"}
SKEW: dict[str, Any] = {"partition": "label-skew", "label_fraction": 0.2, "concentration": 1.0}
CORRUPTED: dict[str, Any] = {"partition": "feature-skew", "corruptions": "gaussian_noise,motion_blur,invert,rotate"}
DOMAINS: dict[str, Any] = {"partition": "feature-skew"}
ALIKE: dict[str, Any] = {"partition": "iid"}
SETTINGS: dict[str, Setting] = {
    "concepts x noise": Setting("fmnist", with_noise, CONCEPTS, coarse=True),
    "concepts x noise, CIFAR-10": Setting("cifar10", with_noise, CONCEPTS, coarse=True),
    "label skew x noise": Setting("fmnist", with_noise, SKEW, coarse=True),
    "domains x classes": Setting("pacs", half_of_the_classes("pacs"), DOMAINS | {"clients": 40}, coarse=True),
    "concepts, unequal": Setting("fmnist", unequal, CONCEPTS),
    "corruptions, unequal": Setting("cifar10", unequal, CORRUPTED),
    "concepts x noise, unequal": Setting("fmnist", then(with_noise, unequal), CONCEPTS, coarse=True),
    "one client renamed": Setting("fmnist", few_of(1, concept="reverse"), ALIKE),
    "one client blurred": Setting("cifar10", few_of(1, **BLUR), ALIKE),
    "1 % renamed": Setting("fmnist", few_of(3, concept="next"), ALIKE | {"clients": 300}),
    "1 % blurred": Setting("fmnist", few_of(3, **BLUR), ALIKE | {"clients": 300}),
}


def measure(kept: Path | None, seeds: Sequence[int], settings: Sequence[str] = ()) -> list[Row]:
    """A row for each setting and seed; rows that the file already has are not measured again."""
    rows: list[Row] = json.loads(kept.read_text())["rows"] if kept is not None and kept.exists() else []
    done = {(row["setting"], row["seed"]) for row in rows}
    for seed in seeds:
        for name in settings or SETTINGS:
            if (name, seed) not in done:
                rows.append(_measured(name, seed))
                if kept is not None:
                    write_atomically(kept, json.dumps({"rows": rows}, indent=0) + "\n")
    chosen = set(settings or SETTINGS)
    return [row for row in rows if row["seed"] in seeds and row["setting"] in chosen]


def _measured(name: str, seed: int) -> Row:
    setting = SETTINGS[name]
    fields = {"clients": 100, "model": "lenet5", **setting.fields}
    before: list[tuple[int, ...]] = []

    def change(partition: Partition) -> Partition:
        before.append(partition.truth or ())
        return setting.change(partition, rng(seed, "mixed", name))

    signatures, truth = signatures_of(Experiment(dataset=setting.dataset, seed=seed, **fields), change=change)
    found = group(signatures, seed=seed)
    row = {"setting": name, "dataset": setting.dataset, "seed": seed, "true": len(set(truth))}
    row |= {"clusters": found.clusters_, "ari": round(float(adjusted_rand_score(truth, found.labels_)), 4)}
    if setting.coarse:
        coarse = found.cut(clusters=len(set(before[0])))
        row["coarse"] = round(float(adjusted_rand_score(before[0], coarse.labels_)), 4)
    return row


COLUMNS = ("setting", "dataset", "seeds", "true", "found", "ARI", "level above")


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Means over seeds, and the number of clusters of each."""
    lines = []
    for name in dict.fromkeys(row["setting"] for row in rows):
        these = [row for row in rows if row["setting"] == name]
        found = [row["clusters"] for row in these]
        shown = str(found[0]) if len(set(found)) == 1 else ", ".join(map(str, found))
        coarse = [row["coarse"] for row in these if "coarse" in row]
        ari = f"{np.mean([row['ari'] for row in these]):.3f}"
        above = f"{np.mean(coarse):.3f}" if coarse else ""
        lines.append([name, these[0]["dataset"], str(len(these)), str(these[0]["true"]), shown, ari, above])
    return lines
