"""Work beside the data: a step says what is done, a client what it is done with. A step sees one client, no other."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from feddag.client.loss import Objective, Penalty, Pull
from feddag.client.trainer import LocalSettings, Trainer
from feddag.heads import with_rows_of, without
from feddag.models import ModelSpec
from feddag.rng import rng, stream_key
from feddag.weights import HELD, ClientId, ModelSource, Own, Ref, Weights, keeping, kept

NUMBER_BYTES = 8  # what one number costs on the wire


@dataclass
class Result:
    """What one step gives back.

    `samples` counts the samples that passed through training, epochs included; `scored` those that only passed forward.
    `flops` is the arithmetic of training; that of `Client.fit` is added by itself.
    """

    weights: Weights | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    arrays: dict[str, Tensor] = field(default_factory=dict)
    samples: int = 0
    scored: int = 0
    flops: int = 0
    more: dict[str, Weights] = field(default_factory=dict)
    """Further sets of weights by name, for a step that makes several."""

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor that travels."""
        for table in (self.weights or {}, self.arrays, *self.more.values()):
            yield from table.values()

    @property
    def nbytes(self) -> int:
        """Bytes this result takes on the wire."""
        return sum(tensor.nbytes for tensor in self.tensors()) + NUMBER_BYTES * len(self.numbers)


class Step(ABC):
    """One thing done beside the data: a frozen dataclass of plain fields, and the function that does it there.

    A method may define steps of its own in its own file; every engine can carry them.
    """

    phase: str | None = None
    """What this step belongs to, where one exchange serves two purposes; else the federation's phase."""
    parts: tuple[str, ...] = ()
    """Which parts of the weights (\"head\") a result holds; all if none is named."""
    tells_samples: ClassVar[bool] = False
    """Whether the result holds samples, or means of a few: a node's policy has to allow that."""

    @abstractmethod
    def run(self, client: "Client") -> Result:
        """Do it. Sees this client's samples and state, and what the job carries, and nothing else."""

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]] | None:
        """The shapes of the arrays in the result, if they are known beforehand: another answer is then refused."""
        return None

    def sends(self) -> bool | None:
        """Whether the result holds weights, if that is known beforehand: another answer is then refused."""
        return None

    def problem(self, result: Result) -> str | None:
        """What else is wrong with a result of the right shapes, in words without its values; None if nothing is."""
        return None

    def only_scores(self) -> ModelSource:
        """The model, if the step does nothing but score it on test samples: engines then score it once for all."""
        return None

    def write_down(self, result: Result, folder: Path) -> None:  # noqa: B027 - most steps have nothing to show
        """Leave a readable copy of what was sent in the node's own folder, for whoever owns the data."""

    def payload(self) -> Iterator[Ref | Tensor]:
        """All that must travel to the client for this step: weights by reference, and arrays of the step's own."""
        return _payload(vars(self).values())


def _payload(items: Iterable[object]) -> Iterator[Ref | Tensor]:
    for item in items:
        if isinstance(item, (Ref, Tensor)):
            yield item
        elif isinstance(item, (dict, list, tuple)) and item:  # not Mapping: asking for that is slow
            yield from _payload(item.values() if isinstance(item, dict) else item)


@dataclass
class Client:
    """What a step may see and use while it runs beside one client's data."""

    id: ClientId
    x: Tensor
    y: Tensor
    trainer: Trainer
    settings: LocalSettings
    num_classes: int
    fetch: Callable[[Ref], Weights]
    score: Callable[[Weights], Tensor]
    """Counts per class of a model on this client's test samples (see `Trainer.score`)."""
    test_samples: Callable[[], tuple[Tensor, Tensor]]
    seed: int
    moment: tuple[int, int]
    """(round, exchange): randomness is named by it."""
    state: Weights = field(default_factory=dict)
    """What the client remembers between rounds, as `name/parameter`."""
    current: Weights | None = None
    """The weights that the step before left."""
    scratch: dict[str, Tensor] = field(default_factory=dict)
    """What a step leaves for later steps of the same job; it never travels and is forgotten with the job."""
    step: int = 0
    least_per_class: int = 1
    """Classes of fewer samples are left out of what the client tells about its data."""
    stored: NDArray[Any] | None = None
    """The samples as they lie in the client's file, before normalisation."""
    flops: int = 0
    """Of all training so far."""
    aside: Callable[[], tuple[Tensor, Tensor]] | None = None
    """Samples of the client's own that no step trains on, to choose a model by; None where there are none."""

    def weights(self, source: ModelSource) -> Weights:
        """The weights a step asked for."""
        if isinstance(source, tuple):
            model: Weights = {}
            for layer in source:
                if layer == HELD:
                    model = without(model, self.lacks())
                else:
                    model = model | (kept(self.state, layer.name) if isinstance(layer, Own) else self.weights(layer))
            return model
        if isinstance(source, Ref):
            return self.fetch(source)
        if isinstance(source, Own):
            own = kept(self.state, source.name)
            if not own:
                raise LookupError(f"client {self.id} keeps no '{source.name}'")
            return own
        if self.current is None:
            raise LookupError("the first step of a job has no step before it to take weights from")
        return self.current

    def keep(self, name: str, weights: Weights, smoothing: float = 0.0) -> None:
        """Remember weights under a name: `Own(name)` finds them again in later rounds, and `used` their mean."""
        self.state = keeping(self.state, name, weights, smoothing)

    def fit(
        self,
        start: Weights,
        batches: list[NDArray[np.int64]],
        settings: LocalSettings | None = None,
        *,
        parts: tuple[str, ...] = (),
        pulls: Sequence[Pull] = (),
        sample_weights: Tensor | None = None,
        penalty: Penalty | None = None,
        objective: Objective | None = None,
        held: Sequence[int] = (),
        draw: int = 0,
    ) -> tuple[Weights, Tensor]:
        """Train on this client's samples in the given batches; the new weights, and the loss of every step.

        With the setting `held`, the softmax knows only the client's classes and those named here: rows of other classes
        come back as they were. Trainings of one step that are to have dropout masks of their own differ in `draw`.
        """
        settings = settings or self.settings
        self.flops += self.trainer.flops(self.x, batches, parts, penalty, objective)
        absent = self.absent(settings, held)
        trained, losses = self.trainer.fit(
            without(start, absent),
            self.x,
            self.y,
            batches,
            settings,
            dropout_key=self.key("dropout", *[draw] * (draw > 0)),
            parts=parts,
            pulls=[pull._replace(centre=without(pull.centre, absent)) for pull in pulls],
            sample_weights=sample_weights,
            penalty=penalty,
            objective=objective,
        )
        return with_rows_of(trained, start, absent), losses

    def absent(self, settings: LocalSettings, held: Sequence[int] = ()) -> Tensor | None:
        """A flag for each class that the softmax leaves out; None where it runs over all, held or not."""
        return self.lacks(held) if settings.held else None

    def lacks(self, held: Sequence[int] = ()) -> Tensor:
        """A flag for each class that the client has no training sample of, but for those named here."""
        known = torch.zeros(self.num_classes, dtype=torch.bool)
        return ~known.index_fill(0, torch.cat([self.y, torch.tensor(held, dtype=torch.int64)]), True)

    def released(self, least: int = 1) -> Tensor:
        """Which samples the client may tell about: those of classes that have at least so many of them."""
        held = torch.bincount(self.y, minlength=self.num_classes)
        return (held >= max(least, self.least_per_class))[self.y]

    def counts(self, weights: Weights) -> Tensor:
        """What `score` gives, on the client's training samples."""
        return self.trainer.score(weights, self.x, self.y)

    def losses(self, weights: Weights) -> Tensor:
        """The loss of a model on each of the client's training samples."""
        return self.trainer.losses(weights, self.x, self.y)

    def features(self, weights: Weights) -> NDArray[Any]:
        """What the first encoder makes of each of the client's training samples."""
        features: NDArray[Any] = self.trainer.features(weights, self.x).numpy()
        return features

    def rng(self, *names: str | int) -> np.random.Generator:
        """Randomness that belongs to this seed, name, moment, client and step of the job."""
        return rng(self.seed, *names, *self.moment, self.id, self.step)

    def key(self, *names: str | int) -> int:
        """The key of a counter-based stream named in the same way."""
        return stream_key(self.seed, *names, *self.moment, self.id, self.step)


def perform(steps: Sequence[Step], client: Client) -> list[Result]:
    """Do a job's steps in order, each from what the one before left."""
    results = []
    for number, step in enumerate(steps):
        client.step, before = number, client.flops
        result = step.run(client)
        result.flops += client.flops - before
        results.append(result)
    return results


def to_tensor(x: NDArray[Any], mean: ArrayLike, std: ArrayLike) -> Tensor:
    """Normalised float32 samples as networks take them: images N x C x H x W, laid out channels last.

    >>> to_tensor(np.full((1, 2, 2, 1), 3, np.uint8), [1.0], [2.0])[0, 0, 0]
    tensor([1., 1.])
    >>> to_tensor(np.full((1, 2, 2, 3), [1, 2, 3], np.uint8), [0.0, 1.0, 1.0], [1.0, 1.0, 0.5])[0, :, 1, 1]
    tensor([1., 1., 4.])
    >>> to_tensor(np.zeros((0, 2, 2, 3), np.uint8), [0.0, 1.0, 1.0], [1.0, 1.0, 0.5]).shape
    torch.Size([0, 3, 2, 2])
    """
    mean, std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    rows = x
    if x.ndim == 4 and mean.size > 1:  # a whole row at a time: NumPy is slow along three channels
        rows = x.reshape(*x.shape[:2], x.shape[2] * x.shape[3])
        mean, std = np.tile(mean, x.shape[2]), np.tile(std, x.shape[2])
    values = rows.astype(np.float32)
    values -= mean  # in place: fresh memory for each result would cost more than the arithmetic
    values /= std
    normalised = torch.from_numpy(values.reshape(x.shape))
    return normalised.permute(0, 3, 1, 2) if x.ndim == 4 else normalised
