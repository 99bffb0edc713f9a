"""CFL: a cluster whose clients pull apart is split in two (Sattler et al., 2020).

Clients send their models, as in FedAvg. All clients take part in every round. The number of clusters need not be known,
but two norms must be: they are absolute, so they depend on network and learning rate.
"""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from feddag.federation import Federation, Replies, Reply
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.weights import ClientId, Weights, flat


class CFL(ClusteredMethod):
    """FedAvg in one cluster, then in its parts: split where the mean update is small and some client's is large."""

    name = "cfl"

    class Settings(ClusteredSettings):
        eps1: float = Field(0.4, gt=0, description="a cluster is split if the norm of its mean update is below this")
        eps2: float = Field(1.6, gt=0, description="and the largest norm of a client's update above this")
        first_split: int = Field(20, ge=0, description="rounds before the first split")

    _settings: Settings

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
                side = {reply.client: part for reply, part in zip(answered, bipartition(updates), strict=True)}
                # Whoever did not answer is on no side, and is placed again when it is next asked.
                one, other = self.groups.split(cluster, [[c for c in side if side[c] == part] for part in (0, 1)])
                text = f"cluster {cluster} was split into {one} and {other}"
                federation.tell("split", text, side)

    def is_due(self, round: int, updates: Tensor) -> bool:
        """Whether a cluster's clients are near a standstill together and far from it each for itself."""
        together, alone = updates.mean(0).norm(), updates.norm(dim=1).max()
        enough = len(updates) > 2 and round > self._settings.first_split
        return bool(enough and together < self._settings.eps1 and alone > self._settings.eps2)


def bipartition(updates: Tensor) -> list[int]:
    """Part 0 or 1 of each update: the largest cosine between the parts is as small as complete linkage makes it.

    >>> bipartition(torch.tensor([[1.0, 0.1], [-1.0, 0.0], [1.0, 0.0]]))
    [0, 1, 0]
    """
    from sklearn.cluster import AgglomerativeClustering  # here, because importing it takes as long as PyTorch

    unit = torch.nn.functional.normalize(updates, dim=1)
    found = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit((1 - unit @ unit.T).numpy())
    labels: list[int] = found.labels_.tolist()
    return [int(label != labels[0]) for label in labels]
