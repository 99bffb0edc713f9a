"""What the measurements share: the machine, synthetic samples, and how numbers are shown."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from feddag import native
from feddag._version import __version__
from feddag.data.clients import ClientData, lay_out
from feddag.data.datasets import Dataset
from feddag.data.partitions import Partition
from feddag.data.shifts import Shift
from feddag.errors import FeddagError
from feddag.models import ModelSpec
from feddag.rng import rng
from feddag.system import load_average

CLASSES = 10
CORES = os.cpu_count() or 1


def machine() -> dict[str, str | int | float | None]:
    """What the numbers were measured on. If it was busy before the start (`load`), they are doubtful."""
    return {
        "cores": CORES,
        "processor": platform.processor() or platform.machine(),
        "instruction_set": native.instruction_set(),
        "torch_threads": torch.get_num_threads(),
        "load": load_average(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "feddag": __version__,
    }


def synthetic_dataset(samples: int, shape: tuple[int, ...]) -> Dataset:
    """Pixels of a channels-first shape in ten classes, each a faint pattern in noise: it can be learnt.

    A series (time x channels) is an image of one row.

    >>> synthetic_dataset(30, (1, 8, 8)).x_train.shape, synthetic_dataset(30, (16, 2)).x_train.shape
    ((30, 8, 8, 1), (30, 16, 2))
    """
    if len(shape) == 2:
        rows = synthetic_dataset(samples, (shape[1], 1, shape[0]))
        train, test = (x[:, 0].astype(np.float32) for x in (rows.x_train, rows.x_test))
        return replace(rows, x_train=train, x_test=test)
    random = rng(0, "made up pixels")
    channels, height, width = shape
    coarse = random.standard_normal((CLASSES, 4, 4, channels), np.float32)
    pattern = coarse[:, np.arange(height) * 4 // height][:, :, np.arange(width) * 4 // width]

    def draw(count: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        x, y = np.empty((count, height, width, channels), np.uint8), np.resize(np.arange(CLASSES), count)
        for part in np.array_split(np.arange(count), -(-count // 1000)):  # in turn, because memory is measured too
            noise = random.standard_normal((len(part), height, width, channels), np.float32)
            x[part] = np.clip(128 + 40 * noise + 12 * pattern[y[part]], 0, 255)
        return x, y

    (x_train, y_train), (x_test, y_test) = draw(samples), draw(max(CLASSES, samples // 6))
    return Dataset("made up", x_train, y_train, x_test, y_test, CLASSES, (128.0,) * channels, (40.0,) * channels)


def split_into_clients(dataset: Dataset, sizes: list[int]) -> ClientData:
    """The dataset's first samples as clients of these sizes."""
    ends = np.cumsum(sizes)
    everything, nothing = np.arange(len(dataset.y_test)), np.arange(0)
    partition = Partition(
        train=tuple(np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)),
        test=(everything,) * len(sizes),
        validation=(nothing,) * len(sizes),
        shifts=(Shift(),) * len(sizes),
        truth=None,
        held_out=(),
        names=tuple(map(str, range(len(sizes)))),
    )
    return lay_out(dataset, partition, seed=0)


def native_network(model: ModelSpec) -> native.Network | None:
    """The model as the native trainer takes it; None where there is no native trainer for it."""
    return native.describe(model.build(), model.shape) if native.available() else None


def shown(value: float | None, decimals: int = 0, unit: str = "") -> str:
    """A number in a table, or a dash for None.

    >>> shown(12345.6), shown(2.345, 1, "x"), shown(None)
    ('12,346', '2.3x', '-')
    """
    return "-" if value is None else f"{value:,.{decimals}f}{unit}"


def peak_mb() -> float:
    """The most memory this program has ever held."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would also count the process before it became this program
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if "VmHWM" in line) / 1024
    import resource  # Windows has none

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def in_own_process(module: str, asked: Any, what: str) -> dict[str, Any]:
    """What `python -m module` answers to this question, so that its memory is its own."""
    command = [sys.executable, "-m", module, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise FeddagError(f"{what} ended with exit code {done.returncode}: {last}")
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row
