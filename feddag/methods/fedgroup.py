"""FedGroup: clients whose first updates point the same way share a model (Duan et al., 2021; FlexCFL, TPDS 2022).

Some clients train a little from a common model before the first round; the server decomposes their updates into as many
directions as there are clusters, describes each client by the cosines of its update with these (EDC), and groups the
descriptions by k-means. Clients send a trained model once more than in FedAvg; the number of clusters must be known.

Defaults are the released code's: 20 clients for each cluster are trained for 50 steps, the others, and newcomers, when
they are first sampled, and join the cluster whose mean update has the largest cosine with theirs; a cluster starts from
the mean of its clients' first models. `measure = "madc"` compares clients by how alike their cosines with all others
are. Left out: aggregation between clusters, which is off there too, and moving clients whose labels have changed.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Reply
from feddag.methods.clustered import ClusteredSettings
from feddag.methods.oneshot import OneShot
from feddag.records import Diagnostics
from feddag.server.clustering import relabel
from feddag.server.directions import cosine_differences, decomposed_cosines
from feddag.weights import ClientId, Weights, flat, mean_of


class FedGroup(OneShot):
    """Groups by the decomposed cosine of first updates, then FedAvg inside them."""

    name = "fedgroup"
    needs = "k"
    sends = "model; once, one more"
    paper = "Duan et al., 2021"

    class Settings(ClusteredSettings):
        clusters: int = Field(3, ge=1, description="how many groups there are (m)")
        measure: Literal["edc", "madc"] = Field("edc", description="decomposed cosine, or differences of all cosines")
        pretrain_steps: int = Field(50, ge=1, description="SGD steps of the first training")
        pretrained: int = Field(20, ge=1, description="clients for each group that are trained before the first round")

    _settings: Settings

    def founders(self, federation: Federation) -> Sequence[ClientId]:
        clients = federation.clients
        count = min(self._settings.pretrained * self._settings.clusters, len(clients))
        chosen = federation.rng("founders").choice(len(clients), count, replace=False)
        return sorted(clients[place] for place in chosen)

    def description(self, federation: Federation) -> Step:
        return Train(federation.put(self.first), steps=self._settings.pretrain_steps)

    def kept(self, reply: Reply) -> Weights:
        return reply.weights

    def update(self, client: ClientId) -> Tensor:
        """A client's first update, in float64."""
        return flat(self.held[client]).double() - flat(self.first).double()

    def divide(self, federation: Federation, clients: Sequence[ClientId]) -> list[int]:
        from sklearn.cluster import AgglomerativeClustering, KMeans  # importing it takes as long as PyTorch

        wanted = min(self._settings.clusters, len(clients))
        if wanted < 2:
            return [0] * len(clients)
        updates = torch.stack([self.update(client) for client in clients]).numpy()
        if self._settings.measure == "madc":
            found = AgglomerativeClustering(wanted, metric="precomputed", linkage="complete")
            return [int(label) for label in relabel(found.fit_predict(cosine_differences(updates)))]
        seed = int(federation.rng("k-means").integers(2**31))
        found = KMeans(wanted, n_init=10, max_iter=20, random_state=seed)
        return [int(label) for label in relabel(found.fit_predict(decomposed_cosines(updates, wanted)))]

    def first_model(self, members: Sequence[ClientId]) -> Weights:
        return mean_of([self.held[client] for client in members], [1] * len(members))

    def distances_to_clusters(self, client: ClientId, known: Sequence[ClientId]) -> dict[int, float]:
        """(1 - cosine) / 2 with the mean update of each cluster."""
        own, far = self.update(client), {}
        for cluster in sorted({self.groups.cluster_of[other] for other in known}):
            members = [self.update(other) for other in known if self.groups.cluster_of[other] == cluster]
            far[cluster] = (1 - float(torch.cosine_similarity(own, torch.stack(members).mean(0), dim=0))) / 2
        return far

    def diagnostics(self) -> Diagnostics:
        clients = sorted(self.held)
        if len(clients) < 2:
            return {}
        unit = normalize(torch.stack([self.update(client) for client in clients]), dim=1)
        apart = (1 - unit @ unit.T)[tuple(np.triu_indices(len(clients), 1))]
        return {"clients": clients, "distances": apart.clamp(min=0).float().numpy()}
