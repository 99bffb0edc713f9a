"""How much arithmetic training takes: the multiplications and additions of convolutions and dense layers.

A layer's forward pass takes two operations for every use of a weight, its gradient by weights as many, and its gradient
by inputs as many again. Each is counted where it is computed: nothing is, by inputs, before the first weight that is
trained. Other layers, the loss, the optimiser and what faster algorithms save are not counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import nn

from feddag.models import ModelSpec
from feddag.weights import part_of

HEAD = "head"


@dataclass(frozen=True)
class LayerCost:
    """One use of a layer: its part of the model, the FLOPs of one sample's forward pass, and whether it can learn."""

    part: str
    forward: int
    learns: bool


def layer_costs(model: nn.Module, use: Callable[[nn.Module], object]) -> tuple[LayerCost, ...]:
    """The layers of a model in the order in which `use` passes one sample through them.

    >>> layer_costs(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), lambda model: model(torch.zeros(1, 4)))
    (LayerCost(part='0', forward=24, learns=True), LayerCost(part='1', forward=0, learns=False))
    """
    found: list[LayerCost] = []

    def noting(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def note(layer: nn.Module, _: Any, output: Any) -> None:
            learns = any(parameter.requires_grad for parameter in layer.parameters())
            found.append(LayerCost(part_of(name), _forward(layer, output), learns))

        return note

    layers = [(name, layer) for name, layer in model.named_modules() if not any(layer.children())]
    hooks = [layer.register_forward_hook(noting(name)) for name, layer in layers]
    try:
        with torch.no_grad():
            use(model)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(found)


def _forward(layer: nn.Module, output: Any) -> int:
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return 2 * int(output.numel()) * layer.weight[0].numel()
    if isinstance(layer, nn.Linear):
        return 2 * int(output.numel()) * layer.in_features
    return 0


@cache
def costs_of(spec: ModelSpec) -> tuple[LayerCost, ...]:
    """The layers of a network, from one dry run."""
    return layer_costs(spec.build().eval(), lambda model: model(torch.zeros(1, *spec.shape)))


@lru_cache(10_000)
def flops_of(spec: ModelSpec, parts: tuple[str, ...], samples: int, frozen: int) -> int:
    """What `training_flops` says of a network; asked for every client, and many hold equally many samples."""
    return training_flops(costs_of(spec), parts, samples, frozen)


def forward_flops(spec: ModelSpec) -> int:
    """FLOPs of a sample's way through the network.

    >>> forward_flops(ModelSpec("mlp", (1, 8, 8), 10))  # 2 * (64 * 128 + 128 * 10)
    18944
    """
    return sum(layer.forward for layer in costs_of(spec))


def training_flops(layers: Sequence[LayerCost], parts: tuple[str, ...], samples: int, frozen: int) -> int:
    """FLOPs of training some parts (all, if none is named) on so many samples, epochs counted.

    `frozen` is how many samples pass an encoder that is not trained: as many, or fewer where a trainer remembers its
    features.

    >>> layers = [LayerCost("encoder", 10, True), LayerCost("head", 2, True)]
    >>> training_flops(layers, (), 1, 1), training_flops(layers, ("head",), 5, 1)
    (26, 30)
    """
    trained = [layer.learns and (not parts or layer.part in parts) for layer in layers]
    gradient = {HEAD: any(learns for learns, layer in zip(trained, layers, strict=True) if layer.part != HEAD)}
    total = 0
    for learns, layer in zip(trained, layers, strict=True):
        by_inputs = gradient.get(layer.part, False)
        still = parts and layer.part not in (*parts, HEAD)
        total += layer.forward * (frozen if still else samples * (1 + learns + by_inputs))
        gradient[layer.part] = by_inputs or learns
    return total
