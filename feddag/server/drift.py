"""Has a client's data changed? (A.9)"""

import statistics
from collections.abc import Sequence
from typing import Literal

from torch import Tensor

OUTLIER = 6.0  # median absolute deviations


def wasserstein(one: Tensor, other: Tensor) -> Tensor:
    """The 1-Wasserstein distance of two histograms over classes 0, 1, ... on a line.

    >>> import torch
    >>> wasserstein(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]))
    tensor(2.)
    """
    return (one.cumsum(0) - other.cumsum(0)).abs().sum()


def classes_moved(before: Tensor, now: Tensor, limit: float, rule: Literal["shares", "paper"] = "shares") -> bool:
    """Whether class counts have changed: their shares by more than `limit`, or the counts themselves as in Eq. 41.

    >>> import torch
    >>> classes_moved(torch.tensor([90.0, 10.0]), torch.tensor([60.0, 40.0]), 0.2)
    True
    """
    if rule == "paper":
        return bool(wasserstein(before, now) > 0.2 / len(now) * now.sum())
    shares = [counts / counts.sum().clamp(min=1) for counts in (before, now)]
    return bool(wasserstein(*shares) > limit)


def loss_rose(rise: float, others: Sequence[float], least: float) -> bool:
    """Whether a client's loss rose, by `least` more than that of the others in its group and by more than they scatter.

    >>> loss_rose(0.9, [0.1, 0.0, -0.1], least=0.2)
    True
    """
    usual = statistics.median(others or [0.0])
    scatter = statistics.median([abs(other - usual) for other in others] or [0.0])
    return rise > 0 and rise - usual > max(least, OUTLIER * scatter)
