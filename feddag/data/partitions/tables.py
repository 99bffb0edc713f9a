"""Tables of sample counts, clients x classes, filled in different ways."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feddag.data.partitions.samples import Draw, Ints, SampleInfo
from feddag.errors import FeddagError

LDA_DRAWS = 500


def apportion(weights: NDArray[np.floating], total: int) -> Ints:
    """Whole numbers in proportion to the weights that add up to the total.

    >>> apportion(np.array([1.0, 1.0, 2.0]), 9).tolist()
    [2, 2, 5]
    """
    cuts = np.cumsum(weights)
    parts: Ints = np.diff(np.rint(cuts / cuts[-1] * total).astype(np.int64), prepend=0)
    return parts


def balanced_kinds(kinds: int, clients: int, generator: np.random.Generator) -> Ints:
    """A kind for every client at random, all kinds equally often."""
    return generator.permutation(np.arange(clients) % kinds)


def random_groups(groups: int, clients: int, generator: np.random.Generator) -> Ints:
    """A group for every client at random, with at least one client in each group."""
    rest = generator.integers(0, groups, clients - groups)
    return generator.permutation(np.concatenate([np.arange(groups), rest]))


def even_table(info: SampleInfo, clients: int, draw: Draw) -> Ints:
    """Sizes that differ by one at most and class counts that differ by two at most.

    Samples, sorted by class, go to the clients one by one; each pass takes the clients in a new order, so that where a
    class has fewer samples than there are clients, no two clients get the same classes by design.
    """
    passes = -(-len(info.y) // clients)
    client_of = draw("seats").permuted(np.tile(np.arange(clients), (passes, 1)), axis=1).ravel()[: len(info.y)]
    counts = np.bincount(client_of * info.num_classes + np.sort(info.y), minlength=clients * info.num_classes)
    return counts.reshape(clients, info.num_classes).astype(np.int64)


def holders_table(info: SampleInfo, holds: NDArray[np.bool_], draw: Draw, concentration: float | None = None) -> Ints:
    """All samples of each held class split among its holders, by Dirichlet or (None) evenly, at least one each."""
    holders = holds.sum(axis=0)
    if (holders > info.sizes).any():
        scarce = int(np.argmax(holders - info.sizes))
        raise FeddagError(
            f"clients = {len(holds)}: class {scarce} of '{info.dataset}' has {info.sizes[scarce]} training samples and"
            f" {holders[scarce]} clients would hold it, but each needs at least one, so fewer clients are allowed"
        )
    table = np.zeros(holds.shape, np.int64)
    for label in np.flatnonzero(holders):
        count = int(holders[label])
        weights = (
            np.ones(count) if concentration is None else _dirichlet(count, concentration, draw("quantity", int(label)))
        )
        table[holds[:, label], label] = 1 + apportion(weights, int(info.sizes[label]) - count)
    return table


def _dirichlet(count: int, factor: float, generator: np.random.Generator) -> NDArray[np.float64]:
    # Small factors underflow to all zeros in rare draws; the floor keeps every part possible.
    return generator.dirichlet(np.full(count, factor)) + 1e-12


def lda_table(info: SampleInfo, clients: int, concentration: float, generator: np.random.Generator) -> Ints:
    """Every class split by its own Dirichlet draw over all clients; a client that has its fair share gets no more.

    Drawn again until every client has 10 samples, or a fifth of the fair share where samples are scarce.
    """
    fair = len(info.y) / clients
    least = min(10, max(1, int(fair / 5)))
    for _ in range(LDA_DRAWS):
        table = np.zeros((clients, info.num_classes), np.int64)
        held = np.zeros(clients, np.int64)
        for label in info.classes:
            weights = _dirichlet(clients, concentration, generator) * (held < fair)
            table[:, label] = apportion(weights, int(info.sizes[label]))
            held += table[:, label]
        if held.min() >= least:
            return table
    raise FeddagError(
        f"concentration = {concentration:g}: {LDA_DRAWS} draws over {clients} clients of '{info.dataset}' all left"
        f" a client with fewer than {least} samples; use a larger concentration, fewer clients or partition = 'sized'"
    )


def class_mask(label_sets: Ints, num_classes: int) -> NDArray[np.bool_]:
    """Which client (row) holds which class, from one row of class numbers per client."""
    holds = np.zeros((len(label_sets), num_classes), np.bool_)
    np.put_along_axis(holds, label_sets, True, axis=1)
    return holds


def least_used_classes(info: SampleInfo, clients: int, count: int, generator: np.random.Generator) -> Ints:
    """`count` different classes for each client in turn: those least used so far, at random among equals."""
    used = np.zeros(len(info.classes))
    chosen = np.empty((clients, count), np.int64)
    for client, chance in enumerate(generator.random((clients, len(used)))):
        chosen[client] = np.argsort(used + chance)[:count]
        used[chosen[client]] += 1
    return info.classes[chosen]


def mixture_table(available: Ints, sizes: Sequence[int], factor: float, generator: np.random.Generator) -> Ints:
    """Counts for clients of these sizes, each by its own Dirichlet mixture of the classes that have samples left."""
    table = np.zeros((len(sizes), len(available)), np.int64)
    left = available.copy()
    for row, size in zip(table, sizes, strict=True):
        row[:] = _own_mixture(left, size, factor, generator)
        left -= row
    return table


def _own_mixture(left: Ints, size: int, factor: float, generator: np.random.Generator) -> Ints:
    """One client's count per class by its own Dirichlet mixture; what a class lacks is taken from the others."""
    mixture = _dirichlet(len(left), factor, generator)
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        weights = mixture * (left > counts)
        counts += np.minimum(generator.multinomial(missing, weights / weights.sum()), left - counts)
    return counts
