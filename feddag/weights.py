"""Models as plain data: named tensors, references to them, and where a step takes its weights from."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ClientId = int
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Ref:
    """Weights handed over once with `Federation.put` and named by their content; valid until the round ends."""

    digest: str
    nbytes: int


@dataclass(frozen=True)
class Own:
    """Weights that the client keeps on its own side under this name (a personal model)."""

    name: str


HELD = Own("classes held")
"""Laid over a model, it answers only with classes that the client holds: which these are, only the client must know."""

Source = Ref | Own | None
ModelSource = Source | tuple[Source, ...]
"""Where a step takes its weights: sent by the server, the client's own, or (None) what the step before left.

Of several, each replaces what it holds of those before it; a model that the client does not keep yet replaces nothing.
"""


Layered = tuple[Weights | Own, ...]
"""Weights over one another: each replaces what it holds of those before, as far as the client keeps it."""


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several models: the client takes the one with the least loss on its own training samples."""

    models: tuple[Weights | Layered, ...]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Several models at once: the mean of their class probabilities, weighted by shares that sum to 1."""

    models: tuple[Weights | Layered, ...]
    shares: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Adapted:
    """A model that the client takes a few steps of gradient descent on its own training samples from, and then uses."""

    model: Weights
    lr: float
    steps: int


ADAPTED = "adapted"
"""Under this name a client keeps the model that it has adapted last."""

Served = Weights | Own | Choice | Mixture | Adapted | Layered
"""What a client uses: weights known to the server, its own, the best of several, several together, adapted, layers."""


def overlaid(layers: Iterable[Weights]) -> Weights:
    """Weights of which each replaces what it holds of those before.

    >>> overlaid([{"a": torch.zeros(1), "b": torch.zeros(1)}, {"b": torch.ones(1)}, {}])
    {'a': tensor([0.]), 'b': tensor([1.])}
    """
    merged: Weights = {}
    for layer in layers:
        merged = merged | layer
    return merged


def kept(state: Weights, name: str) -> Weights:
    """The weights that a client's memory (`name/parameter`) holds under a name; empty if none.

    >>> kept({"model/w": torch.zeros(1), "other/w": torch.ones(1)}, "model")
    {'w': tensor([0.])}
    """
    return {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}


def keeping(state: Weights, name: str, weights: Weights, smoothing: float = 0.0) -> Weights:
    """A client's memory with weights under a name; with smoothing, also their mean over rounds: what `used` names.

    >>> state = keeping({}, "model", {"w": torch.tensor([0.0])}, smoothing=0.5)
    >>> state = keeping(state, "model", {"w": torch.tensor([3.0])}, smoothing=0.5)
    >>> kept(state, "model"), kept(state, used("model", 0.5).name)
    ({'w': tensor([3.])}, {'w': tensor([2.])})
    """
    now = {name: weights}
    if smoothing:
        mean, rounds = used(name, smoothing).name, f"{name} rounds"
        done = kept(state, rounds).get("done", torch.zeros(1, dtype=torch.int64)) + 1
        now |= {mean: smoothed(kept(state, mean), weights, smoothing, int(done)), rounds: {"done": done}}
    others = {key: value for key, value in state.items() if not key.startswith(tuple(f"{name}/" for name in now))}
    return others | {f"{name}/{key}": value for name, table in now.items() for key, value in table.items()}


def used(name: str, smoothing: float) -> Own:
    """What a client uses of the weights that it keeps under a name: themselves, or their mean over rounds."""
    return Own(f"{name} used" if smoothing else name)


def mean_of(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """The weighted mean; integer entries (a counter of batches) are taken from the first.

    Sums run in float64 and in the given order, so they are the same wherever they run.

    >>> mean_of([{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}], [3, 1])
    {'w': tensor([1.])}
    """
    total = float(sum(shares))
    mean = {}
    for name, first in weights[0].items():
        if not first.is_floating_point():
            mean[name] = first.clone()
            continue
        entry = torch.zeros(first.shape, dtype=torch.float64)
        for item, share in zip(weights, shares, strict=True):
            entry.add_(item[name], alpha=share / total)
        mean[name] = entry.to(first.dtype)
    return mean


def smoothed(before: Weights, newest: Weights, smoothing: float, done: int) -> Weights:
    """The mean of the models after each of `done` rounds, each older one `smoothing` times the weight of the next.

    `before` is the same after the rounds before. What training started from is no round's result and does not count.

    >>> smoothed({"w": torch.tensor([0.0])}, {"w": torch.tensor([3.0])}, 0.5, done=2)
    {'w': tensor([2.])}
    """
    older = (smoothing - smoothing**done) / (1 - smoothing**done)
    return mean_of([before, newest], [older, 1 - older]) if older else newest


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to.

    >>> part_of("head.weight")
    'head'
    """
    return name.partition(".")[0]


def only(weights: Mapping[str, Tensor], parts: tuple[str, ...]) -> Weights:
    """The weights of some parts; of all, if none is named.

    >>> only({"encoder.w": torch.zeros(1), "head.w": torch.ones(1)}, ("head",))
    {'head.w': tensor([1.])}
    """
    return {name: value for name, value in weights.items() if not parts or part_of(name) in parts}


def renamed(weights: Mapping[str, Tensor], old: str, new: str) -> Weights:
    """The same weights as another part.

    >>> renamed({"encoder.w": torch.zeros(1)}, "encoder", "secondary")
    {'secondary.w': tensor([0.])}
    """
    return {new + name.removeprefix(old): value for name, value in weights.items()}


def flat(weights: Weights) -> Tensor:
    """All that is trained, as one vector; a counter of batches is no part of it.

    >>> flat({"w": torch.ones(1, 2), "batches": torch.tensor(7)})
    tensor([1., 1.])
    """
    return torch.cat([value.flatten() for value in weights.values() if value.is_floating_point()])


def digest(weights: Weights) -> str:
    """A fingerprint of the content: equal names, shapes and bytes give the same one.

    >>> digest({"w": torch.zeros(2)}) == digest({"w": torch.zeros(2)}) != digest({"w": torch.ones(2)})
    True
    """
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        hasher.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return hasher.hexdigest()


def nbytes(weights: Weights) -> int:
    """Bytes these weights take on the wire."""
    return sum(tensor.nbytes for tensor in weights.values())
