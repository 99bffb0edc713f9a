"""Has a client's data changed? (A.9)"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from torch import Tensor

from feddag.stateful import Stateful
from feddag.weights import ClientId

OUTLIER = 6.0  # median absolute deviations
DriftRule = Literal["shares", "paper"]


def wasserstein(one: Tensor, other: Tensor) -> Tensor:
    """The 1-Wasserstein distance of two histograms over classes 0, 1, ... on a line.

    >>> import torch
    >>> wasserstein(torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0]))
    tensor(2.)
    """
    return (one.cumsum(0) - other.cumsum(0)).abs().sum()


def classes_moved(before: Tensor, now: Tensor, limit: float, rule: DriftRule = "shares") -> bool:
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


class DriftMonitor(Stateful):
    """Compares what clients tell of themselves with what they told before (A.9)."""

    def __init__(self, histogram: float, rule: DriftRule, loss: float) -> None:
        """`histogram` and `rule` as in `classes_moved`; `loss` is a rise that counts, in units of ln(classes)."""
        self._histogram, self._rule, self._loss = histogram, rule, loss
        self.last: dict[ClientId, Mapping[str, Tensor]] = {}
        """Each client's class counts and loss at the last look."""

    def drifted(
        self,
        now: Mapping[ClientId, Mapping[str, Tensor]],
        cluster_of: Mapping[ClientId, int],
        first_counts: Mapping[ClientId, Tensor],
    ) -> list[ClientId]:
        """Who has drifted: its classes have moved, or its loss rose beyond that of the others in its cluster.

        `first_counts` are what a client is compared with that was not looked at before. A concept may change and leave
        the counts as they were: then the loss rises.
        """
        rises = {c: float(now[c]["loss"] - self.last[c]["loss"]) for c in now if c in self.last}
        found = []
        for client, seen in now.items():
            counts = (self.last[client]["counts"] if client in self.last else first_counts[client]).double()
            others = [rises[c] for c in rises if c != client and cluster_of[c] == cluster_of[client]]
            least = self._loss * math.log(len(counts))
            if classes_moved(counts, seen["counts"].double(), self._histogram, self._rule) or (
                client in rises and loss_rose(rises[client], others, least)
            ):
                found.append(client)
        return found

    def note(self, now: Mapping[ClientId, Mapping[str, Tensor]]) -> None:
        """The next look is compared with this one."""
        self.last = {**self.last, **now}

    def forget(self, clients: Iterable[ClientId]) -> None:
        """The next look at these is compared with what they signed."""
        gone = set(clients)
        self.last = {client: seen for client, seen in self.last.items() if client not in gone}
