"""Are clients that are alike left together? Groupings of clients that all draw from one distribution.

No sample belongs to two clients. Whatever is split off was split by chance.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from feddag.bench.groups import signatures_of
from feddag.data.datasets import load
from feddag.experiment import Experiment
from feddag.files import write_atomically
from feddag.rng import rng
from feddag.server.grouping import group

Row = dict[str, Any]
CASES = ((10, 20), (10, 100), (10, 600), (30, 20), (30, 100), (100, 20), (100, 100), (100, 300), (300, 20), (1000, 20))
"""Clients, and samples of each; those that a dataset has no samples for are left out."""
SMALLEST = 0.1  # of the largest client's samples, where quantities are unequal


def measure(kept: Path | None, datasets: Sequence[str], seeds: Sequence[int], most: int = 1000) -> list[Row]:
    """A row for each dataset, case of at most so many clients, and seed; rows that the file has are not done again."""
    rows: list[Row] = json.loads(kept.read_text())["rows"] if kept is not None and kept.exists() else []
    done = {(row["dataset"], row["clients"], row["samples"], row["unequal"], row["seed"]) for row in rows}
    names = {_name(dataset) for dataset in datasets}
    for dataset, clients, samples, unequal, seed in _cases(datasets, seeds):
        if clients <= most and (_name(dataset), clients, samples, unequal, seed) not in done:
            rows.append(_measured(dataset, clients, samples, unequal, seed))
            if kept is not None:
                write_atomically(kept, json.dumps({"rows": rows}, indent=0) + "\n")
    return [row for row in rows if row["dataset"] in names and row["seed"] in seeds]


def _name(dataset: str) -> str:
    """Of a file, what it is called: where it lies says nothing."""
    return Path(dataset).stem


def _cases(datasets: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[str, int, int, bool, int]]:
    sizes = {name: len(load(name).y_train) for name in datasets}
    for seed in seeds:
        for clients, samples in CASES:
            for name in datasets:
                if clients * samples <= sizes[name]:
                    yield from ((name, clients, samples, unequal, seed) for unequal in (False, True))


def _measured(dataset: str, clients: int, samples: int, unequal: bool, seed: int) -> Row:
    fraction = min(1.0, clients * samples / len(load(dataset).y_train))
    experiment = Experiment(dataset=dataset, partition="iid", clients=clients, fraction=fraction, seed=seed)
    draw = rng(seed, "unequal", clients, samples)
    shares = draw.uniform(SMALLEST, 1, clients) if unequal else np.ones(clients)
    signatures, _ = signatures_of(
        experiment,
        change=lambda partition: replace(
            partition,
            train=tuple(
                np.sort(draw.permutation(own)[: max(1, round(share * len(own)))])
                for own, share in zip(partition.train, shares, strict=True)
            ),
        ),
    )
    found = group(signatures, seed=seed)
    sizes = sorted(np.bincount(found.labels_).tolist(), reverse=True)
    row = {"dataset": _name(dataset), "clients": clients, "samples": samples, "unequal": unequal, "seed": seed}
    return row | {"clusters": found.clusters_, "sizes": sizes[:10]}


COLUMNS = ("dataset", "clients", "samples each", "trials", "split", "split off")


def table(rows: Sequence[Row]) -> list[list[str]]:
    """How many of the trials were split, and by how many clients; all of them together last."""
    lines = []
    for key in dict.fromkeys((row["dataset"], row["clients"], row["samples"]) for row in rows):
        these = [row for row in rows if (row["dataset"], row["clients"], row["samples"]) == key]
        lines.append([*map(str, key), *_counted(these)])
    return [*lines, ["all", "", "", *_counted(rows)]]


def _counted(rows: Sequence[Row]) -> list[str]:
    split = [row for row in rows if row["clusters"] > 1]
    off = ", ".join(str(row["clients"] - row["sizes"][0]) for row in split)
    return [str(len(rows)), str(len(split)), off or "-"]
