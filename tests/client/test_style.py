"""Statistics of how samples look, by hand."""

import numpy as np
import pytest

from feddag.client.signature import signature
from feddag.client.style import EPSILON, MOST_VALUES, style_features, style_of_classes, style_size


def logged(value: float) -> float:
    return float(np.log(value + EPSILON))


def test_a_grey_image_of_stripes() -> None:
    """Columns 0, 1, 0, 1: neighbours along a row differ by 1, those two apart or in a column by nothing."""
    image = np.tile([0.0, 1.0], (1, 8, 4))
    spread = np.sqrt(0.25 + EPSILON)
    of_values = [0.5, logged(0.25), 0.0, logged(0.0625 / spread**4)]
    flat = logged(0.0), logged(0.0) / 2  # energy, and ln mean |d| - ln(energy) / 2
    rows = [*flat, *flat, *flat]  # lags 1 and 2, second differences
    ends = logged(4.0), logged(2.0) - logged(4.0) / 2  # 0 - 2 + 0 and 1 - 0 + 1
    columns = [logged(1.0), logged(1.0) / 2, *flat, *ends]
    np.testing.assert_allclose(
        style_features(image)[0], [*of_values, *rows, *columns, logged(0.0)], rtol=1e-4, atol=1e-5
    )


def test_colours_of_two_flat_channels() -> None:
    """Channels of 1 and 3 are each 1 from their mean; they do not vary, so they do not go together either."""
    image = np.broadcast_to([1.0, 3.0], (1, 4, 4, 2))
    found = style_features(image)[0]
    np.testing.assert_allclose(found[:2], [1, 3])
    np.testing.assert_allclose(found[8:11], [logged(1.0), logged(1.0), 0.0], rtol=1e-4, atol=1e-6)


def test_where_the_channels_are_makes_no_difference() -> None:
    x = np.random.default_rng(0).random((3, 12, 10, 3))
    last, first = style_features(x), style_features(np.moveaxis(x, 3, 1), "first")
    np.testing.assert_allclose(last, first, rtol=1e-5)
    assert last.shape[1] == style_size((12, 10, 3)) == style_size((3, 12, 10), "first")


def test_many_samples_go_in_pieces_and_none_in_none() -> None:
    x = np.random.default_rng(0).random((1003, 4, 4))
    whole = style_features(x)
    np.testing.assert_allclose(whole[-3:], style_features(x[-3:]), rtol=1e-5)
    assert style_features(x[:0]).shape == (0, whole.shape[1])


@pytest.mark.parametrize(
    ("shape", "size"), [((7,), 7), ((500,), MOST_VALUES), ((100, 9), 38), ((1, 1), 4), ((2, 30), 12)]
)
def test_series_vectors_and_odd_shapes(shape: tuple[int, ...], size: int) -> None:
    found = style_features(np.random.default_rng(0).random((5, *shape)))
    assert found.shape == (5, size) and np.isfinite(found).all()


def test_projections_keep_lengths_and_are_the_same_everywhere() -> None:
    x = np.eye(100)
    np.testing.assert_allclose(np.square(style_features(x)).sum(), MOST_VALUES, rtol=1e-5)  # orthonormal directions
    np.testing.assert_array_equal(style_features(x), style_features(x.copy()))


def test_class_means_and_their_covariance() -> None:
    """Around class means (1, 0) and (0, 0): deviations (-1, 1), (1, -1) and (0, 0); two degrees of freedom less one."""
    features = np.array([[0, 1], [2, -1], [0, 0]], np.float32)
    means, spread = style_of_classes(features, np.array([0, 0, 1]), 3)
    assert means.tolist() == [[1, 0], [0, 0], [0, 0]] and spread.tolist() == [2, -2, 2]


def test_a_signature_tells_it_but_where_it_cannot_or_shall_not() -> None:
    x, y = np.random.default_rng(0).random((9, 8, 8)), np.arange(9) % 3
    made = signature(x, y)
    assert made.style.shape == (3, 17) and made.style_spread.shape == (17 * 18 // 2,)
    assert not signature(x, y, style=False).style.size
    assert not signature(x * 1e30, y).style.size  # fourth powers are beyond 32 bits
