"""Means of what clients sent. Sums run in float64 and in client order, so they are the same wherever they run."""

from collections.abc import Iterable

from feddag.federation import Reply
from feddag.weights import Weights, mean_of

__all__ = ["mean_of", "plain_mean", "weighted_mean"]


def weighted_mean(replies: Iterable[Reply]) -> Weights | None:
    """The mean of the models that arrived, weighted by training samples; None when nobody answered."""
    replies = list(replies)
    return mean_of([reply.weights for reply in replies], [reply.samples for reply in replies]) if replies else None


def plain_mean(replies: Iterable[Reply]) -> Weights | None:
    """The mean of the models that arrived, every client counting the same; None when nobody answered."""
    replies = list(replies)
    return mean_of([reply.weights for reply in replies], [1] * len(replies)) if replies else None
