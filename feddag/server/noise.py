"""What chance explains: how many groups there are where distances are an excess over chance.

Distances between clients of one group scatter around zero, so the negative ones tell how wide. Clusters are not merged
where their distance is more than such a scatter explains.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from feddag.server.clustering import Cut, Labels, Tree, clients_of, cluster_means, fill_unknown, relabel
from feddag.server.similarity import Floats, square

LEAST_DIFFERENCE = 3 / 90
"""Groups less than 3 degrees apart beyond chance do not need models of their own, however certain the difference."""
CONFIDENCE = 2.5
"""A difference between clusters counts when it exceeds its own noise by this factor, or more where that is estimated
from few clients: as unlikely as so many standard deviations are.
"""
LEAST_FREEDOM = 5  # degrees, in Student's t
FALSE_SPLITS = 0.01
"""The chance that any of the clients is set apart by noise alone: the more there are, the surer each has to be."""
FEW = 2
"""So many clients may stray together by chance; more do not, because what sets them apart sets them apart as well."""
MOST_BY_FEW = 2.0
"""As many times the noise among the others is the most that a tenth of the clients can make of it."""
BEYOND_TAIL = 1.5
"""By this factor, because the noise is estimated, and among many possible tails the farthest is looked at."""
FEW_PER_CLASS = 6
"""Samples of a class from which on what chance explains is known to 3 degrees; with fewer it is less by their root."""
BY_GROUPS = 3.0  # times what few samples explain
LEAST_PER_CLASS_ALONE = 5  # samples of a class, on average, for groups that only updates see
LEAST_SAMPLES = 20
"""So many samples a group of few clients has to have: what sets apart fewer is not known."""
NOTHING_IN_COMMON = 0.5
"""The distance beyond which clients are better off alone."""


def estimate_noise(condensed: Floats) -> float:
    """The spread of distances between clients of one group: the root mean square of those below zero.

    >>> estimate_noise(np.array([-1.0, 1.0, 50.0, -1.0], np.float32))
    1.0
    """
    below = condensed[condensed < 0].astype(np.float64)
    noise = float(np.sqrt(np.mean(below**2))) if len(below) else 0.0
    sure = confidence(clients_of(condensed))
    if sure * noise <= LEAST_DIFFERENCE:
        return noise  # it decides nothing
    return min(noise, max(MOST_BY_FEW * _noise_without_few(condensed), LEAST_DIFFERENCE / sure))


def misjudged(views: Mapping[str, Floats], counts: NDArray[np.int64]) -> dict[str, float]:
    """By how much each view's idea of chance is too low, at most: the mean distance, as far as few samples explain it.

    How much of a distance is chance is estimated from each client's own samples. Of two samples of a class, that is
    little more than a guess: clients that are alike may then all be too far from each other. A mean that is several
    times as large comes from groups.

    >>> views = {"data": np.array([0.0, 0.04], np.float32), "gradient": np.array([0.0, 0.9], np.float32)}
    >>> {name: round(offset, 3) for name, offset in misjudged(views, np.array([[3, 3], [3, 3], [0, 3]])).items()}
    {'data': 0.02, 'gradient': 0.0}
    """
    held = (counts > 0).sum(1)
    per_class = np.median(counts.sum(1) / np.maximum(held, 1))
    most = LEAST_DIFFERENCE * math.sqrt(FEW_PER_CLASS / max(per_class, 1.0))
    means = {name: float(np.nanmean(view)) if not np.isnan(view).all() else 0.0 for name, view in views.items()}
    return {name: min(max(mean, 0.0), most) if mean < BY_GROUPS * most else 0.0 for name, mean in means.items()}


def _noise_without_few(condensed: Floats) -> float:
    """The same without the tenth of the clients that contribute most; infinite where too few distances are left.

    A client that claims to know nothing about itself is nearer than chance to everybody: without a bound, a few of them
    could make any difference between the others look like noise.
    """
    clients = clients_of(condensed)
    few = clients // 10
    if few == 0:
        return math.inf
    squares = np.zeros(clients)
    for client, row in enumerate(_rows(condensed, clients)):
        below = np.minimum(row, 0, dtype=np.float64) ** 2
        squares[client] += np.nansum(below)
        squares[client + 1 :] += np.nan_to_num(below)
    kept = np.ones(clients, bool)
    kept[np.argsort(squares, kind="stable")[-few:]] = False
    left = [row[kept[client + 1 :]] for client, row in enumerate(_rows(condensed, clients)) if kept[client]]
    among = np.concatenate(left).astype(np.float64)
    below = among[among < 0]
    return float(np.sqrt(np.mean(below**2))) if len(below) >= clients else math.inf


def _rows(condensed: Floats, clients: int) -> Iterator[Floats]:
    """For each client its distances to those after it."""
    ends = np.cumsum(np.arange(clients - 1, -1, -1))
    return (condensed[end - (clients - 1 - client) : end] for client, end in enumerate(ends.tolist()))


def confidence(clients: int) -> float:
    """How many times its own noise a difference has to be, where so many clients might stray by chance.

    Student's t: the noise is known only as well as so many clients tell it. With fewer than six that would be so little
    that nothing could be told apart.

    >>> [round(confidence(clients), 2) for clients in (3, 10, 100, 10_000)]
    [4.46, 4.3, 3.86, 4.76]
    """
    return -float(stdtrit(max(clients - 1, LEAST_FREEDOM), FALSE_SPLITS / clients))


def least_significant_distance(
    noise: float, one: NDArray[np.float64], other: NDArray[np.float64], clients: int
) -> NDArray[np.float64]:
    """The least distance between clusters of these sizes that counts: a mean over many clients is less noisy.

    The noise is mostly that of clients: one whose own noise is misjudged is too far from all others. So one or two have
    to be surer the more `clients` there are in all. And where noise goes one way, those at its end are near each other:
    no cluster counts that is not farther than the tail of a normal distribution.
    """
    usual = -float(stdtrit(max(clients - 1, LEAST_FREEDOM), ndtr(-CONFIDENCE)))
    sure = np.where(np.minimum(one, other) <= FEW, max(confidence(clients), usual), usual)
    times = np.maximum(sure * np.sqrt((1 / one + 1 / other) / 2), BEYOND_TAIL * tail_distance(one, other))
    least: NDArray[np.float64] = np.maximum(LEAST_DIFFERENCE, noise * times)
    return least


def tail_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far the smaller of two clusters would be from the larger if it were the tail of one normal distribution.

    In units of the noise that such clients show, and beyond chance as distances are: the mean difference between two
    clients is 2 / sqrt(pi) = 1.13 standard deviations, and the root mean square of what is below it 0.67.

    >>> tail_distance(np.array([1.0, 4.0, 50.0]), np.array([99.0, 26.0, 50.0])).round(2).tolist()
    [2.33, 1.1, 0.7]
    """
    share = np.minimum(one, other) / (one + other)
    apart = np.exp(-(ndtri(share) ** 2) / 2) / math.sqrt(2 * math.pi) / share / (1 - share)
    distance: NDArray[np.float64] = (apart - 2 / math.sqrt(math.pi)) / 0.67
    return distance


def cut_by_noise(condensed: Floats, tree: Tree) -> Cut:
    """Cut where the fewest clients end up on the wrong side; then merge groups whose distance is within noise.

    A merge above the cut that is within noise separates clients that belong together; a merge below it that is beyond
    noise joins clients that do not. Each is counted with the smaller of its two sides. Where several cuts are equally
    good, the one in the middle of the widest gap is taken, on a logarithmic scale.
    """
    if tree.clients == 1:
        return Cut(np.zeros(1, np.int64), LEAST_DIFFERENCE, "noise")
    noise = estimate_noise(condensed)
    one, other = tree.sizes()
    significant = tree.heights >= least_significant_distance(noise, one, other, tree.clients)
    affected = np.minimum(one, other)
    joined_wrongly = np.concatenate([[0], np.cumsum(affected * significant)])
    split_wrongly = np.concatenate([[0], np.cumsum((affected * ~significant)[::-1])])[::-1]
    wrong = joined_wrongly + split_wrongly
    edges = np.maximum(np.concatenate([[0], tree.heights, [max(1.0, tree.heights[-1])]]), LEAST_DIFFERENCE)
    gaps = np.where(wrong == wrong.min(), edges[1:] / edges[:-1], 0)
    done = int(gaps.argmax())  # how many merges are done
    alpha = float(np.sqrt(edges[done] * edges[done + 1]))
    labels = tree.cut(alpha)
    if labels.max() > 0:
        labels = merge_insignificant(square(fill_unknown(condensed)), labels, noise)
    return Cut(labels, alpha, "noise")


def merge_insignificant(distances: Floats, labels: Labels, noise: float) -> Labels:
    """Groups merged, least apart first, until every two differ by more than noise."""
    sizes, means = cluster_means(distances, labels)
    return relabel(merged_clusters(sizes, means, noise, len(labels))[labels])


def merged_clusters(
    sizes: NDArray[np.float64], means: NDArray[np.float64], noise: float, clients: int
) -> NDArray[np.int64]:
    """For each cluster the one that it becomes part of, from the clusters' sizes and mean distances."""
    sizes, means, target = sizes.copy(), means.copy(), np.arange(len(sizes))
    while len(sizes) > 1:
        excess = means / least_significant_distance(noise, sizes[:, None], sizes[None], clients)
        np.fill_diagonal(excess, np.inf)
        keep, gone = sorted(int(index) for index in np.unravel_index(excess.argmin(), excess.shape))
        if excess[keep, gone] >= 1:
            break
        means[keep] = (sizes[keep] * means[keep] + sizes[gone] * means[gone]) / (sizes[keep] + sizes[gone])
        means[:, keep] = means[keep]
        sizes[keep] += sizes[gone]
        means, sizes = np.delete(np.delete(means, gone, 0), gone, 1), np.delete(sizes, gone)
        target = np.where(target == gone, keep, np.where(target > gone, target - 1, target))
    return target


def missing_by_chance(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """For each client, how much the share of classes that it misses scatters if it draws from everybody's mixture.

    A class of this share is missed by a client of n samples with probability exp(-n * share).

    >>> missing_by_chance(np.array([[100, 100], [2, 0]])).round(3).tolist()
    [0.0, 0.341]
    """
    shares = counts.sum(0) / max(counts.sum(), 1)
    missed = np.exp(-counts.sum(1)[:, None] * shares)
    scatter: NDArray[np.float64] = np.sqrt((missed * (1 - missed)).sum(1)) / counts.shape[1]
    return scatter


@dataclass(frozen=True)
class Held:
    """What is known of clients beside distances: how many samples they have, of which classes, and how sure that is."""

    samples: NDArray[np.int64]
    classes: Floats | None = None
    """Distances by the classes that clients hold."""
    noise: NDArray[np.float64] | float = 0.0
    """Of each client, beyond what is usual."""


def speaks_alone(counts: NDArray[np.int64]) -> bool:
    """Whether updates may tell clients apart that no other view does: not with a few samples of each class.

    From two samples a class a warm-up may run into either of two ways of being wrong (alike clients of SVHN fell into
    two halves by it), and both halves of a client's samples run into the same one, so the client does not take it for
    noise.

    >>> speaks_alone(np.full((4, 10), 2)), speaks_alone(np.full((4, 10), 10))
    (False, True)
    """
    held = np.maximum((counts > 0).sum(1), 1)
    return bool(np.median(counts.sum(1) / held) >= LEAST_PER_CLASS_ALONE)


def with_few_samples_joined(condensed: Floats, labels: Labels, known: Held, noise: float = 0.0) -> Labels:
    """Groups of one or two clients that are apart only for want of samples joined to the group nearest to them.

    Noise falls with the root of the samples: clients that have fewer than is usual among all have more of it. And
    clients measure their own noise, which from less than `LEAST_SAMPLES` is mostly chance; such clients stay apart only
    where they have no class in common with anybody.

    >>> pairs = np.array([0, 0, 0.4, 0, 0.4, 0.4], np.float32)
    >>> with_few_samples_joined(pairs, np.array([0, 0, 0, 1]), Held(np.array([30, 30, 30, 4]))).tolist()
    [0, 0, 0, 0]
    """
    distances = square(fill_unknown(condensed))
    by_classes = distances if known.classes is None else square(fill_unknown(known.classes))
    while labels.max() > 0:
        means, in_classes = (cluster_means(each, labels)[1] for each in (distances, by_classes))
        one, nearest = few_without_samples(labels, means, in_classes, known, noise)
        if one is None:
            break
        labels = relabel(np.where(labels == one, nearest, labels))
    return labels


def few_without_samples(
    labels: Labels, means: NDArray[np.float64], by_classes: NDArray[np.float64], known: Held, noise: float
) -> tuple[int | None, int]:
    """The cluster of few clients that is apart only for want of samples, the nearest of those, and whom it is near.

    From the mean distances of every two clusters: of all views, and by the classes that clients hold.
    """
    sizes, held = np.bincount(labels).astype(np.float64), np.bincount(labels, known.samples)
    apart = np.where(np.eye(len(sizes), dtype=bool), np.inf, means)
    nearest, near = apart.argmin(1), apart.min(1)
    of_all = noise * np.sqrt(np.maximum(1.0, np.median(known.samples) * sizes / np.maximum(held, 1)))
    more_noise = np.hypot(of_all, np.bincount(labels, np.broadcast_to(known.noise, len(labels))) / sizes)
    least = np.array(
        [
            least_significant_distance(own, sizes[[one]], sizes[[nearest[one]]], len(labels))[0]
            for one, own in enumerate(more_noise)
        ]
    )
    in_common = by_classes[np.arange(len(sizes)), nearest] <= NOTHING_IN_COMMON
    few = np.flatnonzero((sizes <= FEW) & ((near < least) | ((held < LEAST_SAMPLES * sizes) & in_common)))
    one = int(few[near[few].argmin()]) if len(few) else None
    return one, 0 if one is None else int(nearest[one])
