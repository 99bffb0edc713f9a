"""Concepts and corruptions against values worked out by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from feddag.data.corruptions import CORRUPTIONS
from feddag.data.shifts import Shift, concepts_of
from feddag.errors import FeddagError
from feddag.rng import rng

STILL = {"gaussian_blur", "defocus_blur", "motion_blur", "zoom_blur", "glass_blur", "elastic_transform"}
STILL |= {"pixelate", "contrast", "rotate"}


def corrupted(x, name, severity=3, seed=0):
    return Shift(corruption=name, severity=severity).images(x, rng(seed, "corrupt"))


def grey(rows):
    return np.array(rows, np.uint8)[None, :, :, None]


def scenes(images=6, height=22, width=17, channels=3):
    """Random pictures whose neighbouring pixels resemble one another, as in photographs."""
    noise = rng(0, "scenes").normal(size=(images, height, width, channels))
    smooth = ndimage.gaussian_filter(noise, (0, 1.5, 1.5, 0))
    return np.clip(128 + 60 * smooth / smooth.std(), 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    ("concept", "expected"),
    [
        ("identity", [0, 1, 2, 3]),
        ("reverse", [3, 2, 1, 0]),
        ("next", [1, 2, 3, 0]),
        ("rotate-2", [2, 3, 0, 1]),
        ("rotate-7", [3, 0, 1, 2]),
    ],
)
def test_concepts_rename_labels(concept, expected):
    renamed = Shift(concept).labels(np.arange(4), 4)
    assert renamed.tolist() == expected
    assert renamed.dtype == np.int64


@given(st.integers(1, 12))
def test_all_concepts_of_a_dataset_are_different_renamings(num_classes):
    labels = np.arange(num_classes)
    renamed = [tuple(Shift(name).labels(labels, num_classes)) for name in concepts_of(num_classes)]
    assert len(set(renamed)) == len(renamed)
    assert all(sorted(names) == labels.tolist() for names in renamed)


def test_invert_is_the_negative_at_every_severity():
    x = grey([[0, 255], [100, 7]])
    for severity in range(1, 6):
        assert corrupted(x, "invert", severity)[0, :, :, 0].tolist() == [[255, 0], [155, 248]]


def test_brightness_adds_and_stops_at_white():
    assert corrupted(grey([[0, 100], [200, 255]]), "brightness", 2)[0, :, :, 0].tolist() == [[51, 151], [251, 255]]


def test_contrast_shrinks_around_the_mean_of_each_image():
    x = np.concatenate([grey([[0, 200]]), grey([[50, 50]])])
    assert corrupted(x, "contrast", 3)[:, 0, :, 0].tolist() == [[60, 140], [50, 50]]  # 100 -+ 0.4 * 100


def test_saturate_stretches_colours_away_from_their_grey():
    x = np.array([[[[90, 100, 110], [50, 50, 50]]]], np.uint8)
    assert corrupted(x, "saturate", 2)[0, 0].tolist() == [[80, 100, 120], [50, 50, 50]]


def test_pixelate_paints_each_cell_in_its_mean():
    x = grey([[0, 40, 10, 10, 10], [20, 100, 10, 10, 60]])
    # Severity 3 keeps round(5 * 0.45) = 2 columns, of 3 and 2 pixels, and round(2 * 0.45) = 1 row.
    assert corrupted(x, "pixelate", 3)[0, :, :, 0].tolist() == [[30, 30, 30, 22, 22]] * 2


def test_rotate_by_ninety_degrees_at_severity_five():
    x = grey([[10, 20, 30], [40, 50, 60], [70, 80, 90]])
    assert (corrupted(x, "rotate", 5)[0, :, :, 0] == np.rot90(x[0, :, :, 0])).all()


def test_motion_blurs_along_the_width_only():
    x = np.zeros((1, 32, 32, 1), np.uint8)
    x[0, 16, 16] = 240
    blurred = corrupted(x, "motion_blur", 1)[0, :, :, 0]
    assert blurred[16, 15:18].tolist() == [80, 80, 80]
    assert blurred.sum() == 240


def test_impulse_noise_replaces_the_stated_share_by_black_and_white():
    x = np.full((4, 50, 50, 1), 128, np.uint8)
    noisy = corrupted(x, "impulse_noise", 5)
    assert set(np.unique(noisy)) == {0, 128, 255}
    assert abs((noisy == 0).mean() - 0.125) < 0.02
    assert abs((noisy == 255).mean() - 0.125) < 0.02


def test_gaussian_and_shot_noise_have_the_stated_spread():
    x = np.full((8, 50, 50, 1), 128, np.uint8)
    assert corrupted(x, "gaussian_noise", 2).std() == pytest.approx(0.08 * 255, rel=0.05)
    assert corrupted(x, "shot_noise", 2).std() == pytest.approx(255 * (128 / 255 / 60) ** 0.5, rel=0.05)


def test_speckle_noise_grows_with_the_light():
    x = np.stack([np.full((60, 60, 1), value, np.uint8) for value in (0, 50, 100)])
    dark, dim, bright = corrupted(x, "speckle_noise", 1).astype(float).std(axis=(1, 2, 3))
    assert dark == 0 and dim == pytest.approx(5, rel=0.05) and bright == pytest.approx(10, rel=0.05)


def test_spatter_covers_the_stated_share_and_leaves_the_rest():
    x = np.full((4, 40, 40, 3), 200, np.uint8)
    muddy = corrupted(x, "spatter", 3)
    assert set(np.unique(muddy)) == {64, 200}
    assert (muddy == 64).mean(axis=(1, 2, 3)) == pytest.approx(np.full(4, 0.17), abs=0.002)


def test_glass_blur_shows_pixels_that_are_there_and_zoom_keeps_the_middle():
    x = scenes(height=21, width=21)
    assert set(np.unique(corrupted(x, "glass_blur"))) <= set(np.unique(x))
    assert (corrupted(x, "zoom_blur")[:, 10, 10] == x[:, 10, 10]).all()


def test_snow_is_as_white_as_stated_and_never_darkens():
    x = scenes()
    snowy = corrupted(x, "snow", 5)
    assert (snowy >= x).all()
    black = corrupted(np.zeros((4, 32, 32, 1), np.uint8), "snow", 3)
    assert set(np.unique(black)) == {round(0.07 * 255), round(0.9 * 255)}
    assert (black > 200).mean() == pytest.approx(1 - (1 - 0.07) ** 4, abs=0.05)  # a flake is four pixels long


@pytest.mark.parametrize("name", sorted(STILL))
def test_a_plain_image_has_nothing_to_blur(name):
    x = np.full((2, 21, 17, 3), 90, np.uint8)
    x_inside = corrupted(x, name)[:, 8:13, 6:11]  # rotation turns black corners in
    assert (x_inside == 90).all()


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"invert", "rotate"}))
def test_more_severe_is_further_from_the_clean_image(name):
    x = scenes()
    distance = [np.abs(corrupted(x, name, s).astype(float) - x).mean() for s in range(1, 6)]
    assert distance[0] > 0
    assert distance == sorted(distance)


@given(
    st.sampled_from(sorted(CORRUPTIONS)),
    st.integers(1, 5),
    st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 3])),
    st.integers(0, 9),
)
@settings(max_examples=120, deadline=None)
def test_shape_type_and_repeatability_for_any_size(name, severity, shape, seed):
    if name == "saturate" and shape[3] == 1:
        return
    x = rng(seed, "x").integers(0, 256, shape, dtype=np.uint8)
    before = x.copy()
    once = corrupted(x, name, severity, seed)
    assert once.shape == x.shape
    assert once.dtype == np.uint8
    assert (once == corrupted(x, name, severity, seed)).all()
    assert (x == before).all()


def test_chunks_leave_no_seam():
    x = scenes(images=1100, height=5, width=5)
    assert (corrupted(x, "contrast")[700] == corrupted(x[700:701], "contrast")[0]).all()


def test_no_corruption_leaves_any_samples_alone():
    x = np.ones((2, 128, 6), np.float32)
    assert Shift("reverse").images(x, rng(0, "unused")) is x


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Shift("revers"), ["concept = 'revers'", "did you mean 'reverse'"]),
        (lambda: Shift("rotate-x"), ["rotate-x", "rotate-K"]),
        (lambda: Shift(corruption="gausian_noise"), ["gausian_noise", "did you mean 'gaussian_noise'"]),
        (lambda: Shift(corruption="fog", severity=6), ["severity = 6", "1 to 5"]),
        (lambda: corrupted(np.ones((2, 128, 6), np.float32), "fog"), ["'fog'", "float32", "(128, 6)"]),
        (lambda: corrupted(grey([[1]]), "saturate"), ["saturate", "grey"]),
    ],
)
def test_refusals_are_one_sentence_that_says_what_is_allowed(make, words):
    with pytest.raises(FeddagError) as refusal:
        make()
    assert all(word in str(refusal.value) for word in words)
    assert "\n" not in str(refusal.value)
