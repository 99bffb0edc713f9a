"""How much faster the native trainer is than the plain PyTorch loop: `python -m feddag.native.bench_native`.

Twenty clients of unequal size train one epoch. The plain loop is one client after the other, a DataLoader over a
TensorDataset, torch on all threads. Repetitions of both are interleaved; medians are printed.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from feddag import native
from feddag.models import ModelSpec

Shape = tuple[int, ...]


def two_convolutions() -> nn.Module:
    """28 x 28 x 1, two 5 x 5 convolutions, 29k parameters (M1)."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 7 * 7, 10)),
    )


def three_convolutions() -> nn.Module:
    """32 x 32 x 3, three 3 x 3 convolutions and two dense layers, 541k parameters (M2)."""
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 4 * 4, 468), nn.ReLU(), nn.Linear(468, 10)),
    )


def digits() -> nn.Module:
    """8 x 8 digits, one hidden layer of 64."""
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


CASES: list[tuple[str, Callable[[], nn.Module], Shape, int, int]] = [
    *(("M1", two_convolutions, (1, 28, 28), batch, 100) for batch in (10, 32, 64)),
    *(("lenet5", ModelSpec("lenet5", (1, 28, 28), 10).build, (1, 28, 28), batch, 100) for batch in (10, 32)),
    *(("M2", three_convolutions, (3, 32, 32), batch, 60) for batch in (10, 32, 64)),
    *(("cnn", ModelSpec("cnn", (3, 32, 32), 10).build, (3, 32, 32), batch, 40) for batch in (10, 32, 64)),
    ("mlp digits", digits, (64,), 10, 72),
]


def plain_loop(model: nn.Module, start: dict[str, Tensor], clients: list[tuple[Tensor, Tensor]], batch: int) -> None:
    """What most federated frameworks run for every client."""
    for x, y in clients:
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        for inputs, labels in DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def jobs_for(
    network: native.Network, start: dict[str, Tensor], clients: list[tuple[Tensor, Tensor]], batch: int
) -> list[native.Job]:
    """One epoch of every client."""
    weights = {name: value.numpy() for name, value in start.items()}
    rng = np.random.default_rng(0)
    jobs = []
    for x, y in clients:
        sizes = [batch] * (len(y) // batch) + ([len(y) % batch] if len(y) % batch else [])
        order = rng.permutation(len(y))
        data = native.samples(x), y.numpy(), order, np.array(sizes)
        jobs.append(native.Job(network, weights, *data, lr=0.01, momentum=0.5))
    return jobs


def measure(
    build: Callable[[], nn.Module], shape: Shape, batch: int, mean_size: int, repeat: int
) -> tuple[float, float]:
    """Median seconds of the plain loop and of the native trainer."""
    torch.manual_seed(0)
    sizes = np.random.default_rng(0).integers(mean_size // 2, mean_size * 3 // 2, 20)
    clients = [(torch.randn(int(n), *shape), torch.randint(0, 10, (int(n),))) for n in sizes]
    model = build()
    network = native.describe(model, shape)
    if network is None:
        raise AssertionError(native.obstacle(model, shape))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    threads = torch.get_num_threads()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeat):
        began = time.perf_counter()
        plain_loop(model, start, clients, batch)
        between = time.perf_counter()
        native.train_many(jobs_for(network, start, clients, batch), threads)
        times[0].append(between - began)
        times[1].append(time.perf_counter() - between)
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="", help="only networks whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help="times the samples per client")
    arguments = parser.parse_args()
    print(f"{native.instruction_set()}, {torch.get_num_threads()} threads; samples per second")
    print(f"{'network':<12}{'batch':>6}{'PyTorch':>10}{'native':>10}{'ratio':>8}")
    for name, build, shape, batch, size in CASES:
        if arguments.only not in name:
            continue
        size = int(size * arguments.scale)
        plain, fast = measure(build, shape, batch, size, arguments.repeat)
        total = int(np.random.default_rng(0).integers(size // 2, size * 3 // 2, 20).sum())
        print(f"{name:<12}{batch:>6}{total / plain:>10.0f}{total / fast:>10.0f}{plain / fast:>8.1f}", flush=True)


if __name__ == "__main__":
    main()
