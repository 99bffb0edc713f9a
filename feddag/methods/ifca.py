"""IFCA: every sampled client takes the model that fits it best, and trains that one (Ghosh et al., NeurIPS 2020).

Clients send the model they trained, and which it was. The number of clusters must be known. A client chooses by the
loss on its *training* samples; copies of IFCA that choose by test accuracy measure something else.

How the models begin decides much, and the released code has three ways: K random models; such as are drawn again until
enough clients choose each (`start = "rejection"`, its CIFAR experiments); and a warm start (`start = "warm"`, its
FEMNIST ones): rounds of FedAvg, then models of that encoder and a random head each, first trained by a random part of
the clients each. There the warm model is a file of another run; here its rounds are rounds of this one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from feddag.client.evaluate import Choose
from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies, Reply
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings, chosen
from feddag.weights import ClientId, Ref, Weights, only


class IFCA(ClusteredMethod):
    """K models; clusters are who chose which."""

    name = "ifca"
    needs = "k"
    sends = "model, loss of each"
    paper = "Ghosh et al., NeurIPS 2020"

    class Settings(ClusteredSettings):
        clusters: int = Field(3, ge=1, description="how many models there are (K)")
        start: Literal["random", "rejection", "warm"] = Field("random", description="how the models begin")
        least_share: float = Field(0.1, ge=0, le=1, description="rejection: of the clients that must choose each model")
        draws: int = Field(20, ge=1, description="rejection: how often models are drawn at most")
        warm_rounds: int = Field(5, ge=1, description="warm: rounds of FedAvg before there are several models")
        forced_rounds: int = Field(5, ge=0, description="warm: rounds in which clients train a model of no choice then")

        came_later: ClassVar[Mapping[str, Any]] = {
            **ClusteredSettings.came_later,
            **{"start": "random", "least_share": 0.1, "draws": 20},
            **{"warm_rounds": 5, "forced_rounds": 5},
        }

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.given: dict[ClientId, int] = {}  # a warm start's model of each client, while it has no choice

    def start(self, federation: Federation) -> None:
        if self._settings.start == "warm":
            models = [self.initial_weights(federation)]
        elif self._settings.start == "rejection":
            models = self.accepted(federation)
        else:
            models = self.drawn(federation, 0)
        for weights in models:
            self.groups.found(weights)

    def drawn(self, federation: Federation, draw: int) -> list[Weights]:
        """K random models."""
        names = [f"cluster {number}" for number in range(self._settings.clusters)]
        return [self.initial_weights(federation, f"{name}, draw {draw}" if draw else name) for name in names]

    def accepted(self, federation: Federation) -> list[Weights]:
        """The first draw of which every model is chosen by its share of the clients; else the evenest of all draws."""
        best, most = self.drawn(federation, 0), -1.0
        for draw in range(self._settings.draws):
            models = self.drawn(federation, draw)
            choose = Choose(tuple(map(federation.put, models)))
            with federation.in_phase("draw"):
                replies = federation.ask((Job(client, choose) for client in federation.clients), optional=True)
            counts = np.bincount([chosen(reply) for reply in replies], minlength=len(models))
            if (least := float(counts.min() / max(len(replies), 1))) > most:
                best, most = models, least
            if most >= self._settings.least_share:
                break
        return best

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        own, sharing = self._settings, federation.round - self._settings.warm_rounds
        if own.start == "warm" and 0 < sharing <= own.forced_rounds:
            for client in sampled:  # the same model in all of these rounds
                self.given.setdefault(client, int(federation.rng("give", client).integers(own.clusters)))
        else:
            self.given = {}
        self.train(federation, sampled)  # whoever has no cluster yet chooses like everybody else
        if own.start == "warm" and sharing == 0:
            self.part(federation)

    def part(self, federation: Federation) -> None:
        """The end of a warm start's FedAvg: K models of its encoder, each with a random head."""
        [(number, warm)] = self.groups.trained.items()
        heads = [only(weights, ("head",)) for weights in self.drawn(federation, 0)]
        self.groups.update(number, warm | heads[0])
        self.groups.served[number], self.groups.rounds[number] = self.groups.trained[number], 0
        for head in heads[1:]:
            self.groups.found(warm | head)
        self.groups.cluster_of = {}

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Sequence[Step]:
        offered = (models[self.given[client]],) if client in self.given else tuple(models.values())
        return [Choose(offered), Train()]

    def assign(self, replies: Replies) -> None:
        for reply in replies:
            self.groups.move(reply.client, self.given.get(reply.client, chosen(reply)))

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        return self.mean(answered, self.groups.trained[cluster], by_samples=False)
