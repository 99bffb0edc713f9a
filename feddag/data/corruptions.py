"""Corruptions of images, each at five severities: what feature shift does to a client's samples."""

import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Images = NDArray[np.float32]  # N x H x W x C, 0 .. 1
Corrupt = Callable[[Images, float, np.random.Generator], NDArray[np.floating]]


def as_bytes(x: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Pixels from 0 to 1 as whole numbers to 255."""
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
    for n, pixels in enumerate(as_bytes(x)):
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


def _speckle_noise(x: Images, sigma: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """Noise in proportion to the light."""
    return x * (1 + np.float32(sigma) * generator.standard_normal(x.shape, dtype=np.float32))


def _glass_blur(x: Images, reach: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """Every pixel shows another one nearby."""
    moved = _pixels(x, reach) * generator.uniform(-1, 1, (2, *x.shape[:3]))
    return _displaced(x, np.rint(moved))


def _elastic_transform(x: Images, reach: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """Neighbours move together: a smooth random field says where to."""
    from scipy import ndimage

    field = ndimage.gaussian_filter(generator.uniform(-1, 1, (2, *x.shape[:3])), (0, 0, *(_pixels(x, 3.0),) * 2))
    return _displaced(x, _pixels(x, reach) * field / max(field.std(), 1e-6))


def _displaced(x: Images, moved: NDArray[np.floating]) -> NDArray[np.floating]:
    """Each pixel taken from so many rows below and columns to the right of it."""
    from scipy import ndimage

    rows, columns = np.mgrid[: x.shape[1], : x.shape[2]]
    shown = np.empty_like(x)
    for n, (down, right) in enumerate(moved.swapaxes(0, 1)):
        for channel in range(x.shape[3]):
            at = np.stack([rows + down, columns + right])
            shown[n, :, :, channel] = ndimage.map_coordinates(x[n, :, :, channel], at, order=1, mode="nearest")
    return shown


def _zoom_blur(x: Images, most: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """The mean of the image and of five that are ever nearer, up to this factor."""
    factors = np.linspace(1, most, 6)
    shown = np.zeros_like(x)
    for by in factors:
        shown += np.einsum("ir,jc,nrck->nijk", _zoomed(x.shape[1], by), _zoomed(x.shape[2], by), x, optimize=True)
    return shown / len(factors)


def _zoomed(length: int, factor: float) -> NDArray[np.float32]:
    """Row i: how much each pixel of a line counts for pixel i of the line stretched from its middle (linearly)."""
    middle = (length - 1) / 2
    at = middle + (np.arange(length) - middle) / factor
    weights: NDArray[np.float32] = np.clip(1 - np.abs(at[:, None] - np.arange(length)), 0, 1).astype(np.float32)
    return weights


def _snow(x: Images, share: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """White flakes that fall a little askew, before a paler image."""
    from scipy import ndimage

    flakes = (generator.random(x.shape[:3], dtype=np.float32) < share).astype(np.float32)
    length = max(2, round(_pixels(x, 4)))
    streak = np.eye(length, dtype=np.float32)
    flakes = np.minimum(ndimage.convolve(flakes, streak[None], mode="constant"), 1)[..., None]
    snowy: Images = np.maximum(x + np.float32(share) * (1 - x), np.float32(0.9) * flakes)
    return snowy


def _spatter(x: Images, share: float, generator: np.random.Generator) -> NDArray[np.floating]:
    """Drops of mud: this share of the image is dark."""
    from scipy import ndimage

    width = _pixels(x, 1.0)
    field = ndimage.gaussian_filter(generator.standard_normal(x.shape[:3]), (0, width, width))
    least = np.quantile(field, 1 - share, axis=(1, 2), keepdims=True)
    return np.where((field >= least)[..., None], np.float32(0.25), x)


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
    "snow": (_snow, (0.02, 0.04, 0.07, 0.11, 0.16)),
    "spatter": (_spatter, (0.05, 0.1, 0.17, 0.25, 0.35)),
    "elastic_transform": (_elastic_transform, (0.6, 0.9, 1.3, 1.8, 2.4)),
    "zoom_blur": (_zoom_blur, (1.1, 1.2, 1.35, 1.5, 1.7)),
    "glass_blur": (_glass_blur, (0.7, 1.0, 1.5, 2.0, 3.0)),
    "speckle_noise": (_speckle_noise, (0.1, 0.18, 0.27, 0.4, 0.55)),
}
