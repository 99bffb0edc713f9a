"""Models as plain data: named tensors, references to them, and where a step takes its weights from."""

import hashlib
from collections.abc import Iterable, Mapping
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


Source = Ref | Own | None
ModelSource = Source | tuple[Source, ...]
"""Where a step takes its weights: sent by the server, the client's own, or (None) what the step before left.

Of several, each replaces what it holds of those before it; a model that the client does not keep yet replaces nothing.
"""


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several models: the client takes the one with the least loss on its own training samples."""

    models: tuple[Weights, ...]


@dataclass(frozen=True, eq=False)
class Mixture:
    """Several models at once: the mean of their class probabilities, weighted by shares that sum to 1."""

    models: tuple[Weights, ...]
    shares: tuple[float, ...]


Layered = tuple[Weights | Own, ...]
"""Weights over one another: each replaces what it holds of those before, as far as the client keeps it."""
Served = Weights | Own | Choice | Mixture | Layered
"""What a client uses: weights known to the server, its own, the best of several, several together, or layers."""


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
