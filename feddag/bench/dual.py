"""A whole FedDAG round, both phases and all averaging, beside the same round in the usual PyTorch loop."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from feddag.bench.common import CLASSES, CORES, native_network, shown, split_into_clients, synthetic_dataset
from feddag.bench.peers import LR, MOMENTUM, batches, one_epoch
from feddag.client.step import to_tensor
from feddag.client.trainer import LocalSettings
from feddag.data.clients import ClientData
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.federation import Federation
from feddag.methods.feddag import FedDAG
from feddag.methods.feddag.settings import SharingSettings
from feddag.methods.feddag.sharing import HEAD, PRIMARY, SECONDARY
from feddag.models import ModelSpec
from feddag.server.aggregate import mean_of
from feddag.system import load_average
from feddag.weights import Weights, only

SPEC = ModelSpec("lenet5", (1, 28, 28), CLASSES, encoders=2)
WAYS = ("naive", "torch", "native")
COLUMNS = ("batch", "naive s", "torch s", "native s", "torch", "native", "load")
CLUSTERS = 4


def measure(batch_sizes: Sequence[int] = (10, 32), repeat: int = 3, clients: int = 20) -> list[dict[str, Any]]:
    """A row for each batch size: seconds of a round of 600-sample clients in four clusters, two sources each."""
    data = split_into_clients(synthetic_dataset(600 * clients, SPEC.shape), [600] * clients)
    return [_measure(data, batch_size, repeat) for batch_size in batch_sizes]


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as text, for COLUMNS."""
    return [
        [
            str(row["batch_size"]),
            *(shown(row[way], 2) for way in WAYS),
            *(shown(row[f"{way}_ratio"], 1, "x") for way in WAYS[1:]),
            shown(row["load"], 1),
        ]
        for row in rows
    ]


def _measure(data: ClientData, batch_size: int, repeat: int) -> dict[str, Any]:
    settings = LocalSettings(epochs=1, batch_size=batch_size, lr=LR, momentum=MOMENTUM, weight_decay=0.0)
    threads, load = torch.get_num_threads(), load_average()
    network = native_network(SPEC)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with contextlib.ExitStack() as stack:
        ways: dict[str, Callable[[], None]] = {
            "naive": _naive(data, batch_size),
            "torch": _feddag(stack, data, WorkerConfig(SPEC, settings, 0)),
            **({"native": _feddag(stack, data, WorkerConfig(SPEC, settings, 0, network))} if network else {}),
        }
        for repetition in range(repeat + 1):  # the first warms up
            for way, one_round in ways.items():
                torch.set_num_threads(threads if way == "naive" else 1)
                began = time.perf_counter()
                one_round()
                if repetition:
                    seconds[way].append(time.perf_counter() - began)
    torch.set_num_threads(threads)
    medians = {way: statistics.median(times) if times else None for way, times in seconds.items()}
    ratios = {f"{way}_ratio": medians["naive"] / value if value else None for way, value in medians.items()}  # type: ignore[operator]
    return {"batch_size": batch_size, "load": load, **medians, **ratios, "seconds": seconds}


def _feddag(stack: contextlib.ExitStack, data: ClientData, config: WorkerConfig) -> Callable[[], None]:
    engine = LocalEngine(data, config, CORES)
    stack.callback(engine.close)
    federation = Federation(engine, SPEC, 0, 1.0)
    method = FedDAG(
        SharingSettings(balanced=False, sharing="encoder", classifier="source", head="random", softmax="all")
    )
    for z in range(CLUSTERS):
        members = [client for client in federation.clients if client % CLUSTERS == z]
        method.groups.found(federation.initial_weights(f"cluster {z}"), members)
    method.second.graph = [(z, (z + step) % CLUSTERS) for z in range(CLUSTERS) for step in (1, 2)]

    def one_round() -> None:
        federation.begin_round(federation.round + 1)
        method.round(federation, federation.clients)

    return one_round


def _naive(data: ClientData, batch_size: int) -> Callable[[], None]:
    model = SPEC.build()
    clients = range(len(data.offsets) - 1)
    held = []
    for client in clients:
        x, y = data.samples(client)
        held.append((to_tensor(x, data.mean, data.std).contiguous(), torch.from_numpy(y.copy())))
    models = {z: SPEC.initial_weights(0, f"cluster {z}") for z in range(CLUSTERS)}

    def trained(client: int, start: Weights, parts: tuple[str, ...]) -> Weights:
        model.load_state_dict(start)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.partition(".")[0] in parts)
        one_epoch(model, batches(*held[client], batch_size))
        return only({name: value.clone() for name, value in model.state_dict().items()}, parts)

    def one_round() -> None:
        learners = {z: [(z - step) % CLUSTERS for step in (1, 2)] for z in range(CLUSTERS)}
        sent = {z: mean_of([only(models[j], (SECONDARY,)) for j in learners[z]], [1, 1]) for z in models}
        primary, secondary = [], []
        for client in clients:
            z = client % CLUSTERS
            primary.append(trained(client, models[z], (PRIMARY, HEAD)))
            secondary.append(trained(client, models[z] | sent[z], (SECONDARY,)))
        for z in models:
            members = [client for client in clients if client % CLUSTERS == z]
            models[z] = models[z] | mean_of([primary[client] for client in members], [1] * len(members))
            mean_of([secondary[client] for client in members], [1] * len(members))

    return one_round
