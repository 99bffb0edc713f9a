"""CGPFL: personal models, each held near the model of its context (Tang, Guo and Guo, IJCAI 2022).

pFedMe with several common models: a client's personal theta minimises its loss + lambda / 2 * ||theta - omega||^2,
where omega is the model of its context; omega follows theta, and contexts are k-means of the omegas that clients send.
Personal models stay with their clients. The number of contexts must be known.

There is no public code. The paper's heuristic for the number of contexts is left out. The local work is pFedMe's with
the defaults of its released code: a few steps of SGD on each batch towards theta, then one step of omega towards theta.
Contexts are found and followed as in FeSEM, and a context's model is the mean of its clients' of a round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import Field

from feddag.client.loss import Pull
from feddag.client.step import Client, Result, Step
from feddag.client.train import batches_of
from feddag.federation import Reply
from feddag.heads import without
from feddag.methods.base import MethodSettings
from feddag.methods.fesem import CentreSettings, FeSEM
from feddag.methods.pfedme import PERSONAL, towards
from feddag.server.aggregate import momentum_step
from feddag.weights import ClientId, Ref, Served, Weights, used


@dataclass(frozen=True)
class FollowPersonal(Step):
    """Train a personal model near a common one batch by batch, and let the common one follow it: that one is sent."""

    model: Ref
    pull: float
    personal_steps: int
    held: tuple[int, ...] = ()
    smoothing: float = 0.0

    def sends(self) -> bool:
        return True

    def shapes(self, model: object) -> dict[str, tuple[int, ...]]:
        return {}

    def run(self, client: Client) -> Result:
        settings, omega = client.settings, client.weights(self.model)
        batches = batches_of(client, settings)
        theta, step = omega, min(1.0, settings.lr * self.pull)  # beyond 1 omega would run past theta
        losses = []
        for batch in batches:
            near = [Pull(omega, self.pull)]
            theta, loss = client.fit(theta, [batch] * self.personal_steps, pulls=near, held=self.held)
            omega = towards(omega, theta, step)
            losses.append(float(loss.mean()))
        client.keep(PERSONAL, without(theta, client.absent(settings, self.held)), self.smoothing)
        passes = self.personal_steps * sum(map(len, batches))
        return Result(weights=omega, numbers={"loss": float(np.mean(losses))}, samples=passes)


class CGPFLSettings(CentreSettings):
    """pFedMe's fields."""

    pull: float = Field(15.0, gt=0, description="lambda: pull of the personal model towards its context's")
    personal_steps: int = Field(5, ge=1, description="SGD steps of the personal model on each batch")
    server_step: float = Field(1.0, gt=0, description="beta: how far a context's model goes towards its clients' mean")


class CGPFL(FeSEM):
    """FeSEM's contexts, pFedMe's local work; clients use their personal models."""

    name = "cgpfl"
    needs = "k"
    cost = 5.0
    paper = "Tang et al., IJCAI 2022"
    Settings: ClassVar[type[MethodSettings]] = CGPFLSettings
    _settings: CGPFLSettings

    def work(self, model: Ref, cluster: int) -> Step:
        own = self._settings
        return FollowPersonal(model, own.pull, own.personal_steps, self.held_in(cluster), own.smoothing)

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        mean, before = super().aggregate(cluster, answered), self.groups.trained[cluster]
        return momentum_step(before, mean, {}, 0.0, self._settings.server_step)[0]

    def model_of(self, client: ClientId) -> Served:
        if client not in self.groups.cluster_of:
            return super().model_of(client)
        return (*self.layers_of(self.groups.cluster_of[client]), used(PERSONAL, self._settings.smoothing))
