"""What clustered methods share: a model for each cluster, sampling, a round, newcomers, departures.

A method says how clusters are founded (`start`) and, where it differs from FedAvg inside clusters, what clients do
(`local_work`), which cluster an answer belongs to (`assign`), how answers become a model (`aggregate`), when clusters
change (`adapt`) and where a newcomer belongs (`place`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from feddag.client.evaluate import Choose
from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies, Reply
from feddag.heads import absent_classes, without
from feddag.methods.base import Method, MethodSettings
from feddag.records import Diagnostics
from feddag.server.clusters import Clusters
from feddag.weights import HELD, Choice, ClientId, Layered, Ref, Served, Weights


class ClusteredSettings(MethodSettings):
    """Fields of a clustered method, which has always had the other stabilisers."""

    came_later: ClassVar[Mapping[str, Any]] = {"head": "random", "softmax": "all"}


class ClusteredMethod(Method):
    """FedAvg inside clusters that the method makes in `start` and may change in `adapt`."""

    smooths = True
    family = "clustered"
    Settings: ClassVar[type[MethodSettings]] = ClusteredSettings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.groups = Clusters()
        self._held: dict[int, tuple[int, ...]] | None = None
        self._restricted: dict[int, tuple[Weights, tuple[int, ...], Weights]] = {}

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        if unplaced := [client for client in sampled if client not in self.groups.cluster_of]:
            self.join(federation, unplaced)
        self.train(federation, [client for client in sampled if client in self.groups.cluster_of])

    def train(self, federation: Federation, clients: Sequence[ClientId]) -> None:
        """One exchange with these clients, and what follows from their answers."""
        self.learn_classes(federation)
        self._held = None
        before = dict(self.groups.trained)
        models = {cluster: federation.put(weights) for cluster, weights in before.items()}
        replies = federation.ask(Job(client, self.local_work(client, models)) for client in clients)
        self.assign(replies)
        for cluster, answered in replies.by_group(self.groups.cluster_of):
            weights = before[cluster] | self.aggregate(cluster, answered)
            self.groups.update(cluster, weights, self._settings.smoothing)
        self.adapt(federation, before, replies)
        self._held = None

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Step | Sequence[Step]:
        """What a client does, given all clusters' models: by default, train its own cluster's."""
        cluster = self.groups.cluster_of[client]
        return Train(models[cluster], held=self.held_in(cluster))

    def held_in(self, cluster: int) -> tuple[int, ...]:
        """The classes that a cluster's clients tell apart beside their own: those that any of them is known to hold."""
        return self._held_together(cluster) if self._settings.softmax == "held" else ()

    def _held_together(self, cluster: int) -> tuple[int, ...]:
        if self._held is None:  # asked for every client: put together once for all, and again when anything has changed
            together: dict[int, set[int]] = {}
            for client, own in self.groups.cluster_of.items():
                together.setdefault(own, set()).update(self.held_by(client))
            self._held = {own: tuple(sorted(classes)) for own, classes in together.items()}
        return self._held.get(cluster, ())

    def held_around(self, client: ClientId) -> Sequence[int]:
        return self._held_together(self.groups.cluster_of.get(client, -1))

    def assign(self, replies: Replies) -> None:
        """Move clients to the clusters that their answers say they belong to."""

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        """A cluster's new model, or the parts of it that were trained: the mean weighted by samples."""
        return self.mean(answered, self.groups.trained[cluster])

    def adapt(self, federation: Federation, before: Mapping[int, Weights], replies: Replies) -> None:
        """After a round: split, merge or move. `before` holds the models that were sent."""

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        """The cluster of each newcomer that has one: by default, whose model has the least loss on its own samples."""
        clusters = list(self.groups.served)
        choose = Choose(tuple(federation.put(self.groups.served[cluster]) for cluster in clusters))
        replies = federation.ask((Job(client, choose) for client in newcomers), optional=True)
        return {reply.client: clusters[chosen(reply)] for reply in replies}

    def join(self, federation: Federation, newcomers: Sequence[ClientId]) -> None:
        super().join(federation, newcomers)
        for client, cluster in self.place(federation, newcomers).items():
            self.groups.move(client, cluster)
            federation.tell("join", f"client {client} joined cluster {cluster}", [client])
        self._held = None

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        for client in gone:
            self.groups.leave(client)
            self.held.pop(client, None)
        self._held = None

    def model_of(self, client: ClientId) -> Served:
        """Its cluster's model, answering with what its loss tells apart; without a cluster, the best on its samples."""
        if client not in self.groups.cluster_of:
            return Choice(self.all_used())
        return self.used_of(self.groups.cluster_of[client])

    def used_of(self, cluster: int) -> Weights | Layered:
        """A cluster's model as a client uses it that has nothing of its own to lay over it."""
        layers = self.layers_of(cluster)
        return layers if len(layers) > 1 else self.used_in(cluster)

    def layers_of(self, cluster: int) -> Layered:
        """A cluster's model, and over it, where clients tell only own classes apart, that they answer with these."""
        return (self.groups.served[cluster], HELD) if self._settings.softmax == "own" else (self.used_in(cluster),)

    def all_used(self) -> tuple[Weights | Layered, ...]:
        """Every cluster's model as a client would use it."""
        return tuple(map(self.used_of, self.groups.served))

    def used_in(self, cluster: int) -> Weights:
        """A cluster's model: where the softmax did not run over all classes, it answers with those of the cluster."""
        served = self.groups.served[cluster]
        held = () if self._settings.softmax == "all" else self._held_together(cluster)
        if not held:
            return served
        before = self._restricted.get(cluster)
        if before is None or before[0] is not served or before[1] != held:  # the same object for all of its clients
            self._restricted[cluster] = before = served, held, without(served, absent_classes(served, held))
        return before[2]

    def clusters(self) -> dict[ClientId, int]:
        return self.groups.cluster_of


def compared_by_shares(shares: Mapping[ClientId, Sequence[float]]) -> Diagnostics:
    """For a report, where clients belong to clusters by shares: the share in which two of them differ.

    >>> compared_by_shares({0: [1.0, 0.0], 2: [0.25, 0.75]})["distances"].tolist()
    [0.75]
    """
    clients = sorted(shares)
    if len(clients) < 2:
        return {}
    table = np.array([shares[client] for client in clients])
    one, other = np.triu_indices(len(clients), 1)
    apart = np.abs(table[one] - table[other]).sum(1) / 2
    return {"clients": clients, "distances": apart.astype(np.float32)}


def chosen(reply: Reply) -> int:
    """Which model the client of a job that begins with `Choose` took."""
    return int(reply.results[0].arrays["chosen"])
