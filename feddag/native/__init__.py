"""Local training in C++: a whole client in one call, many clients on many threads, the same result as PyTorch.

It is optional: where no compiler was found at installation `available()` is false and PyTorch does the work.
"""

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from feddag.errors import FeddagError
from feddag.native.network import (
    AvgPool,
    Conv,
    Dropout,
    Flatten,
    GroupNorm,
    Layer,
    Linear,
    MaxPool,
    Network,
    ReLU,
    TimeLast,
    Unsupported,
    translate,
)

__all__ = [
    "AvgPool",
    "Conv",
    "Dropout",
    "Flatten",
    "GroupNorm",
    "Job",
    "Layer",
    "Linear",
    "MaxPool",
    "Network",
    "ReLU",
    "TimeLast",
    "available",
    "describe",
    "evaluate",
    "evaluate_heads",
    "fma_peak",
    "instruction_set",
    "losses",
    "obstacle",
    "reason",
    "samples",
    "scores",
    "scores_and_losses",
    "train",
    "train_many",
]

Array = NDArray[Any]
Trained = tuple[dict[str, Array], NDArray[np.float64]]


@dataclass(frozen=True, eq=False)
class Job:
    """Local training of one client: float32 (or, for tests, float64) arrays throughout, contiguous in memory.

    `x` is N x H x W x C, N x T x C or N x D (see `samples`), `y` int64 labels. Step s uses the next `batch_sizes[s]`
    indices of `order` (both int64). The gradient is that of the mean cross-entropy (weighted by `sample_weights`, if
    given) plus proximal / 2 * ||w - anchor||^2, where `proximal` may differ by part (one that is not named has none)
    and the anchor defaults to the weights training starts from; `clip` bounds its norm over all trained weights; then
    torch.optim.SGD's momentum and weight decay. Parts that are not in `trainable` (default: all) stay as they are, and
    their dropout is off. Masks are `feddag.rng.dropout_mask(dropout_key, ...)`.
    """

    network: Network
    weights: dict[str, Array]
    x: Array
    y: NDArray[np.int64]
    order: NDArray[np.int64]
    batch_sizes: NDArray[np.int64]
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    proximal: float | dict[str, float] = 0.0
    anchor: dict[str, Array] | None = None
    clip: float | None = None
    sample_weights: Array | None = None
    trainable: tuple[str, ...] | None = None
    dropout_key: int = 0


def _load() -> tuple[ModuleType | None, str, str]:
    """The best build this processor can run, its name, and why there is none."""
    try:
        names = importlib.import_module("feddag.native._portable").runnable()
    except ImportError as error:
        return None, "none", f"the native trainer was not built when feddag was installed ({error})"
    for name in names:
        try:
            return importlib.import_module(f"feddag.native._{name}"), name, ""
        except ImportError:
            continue
    raise AssertionError("the portable build was there a moment ago")


_kernels, _name, _reason = _load()


def available() -> bool:
    """Whether the native trainer can be used here."""
    return _kernels is not None


def reason() -> str:
    """Why the native trainer cannot be used here; empty where it can."""
    return _reason


def instruction_set() -> str:
    """Which build is in use: avx512, avx2, portable or none."""
    return _name


def describe(module: nn.Module, input_shape: tuple[int, ...]) -> Network | None:
    """The network as the native trainer takes it, or None where there is an `obstacle`.

    >>> describe(nn.LSTM(3, 4), (3,)) is None
    True
    """
    return None if obstacle(module, input_shape) else translate(module)


def obstacle(module: nn.Module, input_shape: tuple[int, ...]) -> str:
    """What keeps the native trainer from training this network on samples of this shape (channels first), or "".

    >>> obstacle(nn.Sequential(nn.Linear(4, 2), nn.Tanh()), (4,))
    '1 is Tanh(), which the native trainer does not know'
    """
    try:
        network = translate(module)
        if _kernels is not None:
            _kernels.check(network, samples(torch.empty(0, *input_shape)))
    except (Unsupported, ValueError) as error:
        return str(error)
    return ""


def samples(x: Tensor) -> Array:
    """Samples as a Job takes them: images channels last, series as they lie, anything else as vectors.

    Nothing is copied of what lies so already.

    >>> samples(torch.zeros(5, 3, 8, 9)).shape, samples(torch.zeros(5, 128, 6)).shape
    ((5, 8, 9, 3), (5, 128, 6))
    >>> samples(torch.zeros(5, 2, 2, 2, 2)).shape
    (5, 16)
    """
    if x.ndim == 4:
        return np.ascontiguousarray(x.permute(0, 2, 3, 1).numpy())
    return np.ascontiguousarray((x if x.ndim == 3 else x.reshape(len(x), math.prod(x.shape[1:]))).numpy())


def fma_peak(threads: int) -> float | None:
    """GFLOP/s of multiply-adds on numbers that are already in registers; None where there is no native trainer."""
    if _kernels is None:
        return None
    rates: list[float] = [_kernels.fma_peak(threads, 10_000_000) for _ in range(3)]
    return max(rates)


def train(job: Job) -> Trained:
    """Train one client; gives its new weights and the loss of every step."""
    return train_many([job], threads=1)[0]


def train_many(jobs: Sequence[Job], threads: int) -> list[Trained]:
    """Train many clients, each on one of the threads; the result does not depend on how many there are."""
    if not jobs:
        return []
    if threads < 1:
        raise FeddagError(f"threads = {threads} is not possible: at least 1 is needed")
    trained: list[Trained] = _call("train", jobs[0].x, [_as_dict(job) for job in jobs], threads)
    return trained


def evaluate(
    network: Network, weights: dict[str, Array], x: Array, y: NDArray[np.int64], num_classes: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Per class: how many samples the network gets right, of how many, and the sum of their losses."""
    job = {"network": network, "weights": weights, "heads": [weights], "x": x, "y": y}
    correct, count, loss = _call("evaluate", x, job)
    if len(count) != num_classes:
        raise FeddagError(f"num_classes = {num_classes}, but the network has {len(count)} class scores")
    return correct[0], count, loss[0]


def evaluate_heads(
    network: Network,
    weights: dict[str, Array],
    heads: Sequence[dict[str, Array]],
    x: Array,
    y: NDArray[np.int64],
    sizes: Sequence[int],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """What `evaluate` gives, per run of so many samples, with each of these heads in the place of the network's own.

    Only the numbers of samples are the same for all heads: heads x runs, runs, heads x runs.
    """
    group = np.repeat(np.arange(len(sizes)), sizes)
    job = {"network": network, "weights": weights, "heads": heads, "x": x, "y": y, "group": group, "groups": len(sizes)}
    found: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]] = _call("evaluate", x, job)
    return found


def losses(network: Network, weights: dict[str, Array], x: Array, y: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cross-entropy of every sample."""
    return scores_and_losses(network, weights, x, y)[1]


def scores(network: Network, weights: dict[str, Array], x: Array) -> Array:
    """The class scores of every sample, N x classes (the features, for a network with an empty head)."""
    found: Array = _call("scores", x, {"network": network, "weights": weights, "x": x})[0]
    return found


def scores_and_losses(
    network: Network, weights: dict[str, Array], x: Array, y: NDArray[np.int64]
) -> tuple[Array, NDArray[np.float64]]:
    """What `scores` and `losses` give, in one pass."""
    found: tuple[Array, NDArray[np.float64]] = _call(
        "scores", x, {"network": network, "weights": weights, "x": x, "y": y}
    )
    return found


def _as_dict(job: Job) -> dict[str, object]:
    parts, proximal = job.network.parts, job.proximal
    trainable = parts if job.trainable is None else job.trainable
    pulls = proximal if isinstance(proximal, dict) else dict.fromkeys(parts, proximal)
    key = (job.dropout_key & (2**64 - 1), job.dropout_key >> 64 & (2**64 - 1))
    return vars(job) | {"trainable": trainable, "proximal": pulls, "dropout_key": key}


def _call(function: str, x: Array, *arguments: object) -> Any:
    """Call the build for x's precision; where it refuses, its sentence becomes a FeddagError."""
    if _kernels is None:
        raise FeddagError(_reason)
    precision = "float32" if x.dtype == np.float32 else "float64" if x.dtype == np.float64 else None
    if precision is None:
        raise FeddagError(f"x is an array of {x.dtype}; allowed is float32 (float64 for tests)")
    try:
        return getattr(_kernels, f"{function}_{precision}")(*arguments)
    except ValueError as error:
        raise FeddagError(str(error)) from None
