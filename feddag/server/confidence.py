"""How sure a grouping is: of each client, of each merge, and as a whole when some of the clients are not there."""

import numpy as np
from numpy.typing import NDArray

from feddag.rng import rng
from feddag.server.clustering import (
    Labels,
    Linkage,
    Tree,
    build_tree,
    clients_of,
    cluster_means,
    fill_unknown,
    silhouettes,
)
from feddag.server.noise import cut_by_noise, estimate_noise, least_significant_distance
from feddag.server.similarity import Floats, square

CLEAR, FAIR = 0.5, 0.25
"""Kaufman and Rousseeuw's reading of silhouettes: reasonable structure from 0.5 on, none to speak of below 0.25."""
STABLE = 0.9
"""The adjusted Rand index from which on groups of four in five clients are the same groups."""
RESAMPLES = 20
SHARE = 0.8
MOST_SIZES = 8  # groups whose sizes are shown
MOST = 500  # clients of one resample: each takes time with the square of them


def stability(condensed: Floats, labels: Labels, linkage: Linkage = "average", seed: int = 0) -> float:
    """How alike the groups are that random four fifths of the clients give: the mean adjusted Rand index.

    >>> apart = np.ones((6, 6), np.float32) - np.eye(6, dtype=np.float32)
    >>> apart[:3, :3] = apart[3:, 3:] = 0
    >>> stability(apart[np.triu_indices(6, 1)], np.array([0, 0, 0, 1, 1, 1]))
    1.0
    """
    clients = clients_of(condensed)
    if clients < 3:
        return 1.0
    from sklearn.metrics import adjusted_rand_score  # here, because importing it takes a second

    distances, draw = square(condensed), rng(seed, "stability")
    found = []
    for _ in range(RESAMPLES):
        some = np.sort(draw.choice(clients, min(max(2, round(SHARE * clients)), MOST), replace=False))
        among = distances[np.ix_(some, some)][np.triu_indices(len(some), 1)]
        again = cut_by_noise(among, build_tree(among, linkage)).labels
        found.append(float(adjusted_rand_score(labels[some], again)))
    return float(np.mean(found))


def significance(condensed: Floats, tree: Tree) -> NDArray[np.float64]:
    """Of each merge, lowest first: its distance by the least that chance does not explain; from 1 on it counts.

    >>> pairs = np.array([0.0, 1.0, 1.0], np.float32)
    >>> significance(pairs, build_tree(pairs)).round(6).tolist()
    [0.0, 30.0]
    """
    one, other = tree.sizes()
    ratio: NDArray[np.float64] = tree.heights / least_significant_distance(
        estimate_noise(condensed), one, other, tree.clients
    )
    return ratio


def said(clusters: int, sure: NDArray[np.float64], stable: float) -> str:
    """The verdict in a few words.

    >>> said(5, np.array([0.9, 0.8]), 1.0), said(1, np.zeros(2), 1.0)
    ('5 groups, clear', 'no groups: clients are alike')
    >>> said(2, np.array([0.3, 0.3]), 0.95), said(9, np.array([0.1, 0.6]), 0.4)
    ('2 groups, fairly clear', '9 groups, unsure: others come out when some clients are missing')
    >>> said(1, np.zeros(2), 0.5)
    'no groups, unsure: some come out when some clients are missing'
    """
    if clusters == 1:
        if stable >= STABLE:
            return "no groups: clients are alike"
        return "no groups, unsure: some come out when some clients are missing"
    if stable < STABLE:
        return f"{clusters} groups, unsure: others come out when some clients are missing"
    mean = float(sure.mean())
    return f"{clusters} groups, " + ("clear" if mean >= CLEAR else "fairly clear" if mean >= FAIR else "hardly apart")


def sureness(condensed: Floats, labels: Labels, threshold: float) -> NDArray[np.float64]:
    """Of each client, 0 to 1: how much nearer its own group is than the next; 0 for all where there is one group.

    Of a client that is a group by itself: how much farther than the threshold the next group is.

    >>> sureness(np.array([1, 4, 4], np.float32), np.array([0, 0, 1]), 2.0).tolist()
    [0.75, 0.75, 0.5]
    """
    found = silhouettes(condensed, labels)
    sizes, means = cluster_means(square(fill_unknown(condensed)), labels)
    np.fill_diagonal(means, np.inf)
    for alone in np.flatnonzero(sizes == 1) if len(sizes) > 1 else ():
        found[labels == alone] = max(0.0, 1 - max(threshold, 0.0) / max(float(means[alone].min()), 1e-12))
    return found


def in_a_line(kind: str, labels: Labels, threshold: float) -> str:
    """How many groups of how many clients, and how large they are.

    >>> in_a_line("Grouping", np.array([0, 1, 0]), 0.25)
    'Grouping(2 groups of 3 clients: 2, 1; cut at 0.250)'
    """
    sizes = np.sort(np.bincount(labels))[::-1]
    shown = ", ".join(map(str, sizes[:MOST_SIZES])) + (", ..." if len(sizes) > MOST_SIZES else "")
    groups = "group" if len(sizes) == 1 else "groups"
    return f"{kind}({len(sizes)} {groups} of {len(labels)} clients: {shown}; cut at {threshold:.3f})"
