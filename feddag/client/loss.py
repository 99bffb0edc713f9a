"""What is added to the loss of local training, or takes its place."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddag.client.flops import LayerCost
from feddag.weights import Weights, part_of

Batches = list[NDArray[np.int64]]
Penalty = Callable[[nn.Module, Tensor], Tensor]
"""From the network and a batch of samples to what a method adds to the loss; PyTorch differentiates it."""


class Objective(Protocol):
    """What a method minimises in place of the mean cross-entropy of a batch; PyTorch differentiates it."""

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor, step: int) -> Tensor:
        """The loss of a batch, the one of this number."""

    def flops(self, layers: Sequence[LayerCost], batches: Batches) -> int:
        """What training with it on these batches takes, where these are the network's layers."""


class Pull(NamedTuple):
    """strength / 2 * ||w - centre||^2 over some parts (all, if none is named), added to the loss."""

    centre: Weights
    strength: float
    parts: tuple[str, ...] = ()


def merged_pulls(pulls: Sequence[Pull], parts: Sequence[str]) -> tuple[dict[str, float], Weights]:
    """Several pulls as one: a strength for each part, and the centre, which is the mean weighted by strength.

    The sum of s_i / 2 * ||w - a_i||^2 has the gradient S * (w - sum s_i a_i / S), where S is the sum of the s_i.

    >>> one, two = {"head.w": torch.zeros(1)}, {"head.w": torch.ones(1)}
    >>> merged_pulls([Pull(one, 1.0), Pull(two, 3.0, ("head",))], ["encoder", "head"])
    ({'encoder': 1.0, 'head': 4.0}, {'head.w': tensor([0.7500])})
    """
    strengths: dict[str, float] = {}
    centre: Weights = {}
    for part in parts:
        here = [pull for pull in pulls if pull.strength and (not pull.parts or part in pull.parts)]
        if not here:
            continue
        strengths[part] = sum(pull.strength for pull in here)
        for name in (name for name in here[0].centre if part_of(name) == part):
            if len(here) == 1:  # as it is: a mean of one would round
                centre[name] = here[0].centre[name]
            else:
                mean = sum(pull.strength * pull.centre[name].double() for pull in here) / strengths[part]
                centre[name] = torch.as_tensor(mean).to(here[0].centre[name].dtype)
    return strengths, centre
