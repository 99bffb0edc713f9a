"""What several test files share: one thread, and a small federation of known data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from feddag import native
from feddag.client.trainer import LocalSettings
from feddag.data.clients import ClientData, lay_out
from feddag.data.datasets import Dataset
from feddag.data.partitions import Partition
from feddag.data.shifts import Shift
from feddag.engines.worker import WorkerConfig
from feddag.models import ModelSpec

torch.set_num_threads(1)


@pytest.fixture
def small_dataset() -> Dataset:
    """Sixty 4x4 images of three classes; class c has bright row c."""
    generator = np.random.default_rng(0)
    y = np.tile(np.arange(3), 20)
    x = generator.integers(0, 40, (60, 4, 4, 1), dtype=np.uint8)
    x[np.arange(60), y] = 200
    return Dataset("small", x[:45], y[:45], x[45:], y[45:], 3, mean=(60.0,), std=(70.0,))


@pytest.fixture
def small_partition(small_dataset: Dataset) -> Partition:
    """Three clients of 10, 15 and 20 samples; the last one labels the other way round."""
    order = np.arange(45)
    everything = np.arange(15)
    return Partition(
        train=(order[:10], order[10:25], order[25:]),
        test=(everything, everything, everything),
        validation=(order[:0],) * 3,
        shifts=(Shift(), Shift(), Shift(concept="reverse")),
        truth=(0, 0, 1),
        held_out=(),
        names=("a", "b", "c"),
        test_from="test",
    )


@pytest.fixture
def small_data(small_dataset: Dataset, small_partition: Partition) -> ClientData:
    return lay_out(small_dataset, small_partition, seed=0)


@pytest.fixture
def worker_config() -> WorkerConfig:
    return WorkerConfig(ModelSpec("mlp", (1, 4, 4), 3), LocalSettings(epochs=2, batch_size=4, lr=0.05), seed=0)


@pytest.fixture
def native_worker_config(worker_config: WorkerConfig) -> WorkerConfig:
    if not native.available():
        pytest.skip(native.reason())
    return replace(worker_config, network=native.describe(worker_config.model.build(), worker_config.model.shape))


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _every_job_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that threads are tried on small data too."""
    monkeypatch.setattr("feddag.engines.local.SMALL_JOB", 0)
