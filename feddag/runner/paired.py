"""How far apart two methods are over the same seeds, and how sure that is."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from feddag.records import ResultRecord

CONFIDENCE = 0.95
MEANING = "difference of accuracy, seed by seed, with the 95 % interval of its mean"


@dataclass(frozen=True)
class Difference:
    """A mean over seeds, and the interval that holds the true one with 95 % confidence (Student's t)."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    """By how much one method is better than another, from its scores by seed; None with fewer than two common seeds.

    Seed by seed, because methods meet the same partition there: what makes it easy or hard cancels out.

    >>> print(paired_difference({0: 0.9, 1: 0.7, 2: 0.8}, {0: 0.8, 1: 0.5, 2: 0.5}))
    +0.200 [-0.048, +0.448]
    """
    differences = [one[seed] - other[seed] for seed in one if seed in other]
    if len(differences) < 2:
        return None
    mean = statistics.mean(differences)
    quantile = float(stdtrit(len(differences) - 1, (1 + CONFIDENCE) / 2))
    half = quantile * statistics.stdev(differences) / math.sqrt(len(differences))
    return Difference(mean, mean - half, mean + half)


def own_scores(results: Sequence[ResultRecord]) -> dict[int, float]:
    """A method's headline accuracy by seed."""
    return {result["seed"]: result["accuracy"]["mean"] for result in results}


def against_last(scores: Sequence[Mapping[int, float]]) -> list[Difference | None]:
    """The difference of each method to the last one, which has none to itself."""
    return [*(paired_difference(own, scores[-1]) for own in scores[:-1]), None]
