"""What an answer must look like. A node may be broken or hostile: whatever is wrong makes its answer missing, no more.

Every engine's answers pass through here, and nothing after it needs to doubt a type, a shape, a range or a count.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from feddag.client.step import Result, Step
from feddag.models import ModelSpec
from feddag.weights import ClientId, Weights, part_of

MOST_SAMPLES = 2**40  # samples, and passes over them, that a client may claim
MOST_FLOPS = 2**63  # of one step
LARGEST_WEIGHT = 1e9  # beyond it float32 leaves nothing to learn with: the next steps would overflow
FAR_BEYOND = 1e4  # times the usual largest weight: nobody's honest training ends there
FEWEST_COMPARED = 3  # answers that tell what is usual
SHAPE = "answered with an array of a wrong name, shape or type"
ZERO = np.zeros(1, np.float32)
FINITE = "answered with a value that is not finite"

Form = frozenset[tuple[str, tuple[int, ...], torch.dtype]]


def form_of(weights: Weights) -> Form:
    """Names, shapes and types of weights.

    >>> sorted(form_of({"w": torch.zeros(2)}))
    [('w', (2,), torch.float32)]
    """
    return frozenset((name, tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items())


@dataclass
class Inspector:
    """Knows the network and the weights that were handed over, and finds what is wrong with an answer."""

    model: ModelSpec
    forms: set[Form] = field(default_factory=set)
    peak: float = 0.0

    def problem(self, steps: Sequence[Step], results: Sequence[Result], samples: int, *, measuring: bool) -> str | None:
        """The first thing that is wrong, in words that hold no value of the answer; None if all is well.

        Where a run measures, models that have diverged may say so: numbers need not be finite then. `peak` is then the
        largest weight of the answer.
        """
        self.peak = 0.0
        if len(results) != len(steps):
            return "answered with another number of results than steps"
        if not _is_count(samples) or samples < 1:
            return "claims a number of samples that cannot be"
        for step, result in zip(steps, results, strict=True):
            found = self._problem_of(step, result, measuring)
            if found:
                return found
        return None

    def _problem_of(self, step: Step, result: Result, measuring: bool) -> str | None:
        if not (_is_count(result.samples) and _is_count(result.scored) and _is_count(result.flops, MOST_FLOPS)):
            return "claims a number of samples that cannot be"
        if not all(map(_is_number, result.numbers.values())):
            return "answered with a number that is not one"
        sends = step.sends()
        if sends is not None and (result.weights is not None) != sends:
            return "answered with weights that were not asked for" if not sends else "answered without weights"
        tables = [*result.more.values(), *([] if result.weights is None else [result.weights])]
        if not self._are_arrays_known(step, result) or not self._are_weights_known(step, tables):
            return SHAPE
        if measuring:
            return step.problem(result)
        if not all(map(math.isfinite, result.numbers.values())) or not all(map(_is_finite, result.arrays.values())):
            return FINITE
        peak = max(map(largest, tables), default=0.0)
        if not math.isfinite(peak):
            return FINITE
        self.peak = max(self.peak, peak)
        return f"answered with weights beyond {LARGEST_WEIGHT:.0e}" if peak > LARGEST_WEIGHT else step.problem(result)

    def _are_arrays_known(self, step: Step, result: Result) -> bool:
        shapes = step.shapes(self.model)
        if not all(isinstance(array, Tensor) for array in result.arrays.values()):
            return False
        return shapes is None or shapes == {name: tuple(array.shape) for name, array in result.arrays.items()}

    def _are_weights_known(self, step: Step, tables: Iterable[Weights]) -> bool:
        known = None
        for weights in tables:
            if not all(isinstance(tensor, Tensor) for tensor in weights.values()):
                return False
            if known is None:  # most answers hold none, or one
                known = self.forms
                if parts := step.parts:
                    known = {frozenset(entry for entry in form if part_of(entry[0]) in parts) for form in self.forms}
            if not weights or form_of(weights) not in known:
                return False
        return True


def far_beyond(peaks: Mapping[ClientId, float], times: float) -> list[ClientId]:
    """The clients whose largest weight is so many times the usual one, where there are enough to say what is usual.

    >>> far_beyond({0: 1.0, 1: 2.0, 2: 1.5, 3: 1e6}, 100), far_beyond({0: 1.0, 1: 1e6}, 100)
    ([3], [])
    """
    known = [peak for peak in peaks.values() if peak > 0]
    if len(known) < FEWEST_COMPARED:
        return []
    return [client for client, peak in peaks.items() if peak > times * statistics.median(known)]


def largest(weights: Weights) -> float:
    """The largest absolute value; nan if one is.

    >>> largest({"a": torch.tensor([1.0, -3.0]), "b": torch.tensor([2])})
    3.0
    """
    arrays = [tensor.numpy().ravel() for tensor in weights.values() if tensor.is_floating_point()]
    values = np.concatenate([*arrays, ZERO])  # one array: the usual ones are so small that each look costs the same
    return max(float(np.maximum.reduce(values)), -float(np.minimum.reduce(values)))  # a nan is both


def _is_finite(tensor: Tensor) -> bool:
    return bool(np.isfinite(tensor.numpy()).all())


def _is_count(value: object, most: int = MOST_SAMPLES) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= most


def _is_number(value: object) -> bool:
    """Whether it is a number that a float can hold: 10**400 is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True
