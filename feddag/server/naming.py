"""What clusters call the same things: classes matched by their looks, and clusters that are renamings of each other."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.server.clustering import Labels
from feddag.server.complement import class_affinities

LEAST_AFFINITY = 0.8
"""Classes that are the same look alike: of true renamings the mean is 0.95 and more, of domains 0.54 at most."""
MOST_LEFT = 0.5
"""Of what classes differ in under their own names, at most so much may be left under the names of others."""
MOSTLY = 0.5
"""Clusters that differ in nothing but which classes they hold are one family if they share more of these than so."""

Names = NDArray[np.int64]
"""Clusters x classes: what the first cluster calls each class of a cluster."""


def matched_classes(signatures: Sequence[Signature], cluster_labels: Labels) -> Names:
    """Which class of the first cluster each class of a cluster looks like.

    Labels keep their meaning for a class that only one of the two clusters holds, where matched classes look unlike
    each other all the same, and for classes that fit their own names about as well.
    """
    return _matched(*class_affinities(signatures, cluster_labels))


def matched_families(
    signatures: Sequence[Signature], cluster_labels: Labels, held_alone: bool = False
) -> tuple[Names, list[int]]:
    """The same, and the family of each cluster, numbered by its first one.

    Clusters are kin if they hold the same things, which look alike, under different names. What looks alike under the
    same names was put into two clusters for another reason. Where that is known to be `held_alone`, which classes they
    hold and nothing else, they are kin if they share most of these.
    """
    affinities, holds = class_affinities(signatures, cluster_labels)
    names = _matched(affinities, holds)
    own_names = np.argsort(names, axis=1)  # clusters x common classes
    held = np.take_along_axis(holds, own_names, axis=1)
    family = list(range(len(names)))
    for one in range(len(names)):
        for other in range(one):
            both = np.flatnonzero(held[one] & held[other])
            if held_alone and (names[one] == names[other]).all():
                kin = len(both) > MOSTLY * (held[one] | held[other]).sum()
            else:
                kin = (held[one] == held[other]).all() and (names[one] != names[other]).any() and len(both) > 0
            if not kin:
                continue
            alike = affinities[one, own_names[one, both], other, own_names[other, both]].mean()
            if alike >= LEAST_AFFINITY:
                family = [family[other] if own == family[one] else own for own in family]
    return names, family


def _matched(affinities: NDArray[np.float64], holds: NDArray[np.bool_]) -> Names:
    from scipy.optimize import linear_sum_assignment

    names = np.tile(np.arange(holds.shape[1]), (len(holds), 1))
    for cluster in range(1, len(holds)):
        both = np.flatnonzero(holds[cluster] & holds[0])
        alike = affinities[cluster][:, 0][np.ix_(both, both)]
        columns = linear_sum_assignment(alike, maximize=True)[1]
        if len(both) and alike[np.arange(len(both)), columns].mean() >= LEAST_AFFINITY:
            for cycle in _cycles(columns):
                left = 1 - alike[cycle, columns[cycle]]
                if left.sum() <= MOST_LEFT * (1 - alike[cycle, cycle]).sum():
                    names[cluster, both[cycle]] = both[columns[cycle]]
    return names


def _cycles(columns: NDArray[np.int64]) -> list[list[int]]:
    """The cycles of a permutation: names are exchanged within a cycle, so each can be taken or left for itself.

    >>> _cycles(np.array([1, 0, 2]))
    [[0, 1], [2]]
    """
    cycles, seen = [], set()
    for first in range(len(columns)):
        cycle, at = [], first
        while at not in seen:
            seen.add(at)
            cycle.append(at)
            at = int(columns[at])
        if cycle:
            cycles.append(cycle)
    return cycles
