"""Models on test blocks: each (model, block) once, many small blocks in one call, and clients' counts put together.

A block holds test samples of one class under one shift. Its row is how many of them a model got right, of how many, at
what summed loss; a client's counts are the rows of its blocks, class by class. Where several heads are used over one
model, each block passes through its encoder once for all of them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddag.data.clients import ClientData, ranges
from feddag.engines.worker import Score
from feddag.federation import Ints
from feddag.weights import Ref

Rows = NDArray[np.float64]
AT_ONCE = 10_000  # samples of several blocks that are scored by one call
SMALL_BLOCK = 64  # samples below which a call of its own costs more than the work
Headed = tuple[Ref, Ref]
"""A model, and weights whose head takes the place of its own: the model itself where it is used as it is."""


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
        self._lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        self._firsts = np.cumsum(self._lengths) - self._lengths
        self._blocks = np.fromiter(chain.from_iterable(lists), np.int64)  # of one list after the other
        before = np.concatenate([[0], np.cumsum(self._sizes[self._blocks])])
        self._samples = before[self._firsts + self._lengths] - before[self._firsts]
        self._known: dict[Headed, tuple[Ints, Rows]] = {}

    def samples(self, client: int) -> int:
        """How many test samples a client has."""
        return int(self._samples[self._list_of[client]])

    def counts(self, models: Sequence[Headed], which: Ints, clients: Ints) -> tuple[Tensor, Ints]:
        """Tables of classes x (correct, samples, loss), and which is each client's: see `Engine.counts`."""
        pairs, place = np.unique(which * len(self._lengths) + self._list_of[clients], return_inverse=True)
        model_of, list_of = pairs // len(self._lengths), pairs % len(self._lengths)
        lengths = self._lengths[list_of]
        at, blocks = np.repeat(np.arange(len(pairs)), lengths), self._blocks[ranges(self._firsts[list_of], lengths)]
        ends = np.searchsorted(model_of[at], np.arange(len(models) + 1)).tolist()
        parts = [slice(*pair) for pair in pairwise(ends)]
        self._learn(models, [_distinct(blocks[part]) for part in parts])
        found = np.empty((len(blocks), 3))
        for model, part in zip(models, parts, strict=True):
            known, rows = self._known[model]
            found[part] = rows[np.searchsorted(known, blocks[part])]
        into, size = at * self._classes + self._labels[blocks], len(pairs) * self._classes
        table = np.stack([np.bincount(into, column, size) for column in found.T], axis=1)
        return torch.from_numpy(table.reshape(len(pairs), self._classes, 3)), place

    def _learn(self, models: Sequence[Headed], wanted: Sequence[Ints]) -> None:
        """Score what is not known yet, and forget the models that are not asked for: most change in every round."""
        empty = np.zeros(0, np.int64), np.zeros((0, 3))
        before = {model: self._known.get(model, empty) for model in models}
        new: defaultdict[Ref, dict[Ref, Ints]] = defaultdict(dict)
        for (model, head), blocks in zip(models, wanted, strict=True):
            new[model][head] = np.setdiff1d(blocks, before[model, head][0], assume_unique=True)
        works = [
            Score(model, heads, tuple(part.tolist()))
            for model, by_head in new.items()
            for heads, blocks in _with_heads(by_head)
            for part in self._parts(blocks)
        ]
        found: dict[Headed, list[tuple[Ints, Rows]]] = {model: [known] for model, known in before.items()}
        costs = [int(self._sizes[list(work.blocks)].sum()) for work in works]
        for work, scored in self._do(works, costs):
            for head, rows in zip(work.heads, scored.numpy(), strict=True):
                found[work.model, head].append((np.array(work.blocks, np.int64), rows))
        self._known = {model: _sorted(parts) for model, parts in found.items()}

    def _parts(self, blocks: Ints) -> list[Ints]:
        """Small blocks in parts of about as many samples as are scored at once, each other one by itself."""
        small = self._sizes[blocks] < SMALL_BLOCK
        alone, together = blocks[~small], blocks[small]
        numbers = np.cumsum(self._sizes[together]) // AT_ONCE
        parts = np.split(together, np.flatnonzero(np.diff(numbers)) + 1) if len(together) else []
        return [*alone[:, None], *parts]


def _with_heads(wanted: Mapping[Ref, Ints]) -> Iterator[tuple[tuple[Ref, ...], Ints]]:
    """Blocks by the heads they are wanted with: no block comes twice.

    >>> one, two = Ref("one", 1), Ref("two", 1)
    >>> [(len(heads), blocks.tolist()) for heads, blocks in _with_heads({one: np.array([3, 5]), two: np.array([3])})]
    [(2, [3]), (1, [5])]
    """
    if len(wanted) == 1:  # most models, perhaps with very many blocks
        yield from (((head,), blocks) for head, blocks in wanted.items())
        return
    heads_of: defaultdict[int, list[Ref]] = defaultdict(list)
    for head, blocks in wanted.items():
        for block in blocks.tolist():
            heads_of[block].append(head)
    together: defaultdict[tuple[Ref, ...], list[int]] = defaultdict(list)
    for block, heads in heads_of.items():
        together[tuple(heads)].append(block)
    yield from ((heads, np.array(blocks, np.int64)) for heads, blocks in together.items())


def _distinct(blocks: Ints) -> Ints:
    """Each number once, in order; `np.unique` takes ten times as long for many.

    >>> _distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    ordered = np.sort(blocks)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def _sorted(parts: Sequence[tuple[Ints, Rows]]) -> tuple[Ints, Rows]:
    blocks, rows = np.concatenate([blocks for blocks, _ in parts]), np.concatenate([rows for _, rows in parts])
    order = np.argsort(blocks)
    return blocks[order], rows[order]
