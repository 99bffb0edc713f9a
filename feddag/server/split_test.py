"""Whether the losses of a cluster's clients show groups, or only clients that differ by chance.

FedGWC cuts a cluster once its interaction matrix has settled and the Davies-Bouldin score is at most 1. Chance reaches
that as well: clients of one distribution keep the samples they were dealt, so one has somewhat higher losses than
another in every round. Here the score is compared with what it is in simulated federations *without* groups, whose
clients differ as much from each other, and from themselves over rounds, as the real ones do, and took part in the same
rounds. Only a score below all of theirs is a split, and only one of parts that stand clearly apart: half a cluster has
half the samples to learn from, so the printed 1 is not enough to pay for a split.
"""

import math

import numpy as np
from numpy.typing import NDArray

from feddag.server.interaction import Floats, Labels, affinity, best_split, pair_rewards, perception_distances

LEAST_SIZE = 3  # clients of a part: fewer cannot take part in a round by themselves (Eq. 26)
CLEARLY = 2 / 3  # Davies-Bouldin score of parts whose centres are three times as far apart as members from a centre
BLOCKS = 8  # the paper's clients do 7 or 8 steps
Present = NDArray[np.bool_]


def blocks(losses: Floats, most: int = BLOCKS) -> Floats:
    """The means over runs of consecutive steps, at most so many: less noise, and less to compare.

    >>> blocks(np.array([[1.0, 3.0, 5.0, 7.0, 9.0]]), 2).tolist()
    [[3.0, 8.0]]
    """
    return np.stack([part.mean(axis=-1) for part in np.array_split(losses, min(most, losses.shape[-1]), -1)], -1)


def interactions(losses: Floats, present: Present) -> tuple[Floats, Present]:
    """The mean reward of each pair over the rounds in which both took part (rounds x clients x steps), and who met.

    This is Eq. 3 with alpha = 1 / (number of meetings), which Theorem 5.1 allows and which needs no first value.
    """
    clients, taking_part = losses.shape[1], present.sum(axis=1)
    total = np.zeros(clients * clients)
    for number in np.unique(taking_part):  # rounds with equally many are computed at once: this is done a lot
        rounds = np.flatnonzero(taking_part == number)
        here = np.nonzero(present[rounds])[1].reshape(len(rounds), number)
        pairs = here[:, :, None] * clients + here[:, None, :]
        rewards = pair_rewards(losses[rounds[:, None], here])
        total += np.bincount(pairs.ravel(), rewards.ravel(), clients * clients)
    meetings = present.T.astype(float) @ present
    return total.reshape(clients, clients) / np.maximum(meetings, 1), meetings > 0


def scaled_affinity(losses: Floats, present: Present, beta: float = 1.0) -> Floats:
    """Eq. 4 with distances in units of their mean, so that beta means the same for any number of rounds."""
    distances = perception_distances(*interactions(losses, present))
    usual = float(distances[~np.eye(len(distances), dtype=bool)].mean())
    return affinity(distances, beta / max(usual, 1e-12))


def scatter(losses: Floats, present: Present) -> tuple[Floats, Floats] | None:
    """Steps x steps covariances of standardised losses: between clients, and of one client between rounds.

    What the mean of a client's few rounds scatters by itself is taken off the first. None where too few clients took
    part twice to know.
    """
    shown = np.where(present[..., None], losses, np.nan)
    z = (shown - np.nanmean(shown, 1, keepdims=True)) / np.sqrt(np.nanvar(shown, 1, ddof=1, keepdims=True) + 1e-16)
    levels, rounds = np.nanmean(z, axis=0), present.sum(axis=0)
    freedom, steps = int((rounds - 1).sum()), losses.shape[2]
    if freedom < 2 * steps:
        return None
    around = np.where(present[..., None], z - levels, 0.0).reshape(-1, steps)
    within = around.T @ around / freedom
    between = np.cov(levels.T).reshape(steps, steps) - within * (1 / rounds).mean()
    return between, within


def find_groups(
    losses: Floats, present: Present, most: int, level: float, beta: float, generator: np.random.Generator
) -> Labels | None:
    """The groups of clients (rounds x clients x steps), or None where there may be none.

    Every client has to be there in some round, and two in every round. Of 1 / level federations without groups, this
    one has to have the smallest score (a Monte Carlo test; it ends with the first simulated score that is as small).
    """
    known = scatter(losses, present)
    if known is None:
        return None
    score, labels = best_split(scaled_affinity(losses, present, beta), most, LEAST_SIZE)
    if score > CLEARLY:
        return None
    between, within = (_root(covariance) for covariance in known)
    for _ in range(math.ceil(1 / level) - 1):
        level_of = generator.standard_normal(losses.shape[1:]) @ between.T
        alike = level_of + generator.standard_normal(losses.shape) @ within.T
        if best_split(scaled_affinity(alike, present, beta), most, LEAST_SIZE)[0] <= score:
            return None
    return labels


def _root(covariance: Floats) -> Floats:
    """A matrix R with R R^T = covariance, without what is below zero by chance."""
    values, vectors = np.linalg.eigh(covariance)
    root: Floats = vectors * np.sqrt(np.maximum(values, 0))
    return root
