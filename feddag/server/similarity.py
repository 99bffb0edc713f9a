"""How unlike two clients are, from their signatures. One number per pair, condensed as SciPy's `pdist` lays them out.

First the paper's own angles (Eq. 3-6), in degrees. Then three views of our own, each an *excess over chance*: zero on
average between clients that draw from one distribution, however few samples they have, and near one between clients
that have nothing in common. The paper's min-max scaling cannot tell noise from structure; an excess can.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import squareform
from torch import Tensor

from feddag.client.signature import Signature

Floats = NDArray[np.float32]
RIGHT_ANGLE = 90.0
BLOCK = 256  # clients compared with all others at once
TRUSTED = 20.0  # samples of a class from which a client's own noise outweighs what is usual for the class


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
    return _pairs(len(signatures), lambda rows, others: _degrees(_cosines(signatures, rows, others)))


def data_angles(signatures: Sequence[Signature], delta: float = 0.5) -> Floats:
    """Eq. 6: the mean over all classes of Eq. 4's angle times Eq. 5's weight."""
    counts = counts_of(signatures)
    classes = counts.shape[1]
    total = np.zeros(_pair_count(len(signatures)), np.float32)
    held = counts > 0
    scale = weight_scale(counts, delta)
    for label in range(classes):
        one_sided = _pairs(
            len(counts),
            lambda rows, others, label=label: (
                torch.from_numpy(  # type: ignore[misc]
                    held[rows, label][:, None] ^ held[others, label][None, :]
                )
                * (RIGHT_ANGLE * float(scale(1.0)))
            ),  # no frequencies to compare: the least weight
        )
        total += one_sided
        for first, where, affinity in _class_affinities(signatures, counts, label, _largest):
            ratio = quantity_ratio(counts[first, label], counts[where.clients, label])
            where.add(total, _degrees(affinity).numpy() * scale(ratio))
    return total / np.float32(classes)


def class_angle(one: Floats, other: Floats) -> float:
    """Eq. 4: the smallest angle between any two principal vectors, whatever their signs, in degrees.

    >>> round(class_angle(np.array([[2.0, 0.0]]), np.array([[-1.0, 1.0], [0.0, 1.0]])), 4)
    45.0
    """
    cosines = np.abs(_directions(torch.as_tensor(one)).numpy() @ _directions(torch.as_tensor(other)).numpy().T)
    return float(np.degrees(np.arccos(np.clip(cosines.max(), 0, 1))))


def quantity_ratio(one: NDArray[np.int64] | int, others: NDArray[np.int64] | int) -> NDArray[np.float64]:
    """Eq. 5 with epsilon = e: ln(n + e) is at least 1, so the ratio is defined for counts of 0 and 1 as well.

    >>> quantity_ratio(1, np.array([1, 0])).round(4).tolist()
    [1.0, 1.3133]
    """
    logs = np.log(np.asarray(one) + np.e), np.log(np.asarray(others) + np.e)
    ratio: NDArray[np.float64] = np.maximum(*logs) / np.minimum(*logs)
    return ratio


def weight_scale(counts: NDArray[np.int64], delta: float) -> Callable[[NDArray[np.float64] | float], Floats]:
    """Min-max of Eq. 5's ratios, over all pairs that share a class, onto [1 - delta, 1 + delta].

    Equal counts have ratio 1, the least there is; the greatest is that of the largest and the smallest holder.
    """
    extremes = [quantity_ratio(int(c.max()), int(c.min())) for c in (col[col > 0] for col in counts.T) if len(c) > 1]
    spread = max((float(value) for value in extremes), default=1.0) - 1.0
    return lambda ratio: (
        np.float32(1 - delta)
        + np.float32(2 * delta) * np.asarray((np.asarray(ratio) - 1.0) / max(spread, 1e-12), np.float32)
    )


def stacked_angles(signatures: Sequence[Signature]) -> Floats:
    """PACFL's signal: the smallest angle between any vector of one client and any of the other, classes mixed."""
    stacks = [_directions(torch.from_numpy(item.vectors)).flatten(0, 1) for item in signatures]
    table = torch.stack(stacks)  # clients x (classes * p) x features

    def smallest(rows: slice, others: slice) -> Tensor:
        most = torch.zeros(rows.stop - rows.start, others.stop - others.start)
        for vector in range(table.shape[1]):
            cosines = torch.einsum("if,jkf->ijk", table[rows, vector], table[others])
            most = torch.maximum(most, cosines.abs().amax(2))
        return _degrees(most)

    return _pairs(len(signatures), smallest)


# Excess over chance --------------------------------------------------------------------------------------------------


def class_excess(counts: NDArray[np.int64]) -> Floats:
    """Which classes they hold: the share of their classes that only one of them has, less what chance would give.

    Were both to draw from their common mixture, class c would be missed by a client of n samples with probability
    exp(-n * share of c): the few samples of a small client are no evidence.
    """
    sizes = torch.from_numpy(counts.sum(1)).float()
    table = torch.from_numpy(counts).float()

    def excess(rows: slice, others: slice) -> Tensor:
        surprise = torch.zeros(rows.stop - rows.start, others.stop - others.start)
        union = torch.zeros_like(surprise)
        both_sizes = (sizes[rows, None] + sizes[None, others]).clamp(min=1)  # a client may have no samples
        for label in range(table.shape[1]):
            one, other = table[rows, label, None], table[None, others, label]
            share = (one + other) / both_sizes
            missed_by_one, missed_by_other = (
                torch.exp(-sizes[rows, None] * share),
                torch.exp(-sizes[None, others] * share),
            )
            by_chance = missed_by_one * (1 - missed_by_other) + missed_by_other * (1 - missed_by_one)
            anyone = (one + other) > 0
            surprise += anyone * (((one > 0) ^ (other > 0)).float() - by_chance)
            union += anyone
        return surprise / union.clamp(min=1)

    return _pairs(len(counts), excess)


def data_excess(signatures: Sequence[Signature]) -> Floats:
    """How the classes that both hold look: the angle between their second moments beyond what sampling explains.

    The principal vectors of a class, each as long as the root of its eigenvalue, are its second moment; the cosine of
    two moments is the sum of squared inner products. Unlike Eq. 4's smallest angle it does not jump when two
    eigenvalues are near. Two samples of *one* distribution have a cosine of about the root of the product of their
    reliabilities. A pair that shares no class is nan: this view has nothing to say about it.
    """
    counts = counts_of(signatures)
    reliability = reliabilities(signatures)
    total = np.zeros(_pair_count(len(signatures)), np.float32)
    weight = np.zeros_like(total)
    for label in range(counts.shape[1]):
        for first, where, affinity in _class_affinities(signatures, counts, label, _sum_of_squares):
            trust = torch.from_numpy(reliability[first, label] * reliability[where.clients, label])[None]
            excess = _degrees(affinity) - _degrees(trust.sqrt())
            where.add(total, (excess * trust).numpy())
            where.add(weight, trust.numpy())
    with np.errstate(invalid="ignore"):
        mean: Floats = (np.where(weight > 0, total / weight, np.nan) / RIGHT_ANGLE).astype(np.float32)
    return mean


def gradient_excess(signatures: Sequence[Signature]) -> Floats:
    """How the model moves: the angle between updates beyond what sampling explains, at most 1 (90 degrees)."""
    trust = torch.tensor([float(item.update_reliability) for item in signatures])

    def excess(rows: slice, others: slice) -> Tensor:
        expected = _degrees((trust[rows, None] * trust[None, others]).sqrt())
        return ((_degrees(_cosines(signatures, rows, others)) - expected) / RIGHT_ANGLE).clamp(max=1.0)

    return _pairs(len(signatures), excess)


def reliabilities(signatures: Sequence[Signature]) -> Floats:
    """Clients x classes: each client's own estimate, leaning the more on its class's median the fewer samples it has.

    Reliability n / (n + noise) is read as a noise, in samples; a class seen once has no estimate and takes the median.
    """
    counts = counts_of(signatures).astype(np.float64)
    own = np.stack([item.reliability for item in signatures]).astype(np.float64)
    known = (own > 0) & (counts > 1)
    noise = np.where(known, counts * (1 - own) / np.where(known, own, 1), np.nan).clip(1e-3)
    overall = np.median(noise[known]) if known.any() else 1.0
    usual = np.array(
        [np.median(noise[has, c]) if (has := known[:, c]).any() else overall for c in range(counts.shape[1])]
    )
    lean = np.where(known, counts / (counts + TRUSTED), 0.0)
    mixed = np.exp(lean * np.log(np.where(known, noise, 1.0)) + (1 - lean) * np.log(usual))
    trusted: Floats = np.where(counts > 0, counts / (counts + mixed), 0).astype(np.float32)
    return trusted


def counts_of(signatures: Sequence[Signature]) -> NDArray[np.int64]:
    """Clients x classes."""
    return np.stack([item.counts for item in signatures])


# Pairs in blocks -----------------------------------------------------------------------------------------------------


class _Where:
    """The places in a condensed array of the pairs (first, one of `clients`), all of them after `first`."""

    def __init__(self, population: int, first: int, clients: NDArray[np.int64]) -> None:
        start = first * population - first * (first + 1) // 2 - first - 1
        self.clients = clients
        everyone = len(clients) == population - first - 1
        self._index = slice(start + first + 1, start + population) if everyone else start + clients

    def add(self, condensed: Floats, values: NDArray[np.float32]) -> None:
        condensed[self._index] += values.reshape(-1)


def _class_affinities(
    signatures: Sequence[Signature],
    counts: NDArray[np.int64],
    label: int,
    affinity: Callable[[Tensor, Tensor], Tensor],
) -> Iterator[tuple[int, _Where, Tensor]]:
    """For each holder of a class: its affinity to the holders after it."""
    holders = np.flatnonzero(counts[:, label])
    if len(holders) < 2:
        return
    table = torch.from_numpy(np.stack([signatures[int(client)].vectors[label] for client in holders]))
    for start in range(0, len(holders), BLOCK):
        rows = table[start : start + BLOCK]
        block = affinity(rows, table[start:])
        for row in range(len(rows)):
            later = holders[start + row + 1 :]
            yield (
                int(holders[start + row]),
                _Where(len(counts), int(holders[start + row]), later),
                block[row, row + 1 :],
            )


def _sum_of_squares(rows: Tensor, others: Tensor) -> Tensor:
    """Inner products of second moments, each of which has norm 1."""
    total = torch.zeros(len(rows), len(others))
    for one in range(rows.shape[1]):
        for other in range(others.shape[1]):
            inner = rows[:, one] @ others[:, other].T
            total.addcmul_(inner, inner)
    return total


def _largest(rows: Tensor, others: Tensor) -> Tensor:
    """The largest cosine of two vectors, whatever their signs."""
    rows, others = _directions(rows), _directions(others)
    most = torch.zeros(len(rows), len(others))
    for one in range(rows.shape[1]):
        for other in range(others.shape[1]):
            torch.maximum(most, (rows[:, one] @ others[:, other].T).abs_(), out=most)
    return most


def _directions(vectors: Tensor) -> Tensor:
    return torch.nn.functional.normalize(vectors.float(), dim=-1)


def _cosines(signatures: Sequence[Signature], rows: slice, others: slice) -> Tensor:
    one, other = (
        _directions(torch.from_numpy(np.stack([s.update for s in signatures[part]]))) for part in (rows, others)
    )
    return one @ other.T


def _degrees(cosines: Tensor) -> Tensor:
    """Angles; what is within rounding of no angle is none, or min-max would make structure of it."""
    return torch.rad2deg(torch.arccos(cosines.clamp(-1, 1))).masked_fill_(cosines > 1 - 1e-6, 0.0)


def _pair_count(population: int) -> int:
    return population * (population - 1) // 2


def _pairs(population: int, distance: Callable[[slice, slice], Tensor]) -> Floats:
    """The condensed array of a distance that is computed for a block of clients and all after its first."""
    condensed = np.zeros(_pair_count(population), np.float32)
    for start in range(0, population, BLOCK):
        rows = slice(start, min(start + BLOCK, population))
        block = distance(rows, slice(start, population)).numpy()
        for row, first in enumerate(range(rows.start, rows.stop)):
            _Where(population, first, np.arange(first + 1, population)).add(condensed, block[row, row + 1 :])
    return condensed
