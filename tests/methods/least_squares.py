"""A client beside its data, and an engine of such clients on a problem that can be solved exactly."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from feddag.client.loss import Pull
from feddag.client.step import Client, perform
from feddag.client.trainer import LocalSettings, TorchTrainer, Trainer
from feddag.federation import Engine, Job, Reply
from feddag.models import ModelSpec
from feddag.weights import ClientId, Ref, Weights, digest, nbytes

PLAIN = LocalSettings(epochs=1, batch_size=2**30, lr=0.1, momentum=0.0, weight_decay=0.0)


def client_of(
    x: Tensor,
    y: Tensor,
    trainer: Trainer,
    weights: Mapping[str, Weights],
    settings: LocalSettings = PLAIN,
    **more: Any,
) -> Client:
    """A client with these samples; weights are found under their names."""
    told: dict[str, Any] = {"id": 0, "seed": 0, "moment": (1, 1), "num_classes": 2}
    told |= {"score": lambda weights: None, "test_samples": lambda: None} | more
    return Client(x=x, y=y, trainer=trainer, settings=settings, fetch=lambda ref: weights[ref.digest], **told)


def packed(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Samples of a regression as those of a classification: what is to be fitted stands beside the inputs."""
    return torch.cat([x, y[:, None]], dim=1), torch.zeros(len(x), dtype=torch.int64)


class LeastSquares(TorchTrainer):
    """Fits x_2 = x_0 w_0 + x_1 w_1 by gradient descent on half the mean squared error, whose minimum is known."""

    def __init__(self) -> None:
        """No network."""

    def fit(  # type: ignore[override]
        self,
        start: Weights,
        x: Tensor,
        y: Tensor,
        batches: Any,
        settings: LocalSettings,
        *,
        pulls: Sequence[Pull] = (),
        **_: Any,
    ) -> tuple[Weights, Tensor]:
        w, velocity, losses = start["head.w"].double().numpy(), np.zeros(2), []
        held, a, b, squares = None, np.zeros((2, 2)), np.zeros(2), 0.0
        for batch in batches:
            if batch is not held:
                a, b = normal_equations(x[batch, :2], x[batch, 2])
                held, squares = batch, float(x[batch, 2].double().square().mean())
            gradient = a @ w - b + settings.weight_decay * w
            for pull in pulls:
                gradient = gradient + pull.strength * (w - pull.centre["head.w"].double().numpy())
            velocity = settings.momentum * velocity + gradient
            losses.append((w @ a @ w - 2 * b @ w + squares) / 2)
            w = w - settings.lr * velocity
        return {"head.w": torch.tensor(w, dtype=torch.float32)}, torch.tensor(losses)

    def flops(self, x: Tensor, batches: Any, *_: Any) -> int:
        return sum(map(len, batches))


class TwoWeights(ModelSpec):
    """Weights of a linear model of two inputs."""

    def initial_weights(self, seed: int, name: str) -> Weights:
        return {"head.w": torch.zeros(2)}


LINEAR = TwoWeights("linear", (2,), 2)


class RegressionEngine(Engine):
    """Clients with samples (x, y) of a linear regression each, who really do their steps."""

    def __init__(self, data: Mapping[ClientId, tuple[Tensor, Tensor]], settings: LocalSettings) -> None:
        self.data, self.settings = dict(data), settings
        self.weights: dict[str, Weights] = {}
        self.memory: dict[ClientId, tuple[int, Weights]] = {}

    def population(self) -> tuple[ClientId, ...]:
        return tuple(sorted(self.data))

    def put(self, weights: Weights) -> Ref:
        self.weights[digest(weights)] = weights
        return Ref(digest(weights), nbytes(weights))

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        replies = []
        for job in jobs:
            x, y = self.data[job.client]
            state = self.memory.get(job.client, (0, {}))[1]
            more = {"id": job.client, "moment": (round, exchange), "state": state}
            client = client_of(*packed(x, y), LeastSquares(), self.weights, self.settings, **more)
            replies.append(Reply(job.client, perform(job.steps, client), len(y)))
            self.memory[job.client] = round, client.state
        return replies, {}

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return dict(self.memory)

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        self.memory = dict(states)

    def close(self) -> None:
        """Nothing to let go of."""


def regressions(clients: int, samples: int = 8, seed: int = 0) -> dict[ClientId, tuple[Tensor, Tensor]]:
    """Clients whose true weights differ, with unequally many samples."""
    draw = np.random.default_rng(seed)
    made = {}
    for client in range(clients):
        x = draw.normal(size=(samples + 4 * client, 2))
        y = x @ draw.normal(size=2) * 2 + 0.1 * draw.normal(size=len(x))
        made[client] = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)
    return made


def normal_equations(x: Tensor, y: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """A and b of the gradient A w - b of half the mean squared error."""
    rows, values = x.double().numpy(), y.double().numpy()
    return rows.T @ rows / len(rows), rows.T @ values / len(rows)


def nearest_to(centre: np.ndarray, pull: float, x: Tensor, y: Tensor) -> np.ndarray:
    """What minimises a client's loss + pull / 2 * ||w - centre||^2."""
    a, b = normal_equations(x, y)
    return np.linalg.solve(a + pull * np.eye(2), b + pull * centre)
