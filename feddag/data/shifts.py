"""What is done to one client's samples: labels renamed (concept shift) and images corrupted (feature shift)."""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feddag.errors import FeddagError, nearest, short

Images = NDArray[np.float32]  # N x H x W x C, 0 .. 1
Corrupt = Callable[[Images, float, np.random.Generator], NDArray[np.floating]]
CHUNK = 512  # images worked on at once: a large test set must not become one huge float array


@dataclass(frozen=True)
class Shift:
    """How one client's samples differ from the dataset's: the same for training and test samples.

    >>> Shift("reverse").labels(np.array([0, 1, 9]), 10).tolist()
    [9, 8, 0]
    >>> Shift("swap-1").labels(np.array([0, 1, 2]), 10).tolist()  # partly renamed
    [1, 0, 2]
    """

    concept: str = "identity"
    corruption: str | None = None
    severity: int = 3

    def __post_init__(self) -> None:
        if self.concept not in ("identity", "reverse", "next") and not re.fullmatch(
            r"(rotate|swap)-\d{1,9}", self.concept
        ):
            known = ("identity", "reverse", "next", "rotate-2", "swap-1")
            raise FeddagError(
                f"concept = '{self.concept}': allowed are identity, reverse, next, rotate-K and swap-K with a number K"
                + nearest(self.concept, known)
            )
        if self.corruption is not None:
            check_corruption(self.corruption)
        if type(self.severity) is not int or not 1 <= self.severity <= 5:
            raise FeddagError(f"severity = {self.severity!r}: it must be a whole number from 1 to 5")

    def labels(self, y: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """The labels as this client knows them."""
        if self.concept == "identity":
            return y
        if self.concept == "reverse":
            return num_classes - 1 - y
        if self.concept.startswith("swap-"):  # the first K pairs: 0 and 1, 2 and 3, ...
            swapped = 2 * min(int(self.concept.removeprefix("swap-")), num_classes // 2)
            return np.where(y < swapped, y ^ 1, y)
        step = 1 if self.concept == "next" else int(self.concept.removeprefix("rotate-"))
        return (y + step % num_classes) % num_classes

    def images(self, x: NDArray[np.generic], generator: np.random.Generator) -> NDArray[np.generic]:
        """The images (uint8, N x H x W x C) as this client sees them, in the same type and shape."""
        if self.corruption is None:
            return x
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3):
            raise FeddagError(
                f"corruption = '{self.corruption}': it needs uint8 images of shape N x H x W x 1 or 3,"
                f" not {x.dtype} samples of shape {x.shape[1:]}"
            )
        if self.corruption == "saturate" and x.shape[3] == 1:
            raise FeddagError("corruption = 'saturate': it needs colour images, and these are grey")
        corrupt, strengths = CORRUPTIONS[self.corruption]
        strength = strengths[self.severity - 1]
        shifted = np.empty_like(x)
        for start in range(0, len(x), CHUNK):
            part = x[start : start + CHUNK].astype(np.float32) / np.float32(255)
            shifted[start : start + CHUNK] = _as_bytes(corrupt(part, strength, generator))
        return shifted


def concepts_of(num_classes: int) -> list[str]:
    """All concepts that differ for this number of classes, in the order in which a partition uses them.

    >>> concepts_of(4), concepts_of(2)
    (['identity', 'reverse', 'next', 'rotate-2', 'rotate-3'], ['identity', 'reverse'])
    """
    if num_classes < 3:  # of two classes, "next" is "reverse"; one class cannot be renamed
        return ["identity", "reverse"][:num_classes]
    return ["identity", "reverse", "next", *(f"rotate-{step}" for step in range(2, num_classes))]


def check_corruption(name: str) -> None:
    """Refuses a corruption that does not exist."""
    if name not in CORRUPTIONS:
        allowed = ", ".join(CORRUPTIONS)
        raise FeddagError(
            f"corruption '{short(name)}' does not exist: allowed are {allowed}{nearest(name, CORRUPTIONS)}"
        )


def _as_bytes(x: NDArray[np.floating]) -> NDArray[np.uint8]:
    pixels: NDArray[np.uint8] = np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)
    return pixels


def _pixels(x: Images, strength: float) -> float:
    """A length given for images 32 pixels wide, scaled up for larger ones; scaled down, it would not blur at all."""
    shorter_side: int = min(x.shape[1:3])
    return strength * max(1, shorter_side / 32)


def _gaussian_noise(x: Images, sigma: float, generator: np.random.Generator) -> NDArray[np.floating]:
    return x + np.float32(sigma) * generator.standard_normal(x.shape, dtype=np.float32)


def _shot_noise(x: Images, photons: float, generator: np.random.Generator) -> NDArray[np.floating]:
    return generator.poisson(x * photons) / photons


def _impulse_noise(x: Images, share: float, generator: np.random.Generator) -> NDArray[np.floating]:
    draws = generator.random(x.shape, dtype=np.float32)
    return np.where(draws < share / 2, 0, np.where(draws < share, 1, x))


def _gaussian_blur(x: Images, sigma: float, generator: np.random.Generator) -> NDArray[np.floating]:
    from scipy import ndimage  # slow to import, and most runs blur nothing

    width = _pixels(x, sigma)
    return ndimage.gaussian_filter(x, (0, width, width, 0))


def _defocus_blur(x: Images, radius: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """The mean over a disc, its rim weighted by how much of the pixel the disc covers."""
    from scipy import ndimage

    radius = _pixels(x, radius)
    reach = np.arange(-np.ceil(radius), np.ceil(radius) + 1)
    disc = np.clip(radius + 0.5 - np.hypot(reach[:, None], reach[None, :]), 0, 1)
    return ndimage.convolve(x, (disc / disc.sum())[None, :, :, None])


def _motion_blur(x: Images, length: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """The camera pans along the width."""
    from scipy import ndimage

    return ndimage.uniform_filter1d(x, max(2, round(_pixels(x, length))), axis=2)


def _pixelate(x: Images, kept: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """Cells as large as needed to keep this share of the rows and columns, each painted in its mean."""
    for axis in (1, 2):
        length = x.shape[axis]
        cells = max(1, round(length * kept))
        cell = np.arange(length) * cells // length
        sums = np.add.reduceat(x, np.searchsorted(cell, np.arange(cells)), axis=axis)
        sizes = np.bincount(cell).astype(np.float32)
        x = (sums / np.expand_dims(sizes, tuple(range(1, 4 - axis)))).take(cell, axis=axis)
    return x


def _jpeg_compression(x: Images, quality: float, generator: np.random.Generator) -> NDArray[np.floating]:
    coded = np.empty_like(x)
    for n, pixels in enumerate(_as_bytes(x)):
        with io.BytesIO() as file:
            Image.fromarray(pixels if x.shape[3] == 3 else pixels[:, :, 0]).save(file, "JPEG", quality=int(quality))
            coded[n] = np.asarray(Image.open(file), dtype=np.float32).reshape(pixels.shape) / 255
    return coded


def _brightness(x: Images, added: float, generator: np.random.Generator) -> NDArray[np.floating]:
    return x + np.float32(added)


def _contrast(x: Images, kept: float, generator: np.random.Generator) -> NDArray[np.floating]:
    mean: Images = x.mean(axis=(1, 2), keepdims=True)
    return mean + np.float32(kept) * (x - mean)


def _fog(x: Images, density: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """White clouds over the image: random fields, each of finer grain and half the weight of the one before."""
    from scipy import ndimage

    images, height, width, _ = x.shape
    clouds = np.zeros((images, height, width), np.float32)
    for octave in range(1, 4):
        grain = generator.random((images, 2**octave, 2**octave), dtype=np.float32)
        clouds += ndimage.zoom(grain, (1, height / 2**octave, width / 2**octave), order=1) / 2**octave
    clouds -= clouds.min(axis=(1, 2), keepdims=True)
    clouds /= np.maximum(clouds.max(axis=(1, 2), keepdims=True), 1e-6)
    thickness = np.float32(density) * (clouds[..., None] + 1) / 2  # even the thinnest fog is half as dense
    return x * (1 - thickness) + thickness


def _saturate(x: Images, factor: float, generator: np.random.Generator) -> NDArray[np.floating]:
    grey: Images = x.mean(axis=3, keepdims=True)
    return grey + np.float32(factor) * (x - grey)


def _invert(x: Images, _: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """The negative; half of it would be plain grey, so every severity is the full one."""
    return 1 - x


def _rotate(x: Images, degrees: float, generator: np.random.Generator) -> NDArray[np.floating]:
    from scipy import ndimage

    return ndimage.rotate(x, degrees, axes=(1, 2), reshape=False, order=1)


# Each with its strength at severities 1 to 5. The first ones differ most from one another: "4 corruptions" are these.
CORRUPTIONS: dict[str, tuple[Corrupt, tuple[float, float, float, float, float]]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.08, 0.12, 0.18, 0.26)),
    "gaussian_blur": (_gaussian_blur, (0.5, 0.8, 1.2, 1.7, 2.4)),
    "fog": (_fog, (0.25, 0.4, 0.55, 0.7, 0.85)),
    "invert": (_invert, (1, 1, 1, 1, 1)),
    "contrast": (_contrast, (0.75, 0.55, 0.4, 0.25, 0.12)),
    "pixelate": (_pixelate, (0.75, 0.6, 0.45, 0.3, 0.2)),
    "rotate": (_rotate, (15, 30, 45, 60, 90)),
    "brightness": (_brightness, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "impulse_noise": (_impulse_noise, (0.02, 0.05, 0.1, 0.16, 0.25)),
    "motion_blur": (_motion_blur, (3, 4, 6, 8, 11)),
    "jpeg_compression": (_jpeg_compression, (50, 30, 18, 10, 5)),
    "shot_noise": (_shot_noise, (120, 60, 30, 15, 8)),
    "defocus_blur": (_defocus_blur, (0.8, 1.2, 1.7, 2.3, 3)),
    "saturate": (_saturate, (1.5, 2, 2.7, 3.6, 5)),
}
