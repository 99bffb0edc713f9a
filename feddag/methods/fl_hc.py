"""FL+HC: after some rounds of FedAvg clients are grouped by their updates, once (Briggs, Fan and Andras, IJCNN 2020).

One model is trained together; then all clients train from it, hierarchical clustering of their updates makes clusters,
and each goes on by itself. Clients send their models, as in FedAvg. The number of clusters must be known, or a distance
up to which clusters are joined, which depends on network and learning rate.

There is no code of the authors. Distance and linkage are those of a public re-implementation; the number of rounds
before is ours, which has 20 of them. Updates are compared, not weights: the same but for the cosine. Whoever was
missing, and a newcomer, trains from the model of that moment, and goes to the cluster with the nearest mean update.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from feddag.client.train import Train
from feddag.errors import FeddagError
from feddag.federation import Federation, Job, Replies, Reply
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.records import Diagnostics
from feddag.server.clustering import relabel
from feddag.weights import ClientId, Weights, flat

METRICS: dict[str, Literal["cityblock", "euclidean", "cosine"]]
METRICS = {"l1": "cityblock", "l2": "euclidean", "cosine": "cosine"}  # as SciPy calls them


class FLHC(ClusteredMethod):
    """FedAvg, one hierarchical clustering, and FedAvg inside clusters."""

    name = "fl-hc"
    needs = "k or a distance"
    paper = "Briggs et al., IJCNN 2020"

    class Settings(ClusteredSettings):
        rounds_before: int = Field(10, ge=0, description="rounds of FedAvg before clients are grouped (n)")
        metric: Literal["l1", "l2", "cosine"] = Field("l2", description="distance between two clients' updates")
        linkage: Literal["single", "complete", "average", "ward"] = Field("complete", description="ward: with l2 only")
        clusters: int = Field(3, ge=1, description="how many clusters there are, unless threshold says so")
        threshold: float = Field(0.0, ge=0, description="distance up to which clusters are joined (0: by their number)")

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        if self._settings.linkage == "ward" and self._settings.metric != "l2":
            raise FeddagError(f"linkage = 'ward' is for metric = 'l2', not for '{self._settings.metric}'")
        self.reference: Weights = {}  # the model that updates are measured from, once there are clusters
        self.updates: dict[int, Tensor] = {}  # the mean update of each cluster
        self.compared: list[ClientId] = []
        self.merges = torch.zeros(0, 4, dtype=torch.float64)
        self.apart = torch.zeros(0)

    def start(self, federation: Federation) -> None:
        self.groups.found(self.initial_weights(federation), federation.clients)

    def is_due(self, federation: Federation) -> bool:
        """Whether clients are to be grouped in this round."""
        return federation.round > self._settings.rounds_before and not self.reference

    def sample(self, federation: Federation) -> list[ClientId]:
        return list(federation.clients) if self.is_due(federation) else super().sample(federation)

    def adapt(self, federation: Federation, before: Mapping[int, Weights], replies: Replies) -> None:
        if not self.is_due(federation) or len(replies) < 2:
            return
        [cluster] = self.groups.trained
        self.reference, self.compared = before[cluster], [reply.client for reply in replies]
        updates = torch.stack([self.update(reply) for reply in replies])
        labels = self.divide(updates.numpy())
        parts = [[c for c, own in zip(self.compared, labels, strict=True) if own == n] for n in sorted({*labels})]
        numbers = self.groups.split(cluster, parts)
        for number, part in zip(numbers, parts, strict=True):
            self.updates[number] = updates[[self.compared.index(client) for client in part]].mean(0)
        federation.tell("split", f"clients were grouped into {len(parts)} clusters", self.compared)

    def update(self, reply: Reply) -> Tensor:
        """What a client has changed of the model that clients were grouped by, in float64."""
        return flat(reply.weights).double() - flat(self.reference).double()

    def divide(self, updates: NDArray[np.float64]) -> list[int]:
        """The part of each update, by hierarchical clustering."""
        from scipy.cluster.hierarchy import fcluster, linkage
        from scipy.spatial.distance import pdist

        own = self._settings
        apart = np.nan_to_num(pdist(updates, METRICS[own.metric]), nan=1.0)  # somebody has not moved at all
        merges = linkage(apart, own.linkage)
        self.apart, self.merges = torch.from_numpy(apart), torch.from_numpy(merges)
        by = (own.threshold, "distance") if own.threshold else (own.clusters, "maxclust")
        return [int(label) for label in relabel(fcluster(merges, *by))]

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        if not self.reference:
            return dict.fromkeys(newcomers, min(self.groups.trained))
        from scipy.spatial.distance import cdist

        work = Train(federation.put(self.reference))
        replies = federation.ask((Job(client, work) for client in newcomers), optional=True)
        means, metric = torch.stack(list(self.updates.values())).numpy(), METRICS[self._settings.metric]
        numbers, placed = list(self.updates), {}
        for reply in replies:
            far = np.nan_to_num(cdist(self.update(reply)[None].numpy(), means, metric), nan=1.0)
            placed[reply.client] = numbers[int(far.argmin())]
        return placed

    def diagnostics(self) -> Diagnostics:
        if not self.compared:
            return {}
        told: Diagnostics = {"clients": self.compared, "distances": self.apart.float().numpy(), "rule": "given"}
        told["merges"] = self.merges.numpy()
        return told | {"threshold": self._settings.threshold} if self._settings.threshold else told
