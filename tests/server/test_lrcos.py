"""FedAC's similarity of models, against numbers worked out by hand."""

import math

import numpy as np
import pytest
import torch

from feddag.server.lrcos import ModelSimilarity, divided, low_rank, lrcos, most_alike, negative_l2

CORNERS = torch.tensor([[3.0, 0.0, 1.0], [-3.0, 0.0, 1.0], [0.0, 1.0, 1.0], [0.0, -1.0, 1.0]])
"""Around (0, 0, 1), three times as far along the first axis as along the second, and not at all along the third."""


def test_the_map_has_the_axes_of_largest_variance() -> None:
    found = low_rank(CORNERS, 2)
    torch.testing.assert_close(found.axes.abs(), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    torch.testing.assert_close(found.origin, torch.tensor([0.0, 0.0, 1.0]))
    assert low_rank(CORNERS, 1).axes.shape == (1, 3)


def test_more_dimensions_than_models_are_no_error() -> None:
    """D = 50 of a round's 25 models: there are 24 axes when centred, 25 when not, and none among copies."""
    models = torch.from_numpy(np.random.default_rng(0).normal(size=(25, 300)).astype(np.float32))
    assert low_rank(models, 50).axes.shape == (24, 300)
    assert low_rank(models, 50, centred=False).axes.shape == (25, 300)
    axes = low_rank(models, 50).axes
    torch.testing.assert_close(axes @ axes.T, torch.eye(24), atol=1e-5, rtol=0)
    copies = low_rank(models[:1].repeat(5, 1), 50)
    assert lrcos(copies)(models[:1], models[:1]).tolist() == [[0.0]]  # nothing to tell apart, and no division by zero


def test_cosines_by_hand() -> None:
    """From the origin (0, 0, 1): (3, 0) and (4, 4) are 45 degrees apart, (3, 0) and (-1, 0) opposite."""
    centres = torch.tensor([[4.0, 4.0, 7.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    found = lrcos(low_rank(CORNERS, 2))(CORNERS, centres)
    half = math.sqrt(0.5)
    expected = [[half, -1.0, 0.0], [-half, 1.0, 0.0], [half, 0.0, 0.0], [-half, 0.0, 0.0]]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)
    first = lrcos(low_rank(CORNERS, 1))(CORNERS, centres)  # along the first axis alone: all or nothing
    np.testing.assert_allclose(first[:2, :2].numpy(), [[1.0, -1.0], [-1.0, 1.0]], atol=1e-6)


def test_centring_changes_the_cosine() -> None:
    """Far from zero all models look the same way; from their mean two pairs are opposite."""
    models = CORNERS + torch.tensor([100.0, 100.0, 0.0])
    assert lrcos(low_rank(models, 50, centred=False))(models, models).min() > 0.999
    assert lrcos(low_rank(models, 50))(models, models).min() == pytest.approx(-1.0)


def test_a_client_goes_to_the_most_alike_centre_and_not_to_the_least() -> None:
    assert most_alike({4: -0.9, 7: 0.3, 9: 0.1}) == 7  # Eq. 4 as printed would say 4
    assert most_alike({4: 0.5, 7: 0.5}, 7) == 7 and most_alike({4: 0.5, 7: 0.5}, 9) == 4


def test_division_starts_from_the_models_least_alike() -> None:
    line = torch.tensor([[0.0], [0.4], [10.0], [4.0], [9.0]])
    assert divided(line, 2, negative_l2).tolist() == [0, 0, 1, 0, 1]  # seeds 0 and 10; 4 is nearer to 0
    assert divided(line, 3, negative_l2).tolist() == [0, 0, 1, 2, 1]  # the third seed is 4: 4 from the nearest seed
    assert divided(line, 1, negative_l2).tolist() == [0] * 5
    assert divided(line, 9, negative_l2).tolist() == [0, 4, 1, 2, 3]  # then 9, then 0.4
    assert divided(line[:1].repeat(4, 1), 3, negative_l2).tolist() == [0] * 4
    assert divided(line[:1], 2, negative_l2).tolist() == [0]


def test_a_map_lives_as_long_as_it_is_said_to() -> None:
    apart = CORNERS.roll(1, dims=1)
    stale, fresh = ModelSimilarity("lrcos", 1, True, 3), ModelSimilarity("lrcos", 1, True, 1)
    first = stale.in_round(CORNERS, 1)(apart, apart)
    assert torch.equal(stale.in_round(apart, 2)(apart, apart), first)  # still along the first axis
    assert not torch.equal(fresh.in_round(apart, 2)(apart, apart), first)
    assert not torch.equal(stale.in_round(apart, 3)(apart, apart), first)
    assert fresh.map == [] and len(stale.map) == 2  # what is made in every round need not be remembered
    resumed = ModelSimilarity("lrcos", 1, True, 3)
    resumed.load_state_dict(stale.state_dict())
    assert torch.equal(resumed.in_round(CORNERS, 4)(apart, apart), stale.in_round(CORNERS, 4)(apart, apart))


def test_euclidean_distance_instead() -> None:
    l2 = ModelSimilarity("l2", 50, True, 1)
    found = l2.in_round(CORNERS, 1)(CORNERS[:1], CORNERS)
    np.testing.assert_allclose(found.numpy(), [[0.0, -6.0, -math.sqrt(10), -math.sqrt(10)]], rtol=1e-6)
    assert ModelSimilarity("lrcos", 50, True, 1).distances(CORNERS)[0] == pytest.approx(2.0)  # opposite: 1 - (-1)
