"""A short training beside the data, and the signature that the server groups clients by (§3.1)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from feddag.client.signature import Inputs, Signature, signature, sparsified
from feddag.client.step import Client, Result, Step
from feddag.client.train import balanced_batches
from feddag.errors import FeddagError
from feddag.models import ModelSpec
from feddag.weights import Ref, Weights, only

LARGEST_OF_FEW = 1024
"""Batches repeat samples where there are fewer, but no larger batch is filled so: it would take memory and hours."""


@dataclass(frozen=True)
class MakeSignature(Step):
    """Train a little from the common start, without federation, and tell what that and the samples look like.

    The client divides its samples in two and trains on each half: the mean of the two changes is its update, and how
    alike they are tells how much of it is noise. Every batch holds the client's classes in equal parts: a class mix is
    not a concept, and would otherwise be most of what the update shows.
    """

    model: Ref
    steps: int
    sparsity: float
    vectors: int = 3
    inputs: Inputs = "standardised"
    per_class: int | None = 1000
    least_per_class: int = 1
    """Classes of fewer samples are left out of vectors and counts; a client may ask for more than the server does."""
    parts: tuple[str, ...] = ("encoder", "head")
    """What is trained, and makes up the update."""
    send: bool = True
    """Whether the trained weights (the mean of the halves) travel as well: clusters start from them (Eq. 22)."""

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        classes, features = (model.num_classes,), int(np.prod(model.shape))
        update = (max(1, round(self.sparsity * _size(model, self.parts))),)
        vectors = (model.num_classes, self.vectors, features)
        return {
            **{"vectors": vectors, "counts": classes, "reliability": classes},
            **{"update": update, "update_reliability": (1,)},
        }

    def sends(self) -> bool:
        return self.send

    def problem(self, result: Result) -> str | None:
        try:
            Signature.from_tensors(result.arrays)
        except FeddagError as error:  # its sentence names what is wrong and holds no value
            return f"sent something that is not a signature: {error}"
        return None

    def run(self, client: Client) -> Result:
        start = client.weights(self.model)
        halves = divide(client.y.numpy(), client.rng("halves"))
        trained = []
        batch_size = min(client.settings.batch_size, max(len(client.y), LARGEST_OF_FEW))
        for number, half in enumerate(halves):
            generator = client.rng("warm-up", number)
            sizes = [batch_size] * self.steps
            batches = balanced_batches(client.y.numpy(), half, sizes, generator)
            trained.append(only(client.fit(start, batches, parts=self.parts)[0], self.parts))
        mean = {
            name: torch.stack([half[name] for half in trained]).mean(0) if first.is_floating_point() else first
            for name, first in trained[0].items()
        }
        before = _arrays(only(start, self.parts))
        changes = [sparsified(before, _arrays(half), self.sparsity, client.seed) for half in trained]
        update, agreed = ((changes[0] + changes[1]) / 2).astype(np.float32), agreement(*changes)
        diverged = not np.isfinite(changes).all()
        told = client.released(self.least_per_class)
        x, y = (client.x, client.y) if told.all() else (client.x[told], client.y[told])
        made = signature(
            x.numpy(),
            y.numpy(),
            client.num_classes,
            vectors=self.vectors,
            inputs=self.inputs,
            per_class=self.per_class,
            update=np.zeros_like(update) if diverged else update,
            # Where no class has two samples the halves are one and the same, and agree on noise as well.
            update_reliability=agreed if np.bincount(client.y.numpy()).max() > 1 and not diverged else 0.0,
            seed=client.seed,
        )
        client.current = start | mean
        # Training that diverged is told as it is: the server then counts the client as missing, with that reason.
        sent = vars(made) | ({"update": update} if diverged else {})
        return Result(
            weights=mean if self.send else None,
            arrays={name: torch.from_numpy(np.atleast_1d(array)) for name, array in sent.items()},
            samples=2 * self.steps * batch_size,
        )

    def write_down(self, result: Result, folder: Path) -> None:
        Signature.from_tensors(result.arrays).save(folder / "signature.safetensors")


def divide(y: NDArray[np.int64], generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two halves with every class in both; a class with a single sample is in both.

    >>> one, other = divide(np.array([0, 0, 0, 1]), np.random.default_rng(0))
    >>> sorted(one.tolist() + other.tolist())
    [0, 1, 2, 3, 3]
    """
    one, other = [], []
    for label in np.unique(y):
        held = generator.permutation(np.flatnonzero(y == label))
        middle = max(1, len(held) // 2)
        one.append(held[:middle])
        other.append(held[middle:] if len(held) > 1 else held)
    return np.concatenate(one), np.concatenate(other)


def agreement(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """How much of the mean of two halves' updates would be repeated (Spearman-Brown: 2 r / (1 + r)), 0 to 1.

    >>> agreement(np.array([1.0, 0.0]), np.array([1.0, 0.0])), agreement(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    (1.0, 0.0)
    """
    norms = float(np.linalg.norm(one) * np.linalg.norm(other))
    alike = max(float(one @ other) / norms, 0.0) if norms > 0 else 0.0
    return min(2 * alike / (1 + alike), 1.0)


@cache
def _size(model: ModelSpec, parts: tuple[str, ...]) -> int:
    return sum(array.size for array in _arrays(only(model.initial_weights(0, "size"), parts)).values())


def _arrays(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """What training moves; not a normalisation layer's counter."""
    return {name: tensor.numpy() for name, tensor in weights.items() if tensor.is_floating_point()}
