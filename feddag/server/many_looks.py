"""The style view of more clients than can be merged pair by pair: clusters by looks of some, the rest assigned to them.

Directions in which clients look different, and the first clusters, are those of the landmarks. Whoever looks like none
of the clusters is merged with the others that do not, in turn, until everybody has a cluster.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from feddag.client.signature import Signature
from feddag.server.clustering import Labels
from feddag.server.profiles import CHUNK
from feddag.server.similarity import Floats
from feddag.server.style import (
    Looks,
    Styles,
    StyleSpace,
    looks_of,
    merged_while_alike,
)

MOST_MERGED = 500  # at a time: merging takes the square of it


def looks_of_everyone(
    space: StyleSpace, signatures: Sequence[Signature], landmarks: Labels, generator: np.random.Generator
) -> StyleSpace:
    """The same space with the cluster of every client; `space` has those of the landmarks."""
    labels = np.full(len(signatures), -1, np.int64)
    labels[landmarks] = space.labels
    left = np.flatnonzero(labels < 0)
    while True:
        for chunk in [left[start : start + CHUNK] for start in range(0, len(left), CHUNK)]:
            own = _looks(space, [signatures[client] for client in chunk.tolist()])
            labels[chunk] = nearest_looks(space.looks, own, len(signatures))
        left = left[labels[left] < 0]
        if not len(left):
            return replace(space, labels=labels)
        chosen = np.sort(generator.choice(left, min(len(left), MOST_MERGED), replace=False))
        own = _looks(space, [signatures[client] for client in chosen.tolist()])
        rows, merged = np.unique(merged_while_alike(own), return_inverse=True)
        labels[chosen] = len(space.looks.counts) + merged
        found = Looks(own.counts[rows], own.sums[rows], own.noise[rows])
        space, left = replace(space, looks=_together(space.looks, found)), np.setdiff1d(left, chosen)


def nearest_looks(known: Looks, own: Looks, trials: int) -> Labels:
    """For each client the cluster that it looks like; -1 where there is none."""
    together, clients = _together(own, known), np.arange(len(own.counts))
    costs = np.full((len(clients), len(known.counts)), np.inf)
    for cluster in range(len(known.counts)):
        costs[:, cluster] = together.told_apart(len(clients) + cluster, clients, trials)[1]
    return np.where(np.isfinite(costs).any(1), costs.argmin(1), -1)


def row_of_newcomer(space: StyleSpace, newcomer: Signature, trials: int) -> Floats:
    """Its distances to the clusters by looks: 0 to the one that it looks like, if there is one."""
    own = _looks(space, [newcomer])
    others = 1 + np.arange(len(space.looks.counts))
    row: Floats = _together(own, space.looks).told_apart(0, others, trials)[0].astype(np.float32)
    if (cluster := int(nearest_looks(space.looks, own, trials)[0])) >= 0:
        row[cluster] = 0.0
    return row


def _looks(space: StyleSpace, signatures: Sequence[Signature]) -> Looks:
    return looks_of(Styles.of(signatures, len(space.transform)), space.transform, space.usual)


def _together(one: Looks, other: Looks) -> Looks:
    pairs = (one.counts, other.counts), (one.sums, other.sums), (one.noise, other.noise)
    return Looks(*map(np.concatenate, pairs))
