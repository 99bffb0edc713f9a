"""What grouping costs: the server's part as the number of clients grows, and a client's part beside that of IFCA.

The server's part is the whole of `feddag.group` (views, fusion, tree, threshold, complementarity graph) on synthetic
signatures in which every client holds every class, which is the most work there can be, sketched above 10,000 clients;
from 10,000 on three of the groups are rare. Each size runs in a process of
its own, so that its peak memory, which includes the signatures, is its own.
"""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from feddag.bench.common import (
    CLASSES,
    in_own_process,
    native_network,
    peak_mb,
    shown,
    split_into_clients,
    synthetic_dataset,
)
from feddag.bench.train import MODELS
from feddag.client.signature import Signature
from feddag.client.sketch import USUAL_SKETCH
from feddag.client.step import Client, to_tensor
from feddag.client.trainer import LocalSettings, make_trainer
from feddag.client.warmup import MakeSignature
from feddag.errors import FeddagError
from feddag.rng import rng
from feddag.server.grouping import group
from feddag.weights import Ref

Row = dict[str, Any]

SIZES = (100, 1_000, 10_000, 30_000, 100_000)
MOST_WHOLE = 10_000  # clients; signatures of more are sketched, or they would take gigabytes
GROUPS = 20
RARE = (0.01, 0.001, 0.0001)  # shares of the clients that three more groups have, from 10,000 clients on
VECTORS, FEATURES, COORDINATES = 3, 28 * 28, 1234  # the last: 2 % of LeNet-5
NOISE = 0.05  # squared length of the noise on a vector of length 1
SAMPLES = 50  # of each class
MODELS_OF_IFCA, ROUNDS = 5, 200  # A.6.1's K and T
COLUMNS = ("clients", "seconds", "CPU s", "peak MB", "growth", "groups", "true", "ARI", "rare found")
CLIENT_COLUMNS = ("model", "samples", "IFCA: 5 models, 200 rounds, CPU s", "FedDAG: sign, warm up, CPU s", "ratio")


def measure(sizes: Sequence[int] = SIZES) -> list[Row]:
    """A row for each number of clients; growth is the exponent of CPU time between a size and the one before."""
    if sorted(set(sizes)) != list(sizes) or min(sizes) < 1:
        raise FeddagError(f"clients = {', '.join(map(str, sizes))} is not allowed: give increasing numbers from 1 on")
    rows = [in_own_process("feddag.bench.clustering", size, f"the grouping of {size} clients") for size in sizes]
    for before, row in zip([None, *rows[:-1]], rows, strict=True):
        row["growth"] = None if before is None else round(_exponent(before, row), 2)
    return rows


def _exponent(one: Row, other: Row) -> float:
    return math.log(other["cpu_seconds"] / one["cpu_seconds"]) / math.log(other["clients"] / one["clients"])


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, for COLUMNS."""
    return [
        [
            *(shown(row["clients"]), shown(row["seconds"], 2), shown(row["cpu_seconds"], 2), shown(row["peak_mb"])),
            *(shown(row["growth"], 2), shown(row["groups"]), shown(row["true"]), shown(row["ari"], 3)),
            ", ".join(row["rare"]),
        ]
        for row in rows
    ]


def run_size(clients: int) -> Row:
    """Group this many synthetic clients in this process; `peak_mb` is the most this process has held."""
    signatures, truth = synthetic_signatures(clients)
    began, worked = time.perf_counter(), time.process_time()
    found = group(signatures)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
    return {
        "clients": clients,
        "seconds": round(seconds, 4),
        "cpu_seconds": round(cpu_seconds, 4),
        "peak_mb": round(peak_mb(), 1),
        "groups": found.clusters_,
        "true": len(np.unique(truth)),
        "ari": round(float(adjusted_rand_score(truth, found.labels_)), 4),
        "signature_bytes": signatures[0].nbytes,
        "rare": [rare_found(found.labels_, truth == group) for group in range(GROUPS, int(truth.max()) + 1)],
    }


def rare_found(labels: NDArray[np.int64], members: NDArray[np.bool_]) -> str:
    """How many members of a group are together and alone.

    >>> rare_found(np.array([0, 0, 1, 1, 1]), np.array([False, False, False, True, True]))
    '0 of 2'
    """
    groups, counts = np.unique(labels[members], return_counts=True)
    alone = [count for group, count in zip(groups, counts, strict=True) if (members | (labels != group)).all()]
    return f"{max(alone, default=0)} of {members.sum()}"


def synthetic_signatures(clients: int) -> tuple[list[Signature], NDArray[np.int64]]:
    """Clients in groups: in each, classes look alike and the model moves alike, up to noise of known size.

    Noise in a sketch has the same law as noise in all features, so sketches are drawn as such.

    >>> signatures, truth = synthetic_signatures(3)
    >>> signatures[0].vectors.shape, truth.tolist()
    ((10, 3, 784), [0, 1, 2])
    """
    random = rng(0, "made up signatures")
    sketched = clients > MOST_WHOLE
    features, coordinates = (USUAL_SKETCH, USUAL_SKETCH) if sketched else (FEATURES, COORDINATES)
    truth = np.arange(clients) % GROUPS
    start = 0
    for number, share in enumerate(RARE if clients >= MOST_WHOLE else ()):
        truth[start : (start := start + round(share * clients))] = GROUPS + number
    looks = _directions(random, (int(truth.max()) + 1, CLASSES, VECTORS, features))
    moves = _directions(random, (int(truth.max()) + 1, coordinates))
    lengths = np.sqrt(np.array([0.8, 0.5, 0.33], np.float32))[:, None]
    lengths /= np.sqrt(np.sqrt((lengths**4).sum()))
    kind = np.float16 if sketched else np.float32
    return [
        Signature(
            vectors=_of_norm_1(_noisy(random, looks[group]) * lengths).astype(kind),
            counts=np.full(CLASSES, SAMPLES, np.int64),
            reliability=np.full(CLASSES, 1 / (1 + NOISE) ** 2, np.float32),
            update=_noisy(random, moves[group]).astype(kind),
            update_reliability=np.array(1 / (1 + NOISE), np.float32),
        )
        for group in truth.tolist()
    ], truth


def _directions(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    drawn = random.standard_normal(shape, np.float32)
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def _noisy(random: np.random.Generator, directions: Any) -> Any:
    """Directions with noise in every coordinate, of length 1 again."""
    noise = random.standard_normal(directions.shape, np.float32) * np.float32(np.sqrt(NOISE / directions.shape[-1]))
    return (directions + noise) / np.float32(np.sqrt(1 + NOISE))


def _of_norm_1(vectors: Any) -> Any:
    """Vectors of each class so long that the second moment they make up has norm 1."""
    return vectors / (np.einsum("...pf,...pf->...p", vectors, vectors) ** 2).sum(-1)[..., None, None] ** 0.25


# One client's part ---------------------------------------------------------------------------------------------------


def measure_client(models: Sequence[str] = ("cnn", "lenet5"), samples: int = 500, repeat: int = 3) -> list[Row]:
    """A.6.1's ratio: what IFCA's clients spend on choosing a model, to what FedDAG's spend on being grouped."""
    return [_client_row(name, samples, repeat) for name in models]


def client_table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, for CLIENT_COLUMNS."""
    return [
        [
            *(row["model"], shown(row["samples"]), shown(row["ifca_seconds"], 1), shown(row["feddag_seconds"], 2)),
            shown(row["ratio"], 0, "x"),
        ]
        for row in rows
    ]


def _client_row(name: str, samples: int, repeat: int) -> Row:
    spec = MODELS[name]
    data = split_into_clients(synthetic_dataset(samples, spec.shape), [samples])
    x, y = data.samples(0)
    weights = spec.initial_weights(0, "model")
    client = Client(
        id=0,
        x=to_tensor(x, [128.0] * spec.shape[0], [40.0] * spec.shape[0]),
        y=torch.from_numpy(y.copy()),
        trainer=make_trainer(spec, native_network(spec)),
        settings=LocalSettings(),
        num_classes=CLASSES,
        fetch=lambda ref: weights,
        score=lambda weights: torch.zeros(0),
        test_samples=lambda: (torch.zeros(0), torch.zeros(0)),
        seed=0,
        moment=(0, 0),
    )
    sign = MakeSignature(Ref("start", 0), steps=20, sparsity=0.02)

    def evaluate() -> None:
        client.counts(weights)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a client's work is one thread's, both ways
    try:
        evaluate()
        once = statistics.median(_seconds(evaluate) for _ in range(5 * repeat))
        signing = statistics.median(_seconds(lambda: sign.run(client)) for _ in range(repeat))
    finally:
        torch.set_num_threads(threads)
    iterative = MODELS_OF_IFCA * ROUNDS * once
    return {
        **{"model": name, "samples": samples, "evaluation_seconds": once, "ifca_seconds": iterative},
        **{"feddag_seconds": signing, "ratio": round(iterative / signing, 1)},
    }


def _seconds(work: Callable[[], object]) -> float:
    """Of the processor, not of the clock: one thread works, and others may be busy."""
    began = time.process_time()
    work()
    return time.process_time() - began


if __name__ == "__main__":
    print(json.dumps(run_size(json.loads(sys.argv[1]))))
