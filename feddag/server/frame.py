"""What landmarks settle for everybody: how views count, how wide the scatter is, how far a member may be."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddag.server.clustering import Labels
from feddag.server.noise import LEAST_DIFFERENCE, least_significant_distance
from feddag.server.profiles import Array
from feddag.server.similarity import Floats
from feddag.server.style import StyleSpace

REACH = 4.0  # standard deviations beyond the usual distance to the own cluster


@dataclass(frozen=True, eq=False)
class Frame:
    """What the landmarks settled for everybody."""

    weights: dict[str, float]
    """How much each view counts, on average."""
    usual: Array
    """Each class's usual noise."""
    offsets: dict[str, float]
    """What few samples misjudge of each view."""
    noise: float
    threshold: float
    clients: int
    closed: bool
    """Whether there are no other clusters than the landmarks', which everybody then is in reach of."""
    style: StyleSpace | None = None
    """With the looks of every client."""
    between: Floats | None = None
    """The distances between clusters by looks."""
    middle: float = 0.0
    spread: float = 1.0
    """Of the distances between clients and their own clusters."""

    def reach(self, sizes: Array) -> Array:
        """How far from clusters of these sizes a client may be."""
        if self.closed:
            return np.full(len(sizes), np.inf)
        least = least_significant_distance(self.noise, np.ones(len(sizes)), sizes, self.clients)
        return np.maximum(least, max(self.threshold, LEAST_DIFFERENCE, self.middle + REACH * self.spread))

    def nearest(self, distances: Floats, sizes: Array) -> tuple[Labels, NDArray[np.bool_]]:
        """For each client (row) its cluster, and whether it is in reach.

        Among clusters in reach the nearest, if each were farther by the error of its own signature: that of a small
        cluster is nearer to some clients by chance alone.
        """
        errors = self.noise * np.sqrt(1 / sizes / 2)
        scores = np.where(distances <= self.reach(sizes), distances + errors, np.inf)
        found: NDArray[np.bool_] = scores.min(axis=1) < np.inf
        return np.where(found, scores.argmin(1), distances.argmin(1)), found
