"""Real clients on samples made by hand, without an engine's processes: for numbers that can be computed elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from feddag.client.step import Client, perform
from feddag.client.trainer import LocalSettings, TorchTrainer
from feddag.federation import Job, Reply
from feddag.models import ModelSpec
from feddag.testing import FakeEngine
from feddag.weights import ClientId, Weights

Samples = tuple[Any, Any]
"""What a client trains on: samples x features, and labels."""


def linear(shape: tuple[int, ...], num_classes: int) -> tuple[nn.Module, nn.Module]:
    """Logistic regression: its optimum is known."""
    return nn.Flatten(), nn.Linear(shape[0], num_classes)


def linear_spec(features: int, classes: int = 2) -> ModelSpec:
    return ModelSpec("tests.methods.beside:linear", (features,), classes)


class RealClients(FakeEngine):
    """Clients that hold these samples and do what their steps say. `test` are their test samples, if they differ."""

    def __init__(
        self,
        spec: ModelSpec,
        having: Mapping[ClientId, Samples],
        test: Mapping[ClientId, Samples] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__({client: len(y) for client, (_, y) in having.items()})
        self.having = {client: _tensors(samples) for client, samples in having.items()}
        self.test = {client: _tensors(samples) for client, samples in (test or having).items()}
        self.settings = LocalSettings(**({"epochs": 1, "batch_size": 10**6, "momentum": 0.0} | settings))
        self.classes, self.trainer = spec.num_classes, TorchTrainer(spec)

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        self.jobs, replies = list(jobs), []
        for job in jobs:
            if job.client not in self.silent:
                client = self.client(job.client, (round, exchange))
                results = perform(job.steps, client)
                self.memory[job.client] = round, client.state
                replies.append(Reply(job.client, results, self.samples[job.client]))
        return replies, {job.client: "silent" for job in jobs if job.client in self.silent}

    def client(self, number: ClientId, moment: tuple[int, int] = (1, 1)) -> Client:
        (x, y), (test_x, test_y) = self.having[number], self.test[number]
        return Client(
            **{"id": number, "x": x, "y": y, "trainer": self.trainer, "num_classes": self.classes, "seed": 0},
            moment=moment,
            settings=self.settings,
            fetch=lambda ref: self.weights[ref.digest],
            score=lambda weights: self.trainer.score(weights, test_x, test_y),
            test_samples=lambda: (test_x, test_y),
            state=self.memory.get(number, (0, {}))[1],
        )


def _tensors(samples: Samples) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = samples
    return torch.as_tensor(np.asarray(x), dtype=torch.float32), torch.as_tensor(np.asarray(y), dtype=torch.int64)


def classifier(rows: Sequence[Sequence[float]], bias: Sequence[float] | None = None) -> Weights:
    """A linear model: a row of weights for each class."""
    weight = torch.tensor(rows, dtype=torch.float32)
    return {"head.weight": weight, "head.bias": torch.tensor(bias or [0.0] * len(weight), dtype=torch.float32)}
