"""Every client's samples, shifted as the partition says and stored so that each client's samples are one slice."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddag.data.datasets import Dataset
from feddag.data.large import like, taken
from feddag.data.partitions import Partition
from feddag.data.shifts import Shift
from feddag.errors import FeddagError
from feddag.rng import rng

Array = NDArray[Any]
ASIDE = 0.2  # share of a client's samples that are set aside
FEWEST_ASIDE = 10  # fewer say nothing about a model
MOST_OF_A_CLASS = 3  # one part in so many of a class is set aside at most


@dataclass(frozen=True, eq=False)
class ClientData:
    """Training samples by client and test samples in blocks, as flat arrays that processes can map from files.

    A block holds test samples of one class under one shift. Clients with the same class and shift share it, so a model
    is scored on it once for all of them.
    """

    x: Array
    y: Array
    offsets: Array
    """Client i holds samples offsets[i] .. offsets[i + 1]."""
    test_x: Array
    test_y: Array
    block_offsets: Array
    block_list: Array
    block_list_offsets: Array
    mean: Array
    std: Array
    num_classes: Array
    aside: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """How many of each client's samples, the last ones, it does not train on (`set_aside`); empty where it is none."""

    def samples(self, client: int) -> tuple[Array, Array]:
        """The training samples and labels of one client."""
        part = slice(self.offsets[client], self._end(client))
        return self.x[part], self.y[part]

    def samples_aside(self, client: int) -> tuple[Array, Array]:
        """What one client has set aside."""
        part = slice(self._end(client), self.offsets[client + 1])
        return self.x[part], self.y[part]

    def _end(self, client: int) -> int:
        return int(self.offsets[client + 1]) - (int(self.aside[client]) if len(self.aside) else 0)

    def blocks(self, client: int) -> tuple[int, ...]:
        """The test blocks of one client."""
        start, stop = self.block_list_offsets[client : client + 2]
        return tuple(self.block_list[start:stop].tolist())

    def block(self, number: int) -> tuple[Array, Array]:
        """The samples and labels of one test block."""
        part = slice(self.block_offsets[number], self.block_offsets[number + 1])
        return self.test_x[part], self.test_y[part]

    def in_blocks(self, blocks: Sequence[int]) -> tuple[Array, Array, list[int]]:
        """The samples and labels of some test blocks, one after the other, and how many each block holds."""
        numbers = np.array(blocks, np.int64)
        firsts = self.block_offsets[numbers]
        sizes = self.block_offsets[numbers + 1] - firsts
        rows = ranges(firsts, sizes)
        return self.test_x[rows], self.test_y[rows], sizes.tolist()

    def size(self, client: int) -> int:
        """How many samples the client trains on."""
        return self._end(client) - int(self.offsets[client])

    def block_size(self, number: int) -> int:
        """How many samples the block holds."""
        return int(self.block_offsets[number + 1] - self.block_offsets[number])

    def write(self, folder: Path) -> None:
        """Put every array into a file of its own, for `map_from`."""
        for item in fields(self):
            np.save(folder / f"{item.name}.npy", getattr(self, item.name))

    @classmethod
    def map_from(cls, folder: Path) -> "ClientData":
        """The arrays of `write`, mapped and shared between processes, not copied."""
        return cls(**{item.name: np.load(folder / f"{item.name}.npy", mmap_mode="r") for item in fields(cls)})


def ranges(firsts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Runs of numbers, one after the other.

    >>> ranges(np.array([7, 2]), np.array([3, 2]))
    array([7, 8, 9, 2, 3])
    """
    ends = np.cumsum(sizes)
    return np.repeat(firsts - ends + sizes, sizes) + np.arange(ends[-1] if len(ends) else 0)


def lay_out(
    dataset: Dataset, partition: Partition, seed: int, evaluate: Literal["test", "validation"] = "test"
) -> ClientData:
    """Give every client its samples, with its shift applied to training and test samples alike."""
    x, y, offsets = _training_samples(dataset, partition, seed)
    tested = partition.validation if evaluate == "validation" else partition.test
    if not any(map(len, tested)):
        raise FeddagError(f"evaluate = '{evaluate}': no client has any sample to be scored on")
    from_train = evaluate == "validation" or partition.test_from == "train"
    source = (dataset.x_train, dataset.y_train) if from_train else (dataset.x_test, dataset.y_test)
    blocks, block_lists = _test_blocks(source[1], tested, partition.shifts)
    block_offsets = _offsets([len(chosen) for chosen, _ in blocks])
    test_x, test_y = like(source[0], block_offsets[-1]), np.empty(block_offsets[-1], np.int64)
    for number, (chosen, shift) in enumerate(blocks):
        part = slice(*block_offsets[number : number + 2])
        test_x[part] = shift.images(source[0][chosen], rng(seed, "shift test", number))
        test_y[part] = shift.labels(source[1][chosen], dataset.num_classes)
    return ClientData(
        x=x,
        y=y,
        offsets=offsets,
        test_x=test_x,
        test_y=test_y,
        block_offsets=block_offsets,
        block_list=np.array([number for blocks in block_lists for number in blocks], np.int64),
        block_list_offsets=_offsets([len(blocks) for blocks in block_lists]),
        mean=np.asarray(dataset.mean, np.float32),
        std=np.asarray(dataset.std, np.float32),
        num_classes=np.asarray(dataset.num_classes),
    )


def _training_samples(dataset: Dataset, partition: Partition, seed: int) -> tuple[Array, Array, Array]:
    """The samples and labels of all clients, one client after the other, and where each client's begin."""
    x = taken(dataset.x_train, np.concatenate(partition.train))
    y = dataset.y_train[np.concatenate(partition.train)]
    offsets = _offsets([len(indices) for indices in partition.train])
    for client, shift in enumerate(partition.shifts):
        part = slice(offsets[client], offsets[client + 1])
        y[part] = shift.labels(y[part], dataset.num_classes)
        if shift.corruption is not None:
            x[part] = shift.images(x[part], rng(seed, "shift", client))
    return x, y, offsets


def _test_blocks(
    y: Array, tested: Sequence[Array], shifts: Sequence[Shift]
) -> tuple[list[tuple[Array, Shift]], list[list[int]]]:
    """The samples of each test block and their shift, and the blocks of each client."""
    numbers: dict[tuple[object, ...], int] = {}
    blocks: list[tuple[Array, Shift]] = []
    block_lists: list[list[int]] = []
    split: dict[int, list[tuple[int, Array, bytes]]] = {}  # many clients share one index array: split it once
    for indices, shift in zip(tested, shifts, strict=True):
        if id(indices) not in split:
            by_class = [(int(label), indices[y[indices] == label]) for label in np.unique(y[indices])]
            split[id(indices)] = [(label, part, hashlib.sha256(part.tobytes()).digest()) for label, part in by_class]
        block_lists.append([])
        for label, chosen, fingerprint in split[id(indices)]:
            key = (shift, label, fingerprint)
            if key not in numbers:
                numbers[key] = len(numbers)
                blocks.append((chosen, shift))
            block_lists[-1].append(numbers[key])
    return blocks, block_lists


def of_one_client(
    client: int,
    samples: tuple[Array, Array],
    labels: tuple[Array, Array],
    mean: Sequence[float],
    std: Sequence[float],
    num_classes: int,
) -> ClientData:
    """One client's training and test samples, laid out as `lay_out` does: all other clients hold nothing."""
    (x, test_x), (y, test_y) = samples, labels
    by_class = np.argsort(test_y, kind="stable")
    sizes = np.bincount(test_y, minlength=num_classes)
    blocks = np.flatnonzero(sizes)
    others = [0] * client  # the clients before this one
    return ClientData(
        x=x,
        y=y,
        offsets=_offsets([*others, len(y)]),
        test_x=test_x[by_class],
        test_y=test_y[by_class],
        block_offsets=_offsets([int(size) for size in sizes[blocks]]),
        block_list=np.arange(len(blocks)),
        block_list_offsets=_offsets([*others, len(blocks)]),
        mean=np.asarray(mean, np.float32),
        std=np.asarray(std, np.float32),
        num_classes=np.asarray(num_classes),
    )


def set_aside(data: ClientData, seed: int) -> ClientData:
    """The same samples, some of which clients do not train on: by these each chooses the model it will use.

    They are set aside before the first round: a model that has been trained on a sample looks better on it than it is.
    """
    order, aside = [], []
    for client, (start, stop) in enumerate(zip(data.offsets[:-1], data.offsets[1:], strict=True)):
        chosen = _aside(data.y[start:stop], rng(seed, "set aside", client))
        order.append(start + np.concatenate([np.setdiff1d(np.arange(stop - start), chosen), chosen]))
        aside.append(len(chosen))
    rows = np.concatenate(order)
    return replace(data, x=taken(data.x, rows), y=data.y[rows], aside=np.array(aside, np.int64))


def _aside(y: Array, draw: np.random.Generator) -> NDArray[np.int64]:
    """Which samples of a client are set aside: a fifth and at least ten, as much of each class as can be.

    No class gives more than a third of its samples. Where that leaves fewer than ten, none are set aside.

    >>> chosen = _aside(np.repeat([0, 1, 2], [60, 30, 2]), np.random.default_rng(0))
    >>> np.bincount(np.repeat([0, 1, 2], [60, 30, 2])[chosen]).tolist()
    [12, 6]
    >>> len(_aside(np.zeros(29, int), np.random.default_rng(0)))
    0
    """
    place = np.full(len(y), np.inf)
    for label in np.unique(y):
        held = draw.permutation(np.flatnonzero(y == label))
        given = held[: len(held) // MOST_OF_A_CLASS]
        place[given] = np.arange(len(given)) / len(held)  # the first of every class before the second of any
    possible = np.argsort(place, kind="stable")[: int(np.isfinite(place).sum())]
    wanted = max(FEWEST_ASIDE, round(ASIDE * len(y)))
    return np.sort(possible[:wanted]) if len(possible) >= FEWEST_ASIDE else possible[:0]


def count_classes(dataset: Dataset, partition: Partition) -> NDArray[np.int64]:
    """How many training samples of each class (as the client labels them) each client holds: clients x classes."""
    table = np.zeros((len(partition.train), dataset.num_classes), np.int64)
    for client, (indices, shift) in enumerate(zip(partition.train, partition.shifts, strict=True)):
        labels = shift.labels(dataset.y_train[indices], dataset.num_classes)
        table[client] = np.bincount(labels, minlength=dataset.num_classes)
    return table


def _offsets(sizes: list[int]) -> Array:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
