"""FedGWC: clients whose losses go the same way share a model (Licciardi et al., 2025).

Clients send their models, as in FedAvg, and the loss of each SGD step. Rewards for losses near those of others make an
interaction matrix of clients; a cluster whose matrix falls into parts is split, and its parts go on from its model.
Nothing must be known in advance.

Three forms: `fedgwc-paper` as printed, `fedgwc-released` as the published code runs it, and `fedgwc`, which compares
pairs of clients and splits where a test says that the parts are no chance (`server.comovement`, `server.split_test`).
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from feddag.client.step import Step
from feddag.client.train import Anchor, Train
from feddag.federation import Federation, Replies, Reply
from feddag.methods.base import MethodSettings, with_defaults
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.records import Diagnostics
from feddag.server.aggregate import momentum_step
from feddag.server.evidence import LossHistory, Seen, SettledMatrix, common_steps
from feddag.weights import ClientId, Ref, Weights

LEAST_SAMPLED = 3  # Eq. 26


class SplitSettings(ClusteredSettings):
    """What a split depends on, and who takes part."""

    split: Literal["tested", "paper", "released"] = Field(
        "tested", description="a cluster is split where a test finds groups, or where its matrix has settled"
    )
    level: float = Field(0.01, gt=0, lt=1, description="share of clusters without groups that all tests may split")
    alpha: float = Field(0.0, ge=0, lt=1, description="weight of a round in Eq. 3 (0: the sampled share of a cluster)")
    epsilon: float = Field(1e-5, gt=0, description="mean squared change of a matrix that has settled")
    beta: float = Field(1.0, gt=0, description="of the kernel, Eq. 4; tested: with the mean distance as unit")
    most_parts: int = Field(4, ge=2, description="most parts that a cluster is split into at once (n_max)")
    sampling: Literal["clusters", "all"] = Field(
        "clusters", description="participants: a share of each cluster, at least three (Eq. 26), or of all"
    )
    per_cluster: int = Field(0, ge=0, description="participants of each cluster, instead of a share (0: a share)")
    rarest_first: bool = Field(True, description="clients that took part least often are sampled first")


class GWCSettings(SplitSettings):
    """The aggregator inside clusters; personalised ones are in `fedgwc_personal`."""

    mu: float = Field(0.0, ge=0, description="FedProx inside clusters: pull towards the cluster's model")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="FedAvgM inside clusters")


class FedGWC(ClusteredMethod):
    """Algorithm 1: one cluster at first, recursively split."""

    name = "fedgwc"
    revision = 3  # clients whose losses move together are found, too
    sends = "model, losses of steps"
    paper = "Licciardi et al., 2025"
    Settings: ClassVar[type[MethodSettings]] = GWCSettings
    _settings: GWCSettings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        own = self._settings
        self.evidence: LossHistory | SettledMatrix = (
            LossHistory(level=own.level, beta=own.beta, most=own.most_parts)
            if own.split == "tested"
            else SettledMatrix(own.split, alpha=own.alpha, epsilon=own.epsilon, beta=own.beta, most=own.most_parts)
        )
        self.participations: dict[ClientId, int] = {}
        self.velocity: dict[int, Weights] = {}

    def start(self, federation: Federation) -> None:
        self.groups.found(self.initial_weights(federation), federation.clients)

    def sample(self, federation: Federation) -> list[ClientId]:
        """So many of each cluster, those first that took part least often; who has no cluster yet counts as one."""
        if self._settings.sampling == "all":
            return super().sample(federation)
        generator = federation.rng("sample in clusters")
        sampled: list[ClientId] = []
        for cluster in [*sorted(self.groups.trained), None]:
            members = [client for client in federation.clients if self.groups.cluster_of.get(client) == cluster]
            wanted = self._settings.per_cluster or max(LEAST_SAMPLED, round(federation.participation * len(members)))
            drawn = [members[place] for place in generator.permutation(len(members))]
            if self._settings.rarest_first:
                drawn.sort(key=lambda client: self.participations.get(client, 0))
            sampled += drawn[:wanted]
        return sorted(sampled)

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Step:
        cluster = self.groups.cluster_of[client]
        model = models[cluster]
        anchors = (Anchor(model, self._settings.mu),) if self._settings.mu else ()
        return Train(model, anchors=anchors, losses=True, held=self.held_in(cluster))

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        mean, own = super().aggregate(cluster, answered), self._settings
        if own.server_momentum:
            start, velocity = self.groups.trained[cluster], self.velocity.get(cluster, {})
            mean, self.velocity[cluster] = momentum_step(start, mean, velocity, own.server_momentum)
        return mean

    def adapt(self, federation: Federation, before: Mapping[int, Weights], replies: Replies) -> None:
        for cluster, answered in replies.by_group(dict(self.groups.cluster_of)):
            for reply in answered:
                self.participations[reply.client] = self.participations.get(reply.client, 0) + 1
            if len(answered) < 2:
                continue  # one client has nobody to be compared with
            seen = Seen(
                federation.round,
                cluster,
                self.groups.members(cluster),
                [reply.client for reply in answered],
                common_steps([reply.results[-1].arrays["losses"] for reply in answered]),
                [reply.samples for reply in answered],
            )
            self.evidence.observe(seen)
            if len(parts := self.evidence.parts(seen, federation.rng("split", cluster))) > 1:
                self.divide(federation, cluster, parts)

    def divide(self, federation: Federation, cluster: int, parts: Sequence[Sequence[ClientId]]) -> None:
        """Children go on from the parent's model and velocity; whoever is in no part is placed when next sampled."""
        numbers = self.groups.split(cluster, parts)
        self.velocity |= {number: self.velocity[cluster] for number in numbers if cluster in self.velocity}
        self.evidence.divided(numbers)
        sizes = ", ".join(f"{number} ({len(part)} clients)" for number, part in zip(numbers, parts, strict=True))
        federation.tell("split", f"cluster {cluster} was split into {sizes}", [c for part in parts for c in part])

    def diagnostics(self) -> Diagnostics:
        """Interaction matrix and affinity of all clients that were seen, and how the matrix settled."""
        return self.evidence.diagnostics()


class FedGWCPaper(FedGWC):
    """As printed: Eq. 1-4 and Algorithms 1 and 2, split once the matrix moves by less than epsilon."""

    name = "fedgwc-paper"
    revision = 1
    Settings = with_defaults(GWCSettings, {"split": "paper", "beta": 0.5, "most_parts": 10})


class FedGWCReleased(FedGWC):
    """As the published code runs it: ten clients of each cluster, rewards that add up to 1, scaled columns."""

    name = "fedgwc-released"
    revision = 1
    Settings = with_defaults(GWCSettings, {"split": "released", "beta": 0.1, "per_cluster": 10, "rarest_first": False})
