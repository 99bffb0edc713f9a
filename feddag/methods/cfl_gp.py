"""CFL-GP: clients are grouped by gradients that add up over rounds (Kim, Kim and de Veciana, ICML 2024).

In the first rounds every client also tells its gradient at one common model, the criterion. The server keeps each
client's mean gradient, projects all of them onto their leading singular vectors and groups them by k-means, again and
again until clusters stay as they are. Clients send one more set of weights in such a round; how many clusters there are
must be known, or else (`clusters = 0`) the number of the best silhouette is taken once.

The released code takes the gradient at a client's own model even where the criterion is meant: here it is the
criterion's, the model of cluster 0. Its running mean weighs late gradients by a schedule made for several criteria, of
which it has one; here it is the plain mean. It groups clients between their training and the mean of it, here after the
round. New clusters take their numbers from the old ones they overlap with most, by an optimal assignment in place of a
search over all permutations. A newcomer goes to the cluster whose mean gradient has the largest cosine with its own.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field

from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.records import Diagnostics
from feddag.server.clustering import relabel
from feddag.server.directions import matched, projected
from feddag.weights import ClientId, Ref, Weights, flat

CRITERION = 0  # the cluster whose model gradients are taken at


class CFLGP(ClusteredMethod):
    """FedAvg inside clusters, which follow the clients' mean gradients until `until`."""

    name = "cfl-gp"
    needs = "k, or by silhouette"
    sends = "model; at first, gradients"
    paper = "Kim et al., ICML 2024"

    class Settings(ClusteredSettings):
        clusters: int = Field(4, ge=0, description="how many clusters there are (M; 0: by the best silhouette)")
        most: int = Field(8, ge=2, description="how many at most, where that is not given")
        every: int = Field(2, ge=1, description="rounds after which clients are grouped again (P)")
        until: int = Field(10, ge=1, description="the last round in which they are")
        gradient_steps: int = Field(1, ge=1, description="SGD steps that make a gradient")

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.told: dict[ClientId, int] = {}  # how many gradients each client's mean is of

    def setup(self, federation: Federation) -> None:
        self._seed = federation.seed % 2**31
        self._due = False

    def start(self, federation: Federation) -> None:
        self.groups.found(self.initial_weights(federation), federation.clients)

    def sample(self, federation: Federation) -> list[ClientId]:
        """Everybody until there is something to group by."""
        return super().sample(federation) if self.told else list(federation.clients)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        own = self._settings
        self._due = not self.told or ((federation.round - 1) % own.every == 0 and federation.round <= own.until)
        super().round(federation, sampled)

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Sequence[Step]:
        cluster = self.groups.cluster_of[client]
        train = Train(models[cluster], held=self.held_in(cluster))
        return [self.gradient_step(models[CRITERION]), train] if self._due else [train]

    def gradient_step(self, criterion: Ref) -> Train:
        return Train(criterion, steps=self._settings.gradient_steps, phase="gradient")

    def adapt(self, federation: Federation, before: Mapping[int, Weights], replies: Replies) -> None:
        told = {reply.client: reply.results[0].weights for reply in replies if len(reply.results) == 2}
        for client, weights in told.items():
            self.told[client] = self.told.get(client, 0) + 1
            known = self.held[client]["gradient"] if client in self.held else 0.0
            newest = flat(before[CRITERION]) - flat(weights or {})  # learning rate times gradient
            self.held[client] = {"gradient": known + (newest - known) / self.told[client]}
        if told:
            self.regroup()

    def regroup(self) -> None:
        """Every client whose gradient is known goes to its cluster; new clusters start from the criterion."""
        clients = sorted(self.held)
        old = [self.groups.cluster_of.get(client, CRITERION) for client in clients]
        labels = self.divide(torch.stack([self.held[client]["gradient"] for client in clients]).double().numpy())
        while len(self.groups.trained) <= max(labels):
            self.groups.found(self.groups.trained[CRITERION], served=self.groups.served[CRITERION])
        for client, number in zip(clients, matched(labels, old, len(self.groups.trained)), strict=True):
            self.groups.move(client, number)

    def divide(self, gradients: NDArray[np.float64]) -> list[int]:
        """k-means of the gradients in the space of their leading singular vectors."""
        from sklearn.cluster import KMeans  # here, because importing it takes as long as PyTorch
        from sklearn.metrics import silhouette_score

        known = self._settings.clusters or (len(self.groups.trained) if len(self.groups.trained) > 1 else 0)
        numbers = [known] if known else range(2, min(self._settings.most, len(gradients) - 1) + 1)
        found, best = [0] * len(gradients), -2.0
        for number in numbers:
            points = projected(gradients, number)
            wanted = min(number, len(np.unique(points, axis=0)))
            labels = KMeans(wanted, n_init=10, random_state=self._seed).fit_predict(points)
            score = silhouette_score(points, labels) if not known and wanted > 1 else -1.0
            if score > best:
                found, best = relabel(labels).tolist(), score
        return found

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        if not self.told:
            return dict.fromkeys(newcomers, CRITERION)
        step = self.gradient_step(federation.put(self.groups.trained[CRITERION]))
        replies = federation.ask((Job(client, step) for client in newcomers), optional=True)
        means = {}
        for cluster in self.groups.trained:
            known = [self.held[c]["gradient"] for c in self.groups.members(cluster) if c in self.held]
            if known:
                means[cluster] = torch.stack(known).mean(0)
        placed = {}
        for reply in replies:
            own = flat(self.groups.trained[CRITERION]) - flat(reply.weights)
            alike = {cluster: float(torch.cosine_similarity(own, mean, dim=0)) for cluster, mean in means.items()}
            placed[reply.client] = max(alike, key=lambda cluster: (alike[cluster], -cluster)) if alike else CRITERION
        return placed

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        self.told = {client: count for client, count in self.told.items() if client not in gone}

    def diagnostics(self) -> Diagnostics:
        clients = sorted(self.held)
        if len(clients) < 2:
            return {}
        gradients = torch.stack([self.held[client]["gradient"] for client in clients]).double().numpy()
        points = projected(gradients, max(2, len(self.groups.trained)))
        one, other = np.triu_indices(len(clients), 1)
        apart = np.linalg.norm(points[one] - points[other], axis=1)
        return {"clients": clients, "distances": apart.astype(np.float32)}
