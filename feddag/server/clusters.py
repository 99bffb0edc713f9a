"""Who belongs to which cluster, and each cluster's models. The same for every clustered method."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from feddag.server.aggregate import mean_of
from feddag.stateful import Stateful
from feddag.weights import ClientId, Weights, smoothed


class Clusters(Stateful):
    """Clusters of clients, each with the model that is trained and the one that its clients use.

    Members are always named by client, never by position inside a cluster. A cluster's number is not given to another
    one until all clients are grouped anew.

    >>> import torch
    >>> clusters = Clusters()
    >>> clusters.found({"w": torch.zeros(1)}, [3, 5, 8])
    0
    >>> clusters.split(0, [[3, 8], [5]])
    [0, 1]
    >>> clusters.cluster_of
    {3: 0, 8: 0, 5: 1}
    """

    def __init__(self) -> None:
        self.cluster_of: dict[ClientId, int] = {}
        self.trained: dict[int, Weights] = {}
        self.served: dict[int, Weights] = {}
        """What clients use: the trained model, or the mean of those of recent rounds."""
        self.rounds: dict[int, int] = {}
        """In how many rounds each cluster's model was trained."""
        self.next_number = 0

    def members(self, cluster: int) -> list[ClientId]:
        """The clients of a cluster."""
        return [client for client, own in self.cluster_of.items() if own == cluster]

    def found(self, weights: Weights, members: Iterable[ClientId] = (), served: Weights | None = None) -> int:
        """A new cluster that starts from these weights; returns its number."""
        number, self.next_number = self.next_number, self.next_number + 1
        self.trained[number] = weights
        self.served[number] = weights if served is None else served
        self.rounds[number] = 0
        for client in members:
            self.move(client, number)
        return number

    def update(self, cluster: int, weights: Weights, smoothing: float = 0.0, served: Weights | None = None) -> None:
        """A round's new model; `served` is what clients are to use of it, if not the same.

        With smoothing they use the mean of the models after each of the cluster's rounds, the older the less.
        """
        self.trained[cluster] = weights
        self.rounds[cluster] += 1
        newest = weights if served is None else served
        self.served[cluster] = smoothed(self.served[cluster], newest, smoothing, self.rounds[cluster])

    def move(self, client: ClientId, cluster: int) -> None:
        """Put a client into a cluster that is there."""
        if cluster not in self.trained:
            raise LookupError(f"there is no cluster {cluster}")
        self.cluster_of[client] = cluster

    def leave(self, client: ClientId) -> None:
        """A client belongs to no cluster any more. Its cluster stays, even with nobody in it."""
        self.cluster_of.pop(client, None)

    def split(self, cluster: int, parts: Sequence[Collection[ClientId]]) -> list[int]:
        """Divide a cluster: the first part keeps its number, and every part its models. Returns the parts' numbers.

        Members that are in no part belong to no cluster until they are placed again.
        """
        members = self.members(cluster)
        named = [client for part in parts for client in part]
        if len(set(named)) < len(named) or not set(named) <= set(members) or not all(parts):
            raise ValueError(f"the parts of cluster {cluster} are not disjoint, not empty and made of its members")
        for client in members:
            self.leave(client)
        for client in parts[0]:
            self.move(client, cluster)
        numbers = [cluster]
        for part in parts[1:]:
            number = self.found(self.trained[cluster], part, self.served[cluster])
            self.rounds[number] = self.rounds[cluster]
            numbers.append(number)
        return numbers

    def merge(self, cluster: int, into: int, shares: tuple[float, float] = (1.0, 1.0)) -> None:
        """Dissolve a cluster into another one, whose models become the mean of both, weighted by `shares`."""
        if cluster == into:
            raise ValueError(f"cluster {cluster} cannot be merged into itself")
        for models in (self.trained, self.served):
            models[into] = mean_of([models[cluster], models[into]], shares)
        self.rounds[into] = max(self.rounds[cluster], self.rounds[into])
        for client in self.members(cluster):
            self.move(client, into)
        del self.trained[cluster], self.served[cluster], self.rounds[cluster]

    def dissolve_empty(self) -> list[int]:
        """Clusters that have no client are no more, unless there is no other; returns which they were."""
        filled = set(self.cluster_of.values()) or {min(self.trained)}
        empty = sorted(self.trained.keys() - filled)
        for cluster in empty:
            del self.trained[cluster], self.served[cluster], self.rounds[cluster]
        return empty

    def regroup(self, cluster_of: Mapping[ClientId, int], sizes: Mapping[ClientId, float]) -> dict[int, list[int]]:
        """Group everybody anew, into clusters that are numbered anew; returns the old clusters that each inherits from.

        A new cluster starts from the mean of the models its members had, weighted by their sizes. A cluster that has
        not been trained yet has nothing to leave, unless there is nothing else.
        """
        trained, served, rounds, inherited = {}, {}, {}, {}
        for number in sorted(set(cluster_of.values())):
            members = [client for client, new in cluster_of.items() if new == number]
            heirs = [client for client in members if self.rounds[self.cluster_of[client]]] or members
            old, shares = [self.cluster_of[client] for client in heirs], [sizes[client] for client in heirs]
            trained[number] = mean_of([self.trained[cluster] for cluster in old], shares)
            served[number] = mean_of([self.served[cluster] for cluster in old], shares)
            rounds[number] = max(self.rounds[cluster] for cluster in old)
            inherited[number] = sorted(set(old))
        self.trained, self.served, self.rounds = trained, served, rounds
        self.cluster_of = dict(cluster_of)
        self.next_number = max(trained, default=-1) + 1
        return inherited
