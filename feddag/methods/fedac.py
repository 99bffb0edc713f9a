"""FedAC: personal models, held near their cluster's centre and a global embedding (Zhang et al., 2024).

Every client goes on from its own model and sends it. The server keeps the last one of each, groups clients by the
low-rank cosine of their models with the clusters' centres, and splits or merges clusters by how wide they are, so that
their number need not be known. There is no public code; docs/fidelity.md says where the paper errs or is silent.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddag.client.train import Anchor, Train
from feddag.federation import Federation, Job
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.records import Diagnostics
from feddag.server.cluster_number import ClusterNumber
from feddag.server.lrcos import ModelSimilarity, Similarity, divided, most_alike
from feddag.server.robust import robust_mean
from feddag.weights import Choice, ClientId, Own, Ref, Served, Weights, flat, only

PERSONAL = "personal"
EMBEDDING = ("encoder",)  # phi; the head is the decision h


class FedAC(ClusteredMethod):
    """Algorithm 1: local updates with two pulls, then the E-step, the M-step and the tuning of the cluster number."""

    name = "fedac"

    class Settings(ClusteredSettings):
        clusters: int = Field(3, ge=1, description="how many clusters there are at first (K)")
        pull: float = Field(0.1, ge=0, description="mu: pull of a client's model towards its cluster's centre")
        pull_encoder: float = Field(0.1, ge=0, description="lambda: pull of its encoder towards the global embedding")
        embedding: Literal["all", "sampled"] = Field(
            "all", description="the global embedding is the mean over all clients' models (Eq. 3), or a round's answers"
        )
        similarity: Literal["lrcos", "l2"] = Field("lrcos", description="low-rank cosine, or Euclidean distance (5.4)")
        dimensions: int = Field(50, ge=1, description="of the low-rank map, where there are as many models (D)")
        centred: bool = Field(True, description="the low-rank map is measured from the mean of all models")
        map_every: int = Field(1, ge=1, description="rounds after which the low-rank map is renewed (the paper: 100)")
        tuning: bool = Field(True, description="clusters are split and merged; else their number only falls")
        merge_below: float = Field(0.2, ge=0, description="a cluster whose G is smaller is merged into the nearest (a)")
        split_above: float = Field(0.8, gt=0, description="a cluster whose G is larger is split in two (b)")
        turns: int = Field(4, ge=0, description="how often the number may turn from growing to shrinking or back")

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        own = self._settings
        self.number = ClusterNumber(own.merge_below, own.split_above, own.turns)
        self.alike = ModelSimilarity(own.similarity, own.dimensions, own.centred, own.map_every)
        self.in_step: list[ClientId] = []
        """Whose own model is the one that is held here: their last answer arrived."""

    def start(self, federation: Federation) -> None:
        self.common = federation.initial_weights()
        """The mean of all models: its encoder is the global embedding, and it guides whoever has no cluster yet."""
        self.founded = False
        self.groups.found(self.common)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        replies = federation.ask(self.local_updates(federation, sampled))  # lines 3-8
        answered = {reply.client: reply.weights for reply in replies}
        self.in_step = sorted({*self.in_step} - {*sampled} | {*answered})
        if not answered:
            return
        self.held |= answered
        embedded = self.held if self._settings.embedding == "all" else answered
        self.common = self.mean_model(embedded, self.common)  # line 9, with the mean for the sum
        clients = sorted(self.held)
        models = torch.stack([flat(self.held[client]) for client in clients])
        similarity = self.alike.in_round(models, federation.round)  # line 10, on the server: no map has to travel
        if self.founded:
            self.e_step(federation, clients, similarity, models)  # line 11
        else:
            self.found(clients, similarity, models)
        if self._settings.tuning:  # line 13, from the means that line 12 would give: so they are computed once
            self.tune(federation, clients, models)
        self.m_step()  # line 12

    def local_updates(self, federation: Federation, sampled: Sequence[ClientId]) -> Iterator[Job]:
        """w <- w - eta * (gradient + mu * (w - Omega) + lambda * (phi - Phi)), from the client's own w."""
        own, centres = self._settings, {n: federation.put(weights) for n, weights in self.groups.trained.items()}
        common, embedding = federation.put(self.common), federation.put(only(self.common, EMBEDDING))
        for client in sampled:
            centre = centres.get(self.groups.cluster_of.get(client, -1), common)
            anchors = Anchor(centre, own.pull), Anchor(embedding, own.pull_encoder, EMBEDDING)
            start: tuple[Ref | Own, ...] = (centre,)
            if client in self.in_step:
                start = (centre, Own(PERSONAL))
            elif client in self.held:  # what it trained last did not arrive, or was refused
                start = (federation.put(self.held[client]),)
            pulls = tuple(anchor for anchor in anchors if anchor.strength)
            yield Job(client, Train(start, anchors=pulls, keep=PERSONAL, balanced=own.balanced))

    def found(self, clients: Sequence[ClientId], similarity: Similarity, models: Tensor) -> None:
        """The first clusters: of the first models that arrived, because before all of them were the same."""
        labels = divided(models, max(1, min(self._settings.clusters, len(clients) // 2)), similarity).tolist()
        [cluster] = self.groups.trained
        for client in clients:
            self.groups.move(client, cluster)
        self.groups.split(cluster, [[c for c, own in zip(clients, labels, strict=True) if own == n] for n in {*labels}])
        self.founded = True

    def e_step(
        self, federation: Federation, clients: Sequence[ClientId], similarity: Similarity, models: Tensor
    ) -> None:
        """Eq. 4, as argmax: every client goes where the centre is most like its model. Empty clusters are dissolved."""
        clusters = list(self.groups.trained)
        centres = torch.stack([flat(weights) for weights in self.groups.trained.values()])
        place = {cluster: position for position, cluster in enumerate(clusters)}
        now = torch.tensor([place.get(self.groups.cluster_of.get(client, -1), -1) for client in clients])
        for client, position in zip(clients, most_alike(similarity(models, centres), now).tolist(), strict=True):
            self.groups.move(client, clusters[position])
        filled = set(self.groups.cluster_of.values())
        for cluster in sorted({*clusters} - filled):
            self.groups.merge(cluster, min(filled), (0.0, 1.0))
            self.number.note(-1)
            federation.tell("merge", f"cluster {cluster} was dissolved: all its clients are more like others")

    def m_step(self) -> None:
        """Eq. 5: a centre is the mean of its clients' models, all counting the same."""
        for cluster, centre in list(self.groups.trained.items()):
            members = {c: self.held[c] for c in sorted(self.groups.members(cluster)) if c in self.held}
            if members:
                self.groups.update(cluster, self.mean_model(members, centre), self._settings.smoothing)

    def mean_model(self, models: Mapping[ClientId, Weights], start: Weights) -> Weights:
        """The mean of clients' models, in client order, by the rule that the field `robust` names."""
        return robust_mean([models[c] for c in sorted(models)], [1] * len(models), start, self._settings.robust)

    def tune(self, federation: Federation, clients: Sequence[ClientId], models: Tensor) -> None:
        """Algorithm 3: at most one cluster is split or merged."""
        own = [self.groups.cluster_of[client] for client in clients]
        clusters = sorted({*own})
        change = self.number.change(models, torch.tensor([clusters.index(n) for n in own]), self.alike.among)
        if change is None:
            return
        cluster, leaving = clusters[change.cluster], [clients[position] for position in change.leaving]
        text = f"cluster {cluster} (G = {change.granularity:.2f})"
        if change.into is None:
            staying = [client for client in self.groups.members(cluster) if client not in leaving]
            one, other = self.groups.split(cluster, [staying, leaving])
            federation.tell("split", f"{text} was split into {one} and {other}", leaving)
        else:
            self.groups.merge(cluster, clusters[change.into])
            federation.tell("merge", f"{text} was merged into {clusters[change.into]}", leaving)
        self.number.note(1 if change.into is None else -1)

    def join(self, federation: Federation, newcomers: Sequence[ClientId]) -> None:
        super().join(federation, newcomers)
        self.number.start_again()

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        self.held = {client: weights for client, weights in self.held.items() if client not in gone}
        self.in_step = [client for client in self.in_step if client not in gone]
        self.number.start_again()

    def model_of(self, client: ClientId) -> Served:
        """Its own model; before it has one, its cluster's or the best of all."""
        served = super().model_of(client)
        if client in self.in_step and not isinstance(served, Choice):
            return (served, Own(PERSONAL))
        return self.held.get(client, served)

    def diagnostics(self) -> Diagnostics:
        clients = sorted(self.held)
        if len(clients) < 2:
            return {}
        models = torch.stack([flat(self.held[client]) for client in clients])
        return {"clients": clients, "distances": self.alike.distances(models)}
