"""Are the groups right? Adjusted Rand index of every way of grouping, on the partitions whose truth is known.

Choices were made on seeds 100 and up; what is published uses seeds 0 to 4.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from feddag.bench.common import CORES, shown
from feddag.client.signature import Signature
from feddag.client.warmup import MakeSignature
from feddag.data.clients import lay_out
from feddag.data.partitions.partition import Partition
from feddag.engines.local import LocalEngine
from feddag.experiment import Experiment
from feddag.federation import Federation, Job
from feddag.files import write_atomically
from feddag.runner.run import prepare
from feddag.server.clustering import Tree
from feddag.server.cutting import CutSettings
from feddag.server.grouping import Grouping, group

Row = dict[str, Any]

SETTINGS: dict[str, dict[str, Any]] = {
    "label-skew 0.2, quantity 1": {"partition": "label-skew", "label_fraction": 0.2, "concentration": 1.0},
    "label-skew 0.2, quantity 0.25": {"partition": "label-skew", "label_fraction": 0.2, "concentration": 0.25},
    "label-skew 0.3, quantity 1": {"partition": "label-skew", "label_fraction": 0.3, "concentration": 1.0},
    "label-skew 0.3, quantity 0.25": {"partition": "label-skew", "label_fraction": 0.3, "concentration": 0.25},
    "concept-shift": {"partition": "concept-shift"},
    "iid": {"partition": "iid"},
    "11 pairs": {"partition": "pairs"},
    "4 corruptions": {"partition": "feature-skew", "corruptions": "gaussian_noise,motion_blur,invert,rotate"},
    "20 corruptions": {"partition": "feature-skew", "corruptions": 20, "concentration": 1.0},
    "domains": {"partition": "feature-skew"},
    "domains, quantity 1": {"partition": "feature-skew", "concentration": 1.0},
    "20 clients": {"partition": "label-skew", "clients": 20},
    "1,000 clients": {"partition": "label-skew", "clients": 1000},
}
WANTED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(list(SETTINGS)[:6], ("fmnist", "cifar10", "svhn")),
    "11 pairs": ("cifar10", "svhn"),
    "4 corruptions": ("cifar10",),
    "20 corruptions": ("cifar10",),
    "domains": ("pacs", "office-caltech10"),
    "domains, quantity 1": ("pacs",),
    "20 clients": ("fmnist",),
    "1,000 clients": ("fmnist",),
}
PLAIN = {"steps": 20, "inputs": "raw", "balanced": False, "halves": False, "per_class": None}
SIGNED: dict[str, dict[str, Any]] = {
    "samples": {"style": True},
    "updates": {"style": True, "steps": 20},
    "printed": PLAIN | {"vectors": 10, "vector_share": 0.01},
    "released": PLAIN | {"epochs": 10, "rounds": 2},
}
"""How clients sign: as `feddag` does, the same with the update of a warm-up, `feddag-paper` and `feddag-released`."""
PRINTED = {"linkage": "single"}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "feddag": ("samples", {}),
    "with updates": ("updates", {}),
    "with updates, views always averaged": ("updates", {"least_silhouette_ratio": 0.0}),
    "classes and data only": ("samples", {"views": ("classes", "data")}),
    "updates only": ("updates", {"views": ("gradient",)}),
    "Eq. 6, standardised": ("updates", PRINTED | {"fusion": "data"}),
    "Eq. 6": ("printed", PRINTED | {"fusion": "data"}),
    "Eq. 3": ("printed", PRINTED | {"fusion": "gradient"}),
    "Eq. 7-8, projected": ("printed", PRINTED | {"fusion": "projected"}),
    "feddag-paper": ("printed", PRINTED | {"fusion": "mlp"}),
    "feddag-released": (
        "released",
        PRINTED | {"fusion": "mlp", "angles": "released", "cut": CutSettings(threshold=0.4)},
    ),
    "released, plateau": ("released", PRINTED | {"fusion": "mlp", "angles": "released"}),
    "PACFL": ("printed", {"fusion": "stacked"}),
}
LARGE = 400  # clients above which only our own way is run: the others are not made for it


def measure(
    kept: Path | None,
    seeds: Sequence[int],
    settings: Sequence[str] = (),
    datasets: Sequence[str] = (),
    signed: Sequence[str] = tuple(SIGNED),
) -> list[Row]:
    """A row for each setting, dataset and seed; ways that the file already has are not measured again.

    Only ways of grouping whose clients sign as in `signed` are measured; the others of a row stay as they are.
    """
    rows: list[Row] = json.loads(kept.read_text())["rows"] if kept is not None and kept.exists() else []
    found = {(row["setting"], row["dataset"], row["seed"]): row for row in rows}
    for seed in seeds:
        for setting in settings or list(SETTINGS):
            for dataset in [name for name in WANTED[setting] if not datasets or name in datasets]:
                row = found.get((setting, dataset, seed))
                if row is None:
                    row = {"setting": setting, "dataset": dataset, "seed": seed, "ways": {}}
                    rows.append(row)
                if _add_ways(row, signed) and kept is not None:
                    write_atomically(kept, json.dumps({"rows": rows}, indent=0) + "\n")
    chosen = set(settings or SETTINGS)
    return [row for row in rows if row["seed"] in seeds and row["setting"] in chosen]


def experiment_of(setting: str, dataset: str, seed: int) -> Experiment:
    """What stands behind a row: LeNet-5 for the warm-up, 100 clients (40 where there are few samples)."""
    fields = {"clients": 40 if dataset == "office-caltech10" else 100, "model": "lenet5", **SETTINGS[setting]}
    return Experiment(dataset=dataset, seed=seed, **fields)


def signatures_of(
    experiment: Experiment,
    sign: dict[str, Any] | None = None,
    change: Callable[[Partition], Partition] = lambda partition: partition,
) -> tuple[list[Signature], list[int]]:
    """Every client's signature, and the true groups; `change` is done to the partition before."""
    dataset, partition, config = prepare(experiment)
    partition = change(partition)
    engine = LocalEngine(lay_out(dataset, partition, experiment.seed), config, CORES)
    try:
        federation = Federation(engine, config.model, experiment.seed, 1.0)
        start = federation.put(federation.initial_weights())
        step = MakeSignature(start, **({"steps": 0, "sparsity": 0.02, "send": False} | (sign or SIGNED["samples"])))
        replies = federation.ask(Job(client, step) for client in federation.clients)
    finally:
        engine.close()
    return [Signature.from_tensors(reply.results[0].arrays) for reply in replies], list(partition.truth or ())


def _add_ways(row: Row, signed: Sequence[str]) -> bool:
    """Measure the ways that the row does not have yet; whether there were any."""
    experiment = experiment_of(row["setting"], row["dataset"], row["seed"])
    large = (experiment.clients or 0) > LARGE
    ways = {
        name: way
        for name, way in WAYS.items()
        if name not in row["ways"] and way[0] in signed and not (large and name != "feddag")
    }
    for signing in dict.fromkeys(way[0] for way in ways.values()):
        started = time.perf_counter()
        signatures, truth = signatures_of(experiment, SIGNED[signing])
        row["true"] = len(set(truth))
        if signing == "samples":
            row["signing_seconds"] = round(time.perf_counter() - started, 2)
            row["signature_bytes"] = signatures[0].nbytes
        for name, (by, options) in ways.items():
            if by == signing:
                row["ways"][name] = _grouped(signatures, truth, row["seed"], options)
    return bool(ways)


def _grouped(signatures: list[Signature], truth: Sequence[int], seed: int, options: dict[str, Any]) -> dict[str, Any]:
    started = time.perf_counter()
    found = group(signatures, seed=seed, **options)
    return {
        "clusters": found.clusters_,
        "ari": round(adjusted_rand_score(truth, found.labels_), 4),
        "best": round(best_threshold(found, truth), 4),
        "seconds": round(time.perf_counter() - started, 3),
    }


def best_threshold(found: Grouping, truth: Sequence[int]) -> float:
    """The adjusted Rand index at the threshold that suits the truth best: what the distances could give."""
    return float(max(adjusted_rand_score(truth, labels) for labels in _every_cut(found.tree_)))


def _every_cut(tree: Tree) -> Iterator[NDArray[np.int64]]:
    heights = np.unique(tree.heights)
    for alpha in [heights[0] - 1, *((heights[1:] + heights[:-1]) / 2), heights[-1] + 1]:
        yield tree.cut(float(alpha))


COLUMNS = ["setting", "dataset", "seeds", "true", "right number", *WAYS]


def table(rows: list[Row]) -> list[list[str]]:
    """Means over seeds: the index at the way's own rule, and in brackets at its best threshold.

    "Right number": in how many runs `feddag` found as many clusters as there are.
    """
    lines = []
    for setting, dataset in dict.fromkeys((row["setting"], row["dataset"]) for row in rows):
        these = [row for row in rows if (row["setting"], row["dataset"]) == (setting, dataset)]
        cells = []
        for way in WAYS:
            scores = [row["ways"][way] for row in these if way in row["ways"]]
            mean = {key: float(np.mean([score[key] for score in scores])) for key in ("ari", "best")} if scores else {}
            cells.append(f"{shown(mean.get('ari'), 3)} ({shown(mean.get('best'), 3)})" if scores else "-")
        true = "/".join(str(count) for count in sorted({row["true"] for row in these}))
        ours = [row["ways"]["feddag"]["clusters"] == row["true"] for row in these if "feddag" in row["ways"]]
        lines.append([setting, dataset, str(len(these)), true, f"{sum(ours)} of {len(ours)}", *cells])
    return lines
