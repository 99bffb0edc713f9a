"""How many clusters there should be (FedAC, section 4.5 and Algorithm 3)."""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddag.errors import FeddagError
from feddag.server.lrcos import Similarity, divided
from feddag.stateful import Stateful

ROUNDING = 1e-9  # of squared lengths: what is smaller is no distance


class Change(NamedTuple):
    """One cluster more or one fewer."""

    cluster: int
    ratio: float
    """G of the cluster, which is why."""
    into: int | None
    """The cluster that it is merged into; None where it is split."""
    leaving: tuple[int, ...]
    """Positions of the models that leave it: all that it has, or the second part."""

    @property
    def kind(self) -> Literal["split", "merge"]:
        """What is done to the cluster."""
        return "split" if self.into is None else "merge"

    @property
    def direction(self) -> int:
        """By how much the number of clusters changes."""
        return 1 if self.into is None else -1


def inner_products(models: Tensor) -> Tensor:
    """Of models (rows) with each other, measured from their mean: all that distances to centres are made of."""
    moved = models - models.double().mean(0).to(models.dtype)
    return (moved @ moved.T).double()


def granularity(products: Tensor, labels: Tensor) -> Tensor:
    """G of each cluster (lines 2-4): the mean squared distance to its centre over that to the other centres.

    One cluster alone has nothing to be compared with, and its G is infinite; so is that of a cluster whose members
    differ and whose centre is where all others are. A cluster of one, or of copies, has a G of 0.

    Here each cluster has 1 inside, and 2.5 ** 2 + 1 = 7.25 to the other:

    >>> models = torch.tensor([[0.0, 0.0], [0.0, 2.0], [2.5, 1.0], [2.5, 3.0]])
    >>> granularity(inner_products(models), torch.tensor([0, 0, 1, 1])) * 7.25
    tensor([1., 1.], dtype=torch.float64)
    """
    intra, between = _distances(products, labels)
    inter = between.sum(1) / max(len(between) - 1, 1)
    return torch.where(intra > 0, intra / inter, torch.zeros_like(intra))


def nearest(products: Tensor, labels: Tensor, cluster: int) -> int:
    """The cluster whose centre is closest to this one's.

    >>> nearest(inner_products(torch.tensor([[0.0], [9.0], [4.0]])), torch.tensor([0, 1, 2]), 1)
    2
    """
    between = _distances(products, labels)[1][cluster]
    between[cluster] = math.inf
    return int(between.argmin())


class ClusterNumber(Stateful):
    """Splits clusters whose G is above a band and merges those below it; one change a round.

    Two rules keep the number from going up and down for ever. A merge is not done where the merged cluster would have
    to be split: so a split is not undone while models stay as they are. And the number may turn from growing to
    shrinking, or back, only so many times while the same number of models is known; in between there are at most as
    many changes as models.
    """

    def __init__(self, low: float, high: float, turns: int) -> None:
        if low >= high:
            raise FeddagError(f"merge_below = {low} has to be less than split_above = {high}")
        self._low, self._high, self._turns = low, high, turns
        self.known, self.direction, self.turned = 0, 0, 0
        self.seen = torch.zeros((0, 3), dtype=torch.float64)
        """Round, cluster, G."""

    def note(self, direction: int) -> None:
        """The number has grown (1) or shrunk (-1)."""
        self.turned += int(self.direction == -direction)
        self.direction = direction

    def curves(self) -> dict[str, dict[str, NDArray[np.float64]]]:
        """By round: how many clusters there were, and the G of each where there was another to compare it with."""
        seen = self.seen.numpy()
        rounds, counts = np.unique(seen[:, 0], return_counts=True)
        finite = seen[np.isfinite(seen[:, 2])]
        each = {f"cluster {n:.0f}": finite[finite[:, 1] == n][:, [0, 2]] for n in np.unique(finite[:, 1])}
        return {"clusters": {"number": np.stack([rounds, counts], 1).astype(float)}, "G": each}

    def change(
        self,
        models: Tensor,
        cluster_of: Sequence[int],
        measure: Callable[[Tensor], Similarity],
        round: int = 0,
    ) -> Change | None:
        """What is to be done now, if anything: to the cluster whose G is furthest out of the band, if it can be.

        Models are rows, `cluster_of` names the cluster of each, and `measure` tells how alike some models are. The G of
        clusters is kept for the page of the run.
        """
        if len(models) != self.known:  # other clients, another number of clusters
            self.known, self.direction, self.turned = len(models), 0, 0
        names = sorted({*cluster_of})
        labels = torch.tensor([names.index(cluster) for cluster in cluster_of])
        products = inner_products(models)
        found = granularity(products, labels)
        rows = [(round, name, ratio) for name, ratio in zip(names, found.tolist(), strict=True)]
        self.seen = torch.cat([self.seen, torch.tensor(rows, dtype=torch.float64).reshape(-1, 3)])
        for cluster in _most_urgent_first(found, self._low, self._high):
            grows = bool(found[cluster] > self._high)
            if self.turned >= self._turns and self.direction == (-1 if grows else 1):
                continue
            change = _split(models, labels, cluster, measure) if grows else self._merge(products, labels, cluster)
            if change is not None:
                into = None if change.into is None else names[change.into]
                return change._replace(cluster=names[cluster], into=into, ratio=float(found[cluster]))
        return None

    def _merge(self, products: Tensor, labels: Tensor, cluster: int) -> Change | None:
        if int(labels.max()) == 0:  # copies of one model: there is no other cluster
            return None
        into = nearest(products, labels, cluster)
        merged = torch.where(labels == cluster, into, labels)
        kept = torch.unique(merged, return_inverse=True)[1]
        if float(granularity(products, kept)[kept[merged == into][0]]) > self._high:
            return None
        return Change(cluster, 0.0, into, _positions(labels == cluster))


def _split(models: Tensor, labels: Tensor, cluster: int, measure: Callable[[Tensor], Similarity]) -> Change | None:
    """Two new centres and one re-clustering, among the cluster's own models."""
    members = torch.nonzero(labels == cluster)[:, 0]
    own = models[members]
    second = divided(own, 2, measure(own)) == 1
    return Change(cluster, 0.0, None, tuple(members[second].tolist())) if second.any() else None


def _most_urgent_first(found: Tensor, low: float, high: float) -> list[int]:
    """The clusters outside the band, the furthest (as a ratio) first."""
    urgency = [max(g / high, low / g if g else math.inf if low else 0.0) for g in found.tolist()]
    return sorted((n for n, out in enumerate(urgency) if out > 1), key=lambda n: -urgency[n])


def _distances(products: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The mean squared distance to the centre in each cluster, and the squared distances between centres."""
    members = torch.nn.functional.one_hot(labels).T.double()
    shares = members / members.sum(1, keepdim=True)
    centres = shares @ products @ shares.T
    own, usual = centres.diagonal(), shares @ products.diagonal()
    smallest = ROUNDING * products.diagonal().max()
    intra, between = usual - own, own[:, None] + own - 2 * centres
    return torch.where(intra > smallest, intra, 0.0), torch.where(between > smallest, between, 0.0)


def _positions(chosen: Tensor) -> tuple[int, ...]:
    return tuple(torch.nonzero(chosen)[:, 0].tolist())
