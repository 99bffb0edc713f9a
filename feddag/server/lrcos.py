"""How alike models are (FedAC, Algorithm 2), and the cluster of each (Eq. 4).

Models are rows. A cluster's number is its position among the centres.
"""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddag.stateful import Stateful

Similarity = Callable[[Tensor, Tensor], Tensor]
"""From models and centres to a table of how alike they are: models x centres."""
NEGLIGIBLE = 1e-6  # of the largest variance, and its square of a model's length squared: below it is rounding


class LowRank(NamedTuple):
    """The map M of Algorithm 2: the principal axes, and the point from which models are measured."""

    axes: Tensor
    """D x dim(w): orthonormal rows."""
    origin: Tensor
    """The mean of the models; zero where the map is not centred."""

    def project(self, models: Tensor) -> Tensor:
        """M w of each model, in float64."""
        return ((models - self.origin) @ self.axes.T).double()


def low_rank(models: Tensor, dimensions: int, centred: bool = True) -> LowRank:
    """PCA of models (UpdateMap): at most so many axes, and no more than the models have.

    Found from the models' inner products: the matrix of all parameters with each other is never formed.

    >>> found = low_rank(torch.tensor([[1.0, 0.0, 5.0], [3.0, 0.0, 5.0]]), 50)
    >>> found.axes.abs().tolist(), found.origin.tolist()
    ([[1.0, 0.0, 0.0]], [2.0, 0.0, 5.0])
    """
    origin = models.double().mean(0).to(models.dtype) if centred else torch.zeros_like(models[0])
    moved = models - origin
    values, vectors = torch.linalg.eigh((moved @ moved.T).double())
    least = max(NEGLIGIBLE * float(values[-1]), NEGLIGIBLE**2 * float(models.square().sum(1).max()))
    wanted = [n for n in range(len(values) - 1, -1, -1) if values[n] > least][:dimensions]
    axes = (vectors[:, wanted] / values[wanted].sqrt()).T.to(models.dtype) @ moved
    return LowRank(axes, origin)


def lrcos(reduced_by: LowRank) -> Similarity:
    """The cosine of M w and M Omega (Algorithm 2, line 2); 0 for a model that the map takes to zero."""

    def similarity(models: Tensor, centres: Tensor) -> Tensor:
        return _directions(reduced_by.project(models)) @ _directions(reduced_by.project(centres)).T

    return similarity


def negative_l2(models: Tensor, centres: Tensor) -> Tensor:
    """The ablation of section 5.4: the nearer by Euclidean distance, the more alike.

    >>> negative_l2(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[-5.,  0.]], dtype=torch.float64)
    """
    return -torch.cdist(models, centres, compute_mode="donot_use_mm_for_euclid_dist").double() + 0.0


def most_alike(similarity: Mapping[int, float], now: int | None = None) -> int:
    """The E-step for one model: the cluster whose centre it is most like. Eq. 4 says argmin; Eq. 3 maximises.

    Between clusters that are equally like, a model stays where it is (`now`) or takes the first.

    >>> most_alike({0: 0.2, 1: 0.9}, 0), most_alike({0: 0.5, 1: 0.5}, 1), most_alike({0: 0.5, 1: 0.5})
    (1, 1, 0)
    """
    return max(similarity, key=lambda cluster: (similarity[cluster], cluster == now))


def divided(models: Tensor, count: int, similarity: Similarity) -> Tensor:
    """Models in `count` clusters by new centres and one re-clustering (section 4.5): fewer where models are the same.

    The first two centres are the models least alike; each further one is the model least like those so far. The paper
    does not say how centres are chosen; this way nothing is drawn.

    >>> divided(torch.tensor([[0.0], [5.0], [1.0], [6.0]]), 2, negative_l2).tolist()
    [0, 1, 0, 1]
    """
    alike = similarity(models, models)
    pair = divmod(int(alike.argmin()), len(models))
    seeds = [min(pair), max(pair)] if count > 1 and pair[0] != pair[1] else [0]
    while len(seeds) < min(count, len(models)):
        seeds.append(int(alike[:, seeds].max(1).values.argmin()))
    labels = alike[:, seeds].argmax(1)
    numbered: Tensor = torch.unique(labels, return_inverse=True)[1]
    return numbered


class ModelSimilarity(Stateful):
    """How alike models are: LrCos by a map that is renewed every so many rounds, or Euclidean distance."""

    def __init__(self, kind: Literal["lrcos", "l2"], dimensions: int, centred: bool, map_every: int) -> None:
        self._kind, self._dimensions, self._centred, self._map_every = kind, dimensions, centred, map_every
        self.map: list[Tensor] = []
        """Remembered only where it outlives a round: it has as many rows as there are dimensions."""

    def among(self, models: Tensor) -> Similarity:
        """By a map of these models alone."""
        return negative_l2 if self._kind == "l2" else lrcos(low_rank(models, self._dimensions, self._centred))

    def in_round(self, models: Tensor, round: int) -> Similarity:
        """By the map that holds in this round, made of all models when it is due (Algorithm 2, line 1)."""
        if self._kind == "l2" or self._map_every == 1:
            return self.among(models)
        if not self.map or round % self._map_every == 0:
            self.map = list(low_rank(models, self._dimensions, self._centred))
        return lrcos(LowRank(*self.map))

    def distances(self, models: Tensor) -> NDArray[np.float64]:
        """Between models, for pairs (0, 1), (0, 2), ...: by how much they are less alike than a model is to itself.

        >>> ModelSimilarity("l2", 50, True, 1).distances(torch.tensor([[0.0], [2.0], [5.0]]))
        array([2., 5., 3.])
        """
        alike = self.among(models)(models, models)
        first, second = torch.triu_indices(len(models), len(models), 1)
        return (alike.max() - alike)[first, second].numpy()


def _directions(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors, dim=1, eps=1e-30)
