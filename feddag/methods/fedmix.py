"""FedMix: mixup with means of other clients' samples, to first order (Yoon et al., ICLR 2021).

Before training, clients send means of a few samples. Each batch is then mixed with one of them, (1 - lambda) x +
lambda x_bar, but by the Taylor expansion of the loss at (1 - lambda) x, so that the two are never added.

Clients send means of their samples once, and their models in every round; nothing has to be known in advance, but a
node has to allow that means of samples leave it. Clients send `averages` means each, not one for every few samples, and
a round shows them a draw of 64, not all: the same in expectation, for a fraction of the traffic. FedBR's copy divides
the derivative by the batch size twice, which leaves next to nothing of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from feddag.client.averages import AverageSamples
from feddag.client.flops import LayerCost, training_flops
from feddag.client.loss import Batches, Objective
from feddag.client.step import Client, Step
from feddag.client.train import Train
from feddag.federation import Federation, Job
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import ClientId, Ref

SHOWN = 64  # means in a round


class MixedLoss:
    """The loss of a batch that is mixed with means of others' samples, a random one for each batch."""

    def __init__(self, x: Tensor, y: Tensor, share: float, draw: np.random.Generator) -> None:
        self.x, self.y, self.share, self.draw = x, y, share, draw

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, step: int) -> Tensor:
        chosen = int(self.draw.integers(len(self.x)))
        inputs = ((1 - self.share) * x).requires_grad_()
        scores = model(inputs)
        own = (1 - self.share) * functional.cross_entropy(scores, y)
        other = self.share * functional.cross_entropy(scores, self.y[chosen].to(scores).expand_as(scores))
        (slope,) = torch.autograd.grad(own, inputs, create_graph=True)  # it holds the mean's 1 / batch size already
        return own + other + self.share * (slope * self.x[chosen].to(x)).sum()

    def flops(self, layers: Sequence[LayerCost], batches: Batches) -> int:
        """Beside usual training: the derivative by inputs, and its own by weights and by what it came from."""
        samples = sum(map(len, batches))
        return training_flops(layers, (), samples, samples) + 3 * samples * sum(layer.forward for layer in layers)


@dataclass(frozen=True, eq=False)
class TrainMixed(Train):
    """Train on batches that are mixed with these means of samples and of classes."""

    x: Tensor | None = None
    y: Tensor | None = None
    share: float = 0.1

    def objective(self, client: Client) -> Objective | None:
        if self.x is None or self.y is None:
            return None
        return MixedLoss(self.x, self.y, self.share, client.rng("mixed with"))


class FedMix(FedAvg):
    """FedAvg of models that were trained on mixed batches."""

    name = "fedmix"
    sends = "model; once, means of samples"
    cost = 2.1
    paper = "Yoon et al., ICLR 2021"

    class Settings(MethodSettings):
        softmax: Literal["all"] = Field("all", description="all classes: means of samples hold those of others")
        share: float = Field(0.1, ge=0, lt=1, description="lambda: share of the mean in what is mixed")
        averages: int = Field(20, ge=1, description="means that each client sends")
        averaged: int = Field(5, ge=1, description="samples in a mean (M)")

    _settings: Settings

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self.sizes: dict[ClientId, int] = {}
        self.gather(federation, federation.clients)

    def gather(self, federation: Federation, clients: Sequence[ClientId]) -> None:
        """Ask whoever has not sent any means yet."""
        step = AverageSamples(self._settings.averages, self._settings.averaged)
        unknown = [client for client in clients if client not in self.held]
        with federation.in_phase("averages"):
            for reply in federation.ask((Job(client, step) for client in unknown), optional=True):
                self.held[reply.client] = dict(reply.results[0].arrays)
                self.sizes[reply.client] = reply.samples

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.gather(federation, sampled)
        self._shown = self.drawn(federation.rng("means"))
        super().round(federation, sampled)

    def drawn(self, draw: np.random.Generator) -> tuple[Tensor, Tensor] | None:
        """Some of all means, as if each client had sent as many as it has samples; None if there are none."""
        if not self.held:
            return None
        clients = sorted(self.held)
        shares = np.array([self.sizes[client] for client in clients], float)
        whose = draw.choice(len(clients), SHOWN, p=shares / shares.sum())
        rows = draw.integers(self._settings.averages, size=SHOWN)
        held = [self.held[clients[number]] for number in whose]
        x, y = (torch.stack([one[name][row] for one, row in zip(held, rows, strict=True)]) for name in ("x", "y"))
        return x, y

    def local_work(self, model: Ref) -> Step:
        x, y = self._shown or (None, None)
        return TrainMixed(model, x=x, y=y, share=self._settings.share)

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        for client in gone:
            self.held.pop(client, None)
