"""FedBR: local training that keeps predictions and features unbiased, by pseudo-data (Guo et al., ICML 2023).

Pseudo-data are means of a few samples, which belong to no class: a client's model must call them every class alike. And
its features of them must stay like those of the common model and unlike those of its own samples, seen through a
projection that is trained to tell the opposite.

Clients send their models and projections; chosen ones, before training, means of their samples, which their nodes have
to allow. Nothing has to be known in advance. Defaults are those of the released code. There, an option mixes
pseudo-data with every batch anew, but compares them with the common model's features of the first mixture; here they
stay the same.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddag.client.averages import AverageSamples
from feddag.client.loss import Objective
from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.client.unbiased import PROJECTION, UnbiasedLoss, first_projection
from feddag.federation import Federation, Job, Replies
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import ClientId, ModelSource, Ref, Weights, kept, mean_of, part_of


@dataclass(frozen=True, eq=False)
class TrainUnbiased(Train):
    """Train a model and the projection with `UnbiasedLoss`, and send both."""

    pseudo: Tensor | None = None
    projection: ModelSource = None
    contrast: float = 0.5
    evenness: float = 1.0
    temperature: float = 2.0

    def objective(self, client: Client) -> Objective:
        assert self.pseudo is not None
        start = {name: value.clone() for name, value in client.weights(self.projection).items()}
        client.scratch |= {f"{PROJECTION}/{name}": value for name, value in start.items()}  # the loss changes these
        lr = self.settings(client.settings).lr
        return UnbiasedLoss(self.pseudo, start, lr, self.contrast, self.evenness, self.temperature)

    def run(self, client: Client) -> Result:
        return replace(super().run(client), more={PROJECTION: kept(client.scratch, PROJECTION)})

    def problem(self, result: Result) -> str | None:
        parts = {name: set(map(part_of, table)) for name, table in result.more.items()}
        if parts != {PROJECTION: {PROJECTION}} or PROJECTION in set(map(part_of, result.weights or {})):
            return "answered with an array of a wrong name, shape or type"
        return super().problem(result)


class FedBR(FedAvg):
    """FedAvg of models and projections that were trained without bias."""

    name = "fedbr"
    sends = "model, projection; some, once, means of samples"
    cost = 2.8
    paper = "Guo et al., ICML 2023"

    class Settings(MethodSettings):
        softmax: Literal["all"] = Field("all", description="all classes: means of samples hold those of others")
        contrast: float = Field(0.5, ge=0, description="mu: weight of features that stay like the common model's")
        evenness: float = Field(1.0, ge=0, description="lambda: weight of calling pseudo-data every class alike")
        temperature: float = Field(2.0, gt=0, description="tau: how sharply likenesses of features are told apart")
        pseudo: int = Field(32, ge=1, description="pseudo-data, each from a random client")
        averaged: int = Field(10, ge=1, description="samples in each")

    _settings: Settings

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self.projection = first_projection(federation.features(), federation.rng(PROJECTION))
        self.pseudo = torch.zeros(0)
        self.gather(federation)

    def gather(self, federation: Federation) -> None:
        """Ask random clients for pseudo-data, once for all."""
        draws = federation.rng("pseudo-data").choice(federation.clients, self._settings.pseudo)
        jobs = [Job(int(c), AverageSamples(n, self._settings.averaged)) for c, n in Counter(draws.tolist()).items()]
        with federation.in_phase("averages"):
            found = [reply.results[0].arrays["x"] for reply in federation.ask(jobs, optional=True)]
        self.pseudo = torch.cat(found) if found else self.pseudo

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        if not len(self.pseudo):
            self.gather(federation)
        self._sent = federation.put(self.projection)
        super().round(federation, sampled)

    def local_work(self, model: Ref) -> Step:
        if not len(self.pseudo):
            return Train(model)  # nobody gives any
        own = self._settings
        given = TrainUnbiased(model, pseudo=self.pseudo, projection=self._sent)
        return replace(given, contrast=own.contrast, evenness=own.evenness, temperature=own.temperature)

    def combined(self, replies: Replies) -> Weights | None:
        sent = [(reply.results[-1].more[PROJECTION], reply.samples) for reply in replies if reply.results[-1].more]
        if sent:
            self.projection = mean_of([weights for weights, _ in sent], [samples for _, samples in sent])
        return super().combined(replies)
