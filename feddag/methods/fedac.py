"""FedAC: personal models, held near their cluster's centre and a global embedding (Zhang et al., 2024).

Every client goes on from its own model and sends it. The server groups models by their low-rank cosine with clusters'
centres, and splits or merges clusters by how wide they are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from feddag.client.train import Anchor, Train
from feddag.federation import Federation, Job, Reply
from feddag.heads import out_of_reach, with_rows_of
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.records import Diagnostics
from feddag.server.cluster_number import ClusterNumber
from feddag.server.lrcos import ModelSimilarity, Similarity, divided, most_alike
from feddag.server.robust import robust_mean
from feddag.weights import HELD, ClientId, Own, Served, Weights, flat, only, used

EMBEDDING = ("encoder",)  # phi; the head is the decision h


class FedAC(ClusteredMethod):
    """Algorithm 1: local updates with two pulls, then the E-step, the M-step and the tuning of the cluster number."""

    name = "fedac"
    needs = "k, at first"
    paper = "Zhang et al., 2024"

    class Settings(ClusteredSettings):
        clusters: int = Field(3, ge=1, description="how many clusters there are at first (K)")
        pull: float = Field(0.1, ge=0, description="mu: pull of a client's model towards its cluster's centre")
        pull_encoder: float = Field(0.1, ge=0, description="lambda: pull of its encoder towards the global embedding")
        embedding: Literal["all", "sampled"] = Field("all", description="whose mean it is: all clients' or a round's")
        metric: Literal["lrcos", "l2"] = Field("lrcos", description="low-rank cosine, or Euclidean distance (5.4)")
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
        self.alike = ModelSimilarity(own.metric, own.dimensions, own.centred, own.map_every)
        self.number = ClusterNumber(own.merge_below, own.split_above, own.turns)
        self.lost: list[ClientId] = []  # whose last answer did not arrive: they go on from the model held here

    def start(self, federation: Federation) -> None:
        self.common = self.initial_weights(federation)  # the mean of all models
        self.founded = False  # whether there are clusters
        self.groups.found(self.common)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.learn_classes(federation)
        replies = federation.ask(self.local_updates(federation, sampled))  # lines 3-8
        answered = {reply.client: self.whole(reply) for reply in replies}
        self.lost = sorted({*self.lost, *sampled} - {*answered})
        if not answered:
            return
        self.held |= answered
        everybody = self._settings.embedding == "all"
        self.common = self.mean_model(self.held if everybody else answered, self.common)  # line 9, as a mean
        clients, models = sorted(self.held), torch.stack([flat(self.held[client]) for client in sorted(self.held)])
        similarity = self.alike.in_round(models, federation.round)  # line 10, on the server: no map has to travel
        (self.e_step if self.founded else self.found)(federation, clients, similarity, models)  # line 11
        if self._settings.tuning:
            self.tune(federation, clients, models)  # line 13, from the means that line 12 would give
        self.m_step()  # line 12

    def whole(self, reply: Reply) -> Weights:
        """What a client sent; where its loss knew only its own classes, the other rows are those of the mean model."""
        absent = None if self._settings.softmax == "all" else out_of_reach(reply.weights)
        return with_rows_of(reply.weights, self.common, absent)

    def local_updates(self, federation: Federation, sampled: Sequence[ClientId]) -> Iterator[Job]:
        """w <- w - eta * (gradient + mu * (w - Omega) + lambda * (phi - Phi)), from the client's own w."""
        own, centres = self._settings, {n: federation.put(weights) for n, weights in self.groups.trained.items()}
        common, embedding = federation.put(self.common), federation.put(only(self.common, EMBEDDING))
        mask = () if own.softmax == "all" else (HELD,)  # so that what is sent says what is held
        for client in sampled:
            centre = centres.get(self.groups.cluster_of.get(client, -1), common)
            first = (federation.put(last) if (last := self.held.get(client)) and client in self.lost else centre, *mask)
            start = (*first, Own("personal")) if last and client not in self.lost else first
            both = Anchor(centre, own.pull), Anchor(embedding, own.pull_encoder, EMBEDDING)
            pulls = tuple(anchor for anchor in both if anchor.strength)
            yield Job(client, Train(start, anchors=pulls, keep="personal", smoothing=own.smoothing))

    def found(self, federation: Federation, clients: list[ClientId], similarity: Similarity, models: Tensor) -> None:
        """The first clusters: of the first models that arrived, because before all of them were the same."""
        labels = divided(models, max(1, min(self._settings.clusters, len(clients) // 2)), similarity).tolist()
        [cluster] = self.groups.trained
        self.groups.cluster_of |= dict.fromkeys(clients, cluster)
        self.groups.split(cluster, [[c for c, own in zip(clients, labels, strict=True) if own == n] for n in {*labels}])
        self.founded = True

    def e_step(self, federation: Federation, clients: list[ClientId], similarity: Similarity, models: Tensor) -> None:
        """Eq. 4, as argmax: every client goes where the centre is most like its model. Empty clusters are dissolved."""
        self.groups.dissolve_empty()  # of whom all have left since
        centres = torch.stack([flat(weights) for weights in self.groups.trained.values()])
        for client, row in zip(clients, similarity(models, centres).tolist(), strict=True):
            alike = dict(zip(self.groups.trained, row, strict=True))
            self.groups.move(client, most_alike(alike, self.groups.cluster_of.get(client)))
        for cluster in self.groups.dissolve_empty():
            self.number.note(-1)
            federation.tell("merge", f"cluster {cluster} was dissolved: nobody is in it any more")

    def m_step(self) -> None:
        """Eq. 5: a centre is the mean of its clients' models, all counting the same."""
        for cluster, centre in self.groups.trained.items():
            if members := {c: self.held[c] for c in self.groups.members(cluster) if c in self.held}:
                self.groups.update(cluster, self.mean_model(members, centre), self._settings.smoothing)

    def mean_model(self, models: Mapping[ClientId, Weights], start: Weights) -> Weights:
        """The mean of clients' models, in client order, by the rule that the field `robust` names."""
        return robust_mean([models[c] for c in sorted(models)], [1] * len(models), start, self._settings.robust)

    def tune(self, federation: Federation, clients: Sequence[ClientId], models: Tensor) -> None:
        """Algorithm 3: at most one cluster is split or merged."""
        own = [self.groups.cluster_of[client] for client in clients]
        if (change := self.number.change(models, own, self.alike.among, federation.round)) is None:
            return
        cluster, leaving = change.cluster, [clients[position] for position in change.leaving]
        if change.into is None:
            self.groups.split(cluster, [[c for c in self.groups.members(cluster) if c not in leaving], leaving])
        else:
            self.groups.merge(cluster, change.into)
        self.number.note(change.direction)
        federation.tell(change.kind, f"{change.kind} of cluster {cluster}: its G is {change.ratio:.2f}", leaving)

    def model_of(self, client: ClientId) -> Served:
        """Its own model; before it has one, its cluster's or the best of all."""
        if client in self.held and client not in self.lost:
            return (self.groups.served[self.groups.cluster_of[client]], used("personal", self._settings.smoothing))
        last = self.held.get(client)
        return super().model_of(client) if last is None else (last, HELD) if self._settings.softmax == "own" else last

    def diagnostics(self) -> Diagnostics:
        told: Diagnostics = {"clients": sorted(self.held), "by_round": self.number.curves()}
        models = [flat(self.held[client]) for client in sorted(self.held)]
        return told | {"distances": self.alike.distances(torch.stack(models))} if models else {}
