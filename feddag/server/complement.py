"""Which cluster can learn from which: the cluster complementarity graph (§4, Eq. 11-14)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature, principal_vectors
from feddag.server.clustering import Labels
from feddag.server.similarity import RIGHT_ANGLE, counts_of, degrees, largest_cosines, vectors_of

Alignment = Literal["affinity", "paper", "none"]
Absent = Literal["rarest", "none"]


@dataclass(frozen=True)
class ComplementGraph:
    """Who learns from whom. Row p of each matrix is the learner, column q the source."""

    scores: NDArray[np.float64]
    """Eq. 14 (or Eq. 12); minus infinity on the diagonal."""
    edges: NDArray[np.bool_]
    tied: tuple[int, ...]
    """Learners whose last source was chosen among equals: by the samples it supplies, then by the seed."""

    def sources_of(self, learner: int) -> list[int]:
        """The clusters that this one learns from, the best first."""
        sources = np.flatnonzero(self.edges[learner])
        return [int(source) for source in sources[np.argsort(-self.scores[learner, sources], kind="stable")]]

    def learners_of(self, source: int) -> list[int]:
        """The clusters that learn from this one."""
        return [int(learner) for learner in np.flatnonzero(self.edges[:, source])]


def demand_and_supply(
    counts: NDArray[np.int64], cluster_labels: Labels, absent: Absent = "rarest"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Eq. 11, clusters x classes. Classes of equal count share their mean rank.

    A class of which a client has no sample has no rank in the paper. Here it is wanted as much as the rarest class that
    the client holds ("none": not at all, as in the released code), and not supplied.

    >>> demand, supply = demand_and_supply(np.array([[5, 9, 0], [7, 0, 0]]), np.array([0, 1]))
    >>> demand.tolist(), supply.tolist()
    ([[2.0, 1.0, 2.0], [1.0, 1.0, 1.0]], [[1.0, 2.0, 0.0], [1.0, 0.0, 0.0]])
    """
    from scipy.stats import rankdata  # here, because importing it takes half a second

    held = counts > 0
    kinds = held.sum(1, keepdims=True)
    ranks = rankdata(counts, axis=1) - 1 - (~held).sum(1, keepdims=True)  # the absent rank lowest
    demand = np.where(held, kinds - ranks, kinds if absent == "rarest" else 0).astype(np.float64)
    supply = np.where(held, ranks + 1, 0.0)
    member = np.eye(int(cluster_labels.max()) + 1)[cluster_labels]
    return member.T @ demand, (member.T @ supply) / member.sum(0)[:, None]


def paper_alignment(signatures: Sequence[Signature], cluster_labels: Labels) -> NDArray[np.float64]:
    """Eq. 13 as printed, learners x sources x classes.

    A class that only one side holds is at 90 degrees and gives 0: where clusters share no class, all of Eq. 14 is 0.
    """
    counts = counts_of(signatures)
    member = np.eye(int(cluster_labels.max()) + 1, dtype=np.float32)[cluster_labels]
    totals = []
    for c in range(counts.shape[1]):
        held = counts[:, c] > 0
        aligned = (~held[:, None] & ~held).astype(np.float32)  # in neither: 0 degrees; in one: 90
        if held.any():
            vectors = vectors_of(signatures, c, np.flatnonzero(held))
            angles = degrees(largest_cosines(vectors, vectors)).numpy()
            aligned[np.ix_(held, held)] = 1 - angles / np.float32(RIGHT_ANGLE)
        np.fill_diagonal(aligned, 1)
        totals.append(member.T @ aligned @ member)
    sizes = np.bincount(cluster_labels)
    return np.stack(totals, axis=2).astype(np.float64) / (sizes[:, None] * sizes[None])[..., None]


def pooled_vectors(signatures: Sequence[Signature], class_label: int) -> NDArray[np.float64]:
    """The principal vectors of all their samples of a class, from those of each, as long as in a signature."""
    rows = [np.sqrt(item.counts[class_label]) * item.vectors[class_label].astype(np.float64) for item in signatures]
    lengths, vectors = principal_vectors(np.concatenate(rows), len(rows[0]))
    scaled: NDArray[np.float64] = vectors * (lengths / np.sqrt(np.sqrt(np.sum(lengths**4)) or 1.0))[:, None]
    return scaled


def class_affinities(
    signatures: Sequence[Signature], cluster_labels: Labels
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How alike classes look: learners x their classes x sources x their classes, and which cluster holds which class.

    Alike is the cosine of the two clusters' second moments of the two classes.
    """
    counts = counts_of(signatures)
    clusters, classes = int(cluster_labels.max()) + 1, counts.shape[1]
    kept, features = signatures[0].vectors.shape[1:]
    pooled = np.zeros((clusters, classes, kept, features))
    holds = np.zeros((clusters, classes), bool)
    for cluster in range(clusters):
        members = np.flatnonzero(cluster_labels == cluster)
        for c in range(classes):
            held = [int(client) for client in members if counts[client, c]]
            holds[cluster, c] = bool(held)
            if held:
                vectors = pooled_vectors([signatures[client] for client in held], c)
                pooled[cluster, c, : len(vectors)] = vectors
    flat = pooled.reshape(clusters * classes * kept, features)
    affinities = np.empty((clusters, classes, clusters, classes))
    for learner, own in enumerate(pooled):  # one at a time: all products at once would take p² times the memory
        inner = own.reshape(classes * kept, features) @ flat.T
        affinities[learner] = (inner**2).reshape(classes, kept, clusters, classes, kept).sum((1, 4))
    return affinities, holds


def affinity_alignment(signatures: Sequence[Signature], cluster_labels: Labels) -> NDArray[np.float64]:
    """Learners x sources x classes: how near the source's class lies to what the learner knows.

    For a class that both hold, how alike it looks in the two; for one that only the source holds, the mean over the
    learner's classes. So it also tells sources apart that share no class with it.
    """
    affinities, holds = class_affinities(signatures, cluster_labels)
    across = np.einsum("pcqd,pc->pqd", affinities, holds) / np.maximum(holds.sum(1), 1)[:, None, None]
    same = np.einsum("pcqc->pqc", affinities)
    aligned: NDArray[np.float64] = np.where(holds[:, None] & holds[None], same, across)
    return aligned


def complement_graph(
    signatures: Sequence[Signature],
    cluster_labels: Labels,
    sources: int = 2,
    alignment: Alignment = "affinity",
    generator: np.random.Generator | None = None,
    absent: Absent = "rarest",
) -> ComplementGraph:
    """Each cluster's `sources` best sources by Eq. 14; never itself, so fewer where there are few clusters.

    Scores that are equal are decided by how many samples of the wanted classes a source has, then at random.
    """
    counts = counts_of(signatures)
    demand, supply = demand_and_supply(counts, cluster_labels, absent)
    clusters = len(demand)
    wanted = demand[:, None] * supply[None]  # learners x sources x classes
    if alignment == "paper":
        wanted = wanted * paper_alignment(signatures, cluster_labels)
    elif alignment == "affinity":
        wanted = wanted * affinity_alignment(signatures, cluster_labels)
    scores = wanted.sum(2)
    samples = np.eye(clusters)[cluster_labels].T @ counts
    supplied = (demand > 0).astype(float) @ samples.T
    chance = (generator or np.random.default_rng(0)).random((clusters, clusters))
    edges = np.zeros((clusters, clusters), bool)
    tied = []
    np.fill_diagonal(scores, -np.inf)
    for learner in range(clusters):
        order = np.lexsort((chance[learner], -supplied[learner], -scores[learner]))
        order = order[order != learner][:sources]
        edges[learner, order] = True
        if 0 < len(order) < clusters - 1:
            last = scores[learner, order[-1]]
            rivals = np.isclose(scores[learner], last) & ~edges[learner]
            if rivals.any():
                tied.append(learner)
    return ComplementGraph(scores, edges, tuple(tied))
