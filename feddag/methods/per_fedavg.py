"""Per-FedAvg, first order: a common model that becomes a client's own in a step (Fallah et al., NeurIPS 2020).

The model is trained to be good *after* a step of gradient descent on a client's samples: the gradient is taken there,
and applied to where the step began. A client, also a newcomer, takes that step on its training samples, and uses what
comes out.

Clients send the models they trained; nothing has to be known in advance. Clients count alike, as in the paper. Beta is
the experiment's `lr` (public code: 0.001), with its momentum. An epoch passes every sample once, half of the batches
for the inner and half for the outer step, so that a round costs what FedAvg's does. The step before use is taken on
training samples: pFedMe's repository takes batches of the test samples, labels included, and PACFL's trains whole
epochs first. The inner step leaves the outer one's momentum alone, which PACFL's shares.
"""

from dataclasses import dataclass, replace

import torch
from pydantic import Field

from feddag.client.step import Client, Result, Step
from feddag.client.train import Train, batches_of
from feddag.federation import Replies
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import Adapted, ClientId, Ref, Served, Weights


@dataclass(frozen=True)
class TrainToAdapt(Train):
    """Steps along the gradient of one batch D', taken where a plain step on another batch D leads to."""

    inner_lr: float = 0.01

    def run(self, client: Client) -> Result:
        settings = self.settings(client.settings)
        if settings.steps is not None:
            settings = replace(settings, steps=2 * settings.steps)
        batches = batches_of(client, settings)
        batches += batches[:1] if len(batches) % 2 else []
        inner = replace(settings, lr=self.inner_lr, momentum=0.0)
        outer = replace(settings, momentum=0.0)
        weights, losses = client.weights(self.model), []
        velocity: Weights = {}
        for turn in range(1, len(batches), 2):
            # w - alpha * gradient(w; D)
            there, _ = client.fit(weights, [batches[turn - 1]], inner, held=self.held, draw=turn)
            after, loss = client.fit(there, [batches[turn]], outer, held=self.held, draw=turn + 1)
            step = {name: after[name] - there[name] for name in after}  # -beta * gradient(there; D')
            velocity = _moving(velocity, step, settings.momentum)
            weights = {name: value + velocity[name] for name, value in weights.items()}
            losses.append(loss)
        client.current = weights
        told = torch.cat(losses)
        return Result(
            weights=weights,
            numbers={"loss": float(told.mean())},
            arrays={"losses": told.double()} if self.losses else {},
            samples=sum(map(len, batches)),
        )


def _moving(velocity: Weights, step: Weights, momentum: float) -> Weights:
    """The next step of SGD with momentum; counters of a user's layers have none."""
    return {
        name: momentum * velocity[name] + value if velocity and value.is_floating_point() else value
        for name, value in step.items()
    }


class PerFedAvg(FedAvg):
    """Algorithm 1 with the first-order gradient; each client uses the common model after its own step."""

    name = "per-fedavg"
    family = "personalised"
    paper = "Fallah et al., NeurIPS 2020"

    class Settings(MethodSettings):
        inner_lr: float = Field(0.01, gt=0, description="alpha: the step that a client adapts the model by")
        adapt_steps: int = Field(1, ge=1, description="steps that a client takes before it uses the model")

    _settings: Settings

    def local_work(self, model: Ref) -> Step:
        return TrainToAdapt(model, inner_lr=self._settings.inner_lr)

    def combined(self, replies: Replies) -> Weights | None:
        return self.mean(list(replies), self.weights, by_samples=False) if len(replies) else None

    def model_of(self, client: ClientId) -> Served:
        return Adapted(self.common(), self._settings.inner_lr, self._settings.adapt_steps)
