"""One client at work: its own samples and memory, what the job carries, and nothing else."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from feddag.federation import ClientId, ModelSource, Own, Ref, Result, Step, Weights, kept
from feddag.models import DualEncoder, Model
from feddag.native import Network
from feddag.rng import rng, stream_key


@dataclass(frozen=True)
class LocalSettings:
    """How every client trains, unless a step says otherwise; the experiment's fields of the same names."""

    epochs: int = 10
    steps: int | None = None
    batch_size: int = 32
    lr: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 1e-4


@dataclass
class Client:
    """What a step may see and use while it runs beside one client's data."""

    id: ClientId
    x: Tensor
    y: Tensor
    model: Model | DualEncoder
    """A network to load weights into; its own weights mean nothing."""
    network: Network | None
    """The same network as the native trainer takes it; None where PyTorch does the work."""
    settings: LocalSettings
    num_classes: int
    fetch: Callable[[Ref], Weights]
    score: Callable[[Weights], Tensor]
    """Counts per class of a model on this client's test samples (see `count_correct`)."""
    seed: int
    moment: tuple[int, int]
    """(round, exchange): randomness is named by it."""
    state: Weights = field(default_factory=dict)
    """What the client remembers between rounds, as `name/parameter`."""
    current: Weights | None = None
    """The weights that the step before left."""
    step: int = 0

    def weights(self, source: ModelSource) -> Weights:
        """The weights a step asked for."""
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

    def keep(self, name: str, weights: Weights) -> None:
        """Remember weights under a name; `Own(name)` finds them again in later rounds."""
        others = {key: value for key, value in self.state.items() if not key.startswith(name + "/")}
        self.state = others | {f"{name}/{key}": value for key, value in weights.items()}

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
        client.step = number
        results.append(step.run(client))
    return results


def to_tensor(x: NDArray[Any], mean: ArrayLike, std: ArrayLike) -> Tensor:
    """Normalised float32 samples as networks take them: images N x C x H x W, laid out channels last.

    >>> to_tensor(np.full((1, 2, 2, 1), 3, np.uint8), [1.0], [2.0])[0, 0, 0]
    tensor([1., 1.])
    >>> to_tensor(np.full((1, 2, 2, 3), [1, 2, 3], np.uint8), [0.0, 1.0, 1.0], [1.0, 1.0, 0.5])[0, :, 1, 1]
    tensor([1., 1., 4.])
    """
    mean, std = np.asarray(mean, np.float32), np.asarray(std, np.float32)
    rows = x
    if x.ndim == 4 and mean.size > 1:  # a whole row at a time: NumPy is slow along three channels
        rows = x.reshape(*x.shape[:2], -1)
        mean, std = np.tile(mean, x.shape[2]), np.tile(std, x.shape[2])
    values = rows.astype(np.float32)
    values -= mean  # in place: fresh memory for each result would cost more than the arithmetic
    values /= std
    normalised = torch.from_numpy(values.reshape(x.shape))
    return normalised.permute(0, 3, 1, 2) if x.ndim == 4 else normalised
