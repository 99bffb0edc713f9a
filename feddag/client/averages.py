"""Means of a few samples, which some methods share between clients."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from feddag.client.step import Client, Result, Step
from feddag.models import ModelSpec


@dataclass(frozen=True)
class AverageSamples(Step):
    """Send `count` means of `of` random training samples each, and the shares of the classes in each of them.

    Of few samples, a mean shows what they are: a node's policy has to allow it.
    """

    count: int
    of: int
    tells_samples: ClassVar[bool] = True

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"x": (self.count, *model.shape), "y": (self.count, model.num_classes)}

    def sends(self) -> bool:
        return False

    def problem(self, result: Result) -> str | None:
        shares = result.arrays["y"]
        sums = bool((shares >= 0).all()) and torch.allclose(shares.sum(1).double(), torch.ones(1).double(), atol=1e-4)
        return None if sums else "told shares that cannot be"

    def run(self, client: Client) -> Result:
        draw, held = client.rng("averages"), len(client.y)
        chosen = [torch.from_numpy(draw.choice(held, min(self.of, held), replace=False)) for _ in range(self.count)]
        labels = functional.one_hot(client.y, client.num_classes).float()
        x = torch.stack([client.x[index].mean(0) for index in chosen])
        return Result(arrays={"x": x.contiguous(), "y": torch.stack([labels[index].mean(0) for index in chosen])})
