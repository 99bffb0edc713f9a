"""Models on test blocks: each (model, block) once, many small blocks in one call, and clients' counts put together.

A block holds test samples of one class under one shift. Its row is how many of them a model got right, of how many, at
what summed loss; a client's counts are the rows of its blocks, class by class.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddag.data.clients import ClientData
from feddag.engines.worker import Score
from feddag.weights import Ref

Ints = NDArray[np.int64]
Rows = NDArray[np.float64]
AT_ONCE = 10_000  # samples of several blocks that are scored by one call
SMALL_BLOCK = 64  # samples below which a call of its own costs more than the work


class Scorer:
    """Knows which client is tested on which blocks, and the scores of the models that were looked at last."""

    def __init__(
        self, data: ClientData, do: Callable[[Sequence[Score], Sequence[int]], Iterator[tuple[Score, Tensor]]]
    ) -> None:
        """`do` carries out scorings, given what each costs."""
        self._do, self._classes = do, int(data.num_classes)
        self._sizes = np.diff(data.block_offsets)
        self._labels = data.test_y[data.block_offsets[:-1]]
        lists: dict[tuple[int, ...], int] = {}  # most clients share theirs with many others
        clients = range(len(data.block_list_offsets) - 1)
        self._list_of = np.array([lists.setdefault(data.blocks(client), len(lists)) for client in clients], np.int64)
        self._lists = [np.array(blocks, np.int64) for blocks in lists]
        self._samples = np.array([self._sizes[blocks].sum() for blocks in self._lists], np.int64)
        self._known: dict[Ref, tuple[Ints, Rows]] = {}

    def samples(self, client: int) -> int:
        """How many test samples a client has."""
        return int(self._samples[self._list_of[client]])

    def counts(self, models: Sequence[Ref], which: Ints, clients: Ints) -> Tensor:
        """clients x classes x (correct, samples, loss); `which` of the distinct models is each client's."""
        pairs, place = np.unique(which * len(self._lists) + self._list_of[clients], return_inverse=True)
        model_of, list_of = pairs // len(self._lists), pairs % len(self._lists)
        firsts = np.searchsorted(model_of, np.arange(len(models) + 1))
        blocks = [self._lists[number] for number in list_of.tolist()]
        held = [np.concatenate(blocks[a:b] or [np.zeros(0, np.int64)]) for a, b in pairwise(firsts)]
        self._learn(models, [np.unique(own) for own in held])
        table = np.zeros((len(pairs), self._classes, 3))
        for number, own in enumerate(held):
            known, rows = self._known[models[number]]
            part = range(firsts[number], firsts[number + 1])
            at = np.repeat(np.array(part, np.int64), [len(blocks[pair]) for pair in part])
            np.add.at(table, (at, self._labels[own]), rows[np.searchsorted(known, own)])
        return torch.from_numpy(table)[torch.from_numpy(place)]

    def _learn(self, models: Sequence[Ref], wanted: Sequence[Ints]) -> None:
        """Score what is not known yet, and forget the models that are not asked for: most change in every round."""
        empty = np.zeros(0, np.int64), np.zeros((0, 3))
        before = {model: self._known.get(model, empty) for model in models}
        works = [
            Score(model, tuple(part.tolist()))
            for model, blocks in zip(models, wanted, strict=True)
            for part in self._parts(np.setdiff1d(blocks, before[model][0], assume_unique=True))
        ]
        found: dict[Ref, list[tuple[Ints, Rows]]] = {model: [known] for model, known in before.items()}
        costs = [int(self._sizes[list(work.blocks)].sum()) for work in works]
        for work, rows in self._do(works, costs):
            found[work.model].append((np.array(work.blocks, np.int64), rows.numpy()))
        self._known = {model: _sorted(parts) for model, parts in found.items()}

    def _parts(self, blocks: Ints) -> list[Ints]:
        """Small blocks in parts of about as many samples as are scored at once, each other one by itself."""
        small = self._sizes[blocks] < SMALL_BLOCK
        alone, together = blocks[~small], blocks[small]
        numbers = np.cumsum(self._sizes[together]) // AT_ONCE
        parts = np.split(together, np.flatnonzero(np.diff(numbers)) + 1) if len(together) else []
        return [*alone[:, None], *parts]


def _sorted(parts: Sequence[tuple[Ints, Rows]]) -> tuple[Ints, Rows]:
    blocks, rows = np.concatenate([blocks for blocks, _ in parts]), np.concatenate([rows for _, rows in parts])
    order = np.argsort(blocks)
    return blocks[order], rows[order]
