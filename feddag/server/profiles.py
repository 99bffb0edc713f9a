"""A cluster as one signature, and clients' distances to clusters by it: as many as there are clusters, not clients.

The second moments of its members add up to one moment per class, their updates to one update; the noise of the sums is
that of so many samples and clients. The same views then compare a client with a cluster as they compare two clients.
But which classes clients hold does not add up: where each holds a few, all of them together hold every one. So classes
are compared with those of some members, one by one, and the mean is taken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.server.clustering import Labels
from feddag.server.complement import pooled_vectors
from feddag.server.similarity import BLOCK, Floats, class_block, counts_of, data_block, gradient_block

Array = NDArray[np.float64]
MOST_POOLED = 100  # members that a cluster's signature is made of
LEAST_LISTED, MOST_LISTED, ALL_LISTED = 4, 16, 1000  # members whose classes are compared: of a cluster, of all
CHUNK = 2048  # clients that are compared at a time
LEAST_RELIABILITY = 1e-3  # of an update; what claims less would make a cluster's all noise


@dataclass(frozen=True, eq=False)
class Profiles:
    """Clusters as clients are compared with them."""

    signatures: tuple[Signature, ...]
    sizes: Array
    weights: dict[str, Array]
    """How much each view counts between a cluster and others."""
    looks: Array
    """clusters x clusters by looks: the shares of the members; no columns where all look alike."""
    counts: NDArray[np.int64]
    """members x classes: which classes some of the members hold."""
    owners: Labels
    """The cluster of each of these members."""

    def __add__(self, others: "Profiles") -> "Profiles":
        """These clusters, and then the others."""
        width = max(self.looks.shape[1], others.looks.shape[1])  # there may be new looks
        looks = [np.pad(each.looks, ((0, 0), (0, width - each.looks.shape[1]))) for each in (self, others)]
        return Profiles(
            self.signatures + others.signatures,
            np.concatenate([self.sizes, others.sizes]),
            {name: np.concatenate([own, others.weights[name]]) for name, own in self.weights.items()},
            np.concatenate(looks),
            np.concatenate([self.counts, others.counts]),
            np.concatenate([self.owners, others.owners + len(self.sizes)]),
        )


def pooled_signature(signatures: Sequence[Signature], usual: Array) -> Signature:
    """One signature for all of these clients; `usual` is the noise of a sample of each class.

    >>> one = Signature(np.eye(2, dtype=np.float32)[:1, None], np.array([5]), np.array([0.5], np.float32),
    ...                 np.array([2.0, 0.0], np.float32), np.array(0.5, np.float32))
    >>> both = pooled_signature([one, one], usual=np.array([10.0]))
    >>> both.counts.tolist(), both.reliability.tolist(), both.update.tolist()
    ([10], [0.5], [1.0, 0.0])
    >>> round(float(both.update_reliability), 3)  # noise is half of what it was
    0.667
    """
    counts = counts_of(signatures)
    vectors = np.zeros(signatures[0].vectors.shape, np.float32)
    for label in np.flatnonzero(counts.any(0)):
        found = pooled_vectors([item for item in signatures if item.counts[label]], int(label))
        vectors[label, : len(found)] = found
    total = counts.sum(0)
    updates = np.stack([item.update for item in signatures]).astype(np.float64)
    lengths = np.linalg.norm(updates, axis=1, keepdims=True)
    update = (updates / np.where(lengths > 0, lengths, 1)).mean(0)
    trust = np.maximum([float(item.update_reliability) for item in signatures], LEAST_RELIABILITY)
    noise = float(np.mean((1 - trust) / trust)) / len(signatures)
    return Signature(
        vectors=vectors,
        counts=total,
        reliability=np.where(total > 0, total / (total + usual), 0).astype(np.float32),
        update=(update / (np.linalg.norm(update) or 1.0)).astype(np.float32),
        update_reliability=np.asarray(1 / (1 + noise), np.float32),
    )


def profiles_of(
    signatures: Sequence[Signature],
    labels: Labels,
    usual: Array,
    weights: dict[str, Array],
    looks: Labels | None,
    generator: np.random.Generator,
) -> Profiles:
    """The clusters that `labels`, from 0, put these clients in; `weights` are the clusters', `looks` the clients'."""
    members = members_of(labels)
    listed = max(LEAST_LISTED, min(MOST_LISTED, ALL_LISTED // len(members)))
    pooled, counts = [], []
    for clients in members:
        chosen = [signatures[client] for client in some_of(clients, MOST_POOLED, generator).tolist()]
        pooled.append(pooled_signature(chosen, usual))
        counts.append(counts_of([chosen[place] for place in some_of(np.arange(len(chosen)), listed, generator)]))
    sizes = np.array([len(clients) for clients in members], float)
    shares = np.zeros((len(sizes), 0 if looks is None else int(looks.max()) + 1))
    if looks is not None:
        np.add.at(shares, (labels, looks), 1 / sizes[labels])
    owners = np.repeat(np.arange(len(sizes)), [len(own) for own in counts])
    return Profiles(tuple(pooled), sizes, weights, shares, np.concatenate(counts), owners)


def some_of(clients: Labels, most: int, generator: np.random.Generator) -> Labels:
    """So many of them at most, in order."""
    return clients if len(clients) <= most else np.sort(generator.choice(clients, most, replace=False))


def members_of(labels: Labels) -> list[Labels]:
    """The clients of each cluster.

    >>> [members.tolist() for members in members_of(np.array([1, 0, 1]))]
    [[1], [0, 2]]
    """
    return np.split(np.argsort(labels, kind="stable"), np.cumsum(np.bincount(labels))[:-1])


def distances_to(
    signatures: Sequence[Signature],
    profiles: Profiles,
    usual: Array,
    offsets: Mapping[str, float],
    style: Floats | None = None,
) -> Floats:
    """clients x clusters: the views, blended by the clusters' weights; infinite where no view can compare.

    `offsets` is what the views are lowered by, `style` each client's distance to each cluster of clients that look the
    same.
    """
    everyone = [*signatures, *profiles.signatures]
    rows, columns = slice(0, len(signatures)), slice(len(signatures), len(everyone))
    active = [name for name, weights in profiles.weights.items() if weights.any()]
    seen: dict[str, Floats] = {}
    if "classes" in active:
        seen["classes"] = mean_over_members(counts_of(signatures), profiles)
    if "data" in active:
        seen["data"] = data_block(everyone, usual)(rows, columns).numpy()
    if "gradient" in active:
        seen["gradient"] = gradient_block(everyone)(rows, columns).numpy()
    seen = {name: view - np.float32(offsets.get(name, 0.0)) for name, view in seen.items()}
    if style is not None:
        seen["style"] = mean_over_looks(style, profiles.looks)
    total, weight = np.zeros((len(signatures), len(profiles.sizes))), np.zeros((len(signatures), len(profiles.sizes)))
    for name, view in seen.items():
        known = profiles.weights[name] * ~np.isnan(view)
        total += known * np.nan_to_num(view)
        weight += known
    return np.where(weight > 0, total / np.maximum(weight, 1e-30), np.inf).astype(np.float32)


def mean_over_members(counts: NDArray[np.int64], profiles: Profiles) -> Floats:
    """The mean distance to some of a cluster's members by the classes that they hold: clients x clusters."""
    clients, everyone = len(counts), np.concatenate([counts, profiles.counts])
    block, others = class_block(everyone), slice(clients, len(everyone))
    firsts = np.searchsorted(profiles.owners, np.arange(len(profiles.sizes)))
    parts = [slice(start, min(start + BLOCK, clients)) for start in range(0, clients, BLOCK)]
    sums = np.concatenate([np.add.reduceat(block(part, others).numpy(), firsts, axis=1) for part in parts])
    means: Floats = (sums / np.bincount(profiles.owners)).astype(np.float32)
    return means


def mean_over_looks(style: Floats, looks: Array) -> Floats:
    """The mean distance to a cluster's members, from that to each look and how many have it; nan where unknown."""
    style = style[:, : looks.shape[1]]  # nobody has a look beyond
    shares = ~np.isnan(style) @ looks.T
    with np.errstate(invalid="ignore"):
        mean: Floats = np.where(shares > 0, (np.nan_to_num(style) @ looks.T) / shares, np.nan).astype(np.float32)
    return mean


def nearer(distances: Floats, labels: Labels) -> Array:
    """How much nearer the cluster of its label is to each client than the next one, 0 to 1.

    >>> nearer(np.array([[1.0, 4.0], [4.0, 2.0], [3.0, 2.0]], np.float32), np.array([0, 1, 0])).tolist()
    [0.75, 0.5, 0.0]
    """
    rows = np.arange(len(labels))
    own = distances[rows, labels].astype(np.float64)
    others = distances.copy()
    others[rows, labels] = np.inf
    sure: Array = np.maximum(1 - own / np.maximum(others.min(1), 1e-12), 0)
    return sure
