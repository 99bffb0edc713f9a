"""FedRC: every sample belongs to clusters by degrees, and no cluster for its labels alone (Guo et al., ICML 2024).

An EM algorithm over clients: a sample's share in a cluster grows with how well the cluster's model explains it, divided
by how frequent its label is in that cluster, so that clients are told apart by concept, not by label or feature skew.
Each client trains every model, samples weighted by their shares. Clients send all models, their shares of clusters, and
how much of each label they count to each cluster. The number of clusters must be known.

Defaults are the released code's. There, and in the paper, losses are weighted as they are, so that a client that has no
share in a cluster hardly moves its model. Here the trainer divides by a batch's weights, and the server weighs what
comes back by the client's share instead: the same to first order (`pace = "paper"`). `pace = "cluster"` divides by the
shares, so that a cluster's model moves as far as FedAvg among its own samples would move it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies, Reply
from feddag.heads import without
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings, compared_by_shares
from feddag.models import ModelSpec
from feddag.records import Diagnostics
from feddag.server.robust import robust_mean
from feddag.weights import ClientId, Mixture, Ref, Served, mean_of

RAREST = 1e-8  # what a label counts at least that a cluster does not have
LEAST_WEIGHT = 1e-6  # of a sample in training: a batch whose weights are all zero has no mean


@dataclass(frozen=True)
class Share(Step):
    """The E-step beside the data: each sample's shares in the clusters, left for training; told are only their sums."""

    models: tuple[Ref, ...]
    shares: tuple[float, ...]
    labels: Tensor

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"shares": (len(self.models),), "labels": (len(self.models), model.num_classes)}

    def problem(self, result: Result) -> str | None:
        shares, labels = result.arrays["shares"], result.arrays["labels"]
        sound = bool((shares >= 0).all() and (labels >= 0).all()) and abs(float(shares.sum()) - 1) < 1e-3
        return None if sound else "told shares that cannot be"

    def run(self, client: Client) -> Result:
        absent = client.absent(client.settings)
        models = [without(client.weights(model), absent) for model in self.models]
        losses = torch.stack([client.losses(model) for model in models], dim=1).double()
        gamma = responsibilities(losses, client.y, torch.tensor(self.shares), self.labels)
        for number in range(len(self.models)):
            client.scratch[f"share {number}"] = gamma[:, number].clamp(min=LEAST_WEIGHT).float()
        labels = torch.zeros(client.num_classes, len(self.models), dtype=torch.float64).index_add_(0, client.y, gamma)
        told = {"shares": gamma.mean(0), "labels": labels.T.contiguous()}
        return Result(arrays=told, scored=len(self.models) * len(client.y))


def responsibilities(losses: Tensor, y: Tensor, shares: Tensor, labels: Tensor) -> Tensor:
    """gamma_jk ~ omega_k exp(-loss_jk) / C_yk, over clusters k: samples x clusters, rows that sum to 1."""
    return torch.softmax(shares.double().clamp(min=1e-12).log() - losses - labels.double().T[y].log(), dim=1)


class FedRC(ClusteredMethod):
    """E-step and M-step in each round; a client uses all models, mixed by its shares."""

    name = "fedrc"
    revision = 2  # with a softmax over some classes, shares know only these
    needs = "k"
    sends = "k models, shares of samples and labels"
    cost = 3.0
    paper = "Guo et al., ICML 2024"

    class Settings(ClusteredSettings):
        clusters: int = Field(3, ge=1, description="how many models there are (K)")
        pace: Literal["paper", "cluster"] = Field("paper", description="models move by their share, or all the way")
        hard: bool = Field(False, description="clients use the model of their largest share, not the mixture")

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.shares: dict[ClientId, list[float]] = {}  # omega
        self.labels: dict[ClientId, Tensor] = {}  # clusters x classes: each client's part of C

    def start(self, federation: Federation) -> None:
        for number in range(self._settings.clusters):
            self.groups.found(self.initial_weights(federation, f"cluster {number}"))

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.train(federation, sampled)  # whoever has no shares yet begins with equal ones

    def train(self, federation: Federation, clients: Sequence[ClientId]) -> None:
        self.learn_classes(federation)
        models = {number: federation.put(weights) for number, weights in self.groups.trained.items()}
        replies = federation.ask(Job(client, self.local_work(client, models)) for client in clients)
        self.assign(replies)
        if len(replies):
            for number in models:
                self.m_step(number, list(replies))
        self._held = None  # clients may have moved

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Sequence[Step]:
        steps: list[Step] = [self.e_step(client, models)]
        for number, model in models.items():
            steps.append(Train(model, sample_weights=f"share {number}", held=self.held_in(number)))
        return steps

    def e_step(self, client: ClientId, models: Mapping[int, Ref]) -> Share:
        equal = [1 / len(models)] * len(models)
        return Share(tuple(models.values()), tuple(self.shares.get(client, equal)), self.label_shares())

    def label_shares(self) -> Tensor:
        """C: how frequent each label is in each cluster, over what every client last told."""
        classes = len(self.groups.trained[0]["head.bias"])
        total = torch.zeros(len(self.groups.trained), classes, dtype=torch.float64)
        for client in sorted(self.labels):
            total = total + self.labels[client]
        total = total.clamp(min=RAREST)
        return total / total.sum(1, keepdim=True)

    def assign(self, replies: Replies) -> None:
        for reply in replies:
            told = reply.results[0].arrays
            self.shares[reply.client], self.labels[reply.client] = told["shares"].tolist(), told["labels"]
            self.groups.move(reply.client, int(told["shares"].argmax()))

    def m_step(self, number: int, replies: Sequence[Reply]) -> None:
        """A model's mean over all clients, weighted by samples and by how much of them is this cluster's."""
        before, sizes = self.groups.trained[number], [reply.samples for reply in replies]
        parts = [size * self.shares[reply.client][number] for size, reply in zip(sizes, replies, strict=True)]
        if not sum(parts):
            return
        sent = [reply.results[1 + number].weights or {} for reply in replies]
        mean = robust_mean(sent, parts, before, self._settings.robust)
        if self._settings.pace == "paper":
            own = sum(parts) / sum(sizes)
            mean = mean_of([mean, before], [own, 1 - own])
        self.groups.update(number, mean, self._settings.smoothing)

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        models = {number: federation.put(weights) for number, weights in self.groups.trained.items()}
        replies = federation.ask((Job(client, self.e_step(client, models)) for client in newcomers), optional=True)
        self.assign(replies)
        return {reply.client: self.groups.cluster_of[reply.client] for reply in replies}

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        for client in gone:
            self.shares.pop(client, None)
            self.labels.pop(client, None)

    def model_of(self, client: ClientId) -> Served:
        if self._settings.hard or client not in self.shares:
            return super().model_of(client)
        return Mixture(self.all_used(), tuple(self.shares[client]))

    def diagnostics(self) -> Diagnostics:
        return compared_by_shares(self.shares)
