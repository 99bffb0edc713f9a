"""Means of what clients sent. Sums run in float64 and in client order, so they are the same wherever they run."""

from collections.abc import Iterable, Sequence

import torch

from feddag.federation import Reply
from feddag.weights import Weights


def mean_of(weights: Sequence[Weights], shares: Sequence[float]) -> Weights:
    """The weighted mean; integer entries (a counter of batches) are taken from the first.

    >>> mean_of([{"w": torch.tensor([0.0])}, {"w": torch.tensor([4.0])}], [3, 1])
    {'w': tensor([1.])}
    """
    total = float(sum(shares))
    mean = {}
    for name, first in weights[0].items():
        if not first.is_floating_point():
            mean[name] = first.clone()
            continue
        entry = torch.zeros(first.shape, dtype=torch.float64)
        for item, share in zip(weights, shares, strict=True):
            entry.add_(item[name], alpha=share / total)
        mean[name] = entry.to(first.dtype)
    return mean


def weighted_mean(replies: Iterable[Reply]) -> Weights | None:
    """The mean of the models that arrived, weighted by training samples; None when nobody answered."""
    replies = list(replies)
    return mean_of([reply.weights for reply in replies], [reply.samples for reply in replies]) if replies else None


def plain_mean(replies: Iterable[Reply]) -> Weights | None:
    """The mean of the models that arrived, every client counting the same; None when nobody answered."""
    replies = list(replies)
    return mean_of([reply.weights for reply in replies], [1] * len(replies)) if replies else None
