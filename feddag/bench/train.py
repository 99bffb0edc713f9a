"""How fast clients train locally, by several ways of doing the same work.

Clients of unequal size (600 samples on average) train one epoch on synthetic pixels. The ways:

- naive: what most frameworks run; a PyTorch loop over clients, each with a DataLoader, torch on its default threads
- torch: feddag's engine with PyTorch, one worker process per core
- native: feddag's engine with the native trainer, one thread per core
- central: no clients; all samples as one, PyTorch at batch 512, the practical ceiling of a dense framework

Starting and warming up the engines is not timed; handing out weights, converting pixels and collecting replies is.
The ways take turns within each repetition, so that a disturbance hits all of them; numbers are medians.

The load is that of the machine before a case began. Other programs make the ways that need all cores at once, naive and
central, look many times slower than they are, and the ratios too good: measure on a quiet machine. Ratios per core are
of processor time, every way on one thread of this process with the smallest clients: they hold on a busy machine too.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from feddag import native
from feddag.bench.common import CLASSES, CORES, native_network, shown, split_into_clients, synthetic_dataset
from feddag.bench.peers import LR, MOMENTUM, Shape, batches, one_epoch
from feddag.client.step import to_tensor
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings
from feddag.data.clients import ClientData
from feddag.encoders import Dropout
from feddag.engines.local import LocalEngine
from feddag.engines.worker import WorkerConfig
from feddag.errors import FeddagError, nearest
from feddag.federation import Job
from feddag.models import ModelSpec
from feddag.rng import rng
from feddag.system import load_average
from feddag.weights import Weights

CENTRAL_BATCH = 512
Way = Callable[[Sequence[int]], None]
"""Trains these clients for one epoch."""
Seconds = dict[str, list[float]]
"""Of each way, for each repetition."""


def m2(shape: Shape, num_classes: int) -> tuple[nn.Module, nn.Module]:
    """M2: three 3x3 convolutions and two dense layers; 541k parameters for 32x32x3."""
    encoder = nn.Sequential(
        *(nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(64 * (shape[1] // 8) * (shape[2] // 8), 468), nn.ReLU()),
    )
    return encoder, nn.Linear(468, num_classes)


MODELS: dict[str, ModelSpec] = {
    "M1": ModelSpec("feddag.bench.peers:m1", (1, 28, 28), CLASSES),
    "lenet5": ModelSpec("lenet5", (1, 28, 28), CLASSES),
    "M2": ModelSpec("feddag.bench.train:m2", (3, 32, 32), CLASSES),
    "cnn": ModelSpec("cnn", (3, 32, 32), CLASSES),
    "mlp": ModelSpec("mlp", (1, 8, 8), CLASSES),
    "cnn1d": ModelSpec("cnn1d", (128, 6), CLASSES),
}
BATCH_SIZES = (10, 32, 64)
WAYS = ("naive", "torch", "native", "central")
ENGINES = ("torch", "native")
COLUMNS = (
    *("model", "batch", "naive/s", "torch/s", "native/s", f"central {CENTRAL_BATCH}/s"),
    *(
        "torch",
        "native",
        "central",
        "torch per core",
        "native per core",
        "native GFLOP/s",
        "best GEMM",
        "FMA peak",
        "load",
    ),
)


def measure(
    models: Sequence[str] = tuple(MODELS),
    batch_sizes: Sequence[int] = BATCH_SIZES,
    repeat: int = 3,
    samples: int = 600,
    clients: int = 20,
) -> list[dict[str, Any]]:
    """A row for each model and batch size: trained samples per second of each way, and ratios to naive."""
    for name in models:
        if name not in MODELS:
            allowed = ", ".join(MODELS)
            raise FeddagError(f"models: '{name}' is not measured; allowed are {allowed}{nearest(name, MODELS)}")
    for key, value in {
        "repeat": repeat,
        "samples": samples,
        "clients": clients,
        "batch_sizes": min(batch_sizes, default=0),
    }.items():
        if value < 1:
            raise FeddagError(f"{key} = {value} is not possible: at least 1 is needed")
    limits = {"best_gemm_gflops": best_gemm(), "fma_peak_gflops": _rounded(native.fma_peak(CORES))}
    sizes = rng(0, "sizes of clients").integers(samples // 2, samples * 3 // 2 + 1, clients).clip(1).tolist()
    rows = []
    for name in models:
        data = split_into_clients(synthetic_dataset(sum(sizes), MODELS[name].shape), sizes)
        rows += [_measure(name, data, batch_size, repeat) | limits for batch_size in batch_sizes]
    return rows


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """The rows as text, for COLUMNS."""
    return [
        [
            *(row["model"], str(row["batch_size"])),
            *(shown(row[way]) for way in WAYS),
            *(shown(row[f"{way}_ratio"], 1, "x") for way in WAYS[1:]),
            *(shown(row[f"{way}_core_ratio"], 1, "x") for way in ENGINES),
            *(shown(row[f"{what}_gflops"], 1) for what in ("native", "best_gemm", "fma_peak")),
            shown(row["load"], 1),
        ]
        for row in rows
    ]


def best_gemm(sizes: Sequence[int] = (512, 1024, 2048)) -> float:
    """GFLOP/s of the best of a few large float32 matrix products in torch on all threads.

    It stands for the most a dense framework could get out of the arithmetic units, where `native.fma_peak` is all that
    there is in them.
    """
    best = 0.0
    for size in sizes:
        a, b = torch.rand(size, size), torch.rand(size, size)
        for _ in range(5):
            began = time.perf_counter()
            torch.mm(a, b)
            best = max(best, 2 * size**3 / (time.perf_counter() - began) / 1e9)
    return round(best, 1)


def _rounded(rate: float | None) -> float | None:
    return rate and round(rate, 1)


def dense_flops(spec: ModelSpec) -> int:
    """Floating-point operations of forward and backward for one sample, nothing left out.

    >>> dense_flops(MODELS["mlp"])  # forward and weight gradients of both layers, input gradient of the second
    40448
    """
    model = spec.build()
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, *spec.shape)).sum().backward()
    return int(counter.get_total_flops())


def _measure(name: str, data: ClientData, batch_size: int, repeat: int) -> dict[str, Any]:
    spec = MODELS[name]
    load = load_average()
    network = native_network(spec)
    start = spec.initial_weights(0, "bench")
    seconds, core_seconds = _time_ways(spec, network, data, start, batch_size, repeat)
    rates = {way: len(data.y) / statistics.median(times) for way, times in seconds.items()}
    core = {way: statistics.median(times) for way, times in core_seconds.items()}
    flops = dense_flops(spec)
    return {
        "model": name,
        "batch_size": batch_size,
        "load": load,
        "parameters": sum(value.numel() for value in start.values()),
        "mflop_per_sample": round(flops / 1e6, 3),
        "samples": len(data.y),
        **{way: round(rates[way], 1) if way in rates else None for way in WAYS},
        **{f"{way}_ratio": round(rates[way] / rates["naive"], 2) if way in rates else None for way in WAYS[1:]},
        **{f"{way}_core_ratio": round(core["naive"] / core[way], 2) if way in core else None for way in ENGINES},
        # As if no work were left out; the native trainer skips what pooling and ReLU make zero.
        "native_gflops": round(rates["native"] * flops / 1e9, 1) if network else None,
        "seconds": seconds,
        "core_seconds": core_seconds,
    }


def _time_ways(
    spec: ModelSpec, network: native.Network | None, data: ClientData, start: Weights, batch_size: int, repeat: int
) -> tuple[Seconds, Seconds]:
    """Wall time of each way with all clients and cores, and processor time with the smallest clients on one core."""
    settings = LocalSettings(epochs=1, batch_size=batch_size, lr=LR, momentum=MOMENTUM, weight_decay=0.0)
    everyone = range(len(data.offsets) - 1)
    smallest = sorted(everyone, key=data.size)[: 2 * CORES]
    threads = torch.get_num_threads()
    seconds: Seconds = {}
    core_seconds: Seconds = {}
    with contextlib.ExitStack() as stack:
        configs = {"torch": WorkerConfig(spec, settings, 0)}
        if network:
            configs["native"] = WorkerConfig(spec, settings, 0, network)
        naive = _naive(spec, data, start, batch_size)
        engines = {way: _engine(stack, data, config, start, CORES) for way, config in configs.items()}
        ways = {"naive": naive, **engines, "central": _central(spec, data, start)}
        alone = {"naive": naive} | {way: _engine(stack, data, config, start, 1) for way, config in configs.items()}
        for repetition in range(repeat + 1):  # the first warms up, on a few clients
            for way, train in ways.items():
                torch.set_num_threads(threads if way in ("naive", "central") else 1)
                began = time.perf_counter()
                train(everyone if repetition else smallest)
                if repetition:
                    seconds.setdefault(way, []).append(time.perf_counter() - began)
            torch.set_num_threads(1)
            for way, train in alone.items():
                began = time.process_time()
                train(smallest)
                if repetition:
                    core_seconds.setdefault(way, []).append(time.process_time() - began)
    torch.set_num_threads(threads)
    return seconds, core_seconds


def _naive(spec: ModelSpec, data: ClientData, start: Weights, batch_size: int) -> Way:
    model = _stock(spec.build())
    held = [_tensors(data, *data.samples(client)) for client in range(len(data.offsets) - 1)]

    def train(clients: Sequence[int]) -> None:
        for client in clients:
            model.load_state_dict(start)
            one_epoch(model, batches(*held[client], batch_size))

    return train


def _central(spec: ModelSpec, data: ClientData, start: Weights) -> Way:
    model = _stock(spec.build())
    x, y = _tensors(data, data.x, data.y)

    def train(clients: Sequence[int]) -> None:
        model.load_state_dict(start)
        count = sum(map(data.size, clients))
        order = torch.randperm(count)
        one_epoch(model, ((x[part], y[part]) for part in torch.split(order, CENTRAL_BATCH)))

    return train


def _engine(stack: contextlib.ExitStack, data: ClientData, config: WorkerConfig, start: Weights, workers: int) -> Way:
    engine = LocalEngine(data, config, workers)
    stack.callback(engine.close)

    def train(clients: Sequence[int]) -> None:
        ref = engine.put(start)
        engine.perform([Job(client, Train(ref)) for client in clients], 1, 1)
        engine.begin_round(0)

    return train


def _stock(model: nn.Module) -> nn.Module:
    """With torch's own dropout, which is faster than the reproducible one that others would not use."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, Dropout):
                setattr(parent, name, nn.Dropout(child.p))
    return model.train()


def _tensors(data: ClientData, x: Any, y: Any) -> tuple[Tensor, Tensor]:
    """Samples as a PyTorch user has them: float32, channels first in memory."""
    return to_tensor(x, data.mean, data.std).contiguous(), torch.from_numpy(np.array(y))
