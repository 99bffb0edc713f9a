"""Groups of clients whose losses go up and down together from round to round.

Clients keep the samples they were dealt, so some have higher losses than others in every round, and some learn faster:
that differs from client to client without groups. What clients of *one* group share is how the model of a round suits
them, which depends on who took part before: where it suits one of them less than usual, it suits all of them less. So a
client's own level and its slow change are taken off its losses, and what is left, its surprises, is compared between
clients. Chance is known exactly: the same surprises in another order, each client's by itself.

Clients of one distribution move together, too, a little: two that happen to hold more of one class have a good or a
bad round together. More rounds make that surer, so a split has to explain a good part of all surprises, too.
"""

import math

import numpy as np

from feddag.server.interaction import Floats, Labels, spectral_labels
from feddag.server.split_test import LEAST_SIZE, Present

LEAST_ROUNDS = 10  # of a client, on average: its level and its change alone take three
LEAST_SHARE = 0.5  # of what chance leaves to explain; where clients are of one distribution, about 0.2 is explained
ORDERS, MOST_ORDERS = 19, 1000  # at first, to know what chance explains; and at most, however small the level is
SWEEPS = 10  # at most, in which clients join the part that they move with
FLOOR = 1e-3  # a loss below is as good as none


class Slow:
    """What a client does slowly: a parabola of its own over the rounds, fitted by least squares with round effects."""

    def __init__(self, present: Present):
        self._there = present
        when = np.linspace(-1, 1, len(present))
        self._curves = np.stack([np.ones_like(when), when, when**2], axis=1) * present.T[..., None]
        self._inverses = np.linalg.pinv(self._curves)
        # What is left of a round's effect when every client's parabola has had its part of it (Frisch and Waugh).
        kept = np.diag(present.sum(axis=1)) - np.einsum("kra,kas->rs", self._curves, self._inverses)
        self._rounds = np.linalg.pinv(kept, hermitian=True, rcond=1e-9)

    def _without_parabolas(self, values: Floats) -> Floats:
        coefficients = np.einsum("kar,rk->ka", self._inverses, values)
        left: Floats = values - np.einsum("kra,ka->rk", self._curves, coefficients)
        return left

    def surprises(self, values: Floats) -> Floats:
        """What neither the round nor a parabola of the client explains (rounds x clients), with variances near 1.

        >>> rounds, everybody = np.arange(6.0), np.ones((6, 2), bool)
        >>> alike = np.stack([rounds, 3 * rounds + 5], axis=1)  # one has higher losses, and changes faster
        >>> bool(abs(Slow(everybody).surprises(alike)).max() < 1e-3)
        True
        """
        own = np.where(self._there, values, 0.0)
        effects = self._rounds @ self._without_parabolas(own).sum(axis=1)
        left = self._without_parabolas(np.where(self._there, own - effects[:, None], 0.0))
        variance = (left**2).sum(axis=1, keepdims=True) / np.maximum(self._there.sum(axis=1, keepdims=True) - 1, 1)
        # A round's few participants do not tell its variance well, so half of what is told is that of all rounds.
        scaled: Floats = left / (np.sqrt((variance + variance.mean()) / 2) + 1e-6)
        return scaled


def together(surprise: Floats, present: Present) -> tuple[Floats, Floats]:
    """Sums of the products of two clients' surprises, each client's with variance 1, and how often both took part.

    >>> there = np.array([[1, 1, 1], [1, 1, 0]]) > 0
    >>> moves, meetings = together(np.array([[1.0, 2.0, -1.0], [-1.0, -2.0, 0.0]]), there)
    >>> moves.tolist()
    [[0.0, 2.0, -1.0], [2.0, 0.0, -1.0], [-1.0, -1.0, 0.0]]
    >>> meetings.tolist()
    [[0.0, 2.0, 1.0], [2.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    """
    usual = np.sqrt((surprise**2).sum(axis=0) / np.maximum(present.sum(axis=0), 1))
    own = surprise / np.maximum(usual, 1e-6)
    moves, meetings = own.T @ own, present.T.astype(float) @ present
    np.fill_diagonal(moves, 0.0)
    np.fill_diagonal(meetings, 0.0)
    return moves, meetings


def explained(moves: Floats, meetings: Floats, labels: Labels) -> tuple[float, float]:
    """How much more clients of one part move together than clients of two, and that in standard errors.

    >>> moves, meetings = np.array([[0.0, 4.0, -2.0], [4.0, 0.0, -2.0], [-2.0, -2.0, 0.0]]), 4.0 * (1 - np.eye(3))
    >>> explained(moves, meetings, np.array([0, 0, 1]))[0]  # 1 in a part, -1/2 between parts
    1.5
    """
    same = labels[:, None] == labels
    inside, across = meetings[same].sum(), meetings[~same].sum()
    if not inside or not across:
        return -np.inf, -np.inf
    more = float(moves[same].sum() / inside - moves[~same].sum() / across)
    return more, more / math.sqrt(1 / inside + 1 / across)


def best_parts(moves: Floats, meetings: Floats, most: int) -> tuple[float, Labels | None]:
    """Of 2 .. `most` parts those that stand out most, and how much of the surprises they explain.

    Spectral clustering of the pairs, after which every client joins the part that it moves with most.
    """
    # Surprises add up to nothing in a round, so k groups have k - 1 directions: a constant stands for the last.
    leading = np.linalg.eigh(moves / np.sqrt(np.maximum(meetings, 1)))[1][:, ::-1]
    vectors = np.column_stack([np.full(len(moves), len(moves) ** -0.5), leading])
    best, share, found = -np.inf, -np.inf, None
    for number in range(2, min(most, len(moves) // LEAST_SIZE) + 1):
        labels = spectral_labels(vectors[:, :number])
        for _ in range(SWEEPS):
            members = np.eye(number)[labels]
            joined = (moves @ members / np.maximum(meetings @ members, 1)).argmax(axis=1)
            if np.bincount(joined, minlength=number).min() < LEAST_SIZE or (joined == labels).all():
                break
            labels = joined
        more, errors = explained(moves, meetings, labels)
        if errors > best and np.bincount(labels, minlength=number).min() >= LEAST_SIZE:
            best, share, found = errors, more, labels
    return share, found


def reordered(surprise: Floats, present: Present, generator: np.random.Generator) -> Floats:
    """Each client's surprises in a random order of its own rounds."""
    order = np.where(present, generator.random(present.shape), np.inf).argsort(axis=0)
    places = np.where(present, 0.0, np.inf).argsort(axis=0, kind="stable")
    mixed = np.zeros_like(surprise)
    np.put_along_axis(mixed, places, np.take_along_axis(surprise, order, 0), 0)
    return mixed


def find_movers(
    losses: Floats, present: Present, most: int, level: float, generator: np.random.Generator
) -> Labels | None:
    """Groups of clients whose losses (rounds x clients x steps) move together, or None where there may be none.

    They explain more than in any of 1 / level random orders, of 1000 at most (a Monte Carlo test: a level below 0.001
    is taken for that), and `LEAST_SHARE` of what chance leaves to explain, which is what mostly keeps alike clients
    together. What parts explain is how much more clients have in common inside them than across: of k groups of one
    size that have a share h of their surprises in common it is h k / (k - 1). Made up here: two groups of five, for
    which rounds are good or bad by turns of their own.

    >>> draw, truth = np.random.default_rng(0), np.repeat([0, 1], 5)
    >>> losses = np.exp(draw.normal(size=(20, 2))[:, truth] + np.arange(10) / 10)[..., None]
    >>> labels = find_movers(losses, np.ones((20, 10), bool), 4, 0.01, draw)
    >>> len(set(labels[:5])), len(set(labels[5:])), len(set(labels))
    (1, 1, 2)
    """
    if present.sum() < LEAST_ROUNDS * present.shape[1]:
        return None
    slow = Slow(present)
    surprise = slow.surprises(np.log(np.maximum(losses.mean(axis=2), 0.0) + FLOOR))
    share, labels = best_parts(*together(surprise, present), most)
    if labels is None:
        return None

    def by_chance() -> float:
        mixed = slow.surprises(reordered(surprise, present, generator))
        return best_parts(*together(mixed, present), most)[0]

    first = [by_chance() for _ in range(ORDERS)]
    chance = float(np.mean([one for one in first if np.isfinite(one)] or [1.0]))
    if share - chance < LEAST_SHARE * (1 - chance) or max(first) >= share:
        return None
    others = min(math.ceil(1 / level), MOST_ORDERS) - 1 - ORDERS
    return None if any(by_chance() >= share for _ in range(others)) else labels
