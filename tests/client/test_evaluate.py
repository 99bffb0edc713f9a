"""Scores counted by hand."""

import torch
from torch import nn

from feddag.client.evaluate import balanced_accuracies, mean_loss
from feddag.models import Model
from tests.client.test_train import trainer_of


def test_counts_per_class_by_hand() -> None:
    # the inputs are the scores themselves
    x = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 3.0, 0.0]])
    y = torch.tensor([0, 0, 1])
    counts = trainer_of(Model(nn.Identity(), nn.Identity()), 3).score({}, x, y)
    assert counts[:, 0].tolist() == [1, 1, 0]
    assert counts[:, 1].tolist() == [2, 1, 0]
    log_sum = [torch.logsumexp(row, 0) for row in x]
    expected = [log_sum[0] - 2 + log_sum[1] - 0, log_sum[2] - 3, torch.tensor(0.0)]
    torch.testing.assert_close(counts[:, 2].float(), torch.stack(expected))
    assert balanced_accuracies(counts[None]) == [0.75]  # class 0: 1 of 2, class 1: 1 of 1, class 2 is not held
    assert abs(mean_loss(counts) - float(sum(expected)) / 3) < 1e-6
