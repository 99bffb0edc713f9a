"""Means by hand."""

import torch

from feddag.client.step import Result
from feddag.federation import Reply
from feddag.server.aggregate import plain_mean, weighted_mean


def reply(client: int, samples: int, value: float) -> Reply:
    weights = {"w": torch.tensor([value, 2 * value]), "batches": torch.tensor(client)}
    return Reply(client, [Result(weights=weights)], samples)


def test_weighted_and_plain_mean() -> None:
    replies = [reply(5, 30, 1.0), reply(7, 10, 5.0)]
    weighted, plain = weighted_mean(replies), plain_mean(replies)
    assert weighted is not None and weighted["w"].tolist() == [2.0, 4.0]
    assert plain is not None and plain["w"].tolist() == [3.0, 6.0]
    assert weighted["batches"] == 5 and weighted["batches"].dtype == torch.int64
    assert weighted["w"].dtype == torch.float32


def test_nobody_answered() -> None:
    assert weighted_mean([]) is None
    assert plain_mean([]) is None
