"""What clustered methods share: a model for each cluster, sampling, a round, newcomers, departures.

A method says how clusters are founded (`start`) and, where it differs from FedAvg inside clusters, what clients do
(`local_work`), which cluster an answer belongs to (`assign`), how answers become a model (`aggregate`), when clusters
change (`adapt`) and where a newcomer belongs (`place`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from feddag.client.evaluate import Choose
from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies, Reply
from feddag.methods.base import Method, MethodSettings
from feddag.server.clusters import Clusters
from feddag.weights import Choice, ClientId, Ref, Served, Weights


class ClusteredSettings(MethodSettings):
    """Fields of a clustered method, which has always had the stabilisers."""

    came_later: ClassVar[Mapping[str, Any]] = {}


class ClusteredMethod(Method):
    """FedAvg inside clusters that the method makes in `start` and may change in `adapt`."""

    smooths = True
    Settings: ClassVar[type[MethodSettings]] = ClusteredSettings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.groups = Clusters()

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        if unplaced := [client for client in sampled if client not in self.groups.cluster_of]:
            self.join(federation, unplaced)
        self.train(federation, [client for client in sampled if client in self.groups.cluster_of])

    def train(self, federation: Federation, clients: Sequence[ClientId]) -> None:
        """One exchange with these clients, and what follows from their answers."""
        before = dict(self.groups.trained)
        models = {cluster: federation.put(weights) for cluster, weights in before.items()}
        replies = federation.ask(Job(client, self.local_work(client, models)) for client in clients)
        self.assign(replies)
        for cluster, answered in replies.by_group(self.groups.cluster_of):
            weights = before[cluster] | self.aggregate(cluster, answered)
            self.groups.update(cluster, weights, self._settings.smoothing)
        self.adapt(federation, before, replies)

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Step | Sequence[Step]:
        """What a client does, given all clusters' models: by default, train its own cluster's."""
        return Train(models[self.groups.cluster_of[client]])

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
        for client, cluster in self.place(federation, newcomers).items():
            self.groups.move(client, cluster)
            federation.tell("join", f"client {client} joined cluster {cluster}", [client])

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        for client in gone:
            self.groups.leave(client)
            self.held.pop(client, None)

    def model_of(self, client: ClientId) -> Served:
        """Its cluster's model; a client that has no cluster takes the best of all on its training samples."""
        if client in self.groups.cluster_of:
            return self.groups.served[self.groups.cluster_of[client]]
        return Choice(tuple(self.groups.served.values()))

    def clusters(self) -> dict[ClientId, int]:
        return self.groups.cluster_of


def chosen(reply: Reply) -> int:
    """Which model the client of a job that begins with `Choose` took."""
    return int(reply.results[0].arrays["chosen"])
