"""Which classes a client holds: those that its loss has to tell apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from feddag.client.step import Client, Result, Step
from feddag.models import ModelSpec


@dataclass(frozen=True)
class TellClasses(Step):
    """Say which classes the client has samples of; of how many is not told, nor classes that it may not tell about."""

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"held": (model.num_classes,)}

    def run(self, client: Client) -> Result:
        held = torch.bincount(client.y[client.released()], minlength=client.num_classes) > 0
        return Result(arrays={"held": held.double()})


def classes_told(held: Tensor) -> list[int]:
    """The classes that an answer names.

    >>> classes_told(torch.tensor([0.0, 1.0, 1.0]))
    [1, 2]
    """
    named: list[int] = torch.nonzero(held > 0).flatten().tolist()
    return named
