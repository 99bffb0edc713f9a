"""A short training beside the data, and the signature that the server groups clients by (§3.1)."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from feddag.client.loss import Batches
from feddag.client.signature import (
    OPTIONAL,
    USUAL_PER_CLASS,
    USUAL_VECTORS,
    Signature,
    check_vectors,
    signature,
    sparsified,
    with_style,
)
from feddag.client.step import Client, Result, Step
from feddag.client.style import style_size
from feddag.client.train import balanced_batches, draw_batches
from feddag.client.trainer import LocalSettings
from feddag.errors import FeddagError
from feddag.models import ModelSpec
from feddag.weights import Ref, Weights, only

WarmupInputs = Literal["standardised", "raw", "features"]
LARGEST_OF_FEW = 1024
"""Batches repeat samples where there are fewer, but no larger batch is filled so: it would take memory and hours."""


@dataclass(frozen=True)
class WarmedUp:
    """What a warm-up left: the trained weights, and the update."""

    weights: Weights
    update: NDArray[np.float32]
    agreed: float = 0.0
    """How much of the update would be repeated."""
    samples: int = 0
    diverged: bool = False


@dataclass(frozen=True)
class MakeSignature(Step):
    """Train a little from the common start, without federation, and tell what that and the samples look like.

    Without steps and epochs nothing is trained, and only the samples are told about; no model is needed then.

    The client divides its samples in two and trains on each half: the mean of the two changes is its update, and how
    alike they are tells how much of it is noise. Every batch holds the client's classes in equal parts: a class mix is
    not a concept, and would otherwise be most of what the update shows. Without `halves` and `balanced` it trains once
    on all samples as they come, as the paper says, and can tell nothing about noise.
    """

    model: Ref | tuple[()]
    steps: int
    sparsity: float
    vectors: int = USUAL_VECTORS
    vector_share: float = 0.0
    inputs: WarmupInputs = "standardised"
    per_class: int | None = USUAL_PER_CLASS
    least_per_class: int = 1
    """Classes of fewer samples are left out of vectors and counts; a client may ask for more than the server does."""
    balanced: bool = True
    halves: bool = True
    epochs: int = 0
    """Above 0: so many epochs in each of `rounds`, instead of steps."""
    style: bool = False
    """Whether it is told how samples look."""
    sketch: int = 0
    """Dimensions that vectors and update are projected onto; 0: sent as they are."""
    rounds: int = 1
    """Trainings one after the other, each with fresh momentum; the update is the change in the last (released code)."""
    trained: tuple[str, ...] = ("encoder", "head")
    """What is trained, and makes up the update."""
    parts: tuple[str, ...] = ("encoder",)
    """What is sent of the trained weights (the mean of the halves): clusters start from encoders (Eq. 22)."""
    send: bool = True
    """Whether they travel at all."""

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        classes = (model.num_classes,)
        features = _features(model) if self.inputs == "features" else int(np.prod(model.shape))
        update = (max(1, round(self.sparsity * _size(model, self.trained))) if self.trains else 0,)
        if self.sketch:
            features = min(self.sketch, features)
            update = (min(update[0], features),)
        vectors = (model.num_classes, self.vectors, features)
        statistics = style_size(model.shape, "first")
        style = {"style": (*classes, statistics), "style_spread": (statistics * (statistics + 1) // 2,)}
        return (style if self.style else {}) | {
            **{"vectors": vectors, "counts": classes, "reliability": classes},
            **{"update": update, "update_reliability": (1,)},
        }

    @property
    def trains(self) -> bool:
        """Whether there is a warm-up at all."""
        return bool(self.steps or self.epochs)

    def sends(self) -> bool:
        return self.send

    def problem(self, result: Result) -> str | None:
        try:
            Signature.from_tensors(result.arrays)
        except FeddagError as error:  # its sentence names what is wrong and holds no value
            return f"sent something that is not a signature: {error}"
        return None

    def run(self, client: Client) -> Result:
        if self.inputs != "features":
            check_vectors(self.vectors, int(np.prod(client.x.shape[1:])))  # before any work
        start = client.weights(self.model)
        y = client.y.numpy()
        warm = self._warmed_up(client, start, y) if self.trains else WarmedUp({}, np.zeros(0, np.float32))
        told = client.released(self.least_per_class).numpy()
        x = self._looked_at(client, start)
        made = signature(
            x if told.all() else x[told],
            y if told.all() else y[told],
            client.num_classes,
            vectors=self.vectors,
            vector_share=self.vector_share,
            inputs="standardised" if self.inputs == "standardised" else "raw",
            per_class=self.per_class,
            update=np.zeros_like(warm.update) if warm.diverged else warm.update,
            update_reliability=warm.agreed,
            style=False,
            sketch=self.sketch,
            seed=client.seed,
        )
        if self.style:
            made = with_style(made, client.x.numpy()[told], y[told], "first")
        client.current = start | warm.weights
        # Training that diverged is told: the server then counts the client as missing, with that reason.
        sent = vars(made) | ({"update": np.full_like(made.update, np.nan)} if warm.diverged else {})
        sent = {name: array for name, array in sent.items() if self.style or name not in OPTIONAL}
        return Result(
            weights=only(warm.weights, self.parts) if self.send else None,
            arrays={name: torch.from_numpy(np.atleast_1d(array)) for name, array in sent.items()},
            samples=warm.samples,
        )

    def _warmed_up(self, client: Client, start: Weights, y: NDArray[np.int64]) -> WarmedUp:
        halves = divide(y, client.rng("halves")) if self.halves else (np.arange(len(y)),)
        trained, changes, samples = [], [], 0
        for number, half in enumerate(halves):
            after = start
            for training in range(self.rounds):
                before = after
                batches = self._batches(client, half, client.rng("warm-up", number, *[training] * (self.rounds > 1)))
                # Masks that halves have in common would make them agree on more than two clients can.
                after = client.fit(before, batches, parts=self.trained, draw=number)[0]
                samples += sum(map(len, batches))
            trained.append(only(after, self.trained))
            was = _arrays(only(before, self.trained))
            changes.append(sparsified(was, _arrays(trained[-1]), self.sparsity, client.seed))
        mean = {
            name: torch.stack([half[name] for half in trained]).mean(0) if first.is_floating_point() else first
            for name, first in trained[0].items()
        }
        update = np.mean(changes, axis=0).astype(np.float32) if len(changes) > 1 else changes[0]
        diverged = not np.isfinite(changes).all()
        # Of a single sample the halves are one and the same, and agree on noise as well.
        agreed = agreement(*changes) if len(changes) == 2 and len(y) > 1 and not diverged else 0.0
        return WarmedUp(mean, update, agreed, samples, diverged)

    def _batches(self, client: Client, chosen: NDArray[np.int64], generator: np.random.Generator) -> Batches:
        size = min(client.settings.batch_size, max(len(client.y), LARGEST_OF_FEW))
        steps = self.epochs * -(-len(chosen) // size) or self.steps
        if self.balanced:
            return balanced_batches(client.y.numpy(), chosen, [size] * steps, generator)
        plain = draw_batches(len(chosen), LocalSettings(steps=steps, batch_size=size), generator)
        return [chosen[batch] for batch in plain]

    def _looked_at(self, client: Client, start: Weights) -> NDArray[Any]:
        """What principal vectors are made of: samples as networks see them, as they are stored, or features."""
        if self.inputs == "raw" and client.stored is not None:
            return client.stored
        if self.inputs == "features":  # of the common start: those of clients' own encoders could not be compared
            return client.features(start)
        return client.x.numpy()

    def write_down(self, result: Result, folder: Path) -> None:
        Signature.from_tensors(result.arrays).save(folder / "signature.safetensors")


def divide(y: NDArray[np.int64], generator: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Two random halves, whatever classes these hold; a single sample is in both.

    Two clients of one distribution differ in the classes that they happen to hold as well. Halves with the same classes
    would not, and their agreement promise more than clients can keep.

    >>> one, other = divide(np.array([0, 0, 0, 1]), np.random.default_rng(0))
    >>> sorted(one.tolist() + other.tolist())
    [0, 1, 2, 3]
    """
    order = generator.permutation(len(y))
    middle = len(order) // 2
    return order[:middle] if middle else order, order[middle:]


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


@cache
def _features(model: ModelSpec) -> int:
    return model.features()


def _arrays(weights: Weights) -> dict[str, NDArray[np.float32]]:
    """What training moves; not a normalisation layer's counter."""
    return {name: tensor.numpy() for name, tensor in weights.items() if tensor.is_floating_point()}
