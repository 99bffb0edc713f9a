"""How unlike two clients are, from their signatures. One number per pair, condensed as SciPy's `pdist` lays them out.

First the paper's own angles (Eq. 3-6), in degrees. Then three views of our own, each an *excess over chance*: zero on
average between clients that draw from one distribution, however few samples they have, and near one between clients
that have nothing in common. The paper's min-max scaling cannot tell noise from structure; an excess can.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import squareform
from torch import Tensor

from feddag.client.signature import Signature

Floats = NDArray[np.float32]
Angles = Literal["printed", "released"]
Block = Callable[[slice, slice], Tensor]
"""The distances of some clients (rows) to others (columns), all in one list."""
RIGHT_ANGLE, STRAIGHT_ANGLE = 90.0, 180.0
BLOCK, WIDTH = 256, 1024  # rows and columns of the blocks in which pairs are compared
NOISE_PRIOR_SAMPLES = 20.0  # with more samples of a class, a client's own noise outweighs what is usual for the class


def square(condensed: Floats) -> Floats:
    """The symmetric matrix with a zero diagonal.

    >>> square(np.array([1.0, 2.0, 3.0], np.float32)).tolist()
    [[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]]
    """
    matrix: Floats = squareform(condensed, checks=False) if len(condensed) else np.zeros((1, 1), np.float32)
    return matrix


def min_max(condensed: Floats) -> Floats:
    """Scaled to [0, 1] over all pairs; all zeros where every pair is alike.

    >>> min_max(np.array([2.0, 4.0, 3.0], np.float32)).tolist()
    [0.0, 1.0, 0.5]
    """
    if not len(condensed):
        return condensed
    low, high = float(np.nanmin(condensed)), float(np.nanmax(condensed))
    scaled: Floats = ((condensed - low) / max(high - low, 1e-30)).astype(np.float32)
    return scaled


# The paper's angles --------------------------------------------------------------------------------------------------


def gradient_angles(signatures: Sequence[Signature]) -> Floats:
    """Eq. 3: the angle between two updates. An update of zeros tells nothing: it is at 90 degrees to all others."""
    return _pairs(len(signatures), lambda rows, others: degrees(_cosines(signatures, rows, others)))


def data_angles(
    signatures: Sequence[Signature],
    delta: float = 0.5,
    known: Sequence[Signature] | None = None,
    angles: Angles = "printed",
) -> Floats:
    """Eq. 6: the mean over all classes of Eq. 4's angle times Eq. 5's weight, scaled as for the `known` clients.

    A class that only one of the two holds is the greatest difference in frequency there is: 90 degrees at the greatest
    weight, 1 + delta. "released" is what the published code does instead: angles of signed vectors, 180 degrees for
    such a class, and weights from 1 to 1 + delta by the ratio of counts without a logarithm, never above 180 degrees.
    """
    counts = counts_of(signatures)
    held = torch.from_numpy(counts > 0)
    released = angles == "released"
    scale = weight_scale(counts if known is None else counts_of(known), delta, angles)
    one_sided_angle = STRAIGHT_ANGLE if released else RIGHT_ANGLE * (1 + delta)

    def weighted(rows: slice, others: slice) -> Tensor:
        one_sided = (held[rows, None] ^ held[None, others]).sum(2)
        total: Tensor = one_sided * one_sided_angle
        for label, mine, theirs in _shared_classes(counts, rows, others):
            cosines = largest_cosines(
                vectors_of(signatures, label, mine), vectors_of(signatures, label, theirs), signed=released
            )
            weights = torch.from_numpy(scale(counts[mine, label, None], counts[None, theirs, label]))
            angle = degrees(cosines) * weights
            total[_block_index(mine, rows, theirs, others)] += angle.clamp(max=STRAIGHT_ANGLE) if released else angle
        return total.div_(counts.shape[1])

    return _pairs(len(counts), weighted)


def quantity_ratio(one: NDArray[np.int64] | int, others: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Eq. 5 with epsilon = e: ln(n + e) is at least 1, so the ratio is defined for counts of 0 and 1 as well.

    >>> quantity_ratio(1, np.array([1, 0])).round(4).tolist()
    [1.0, 1.3133]
    """
    logs = np.log(np.asarray(one) + np.e), np.log(np.asarray(others) + np.e)
    ratio: NDArray[np.float64] = np.maximum(*logs) / np.minimum(*logs)
    return ratio


def weight_scale(
    counts: NDArray[np.int64], delta: float, angles: Angles = "printed"
) -> Callable[[NDArray[np.int64] | int, NDArray[np.int64] | int], Floats]:
    """The weight of a class that both hold, from their counts: min-max of the ratios over all pairs that share a class.

    As printed, Eq. 5's ratios onto [1 - delta, 1 + delta]; as released, ratios of counts onto [1, 1 + delta]. Equal
    counts have ratio 1, the least there is; the greatest is that of the largest and the smallest holder.
    """
    released = angles == "released"
    ratio = count_ratio if released else quantity_ratio
    extremes = [ratio(int(c.max()), int(c.min())) for c in (col[col > 0] for col in counts.T) if len(c) > 1]
    spread = max((float(value) for value in extremes), default=1.0) - 1.0
    low, width = (1.0, delta) if released else (1 - delta, 2 * delta)

    def weights(one: NDArray[np.int64] | int, others: NDArray[np.int64] | int) -> Floats:
        share = np.asarray((ratio(one, others) - 1.0) / max(spread, 1e-12), np.float32)
        scaled: Floats = np.float32(low) + np.float32(width) * share
        return scaled

    return weights


def count_ratio(one: NDArray[np.int64] | int, others: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """The larger of two counts by the smaller.

    >>> count_ratio(2, np.array([2, 8, 1])).tolist()
    [1.0, 4.0, 2.0]
    """
    ratio: NDArray[np.float64] = np.maximum(one, others) / np.minimum(one, others)
    return ratio


def stacked_angles(signatures: Sequence[Signature]) -> Floats:
    """PACFL's signal: the smallest angle between any vector of one client and any of the other, classes mixed."""
    stacks = [_directions(torch.from_numpy(item.vectors)).flatten(0, 1) for item in signatures]
    table = torch.stack(stacks)  # clients x (classes * p) x features

    def smallest(rows: slice, others: slice) -> Tensor:
        most = torch.zeros(rows.stop - rows.start, others.stop - others.start)
        for vector in range(table.shape[1]):
            cosines = torch.einsum("if,jkf->ijk", table[rows, vector], table[others])
            most = torch.maximum(most, cosines.abs().amax(2))
        return degrees(most)

    return _pairs(len(signatures), smallest)


# Excess over chance --------------------------------------------------------------------------------------------------


def class_excess(counts: NDArray[np.int64]) -> Floats:
    """What `class_block` says, for every pair."""
    return _pairs(len(counts), class_block(counts))


def class_block(counts: NDArray[np.int64]) -> Block:
    """Which classes they hold: the share of their classes that only one of them has, less what chance would give.

    Were both to draw from their common mixture, class c would be missed by a client of n samples with probability
    exp(-n * share of c): the few samples of a small client are no evidence.
    """
    sizes, table = torch.from_numpy(counts.sum(1)).float(), torch.from_numpy(counts).float()

    def excess(rows: slice, others: slice) -> Tensor:
        surprise, union = torch.zeros(2, rows.stop - rows.start, others.stop - others.start)
        one_size, other_size = sizes[rows, None], sizes[None, others]
        both_sizes = (one_size + other_size).clamp(min=1)  # a client may have no samples
        for label in range(table.shape[1]):
            one, other = table[rows, label, None], table[None, others, label]
            share = (one + other) / both_sizes
            missed_by_one, missed_by_other = torch.exp(-one_size * share), torch.exp(-other_size * share)
            # missed by exactly one; missed by both is exp(-one - other), whatever the sizes
            by_chance = missed_by_one.add_(missed_by_other).sub_(torch.exp(-one) * torch.exp(-other), alpha=2)
            anyone = (one > 0) | (other > 0)
            surprise += anyone * (((one > 0) ^ (other > 0)).float() - by_chance)
            union += anyone
        return torch.div(surprise, union.clamp(min=1))

    return excess


def data_excess(signatures: Sequence[Signature], usual: NDArray[np.float64] | None = None) -> Floats:
    """What `data_block` says, for every pair."""
    return _pairs(len(signatures), data_block(signatures, usual))


def data_block(signatures: Sequence[Signature], usual: NDArray[np.float64] | None = None) -> Block:
    """How the classes that both hold look: the angle between their second moments beyond what sampling explains.

    The principal vectors of a class, each as long as the root of its eigenvalue, are its second moment; the cosine of
    two moments is the sum of squared inner products. Unlike Eq. 4's smallest angle it does not jump when two
    eigenvalues are near. Two samples of *one* distribution have a cosine of about the root of the product of their
    reliabilities. A pair that shares no class is nan: it cannot be compared in this view.
    """
    counts = counts_of(signatures)
    reliability = torch.from_numpy(reliabilities(signatures, usual))

    def excess(rows: slice, others: slice) -> Tensor:
        total, weight = torch.zeros(2, rows.stop - rows.start, others.stop - others.start)
        for label, mine, theirs in _shared_classes(counts, rows, others):
            affinity = _sum_of_squares(vectors_of(signatures, label, mine), vectors_of(signatures, label, theirs))
            trust = reliability[mine, label, None] * reliability[None, theirs, label]
            at = _block_index(mine, rows, theirs, others)
            total[at] += (degrees(affinity) - degrees(trust.sqrt())) * trust
            weight[at] += trust
        return torch.div(total / weight, RIGHT_ANGLE)  # 0 / 0 is nan

    return excess


def gradient_excess(signatures: Sequence[Signature]) -> Floats:
    """What `gradient_block` says, for every pair."""
    return _pairs(len(signatures), gradient_block(signatures))


def gradient_block(signatures: Sequence[Signature]) -> Block:
    """How the model moves: the angle between updates beyond what sampling explains, at most 1 (90 degrees)."""
    trust = torch.tensor([float(item.update_reliability) for item in signatures])

    def excess(rows: slice, others: slice) -> Tensor:
        expected = degrees((trust[rows, None] * trust[None, others]).sqrt())
        return ((degrees(_cosines(signatures, rows, others)) - expected) / RIGHT_ANGLE).clamp(max=1.0)

    return excess


def usual_noise(signatures: Sequence[Signature]) -> NDArray[np.float64]:
    """The median noise of each class, in samples: reliability n / (n + noise) is read as a noise."""
    noise, known = _noise(signatures)
    overall = np.median(noise[known]) if known.any() else 1.0
    return np.array(
        [np.median(noise[has, c]) if (has := known[:, c]).any() else overall for c in range(noise.shape[1])]
    )


def reliabilities(signatures: Sequence[Signature], usual: NDArray[np.float64] | None = None) -> Floats:
    """Clients x classes: each client's own estimate, shrunk towards what is usual, more so the fewer samples it has.

    A class seen once has no estimate and takes the usual noise, by default that of these clients.
    """
    usual = usual_noise(signatures) if usual is None else usual
    counts = counts_of(signatures).astype(np.float64)
    noise, known = _noise(signatures)
    own_share = np.where(known, counts / (counts + NOISE_PRIOR_SAMPLES), 0.0)
    shrunk = np.exp(own_share * np.log(np.where(known, noise, 1.0)) + (1 - own_share) * np.log(usual))
    trusted: Floats = np.where(counts > 0, counts / (counts + shrunk), 0).astype(np.float32)
    return trusted


def _noise(signatures: Sequence[Signature]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Clients x classes: the noise that each client measured, and where it could measure one."""
    counts = counts_of(signatures).astype(np.float64)
    own = np.stack([item.reliability for item in signatures]).astype(np.float64)
    known = (own > 0) & (counts > 1)
    return np.where(known, counts * (1 - own) / np.where(known, own, 1), np.nan).clip(1e-3), known


def counts_of(signatures: Sequence[Signature]) -> NDArray[np.int64]:
    """Clients x classes."""
    return np.stack([item.counts for item in signatures])


# Pairs in blocks -----------------------------------------------------------------------------------------------------


def _shared_classes(
    counts: NDArray[np.int64], rows: slice, others: slice
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
    """Each class that some of the rows and some of the others hold, and who these are."""
    for label in range(counts.shape[1]):
        mine, theirs = (np.flatnonzero(counts[part, label]) + part.start for part in (rows, others))
        if len(mine) and len(theirs):
            yield label, mine, theirs


def _block_index(
    mine: NDArray[np.int64], rows: slice, theirs: NDArray[np.int64], others: slice
) -> tuple[Tensor | slice, ...]:
    """Where these clients stand in a block; a slice, which copies nothing, if they are all of it."""
    if len(mine) == rows.stop - rows.start and len(theirs) == others.stop - others.start:
        return (slice(None),)
    return torch.from_numpy(mine - rows.start)[:, None], torch.from_numpy(theirs - others.start)[None]


def vectors_of(signatures: Sequence[Signature], class_label: int, clients: NDArray[np.int64]) -> Tensor:
    """Clients x p x features: these clients' vectors of one class."""
    return torch.from_numpy(np.stack([signatures[client].vectors[class_label] for client in clients.tolist()])).float()


def _sum_of_squares(rows: Tensor, others: Tensor) -> Tensor:
    """Inner products of second moments, each of which has norm 1."""
    total = torch.zeros(len(rows), len(others))
    for one in range(rows.shape[1]):
        for other in range(others.shape[1]):
            inner = rows[:, one] @ others[:, other].T
            total.addcmul_(inner, inner)
    return total


def largest_cosines(rows: Tensor, others: Tensor, signed: bool = False) -> Tensor:
    """Eq. 4 for every pair, before the arc cosine: the largest cosine of two vectors, whatever their signs.

    `signed` minds the signs, which a singular value decomposition leaves to chance, as the released code does.
    """
    rows, others = _directions(rows), _directions(others)
    most = torch.full((len(rows), len(others)), -1.0 if signed else 0.0)
    for one in range(rows.shape[1]):
        for other in range(others.shape[1]):
            cosines = rows[:, one] @ others[:, other].T
            if signed:  # a vector of zeros stands for none
                there = rows[:, one].any(1)[:, None] & others[:, other].any(1)[None]
                cosines.masked_fill_(~there, -1.0)
            torch.maximum(most, cosines if signed else cosines.abs_(), out=most)
    return most


def _directions(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors.float(), dim=-1)


def _cosines(signatures: Sequence[Signature], rows: slice, others: slice) -> Tensor:
    one, other = (
        _directions(torch.from_numpy(np.stack([s.update for s in signatures[part]]))) for part in (rows, others)
    )
    return one @ other.T


def degrees(cosines: Tensor) -> Tensor:
    """Angles. One that is within rounding error of 0 is 0: min-max scaling would make structure of rounding errors."""
    return torch.rad2deg(torch.arccos(cosines.clamp(-1, 1))).masked_fill_(cosines > 1 - 1e-6, 0.0)


def _pairs(population: int, distance: Block) -> Floats:
    """The condensed array of a distance that is computed block by block, each small enough for the cache."""
    condensed = np.empty(population * (population - 1) // 2, np.float32)
    for start in range(0, population, BLOCK):
        rows = slice(start, min(start + BLOCK, population))
        for left in range(start, population, WIDTH):
            others = slice(left, min(left + WIDTH, population))
            block = distance(rows, others).numpy()
            for first in range(rows.start, rows.stop):
                later = max(first + 1, others.start)
                if later < others.stop:
                    offset = first * population - first * (first + 1) // 2 - first - 1  # where (first, 0) would be
                    values = block[first - rows.start, later - others.start :]
                    condensed[offset + later : offset + others.stop] = values
    return condensed
