"""Means that a few liars cannot pull where they like. Without liars, and where nothing is clipped, the plain mean."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from feddag.server.aggregate import mean_of
from feddag.weights import Weights

Robust = Literal["none", "clip", "trimmed-mean", "median", "krum", "geometric-median"]
CLIPPED_ABOVE = 2.0  # times the median length of an update; honest clients' differ by less, more often than not
MOST_SHARE = 10.0  # times the median share: what a client may claim beyond it does not count
TRIMMED = 0.2  # share of the values that is left out at either end, and of the clients that may lie
FEWEST = 3  # answers below which nobody can say who lies
WEISZFELD_STEPS = 100


def robust_mean(weights: Sequence[Weights], shares: Sequence[float], start: Weights, rule: Robust = "none") -> Weights:
    """The mean of models that were trained from `start`, by a rule that bounds what a minority can do.

    "clip" shortens updates that are longer than twice the median length, and is the plain mean where none is.
    "trimmed-mean" and "median" go coordinate by coordinate (Yin et al., 2018), "krum" takes the update with the nearest
    neighbours (Blanchard et al., 2017), "geometric-median" the point with the least summed distance (Pillutla et al.,
    2022). But for "none" and "clip", which weigh by shares, all clients count the same.

    >>> sent = [{"w": torch.tensor([v])} for v in (1.0, 1.1, 0.9, 500.0)]
    >>> start = {"w": torch.tensor([0.0])}
    >>> [round(float(robust_mean(sent, [1] * 4, start, rule)["w"]), 2) for rule in ("none", "clip", "median", "krum")]
    [125.75, 1.27, 1.05, 1.0]
    """
    if rule == "none" or len(weights) < FEWEST:
        return mean_of(weights, shares)
    if rule == "clip":
        return _clipped(weights, shares, start)
    names = [name for name, value in weights[0].items() if value.is_floating_point()]
    updates = torch.stack([_flat(model, start, names) for model in weights])
    found = _RULES[rule](updates)
    return dict(weights[0]) | _unflat(found, start, names)


def lengths(weights: Sequence[Weights], start: Weights) -> list[float]:
    """The length of each model's update.

    >>> lengths([{"w": torch.tensor([3.0, 4.0])}], {"w": torch.zeros(2)})
    [5.0]
    """
    return [
        math.sqrt(
            sum(
                float((value.double() - start[name].double()).square().sum())
                for name, value in model.items()
                if value.is_floating_point()
            )
        )
        for model in weights
    ]


def _clipped(weights: Sequence[Weights], shares: Sequence[float], start: Weights) -> Weights:
    long = lengths(weights, start)
    bound, most = CLIPPED_ABOVE * _median(long), MOST_SHARE * _median(shares)
    factors = [min(1.0, bound / length) if length else 1.0 for length in long]
    fair = [min(share, most) for share in shares]
    if min(factors) == 1.0 and fair == list(shares):
        return mean_of(weights, shares)
    clipped = [
        {
            name: start[name] + factor * (value - start[name]) if value.is_floating_point() and factor < 1 else value
            for name, value in model.items()
        }
        for model, factor in zip(weights, factors, strict=True)
    ]
    return mean_of(clipped, fair)


def _trimmed_mean(updates: Tensor) -> Tensor:
    ordered = updates.sort(dim=0).values
    cut = max(1, math.floor(TRIMMED * len(updates)))
    return ordered[cut : len(updates) - cut].mean(0)


def _coordinate_median(updates: Tensor) -> Tensor:
    return updates.quantile(0.5, dim=0) if len(updates) % 2 == 0 else updates.median(dim=0).values


def _krum(updates: Tensor) -> Tensor:
    liars = max(1, math.floor(TRIMMED * len(updates)))
    near = max(1, len(updates) - liars - 2)
    distances = torch.cdist(updates, updates).square()
    distances.fill_diagonal_(torch.inf)
    return updates[distances.sort(dim=1).values[:, :near].sum(1).argmin()]


def _geometric_median(updates: Tensor) -> Tensor:
    """Weiszfeld's iteration, from the coordinate-wise median: the mean would begin where the liars want it."""
    point = _coordinate_median(updates)
    smallest = 1e-6 * float((updates - point).norm(dim=1).median()) + 1e-30
    for _ in range(WEISZFELD_STEPS):
        weights = 1 / (updates - point).norm(dim=1).clamp(min=smallest)
        moved: Tensor = (weights[:, None] * updates).sum(0) / weights.sum()
        if float((moved - point).norm()) <= smallest:
            break
        point = moved
    return point


_RULES = {
    "trimmed-mean": _trimmed_mean,
    "median": _coordinate_median,
    "krum": _krum,
    "geometric-median": _geometric_median,
}


def _median(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(0.5))


def _flat(model: Weights, start: Weights, names: Sequence[str]) -> Tensor:
    return torch.cat([(model[name].double() - start[name].double()).flatten() for name in names])


def _unflat(update: Tensor, start: Weights, names: Sequence[str]) -> Weights:
    parts = torch.split(update, [start[name].numel() for name in names])
    return {
        name: (start[name].double() + part.reshape(start[name].shape)).to(start[name].dtype)
        for name, part in zip(names, parts, strict=True)
    }
