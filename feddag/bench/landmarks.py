"""Are groups found by landmarks those that comparing every pair finds? On real data, where both can be run.

Without true groups (dirichlet) what is found depends on who is looked at, so it is also told how well the same rules
agree with themselves on the landmarks alone. Choices were made on seeds 100 and up; what is published uses others.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from feddag.bench import groups
from feddag.bench.common import shown
from feddag.client.signature import Signature
from feddag.experiment import Experiment
from feddag.files import write_atomically
from feddag.server.grouping import Grouping, group
from feddag.server.landmarks import LandmarkGrouping

Row = dict[str, Any]

SETTINGS: dict[str, dict[str, Any]] = {
    **{name: groups.SETTINGS[name] for name in ("label-skew 0.2, quantity 1", "concept-shift", "iid")},
    "dirichlet 1": {"partition": "dirichlet", "concentration": 1.0},
}
LANDMARKS = {1_000: 200}  # else as many as usual
COLUMNS = (
    *("dataset", "setting", "clients", "seed", "true", "all pairs", "clusters", "CPU s"),
    *("landmarks", "clusters", "CPU s", "agreement", "of landmarks alone"),
)


def measure(
    kept: Path | None, datasets: Sequence[str], seeds: Sequence[int], clients: Sequence[int], names: Sequence[str]
) -> list[Row]:
    """A row for each dataset, setting, number of clients and seed; rows that the file has are kept."""
    rows: list[Row] = json.loads(kept.read_text())["rows"] if kept is not None and kept.exists() else []
    wanted = [
        (dataset, name, count, seed) for count in clients for seed in seeds for dataset in datasets for name in names
    ]
    for case in wanted:
        if case not in map(_case, rows):
            rows.append(_measured(*case))
            if kept is not None:
                write_atomically(kept, json.dumps({"rows": rows}, indent=0) + "\n")
    return [row for row in rows if _case(row) in wanted]


def _case(row: Row) -> tuple[str, str, int, int]:
    return row["dataset"], row["setting"], row["clients"], row["seed"]


def _measured(dataset: str, name: str, clients: int, seed: int) -> Row:
    fields = {"model": "lenet5", "batch_size": 10, **SETTINGS[name]}
    signatures, truth = groups.signatures_of(Experiment(dataset=dataset, seed=seed, clients=clients, **fields))
    row: Row = {"dataset": dataset, "setting": name, "clients": clients, "seed": seed}
    row |= {"signature_bytes": signatures[0].nbytes, "true": len(set(truth)) if truth else None}
    exact, row["pairs"] = _grouped(signatures, truth, 0, seed)
    found, row["landmarks"] = _grouped(signatures, truth, LANDMARKS.get(clients, 2_000), seed)
    assert isinstance(found, LandmarkGrouping)
    row["agreement"] = round(adjusted_rand_score(exact.labels_, found.labels_), 4)
    # So much do the same rules differ on some of the clients: where groups are not clear, nobody can agree more.
    alone = adjusted_rand_score(exact.labels_[found.landmarks_], found.exact_.labels_)
    return row | {"agreement_alone": round(alone, 4)}


def _grouped(signatures: Sequence[Signature], truth: Sequence[int], landmarks: int, seed: int) -> tuple[Grouping, Row]:
    began, worked = time.perf_counter(), time.process_time()
    found = group(signatures, landmarks=landmarks, seed=seed)
    return found, {
        "landmarks": landmarks,
        "ari": round(adjusted_rand_score(truth, found.labels_), 4) if truth else None,
        "clusters": found.clusters_,
        "largest": int(np.bincount(found.labels_).max()),
        "seconds": round(time.perf_counter() - began, 2),
        "cpu_seconds": round(time.process_time() - worked, 2),
    }


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, for COLUMNS."""
    return [
        [
            *(row["dataset"], row["setting"], shown(row["clients"]), str(row["seed"]), shown(row["true"])),
            *(
                text
                for told in (row["pairs"], row["landmarks"])
                for text in (shown(told["ari"], 3), shown(told["clusters"]), shown(told["cpu_seconds"], 1))
            ),
            *(shown(row["agreement"], 3), shown(row["agreement_alone"], 3)),
        ]
        for row in rows
    ]
