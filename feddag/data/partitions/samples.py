"""What a partition knows of the training samples, and what it decides: which client gets which sample."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from feddag.data.datasets import Dataset
from feddag.data.shifts import Shift

Ints = NDArray[np.int64]
Draw = Callable[..., np.random.Generator]  # the random generator of a name; names decide the result, so they stay


@dataclass(frozen=True, eq=False)
class SampleInfo:
    """What a partition may know of the training samples: everything but their contents."""

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
    def of(cls, dataset: Dataset, kept: Ints) -> "SampleInfo":
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
class Assignment:
    """Which client gets which sample, and what else a partition knows of its clients."""

    client_of: Ints
    """The client of each sample, -1 where no client gets it."""
    truth: Sequence[Hashable] | None = None
    shifts: Sequence[Shift] | None = None
    domains: Ints | None = None
    """The domain of each client, where a client has just one: it is then tested inside it."""
    owners: Ints | None = None
    """The natural owner of each client."""
    names: Sequence[str] | None = None


def assign_samples(info: SampleInfo, table: Ints, draw: Draw) -> Ints:
    """The client of each sample when client i gets table[i, c] samples of class c at random."""
    client_of = np.full(len(info.y), -1)
    by_class = np.split(np.argsort(info.y, kind="stable"), np.cumsum(info.sizes)[:-1])
    for label in np.flatnonzero(table.sum(axis=0)):
        samples = draw("samples", int(label)).permutation(by_class[label])
        clients = np.repeat(np.arange(len(table)), table[:, label])
        client_of[samples[: len(clients)]] = clients
    return client_of
