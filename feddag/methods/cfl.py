"""CFL: a cluster whose clients pull apart is split in two (Sattler et al., TNNLS 2021).

FedAvg in one cluster first; where the mean update has become small and single ones are large, clients are divided so
that updates of the two parts are unlike, and each part goes on by itself. Clients send their models, as in FedAvg; all
of them take part in every round. The number of clusters need not be known, but two norms must be: they are absolute, so
they depend on network and learning rate.

The paper's Algorithm 1 makes the largest cosine between the parts as small as it can be, which is single linkage; the
released code has complete linkage, which does not split off single clients as readily, and is the default here. That
code takes positions inside a cluster for clients from the second split on; here members have names. A newcomer goes
down the tree of splits as in the paper: at each it trains from the model of that time, and goes to the part whose mean
direction is more like its own, where the paper compares it with each of the part's clients.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies, Reply
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.weights import ClientId, Weights, flat


class CFL(ClusteredMethod):
    """FedAvg in one cluster, then in its parts: split where the mean update is small and some client's is large."""

    name = "cfl"
    revision = 2  # newcomers go down the tree
    paper = "Sattler et al., TNNLS 2020"

    class Settings(ClusteredSettings):
        eps1: float = Field(0.4, gt=0, description="a cluster is split if the norm of its mean update is below this")
        eps2: float = Field(1.6, gt=0, description="and the largest norm of a client's update above this")
        first_split: int = Field(20, ge=0, description="rounds before the first split")
        linkage: Literal["complete", "single"] = Field("complete", description="of the two parts (single: the paper)")

        came_later: ClassVar[Mapping[str, Any]] = {**ClusteredSettings.came_later, "linkage": "complete"}

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.splits: list[dict[str, Any]] = []  # in order: the model of the time, and the direction of each part

    def start(self, federation: Federation) -> None:
        self.groups.found(self.initial_weights(federation), federation.clients)

    def sample(self, federation: Federation) -> list[ClientId]:
        return list(federation.clients)

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        return self.mean(answered, self.groups.trained[cluster], by_samples=False)

    def adapt(self, federation: Federation, before: Mapping[int, Weights], replies: Replies) -> None:
        for cluster, answered in replies.by_group(dict(self.groups.cluster_of)):
            updates = torch.stack([flat(reply.weights) - flat(before[cluster]) for reply in answered])
            if self.is_due(federation.round, updates):
                self.divide(federation, cluster, before[cluster], [reply.client for reply in answered], updates)

    def divide(
        self, federation: Federation, cluster: int, model: Weights, clients: Sequence[ClientId], updates: Tensor
    ) -> None:
        """Split a cluster by its clients' updates of a model. Who did not answer is placed when it is next asked."""
        sides, unit = bipartition(updates, self._settings.linkage), normalize(updates, dim=1)
        places = [[place for place, side in enumerate(sides) if side == part] for part in (0, 1)]
        numbers = self.groups.split(cluster, [[clients[place] for place in part] for part in places])
        directions = [unit[part].mean(0) for part in places]
        self.splits.append({"clusters": numbers, "model": model, "directions": directions})
        federation.tell("split", f"cluster {cluster} was split into {numbers[0]} and {numbers[1]}", clients)

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        """Down the tree of splits, in the order of their times: the first part of each has kept its number."""
        at = dict.fromkeys(newcomers, min(self.groups.trained))
        for split in self.splits:
            one, other = split["clusters"]
            work = Train(federation.put(split["model"]))
            coming = [client for client, cluster in at.items() if cluster == one]
            replies = federation.ask((Job(client, work) for client in coming), optional=True)
            for client in coming:
                del at[client]
            for reply in replies:
                update = flat(reply.weights) - flat(split["model"])
                alike = [float(torch.cosine_similarity(update, mean, dim=0)) for mean in split["directions"]]
                at[reply.client] = one if alike[0] >= alike[1] else other
        return at

    def is_due(self, round: int, updates: Tensor) -> bool:
        """Whether a cluster's clients are near a standstill together and far from it each for itself."""
        together, alone = updates.mean(0).norm(), updates.norm(dim=1).max()
        enough = len(updates) > 2 and round > self._settings.first_split
        return bool(enough and together < self._settings.eps1 and alone > self._settings.eps2)


def bipartition(updates: Tensor, linkage: Literal["complete", "single"] = "complete") -> list[int]:
    """Part 0 or 1 of each update: the largest cosine between the parts is as small as the linkage makes it.

    >>> bipartition(torch.tensor([[1.0, 0.1], [-1.0, 0.0], [1.0, 0.0]]))
    [0, 1, 0]
    """
    from sklearn.cluster import AgglomerativeClustering  # here, because importing it takes as long as PyTorch

    unit = normalize(updates, dim=1)
    found = AgglomerativeClustering(2, metric="precomputed", linkage=linkage).fit((1 - unit @ unit.T).numpy())
    labels: list[int] = found.labels_.tolist()
    return [int(label != labels[0]) for label in labels]
