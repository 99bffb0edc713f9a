"""The two signs of drift, by hand."""

import torch

from feddag.server.drift import classes_moved, loss_rose


def test_shares_are_compared_and_eq_41_compares_counts() -> None:
    few, many = torch.tensor([5.0, 5.0]), torch.tensor([600.0, 400.0])
    assert not classes_moved(few, many, 0.2)  # 0.5 became 0.6
    assert classes_moved(few, many, 0.09)
    # Counts: |5 - 600| + |10 - 1000| = 1585, and Eq. 41 asks for more than 0.2 / 2 * 1000.
    assert classes_moved(few, many, 0.2, "paper")
    assert not classes_moved(torch.tensor([450.0, 450.0]), torch.tensor([460.0, 440.0]), 0.2, "paper")


def test_a_client_that_lost_everything_has_moved_and_does_not_divide_by_zero() -> None:
    assert classes_moved(torch.tensor([0.0, 10.0]), torch.tensor([0.0, 0.0]), 0.2)


def test_a_loss_must_rise_beyond_the_others_and_their_scatter() -> None:
    assert loss_rose(0.5, [0.0, 0.1, 0.0], 0.3)
    assert not loss_rose(0.5, [0.4, 0.5, 0.4], 0.3)  # everybody's rose
    assert not loss_rose(0.5, [-0.2, 0.0, 0.2], 0.3)  # six times their scatter of 0.2 is 1.2
    assert not loss_rose(-0.8, [-1.8], 0.3)  # it fell, if more slowly
    assert loss_rose(0.5, [], 0.3) and not loss_rose(0.2, [], 0.3)  # alone in its group
