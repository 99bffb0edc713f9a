"""What partitions are made of: a table of sample counts, clients x classes, filled in one way or another and dealt."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.datasets import Dataset
from feddag.data.shifts import CORRUPTIONS, Shift, check_corruption
from feddag.errors import FeddagError, nearest

Ints = NDArray[np.int64]
Draw = Callable[..., np.random.Generator]
LDA_DRAWS = 500


@dataclass(frozen=True, eq=False)
class Pool:
    """What a partition may know of the training samples it deals out: everything but their contents."""

    dataset: str
    num_classes: int
    channels: int | None
    """Of images; None where the samples are something else."""
    y: Ints
    owner: Ints | None
    owners: tuple[str, ...]
    domain: Ints | None
    domains: tuple[str, ...]

    @classmethod
    def of(cls, dataset: Dataset, kept: Ints) -> "Pool":
        """The samples of the dataset with these indices."""
        owner, domain, x = dataset.owner_train, dataset.domain_train, dataset.x_train
        return cls(
            dataset=dataset.name,
            num_classes=dataset.num_classes,
            channels=x.shape[3] if x.dtype == np.uint8 and x.ndim == 4 else None,
            y=dataset.y_train[kept],
            owner=None if owner is None else owner[kept],
            owners=dataset.owners,
            domain=None if domain is None else domain[kept],
            domains=dataset.domains,
        )

    @cached_property
    def sizes(self) -> Ints:
        """How many samples each class has."""
        return np.bincount(self.y, minlength=self.num_classes).astype(np.int64)

    @cached_property
    def classes(self) -> Ints:
        """The classes that have samples at all."""
        return np.flatnonzero(self.sizes)


@dataclass(frozen=True, eq=False)
class Deal:
    """Who gets which sample, and what else a partition knows of its clients."""

    client_of: Ints
    """The client of each sample of the pool, -1 where nobody gets it."""
    truth: Sequence[Hashable] | None = None
    shifts: Sequence[Shift] | None = None
    domains: Ints | None = None
    """The domain of each client, where a client has just one: it is then tested inside it."""
    owners: Ints | None = None
    """The natural owner of each client."""
    names: Sequence[str] | None = None


# What a setting may be -----------------------------------------------------------------------------------------------


def whole(key: str, value: Any, low: int, high: int | None = None, limit: str = "") -> int:
    """The value if it is a whole number in these bounds; `limit` says what the upper one is."""
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if is_whole and low <= value and (high is None or value <= high):
        return int(value)
    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise FeddagError(f"{key} = {value!r}: it must be a whole number {bounds}" + (f" ({limit})" if limit else ""))


def number(key: str, value: Any, low: float, high: float) -> float:
    """The value if it is a number in these bounds."""
    if isinstance(value, int | float | np.number) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    raise FeddagError(f"{key} = {value!r}: it must be a number from {low:g} to {high:g}")


def one_of(key: str, value: Any, allowed: Sequence[str]) -> str:
    """The value if it is one of these words."""
    if isinstance(value, str) and value in allowed:
        return value
    raise FeddagError(f"{key} = {value!r}: allowed are {', '.join(allowed)}{nearest(str(value), allowed)}")


def dirichlet_factor(quantity: Any) -> float:
    """The Dirichlet factor if it is one that can be drawn with."""
    return number("quantity", quantity, 0.001, 1e6)


def labels_per_set(pool: Pool, labels: Any) -> int:
    """How many classes this share of all classes is."""
    count = round(number("labels", labels, 0, 1) * pool.num_classes)
    if not 1 <= count <= len(pool.classes):
        raise FeddagError(
            f"labels = {labels!r}: this share of the {pool.num_classes} classes is {count} of them,"
            f" and it must be 1 to {len(pool.classes)}"
        )
    return count


def corruption_names(pool: Pool, partition: str, corruptions: Any) -> list[str]:
    """The first so many corruptions, or those that a comma-separated list names."""
    if pool.channels is None:
        raise FeddagError(f"partition = '{partition}': it corrupts images, and dataset '{pool.dataset}' has none")
    fitting = [name for name in CORRUPTIONS if name != "saturate" or pool.channels == 3]  # grey has no colour
    if not isinstance(corruptions, str) or corruptions.strip().isdecimal():
        count = int(corruptions) if isinstance(corruptions, str) else corruptions
        return fitting[: whole("corruptions", count, 1, len(fitting), "or a comma-separated list of names")]
    names = [name.strip() for name in corruptions.split(",")]
    for name in names:
        check_corruption(name)
        if name not in fitting:
            raise FeddagError(f"corruptions = '{corruptions}': '{name}' needs colour, and '{pool.dataset}' is grey")
    if len(set(names)) < len(names):
        raise FeddagError(f"corruptions = '{corruptions}': each name is allowed once")
    return names


# Cards and seats -----------------------------------------------------------------------------------------------------


def hand_out(pool: Pool, table: Ints, draw: Draw) -> Ints:
    """The client of each sample when client i gets table[i, c] samples of class c at random."""
    client_of = np.full(len(pool.y), -1)
    by_class = np.split(np.argsort(pool.y, kind="stable"), np.cumsum(pool.sizes)[:-1])
    for label in np.flatnonzero(table.sum(axis=0)):
        samples = draw("samples", int(label)).permutation(by_class[label])
        takers = np.repeat(np.arange(len(table)), table[:, label])
        client_of[samples[: len(takers)]] = takers
    return client_of


def apportion(weights: NDArray[np.floating], total: int) -> Ints:
    """Whole numbers in proportion to the weights that add up to the total.

    >>> apportion(np.array([1.0, 1.0, 2.0]), 9).tolist()
    [2, 2, 5]
    """
    cuts = np.cumsum(weights)
    parts: Ints = np.diff(np.rint(cuts / cuts[-1] * total).astype(np.int64), prepend=0)
    return parts


def evenly(kinds: int, clients: int, generator: np.random.Generator) -> Ints:
    """A kind for every client, each kind as often as any other."""
    return generator.permutation(np.arange(clients) % kinds)


def every_group_served(groups: int, clients: int, generator: np.random.Generator) -> Ints:
    """A group for every client at random, once each group has got one client."""
    rest = generator.integers(0, groups, clients - groups)
    return generator.permutation(np.concatenate([np.arange(groups), rest]))


def even_table(pool: Pool, clients: int, draw: Draw) -> Ints:
    """Sizes that differ by one at most and class counts that differ by two at most.

    Samples, sorted by class, are dealt around the table; each time around, clients sit in a new order, so that where
    a class has fewer samples than there are clients, no two clients get the same classes by design.
    """
    laps = -(-len(pool.y) // clients)
    seats = draw("seats").permuted(np.tile(np.arange(clients), (laps, 1)), axis=1).ravel()[: len(pool.y)]
    counts = np.bincount(seats * pool.num_classes + np.sort(pool.y), minlength=clients * pool.num_classes)
    return counts.reshape(clients, pool.num_classes).astype(np.int64)


def holders_table(pool: Pool, holds: NDArray[np.bool_], draw: Draw, quantity: float | None = None) -> Ints:
    """All samples of each held class split among its holders, by Dirichlet or (None) evenly, at least one each."""
    holders = holds.sum(axis=0)
    if (holders > pool.sizes).any():
        scarce = int(np.argmax(holders - pool.sizes))
        raise FeddagError(
            f"clients = {len(holds)}: class {scarce} of '{pool.dataset}' has {pool.sizes[scarce]} training samples and"
            f" {holders[scarce]} clients would hold it, but each needs at least one, so fewer clients are allowed"
        )
    table = np.zeros(holds.shape, np.int64)
    for label in np.flatnonzero(holders):
        count = int(holders[label])
        weights = np.ones(count) if quantity is None else _dirichlet(count, quantity, draw("quantity", int(label)))
        table[holds[:, label], label] = 1 + apportion(weights, int(pool.sizes[label]) - count)
    return table


def _dirichlet(count: int, factor: float, generator: np.random.Generator) -> NDArray[np.float64]:
    # Small factors underflow to all zeros in rare draws; the floor keeps every part possible.
    return generator.dirichlet(np.full(count, factor)) + 1e-12


def lda_table(pool: Pool, clients: int, quantity: float, generator: np.random.Generator) -> Ints:
    """Every class split by its own Dirichlet draw over all clients; who already has a fair share gets no more.

    Redrawn until everyone has 10 samples, or where samples are scarce a fifth of the fair share.
    """
    fair = len(pool.y) / clients
    least = min(10, max(1, int(fair / 5)))
    for _ in range(LDA_DRAWS):
        table = np.zeros((clients, pool.num_classes), np.int64)
        held = np.zeros(clients, np.int64)
        for label in pool.classes:
            weights = _dirichlet(clients, quantity, generator) * (held < fair)
            table[:, label] = apportion(weights, int(pool.sizes[label]))
            held += table[:, label]
        if held.min() >= least:
            return table
    raise FeddagError(
        f"quantity = {quantity:g}: {LDA_DRAWS} draws over {clients} clients of '{pool.dataset}' all left one with"
        f" fewer than {least} samples; needed is a larger quantity, fewer clients or partition = 'sized'"
    )


def holding(label_sets: Ints, num_classes: int) -> NDArray[np.bool_]:
    """Which client (row) holds which class, from one row of class numbers per client."""
    holds = np.zeros((len(label_sets), num_classes), np.bool_)
    np.put_along_axis(holds, label_sets, True, axis=1)
    return holds


def least_used_classes(pool: Pool, clients: int, count: int, generator: np.random.Generator) -> Ints:
    """So many different classes for each client in turn: those least used so far, at random among equals."""
    used = np.zeros(len(pool.classes))
    chosen = np.empty((clients, count), np.int64)
    for client, chance in enumerate(generator.random((clients, len(used)))):
        chosen[client] = np.argsort(used + chance)[:count]
        used[chosen[client]] += 1
    return pool.classes[chosen]


def own_mixture(left: Ints, size: int, factor: float, generator: np.random.Generator) -> Ints:
    """One client's count per class by its own Dirichlet mixture; a class that runs out passes its part on."""
    mixture = _dirichlet(len(left), factor, generator)
    counts = np.zeros_like(left)
    while missing := size - int(counts.sum()):
        weights = mixture * (left > counts)
        counts += np.minimum(generator.multinomial(missing, weights / weights.sum()), left - counts)
    return counts
