"""How small a difference is still seen: groups that differ more and more, clients that hold more and more samples."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from feddag.bench.groups import signatures_of
from feddag.bench.mixed import shifted, smaller
from feddag.data.partitions.partition import Partition
from feddag.experiment import Experiment
from feddag.files import write_atomically
from feddag.rng import rng
from feddag.server.grouping import group

Row = dict[str, Any]
Case = tuple[str, int, int, int, int]
"""Difference, its strength, clients of the group that differs, samples of each client, seed."""
CLIENTS, SAMPLES = 20, 100
STRENGTHS = {"noise": (1, 2, 3, 4, 5), "blur": (1, 2, 3, 4, 5), "renamed": (2, 4, 6, 8, 10)}
"""Severities of a corruption, or how many classes the other group calls otherwise."""
MORE_SAMPLES = (10, 20, 50, 100, 200)
MORE_CLIENTS = (1, 2, 5, 10, 20)
CORRUPTION = {"noise": "gaussian_noise", "blur": "gaussian_blur"}


def cases(seeds: Sequence[int]) -> Iterator[Case]:
    """One thing at a time is varied, the others are as they usually are."""
    for seed in seeds:
        for what, strengths in STRENGTHS.items():
            usual = strengths[2]
            yield from ((what, strength, CLIENTS, SAMPLES, seed) for strength in strengths)
            yield from ((what, usual, CLIENTS, samples, seed) for samples in MORE_SAMPLES if samples != SAMPLES)
            yield from ((what, usual, clients, SAMPLES, seed) for clients in MORE_CLIENTS if clients != CLIENTS)


def measure(kept: Path | None, dataset: str, seeds: Sequence[int]) -> list[Row]:
    """A row for each case; rows that the file already has are not measured again."""
    rows: list[Row] = json.loads(kept.read_text())["rows"] if kept is not None and kept.exists() else []
    done = {(r["dataset"], r["difference"], r["strength"], r["clients"], r["samples"], r["seed"]) for r in rows}
    for case in cases(seeds):
        if (dataset, *case) not in done:
            rows.append(_measured(dataset, case))
            if kept is not None:
                write_atomically(kept, json.dumps({"rows": rows}, indent=0) + "\n")
    return [row for row in rows if row["dataset"] == dataset and row["seed"] in seeds]


def _measured(dataset: str, case: Case) -> Row:
    what, strength, others, samples, seed = case
    clients = CLIENTS + others
    experiment = Experiment(dataset=dataset, partition="iid", clients=clients, model="lenet5", seed=seed)
    draw = rng(seed, "power", what, strength, others, samples)

    def change(partition: Partition) -> Partition:
        fewer = smaller(partition, lambda _, own: draw.permutation(own)[:samples])
        if what in CORRUPTION:
            return shifted(fewer, range(CLIENTS, clients), corruption=CORRUPTION[what], severity=strength)
        return shifted(fewer, range(CLIENTS, clients), concept=f"swap-{strength // 2}")

    signatures, truth = signatures_of(experiment, change=change)
    found = group(signatures, seed=seed)
    row = {"dataset": dataset, "difference": what, "strength": strength, "clients": others, "samples": samples}
    ari = round(float(adjusted_rand_score(truth, found.labels_)), 4)
    return row | {"seed": seed, "clusters": found.clusters_, "ari": ari}


COLUMNS = ("difference", "varied", "ARI")


def table(rows: Sequence[Row]) -> list[list[str]]:
    """A line for each difference and what was varied, with the mean index at each value."""
    lines = []
    for what, strengths in STRENGTHS.items():
        usual = {"strength": strengths[2], "clients": CLIENTS, "samples": SAMPLES}
        for name, values in (("strength", strengths), ("samples", MORE_SAMPLES), ("clients", MORE_CLIENTS)):
            shown = []
            for value in values:
                wanted = {"difference": what, **usual, name: value}
                these = [row["ari"] for row in rows if wanted.items() <= row.items()]
                if these:
                    shown.append(f"{value}: {np.mean(these):.2f}")
            lines.append([what, name, ", ".join(shown)])
    return lines
