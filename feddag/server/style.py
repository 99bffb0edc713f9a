"""Whether clients' samples look different, class by class, and which clients look the same.

A view that is silent where there is nothing to say. Statistics of samples (`client.style`) are made comparable by their
spread inside classes. What is left of a client's class means after the classes' own effects is either noise or a
difference in looks; random-matrix theory says how large noise gets, and only directions beyond that are looked at.
Clients are then merged as long as chance explains their difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammainccinv

from feddag.client.signature import Signature

Array = NDArray[np.float64]
RIDGE = 1e-3  # of the correlations inside classes
TRACY_WIDOM = 2.02  # its 99 % point, for real data
LARGEST_SPREAD = 9.0  # of a client's own variances over the usual ones: more is not believed
MOST_COUNTED = 10_000  # samples of a class that count
MOST_TIMES = 10.0  # what clients usually hold of a class; who claims more counts as so many
LEAST_FREEDOM = 10.0  # samples beyond class means, for each statistic, below which its spread is not known
TRUSTED = 20.0  # degrees of freedom from which on a client's own variance outweighs the usual one
LEVEL = 0.01  # chance that any of the clients is kept apart by noise
SCALE = 8.0  # excess at which a distance is 1 - 1/e
CLEAR = 0.27  # of a single sample's variance: an excess that counts wherever chance does not explain it
FAINT = 0.08  # what does not count, however certain; in between, what is so many times beyond chance:
TIMES = 4.0  # clients are no perfect draws of their group, so few of them may differ more than their samples explain
LEAST_SEEN = 0.06  # distance of those that look different: nothing below 3/90 is cut apart
SURE = 2.0  # standard deviations that are added to an excess when the nearest pair is looked for


def style_distance(excess: Array) -> Array:
    """From an excess, in squared standard deviations of single samples, to a distance below 1.

    >>> style_distance(np.array([0.0, 8.0, -8.0])).round(3).tolist()
    [0.0, 0.632, -0.632]
    """
    distance: Array = np.sign(excess) * -np.expm1(-np.abs(excess) / SCALE)
    return distance


def least_that_counts(chance: Array) -> Array:
    """From which excess on clients look different, given what chance hardly exceeds.

    >>> least_that_counts(np.array([0.001, 0.05, 0.1, 0.5])).tolist()
    [0.08, 0.2, 0.27, 0.5]
    """
    return np.maximum(chance, np.clip(TIMES * chance, FAINT, CLEAR))


def largest_eigenvalue(size: int, freedom: float) -> float:
    """What the largest eigenvalue of noise stays below in 99 of 100 cases (Johnstone, 2001): unit variances.

    >>> round(largest_eigenvalue(10, 100), 3)
    1.931
    """
    roots = np.sqrt(freedom) + np.sqrt(size)
    spread = roots * (1 / np.sqrt(freedom) + 1 / np.sqrt(size)) ** (1 / 3)
    return float((roots**2 + TRACY_WIDOM * spread) / freedom)


@dataclass(frozen=True, eq=False)
class Styles:
    """The statistics of clients, as they told them."""

    counts: Array
    """clients x classes."""
    means: Array
    """clients x classes x statistics."""
    spread: Array
    """clients x statistics x statistics: covariance inside classes."""

    @classmethod
    def of(cls, signatures: Sequence[Signature], size: int) -> "Styles":
        """Those of so many statistics; a client that does not tell them counts as one without samples."""
        clients, classes = len(signatures), len(signatures[0].counts)
        styles = cls(np.zeros((clients, classes)), np.zeros((clients, classes, size)), np.zeros((clients, size, size)))
        rows, columns = np.triu_indices(size)
        for client, item in enumerate(signatures):
            if item.style.shape == (classes, size):
                styles.counts[client] = np.minimum(item.counts, MOST_COUNTED)
                styles.means[client] = item.style
                styles.spread[client, rows, columns] = styles.spread[client, columns, rows] = item.style_spread
        return styles

    def evened(self) -> "Styles":
        """The same, but nobody counts for so much more than others that it decides alone what looks usual."""
        held = self.counts[self.counts > 0]
        most = MOST_TIMES * float(np.median(held)) if held.size else 0.0
        return replace(self, counts=np.minimum(self.counts, most))

    @cached_property
    def freedom(self) -> Array:
        """Degrees of freedom of each client's spread."""
        freedom: Array = np.maximum(self.counts - 1, 0).sum(1)
        return freedom

    @cached_property
    def pooled(self) -> Array:
        """The usual spread inside classes: the mean over clients, none of which counts for a multiple of the others."""
        known = self.freedom > 0
        variances = np.einsum("ikk->ik", self.spread)[known]
        usual = np.maximum(np.median(variances, axis=0), 1e-12) if known.any() else np.ones(self.means.shape[2])
        factor = (variances / usual).mean(1)
        believed = self.freedom[known] * np.minimum(1.0, LARGEST_SPREAD / np.maximum(factor, 1e-12))
        summed: Array = np.einsum("i,ikl->kl", believed, self.spread[known]) / max(self.freedom.sum(), 1.0)
        return summed

    def whitening(self) -> Array:
        """A matrix after which statistics have no correlation and variance 1 inside classes."""
        unit = np.sqrt(np.diag(self.pooled)) + 1e-12
        correlations = (1 - RIDGE) * self.pooled / unit / unit[:, None] + RIDGE * np.eye(len(unit))
        values, vectors = np.linalg.eigh(correlations)
        whitening: Array = vectors / np.sqrt(np.maximum(values, RIDGE / 2)) / unit[:, None]
        return whitening


def two_way(means: Array, counts: Array) -> tuple[Array, Array, float, float]:
    """Class means as an effect of the client plus one of the class, by weighted least squares, solved exactly.

    Returns the effects of clients given those of classes, and what neither explains, both as rows of the cells (client,
    class) that there are, times the root of their weight; and the degrees of freedom of each.
    """
    of_client, of_class = counts.sum(1), counts.sum(0)
    usual = np.einsum("ic,ick->ck", counts, means) / np.maximum(of_class, 1e-12)[:, None]
    moved = np.where(counts[..., None] > 0, means - usual, 0.0)
    shares = counts / np.maximum(of_client, 1e-12)[:, None]
    own = np.einsum("ic,ick->ik", shares, moved)
    left = np.einsum("ic,ick->ck", counts, moved) - counts.T @ own
    unit = 1 / np.sqrt(np.maximum(of_class, 1e-12))
    values, vectors = np.linalg.eigh((np.diag(of_class) - shares.T @ counts) * unit * unit[:, None])
    solved = values > 1e-6
    of_classes = (unit[:, None] * vectors[:, solved] / values[solved]) @ (vectors[:, solved].T @ (unit[:, None] * left))
    fitted = (own - shares @ of_classes)[:, None] + of_classes
    cells = counts > 0
    roots = np.sqrt(counts[cells])[:, None]
    clients, classes = int(cells.any(1).sum()), int(cells.any(0).sum())
    components = max(classes - int(solved.sum()), 1)  # clients that share no class, however indirectly
    between = clients - components
    return (
        fitted[cells] * roots,
        (moved - fitted)[cells] * roots,
        between,
        int(cells.sum()) - clients - classes + components,
    )


def directions(styles: Styles) -> Array:
    """statistics x directions in which clients differ beyond chance, scaled by how far beyond; no column: in none.

    What differs from class to class within a client (an interaction) is noise here: directions in which it is large are
    divided by it.
    """
    whitening = styles.whitening()
    size = len(whitening)
    effects, residuals, between, within = two_way(styles.means @ whitening, styles.counts)
    if within > 1:
        values, vectors = np.linalg.eigh(residuals.T @ residuals / within)
        noise = np.where(values > largest_eigenvalue(size, within), values, 1.0)
        calmed = (vectors / np.sqrt(noise)) @ vectors.T
        whitening, effects = whitening @ calmed, effects @ calmed
    if between < 1:
        return np.zeros((size, 0))
    values, vectors = np.linalg.eigh(effects.T @ effects / between)
    edge = largest_eigenvalue(size, between)
    kept = values > edge
    found: Array = whitening @ vectors[:, kept] * (1 - edge / values[kept])
    return found


@dataclass(frozen=True, eq=False)
class Looks:
    """Clients or clusters of them, as sums that can be added: rows."""

    counts: Array
    """rows x classes."""
    sums: Array
    """rows x classes x directions: of samples' coordinates."""
    noise: Array
    """rows x classes x directions: of the variances of single samples."""

    def merge(self, one: int, other: int) -> None:
        """Add a row to another."""
        for array in (self.counts, self.sums, self.noise):
            array[one] += array[other]

    def compared(self, one: int, others: NDArray[np.int64], trials: int | None = None) -> tuple[Array, Array, Array]:
        """By how much a row differs from others beyond chance, the standard deviation of that, and what chance exceeds.

        Where they share no class the first is nan. The last is for one in `trials` / LEVEL; as many as there are rows.
        """
        held = np.maximum(self.counts, 1e-12)
        total = self.counts[one] + self.counts[others]
        weights = self.counts[one] * self.counts[others] / np.maximum(total, 1e-12)
        shares = weights / np.maximum(weights.sum(1, keepdims=True), 1e-12)
        apart = self.sums[one] / held[one, :, None] - self.sums[others] / held[others, :, None]
        of_means = self.noise[one] / held[one, :, None] ** 2 + self.noise[others] / held[others, :, None] ** 2
        difference = np.einsum("mc,mcq->mq", shares, apart)
        variance = np.einsum("mc,mcq->mq", shares**2, of_means)
        excess = (difference**2 - variance).sum(1)
        usual, squares = variance.sum(1), 2 * (variance**2).sum(1)
        deviation = np.sqrt(squares + 4 * (np.maximum(difference**2 - variance, 0) * variance).sum(1))
        shape = usual**2 / np.maximum(squares, 1e-300)  # Satterthwaite: a gamma variable of this mean and variance
        level = LEVEL / (trials or len(self.counts))
        bound = usual * gammainccinv(np.maximum(shape, 1e-3), level) / np.maximum(shape, 1e-3) - usual
        return np.where(weights.sum(1) > 0, excess, np.nan), deviation, bound

    def told_apart(self, one: int, others: NDArray[np.int64], trials: int | None = None) -> tuple[Array, Array]:
        """The distances of a row to others, and what merging it with them costs: infinite where they look different.

        Where they share no class, distances are nan and costs infinite.
        """
        excess, deviation, chance = self.compared(one, others, trials)
        least, distance = least_that_counts(chance), style_distance(excess)
        distance = np.where(excess >= least, np.maximum(distance, LEAST_SEEN), distance)
        return distance, np.where(excess < least, excess + SURE * deviation, np.inf)


def looks_of(styles: Styles, transform: Array, usual: Array) -> Looks:
    """Each client along these directions, with its own noise as far as it has the samples to know it."""
    own = np.einsum("kq,ikl,lq->iq", transform, styles.spread, transform, optimize=True)
    own = np.minimum(own, LARGEST_SPREAD * usual)  # who claims more would make every difference to itself chance
    trusted = styles.freedom[:, None] / (styles.freedom[:, None] + TRUSTED)
    variances = trusted * own + (1 - trusted) * usual
    weights = styles.counts[..., None]
    return Looks(styles.counts.copy(), weights * (styles.means @ transform), weights * variances[:, None, :])


def merged_while_alike(looks: Looks) -> NDArray[np.int64]:
    """For each client, the row of its cluster: the nearest two that chance may set apart become one, again and again.

    Nearest is the least excess that is sure: plus two standard deviations. The rows of `looks` are added up in place.
    """
    size = len(looks.counts)
    everyone, labels, alive = np.arange(size), np.arange(size), np.ones(size, bool)
    costs = np.full((size, size), np.inf)

    def compare(one: int) -> None:
        others = everyone[alive & (everyone != one)]
        costs[one, others] = costs[others, one] = looks.told_apart(one, others)[1]

    for client in range(size):
        compare(client)
    nearest = costs.argmin(1)
    while True:
        one = int(costs[everyone, nearest].argmin())
        other = int(nearest[one])
        if not np.isfinite(costs[one, other]):
            return labels
        looks.merge(one, other)
        labels[labels == labels[other]] = labels[one]
        alive[other] = False
        costs[other] = costs[:, other] = np.inf
        compare(one)
        stale = (nearest == one) | (nearest == other) | (costs[:, one] < costs[everyone, nearest])
        stale[one] = True
        nearest[stale] = costs[stale].argmin(1)


def distances_between(looks: Looks) -> NDArray[np.float32]:
    """rows x rows: nan where they share no class."""
    everyone = np.arange(len(looks.counts))
    between = np.stack([looks.told_apart(row, everyone)[0] for row in everyone.tolist()])
    np.fill_diagonal(between, 0.0)
    return between.astype(np.float32)


@dataclass(frozen=True, eq=False)
class StyleSpace:
    """The directions in which clients look different, and the clusters of those that look the same."""

    transform: Array
    usual: Array
    """The variance of single samples along each direction."""
    labels: NDArray[np.int64]
    """The cluster of each client, from 0."""
    looks: Looks
    """Of each cluster."""

    def view(self) -> NDArray[np.float32]:
        """A distance for each pair of clients, condensed: 0 inside a cluster, nan where clusters share no class."""
        first, second = np.triu_indices(len(self.labels), 1)
        return distances_between(self.looks)[self.labels[first], self.labels[second]]

    def row(self, newcomer: Signature) -> NDArray[np.float32]:
        """The distances of a newcomer to all clients; 0 to those of the cluster that it looks like, if there is one."""
        distances, cluster = self._compared(self._with(newcomer))
        if cluster is not None:
            distances[cluster] = 0.0
        return distances.astype(np.float32)[self.labels]

    def joined_by(self, newcomer: Signature) -> "StyleSpace":
        """The same space with one more client; the looks of clusters stay, but for a cluster of its own."""
        together = self._with(newcomer)
        cluster = self._compared(together)[1]
        if cluster is not None:
            return replace(self, labels=np.append(self.labels, cluster))
        return replace(self, labels=np.append(self.labels, len(self.looks.counts)), looks=together)

    def _with(self, newcomer: Signature) -> Looks:
        known, own = self.looks, looks_of(Styles.of([newcomer], len(self.transform)), self.transform, self.usual)
        pairs = (known.counts, own.counts), (known.sums, own.sums), (known.noise, own.noise)
        return Looks(*map(np.concatenate, pairs))

    def _compared(self, together: Looks) -> tuple[Array, int | None]:
        """The last one's distances to the clusters, and the cluster that it looks like."""
        last = len(together.counts) - 1
        distances, costs = together.told_apart(last, np.arange(last))
        nearest = int(costs.argmin())
        return distances, nearest if np.isfinite(costs[nearest]) else None


def style_space(signatures: Sequence[Signature]) -> StyleSpace | None:
    """None where clients do not tell how their samples look, or look alike."""
    told = [item.style.shape[1] for item in signatures if item.style.size]
    if len(told) < 2:
        return None
    styles = Styles.of(signatures, int(np.median(told))).evened()
    if styles.freedom.sum() < LEAST_FREEDOM * styles.means.shape[2]:
        return None
    transform = directions(styles)
    if not transform.shape[1]:
        return None
    usual = np.einsum("kq,kl,lq->q", transform, styles.pooled, transform)
    looks = looks_of(styles, transform, usual)
    rows, labels = np.unique(merged_while_alike(looks), return_inverse=True)
    looks = Looks(looks.counts[rows], looks.sums[rows], looks.noise[rows])
    everyone = np.arange(len(looks.counts))
    if not any((looks.compared(row, everyone)[0] >= CLEAR).any() for row in everyone.tolist()):
        return None  # faint differences tell groups apart where others are clear; they found none by themselves
    return StyleSpace(transform, usual, labels, looks)
