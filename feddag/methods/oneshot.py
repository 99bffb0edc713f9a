"""What methods share that group clients once, by what each tells about itself before the first round."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from feddag.client.step import Step
from feddag.federation import Federation, Job, Reply
from feddag.methods.clustered import ClusteredMethod
from feddag.weights import ClientId, Weights


class OneShot(ClusteredMethod):
    """Clients describe themselves, are grouped, and their clusters stay; whoever comes later goes to the nearest.

    What a client told is kept in `held`, one file for each.
    """

    def start(self, federation: Federation) -> None:
        self.first = self.initial_weights(federation)
        clients = self.ask_description(federation, self.founders(federation))
        labels = self.divide(federation, clients)
        for number in sorted({*labels}):
            members = [client for client, own in zip(clients, labels, strict=True) if own == number]
            self.groups.found(self.first_model(members), members)
        if not clients:
            self.groups.found(self.first)  # nobody answered: one model, until somebody does

    def ask_description(self, federation: Federation, clients: Iterable[ClientId]) -> list[ClientId]:
        """Have clients describe themselves and remember it; returns those who did."""
        step = self.description(federation)
        with federation.in_phase("describe"):
            replies = federation.ask((Job(client, step) for client in clients), optional=True)
        for reply in replies:
            self.held[reply.client] = self.kept(reply)
        return [reply.client for reply in replies]

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        known = [client for client in self.groups.cluster_of if client in self.held]  # none of the newcomers
        placed = {}
        for client in self.ask_description(federation, newcomers):
            far = self.distances_to_clusters(client, known)
            placed[client] = min(far, key=lambda cluster: (far[cluster], cluster)) if far else min(self.groups.trained)
        return placed

    def founders(self, federation: Federation) -> Sequence[ClientId]:
        """Who is grouped before the first round: everybody."""
        return federation.clients

    def first_model(self, members: Sequence[ClientId]) -> Weights:
        """What a cluster of these clients starts from: the common first model."""
        return self.first

    @abstractmethod
    def description(self, federation: Federation) -> Step:
        """What a client does to describe itself."""

    @abstractmethod
    def kept(self, reply: Reply) -> Weights:
        """What is remembered of its answer."""

    @abstractmethod
    def divide(self, federation: Federation, clients: Sequence[ClientId]) -> list[int]:
        """The cluster number of each of these clients, whose descriptions are held."""

    @abstractmethod
    def distances_to_clusters(self, client: ClientId, known: Sequence[ClientId]) -> dict[int, float]:
        """How far a client is from each cluster that has some of the known clients."""
