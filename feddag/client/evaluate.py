"""How good models are on a client's samples: counted per class, so that any score can be put together from counts."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from feddag.client.step import Client, Result, Step
from feddag.heads import without
from feddag.models import ModelSpec
from feddag.weights import ModelSource


@dataclass(frozen=True)
class Evaluate(Step):
    """Score a model on the client's test samples: per class, how many it got right, of how many, with what loss."""

    model: ModelSource = None

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"counts": (model.num_classes, 3)}

    def problem(self, result: Result) -> str | None:
        return _problem_of_counts(result)

    def only_scores(self) -> ModelSource:
        return self.model

    def run(self, client: Client) -> Result:
        counts = client.score(client.weights(self.model))
        return Result(arrays={"counts": counts}, scored=int(counts[:, 1].sum()))


@dataclass(frozen=True)
class Choose(Step):
    """The model with the least loss on the client's training samples: later steps of the job go on from it.

    Where training does not tell all classes apart, only those that the client holds have a say here.
    Sent are the mean loss of each, and which one was chosen (the first of equals).
    """

    models: tuple[ModelSource, ...]

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"losses": (len(self.models),), "chosen": (1,)}

    def problem(self, result: Result) -> str | None:
        chosen = result.arrays["chosen"]
        if chosen.dtype != torch.int64 or not 0 <= int(chosen) < len(self.models):
            return "chose a model that it was not given"
        return None

    def run(self, client: Client) -> Result:
        candidates = [client.weights(source) for source in self.models]
        answering = [without(weights, client.absent(client.settings)) for weights in candidates]
        losses = torch.stack([client.counts(weights)[:, 2].sum() for weights in answering]) / len(client.y)
        chosen = int(losses.argmin())
        client.current = candidates[chosen]
        return Result(
            arrays={"losses": losses, "chosen": torch.tensor([chosen])}, scored=len(candidates) * len(client.y)
        )


@dataclass(frozen=True)
class Monitor(Step):
    """What tells whether a client's data have changed: its class counts, and a model's loss on its training samples."""

    model: ModelSource
    least_per_class: int = 1

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"counts": (model.num_classes,), "loss": (1,)}

    def problem(self, result: Result) -> str | None:
        counts = result.arrays["counts"]
        return "told class counts that cannot be" if (counts < 0).any() else None

    def run(self, client: Client) -> Result:
        table = client.counts(without(client.weights(self.model), client.absent(client.settings)))
        counts = torch.bincount(client.y[client.released(self.least_per_class)], minlength=client.num_classes).double()
        loss = (table[:, 2].sum() / len(client.y)).reshape(1)
        return Result(arrays={"counts": counts, "loss": loss}, scored=len(client.y))


@dataclass(frozen=True)
class EvaluateMixture(Step):
    """Score the mean of several models' class probabilities, weighted by `shares`, on the client's test samples."""

    models: tuple[ModelSource, ...]
    shares: tuple[float, ...]

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"counts": (model.num_classes, 3)}

    def problem(self, result: Result) -> str | None:
        return _problem_of_counts(result)

    def run(self, client: Client) -> Result:
        x, y = client.test_samples()
        mixed = sum(
            share * functional.softmax(client.trainer.logits(client.weights(model), x).double(), dim=1)
            for model, share in zip(self.models, self.shares, strict=True)
        )
        assert isinstance(mixed, Tensor)
        losses = -mixed[torch.arange(len(y)), y].clamp(min=1e-12).log()
        hits = mixed.argmax(dim=1) == y
        counts = torch.zeros(client.num_classes, 3, dtype=torch.float64)
        counts.index_add_(0, y, torch.stack([hits, torch.ones_like(hits), losses], dim=1).double())
        return Result(arrays={"counts": counts}, scored=len(self.models) * len(y))


def _problem_of_counts(result: Result) -> str | None:
    """A loss may be anything where a model has diverged, but nobody gets more right than there is."""
    correct, samples = result.arrays["counts"][:, 0], result.arrays["counts"][:, 1]
    if not bool(((correct >= 0) & (correct <= samples) & (samples <= 2**53)).all()):
        return "told a score that cannot be"
    return None


def balanced_accuracies(counts: Tensor) -> NDArray[np.float64]:
    """For each table of counts, the mean accuracy over the classes that have samples; nan if none has.

    >>> balanced_accuracies(torch.tensor([[[3.0, 4.0, 1.0], [1.0, 2.0, 1.0], [0.0, 0.0, 0.0]]]))
    array([0.625], dtype=float32)
    """
    correct, samples = counts[:, :, 0], counts[:, :, 1]
    shares = correct / samples  # 0 / 0 is nan: a class that is not held
    accuracies: NDArray[np.float64] = shares.nanmean(dim=1).numpy()
    return accuracies


def balanced_accuracy(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> float:
    """The mean over classes of the share of their samples that was predicted right.

    >>> balanced_accuracy(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]))
    0.8333333333333333
    """
    right = predicted == labels
    return float(np.mean([right[labels == label].mean() for label in np.unique(labels)]))


def mean_loss(counts: Tensor) -> float:
    """The mean cross-entropy over all samples."""
    return float(counts[:, 2].sum() / counts[:, 1].sum())
