"""Means of what clients sent. Sums run in float64 and in client order, so they are the same wherever they run."""

from collections.abc import Iterable

from feddag.federation import Reply
from feddag.weights import Weights, mean_of

__all__ = ["mean_of", "momentum_step", "plain_mean", "weighted_mean"]


def weighted_mean(replies: Iterable[Reply]) -> Weights | None:
    """The mean of the models that arrived, weighted by training samples; None when nobody answered."""
    replies = list(replies)
    return mean_of([reply.weights for reply in replies], [reply.samples for reply in replies]) if replies else None


def plain_mean(replies: Iterable[Reply]) -> Weights | None:
    """The mean of the models that arrived, every client counting the same; None when nobody answered."""
    replies = list(replies)
    return mean_of([reply.weights for reply in replies], [1] * len(replies)) if replies else None


def momentum_step(
    start: Weights, mean: Weights, velocity: Weights, momentum: float, lr: float = 1.0
) -> tuple[Weights, Weights]:
    """A step of the server's own SGD: the way from `start` to the clients' mean is its gradient (FedAvgM).

    Returns the new weights and the new velocity; an empty velocity is none yet.

    >>> import torch
    >>> new, velocity = momentum_step({"w": torch.tensor(3.0)}, {"w": torch.tensor(2.0)}, {"w": torch.tensor(2.0)}, 0.5)
    >>> float(new["w"]), float(velocity["w"])  # velocity 0.5 * 2 + (3 - 2), and 3 - 2
    (1.0, 2.0)
    """
    new, moving = dict(mean), dict(velocity)
    for name, value in mean.items():
        if value.is_floating_point():  # counters of a user's layers are not averaged
            moving[name] = momentum * velocity.get(name, value.new_zeros(value.shape)) + (start[name] - value)
            new[name] = start[name] - lr * moving[name]
    return new, moving
