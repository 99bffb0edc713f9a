"""How good a model is on samples: counted per class, so that any client's score can be put together from counts."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from feddag import native
from feddag.client.train import load_weights
from feddag.client.work import Client
from feddag.federation import ModelSource, Result, Step, Weights
from feddag.models import ModelSpec

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Evaluate(Step):
    """Score a model on the client's test samples: per class, how many it got right, of how many, with what loss."""

    model: ModelSource = None

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"counts": (model.num_classes, 3)}

    def run(self, client: Client) -> Result:
        return Result(arrays={"counts": client.score(client.weights(self.model))})


def on_own_samples(client: Client, weights: Weights) -> Tensor:
    """The same counts on the client's training samples."""
    samples = client.x, client.y, client.num_classes
    if client.network is not None:
        return count_correct_natively(client.network, weights, *samples)
    return count_correct(client.model, weights, *samples)


def count_correct(model: nn.Module, weights: Weights, x: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """A num_classes x 3 table in float64: correct, samples, summed cross-entropy of each class."""
    load_weights(model, weights)
    model.eval()
    table = torch.zeros(num_classes, 3, dtype=torch.float64)
    with torch.inference_mode():
        for inputs, labels in zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True):
            scores = model(inputs)
            losses = functional.cross_entropy(scores, labels, reduction="none")
            hits = scores.argmax(dim=1) == labels
            table.index_add_(0, labels, torch.stack([hits, torch.ones_like(hits), losses], dim=1).double())
    return table


def count_correct_natively(network: native.Network, weights: Weights, x: Tensor, y: Tensor, num_classes: int) -> Tensor:
    """The same as `count_correct` up to rounding, in C++."""
    arrays = {name: value.numpy() for name, value in weights.items()}
    columns = native.evaluate(network, arrays, native.samples(x), y.numpy(), num_classes)
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))


def balanced_accuracies(counts: Tensor) -> list[float]:
    """For each table of counts, the mean accuracy over the classes that have samples; nan if none has.

    >>> balanced_accuracies(torch.tensor([[[3.0, 4.0, 1.0], [1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]]))
    [0.625]
    """
    correct, samples = counts[:, :, 0], counts[:, :, 1]
    accuracies: list[float] = (correct / samples).nanmean(dim=1).tolist()  # 0 / 0 is nan: a class that is not held
    return accuracies


def mean_loss(counts: Tensor) -> float:
    """The mean cross-entropy over all samples."""
    return float(counts[:, 2].sum() / counts[:, 1].sum())
