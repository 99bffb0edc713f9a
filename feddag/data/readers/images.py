"""Image files, and folders of them whose names are classes and domains."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feddag.data.readers.limits import Budget, open_regular, size_of, sizes_on_disk
from feddag.data.readers.samples import Parts, Samples, reading
from feddag.errors import FeddagError

IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP")  # no others: EPS, for one, starts a program
logging.getLogger("PIL").addHandler(logging.NullHandler())  # what it says of a damaged file is in our sentence
MIXED_SIZE = (32, 32)
DOMAIN_IMAGE_SIZE = (48, 48)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with reading(path, "a complete PNG, JPEG, BMP, PPM, TIFF or WebP image"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of broken metadata, which is not looked at
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with open_regular(path) as file, Image.open(file, formats=IMAGE_FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits per channel")
            Budget().check(path, 4 * image.width * image.height, size_of(file))  # known before it is decoded
            yield image


def read_image(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """One image as H x W x 3, or H x W x 1 when it is grey, resized to `size` (width, height) where given."""
    with _opened(path) as image:
        plain = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        if size and plain.size != size:
            plain = plain.resize(size, Image.Resampling.BILINEAR)
        pixels = np.array(plain)
    return pixels.reshape(*pixels.shape[:2], -1)


def read_images(paths: Sequence[Path], size: tuple[int, int]) -> NDArray[np.uint8]:
    """All images in one array; grey throughout has one channel, otherwise all have three."""
    width, height = size
    Budget().take(paths[0].parent, 3 * width * height * len(paths), sizes_on_disk(paths))
    x = np.empty((len(paths), height, width, 3), np.uint8)
    coloured = False
    for pixels, path in zip(x, paths, strict=True):
        found = read_image(path, size)
        pixels[:] = found
        coloured |= found.shape[2] == 3
    return x if coloured else x[..., :1].copy()


def _images(folder: Path, layout: str) -> list[Path]:
    """The visible files at the depth that the layout says, in order."""
    if not (paths := _files(folder, layout)):
        raise FeddagError(f"{folder} holds no images: expected {layout} inside")
    return sorted(paths)


def _files(folder: Path, layout: str = "CLASS/IMAGE") -> list[Path]:
    found = folder.glob("/".join("*" for _ in layout.split("/")))
    return [path for path in found if path.is_file() and not path.name.startswith(".")]


def read_image_folder(folder: Path) -> Parts:
    """Images as CLASS/file or CLIENT/CLASS/file, in the folder itself or in its `train` and `test`.

    Images that all have one size keep it; if their sizes differ, all are resized to 32 x 32.
    """
    has_split = (folder / "train").is_dir() and (folder / "test").is_dir()
    places = [folder / "train", folder / "test"] if has_split else [folder]
    by_client = not any(map(_files, places)) and any(_files(place, "CLIENT/CLASS/IMAGE") for place in places)
    layout = "CLIENT/CLASS/IMAGE" if by_client else "CLASS/IMAGE"
    paths = [_images(place, layout) for place in places]
    together = [path for part in paths for path in part]
    sizes = set()
    for path in together:
        with _opened(path) as image:
            sizes.add(image.size)
    x = read_images(together, sizes.pop() if len(sizes) == 1 else MIXED_SIZE)
    y = np.array([path.parent.name for path in together])
    owner = np.array([path.parent.parent.name for path in together]) if by_client else None
    ends = np.cumsum([0, *map(len, paths)])
    parts = [slice(*ends[number : number + 2]) for number in range(len(paths))]
    found = [Samples(x[part], y[part], None if owner is None else owner[part]) for part in parts]
    return found[0], found[1] if has_split else None


def read_domain_folder(folder: Path) -> Parts:
    """Images as DOMAIN/CLASS/file (PACS, Office-Caltech), resized to 48 x 48."""
    paths = _images(folder, "DOMAIN/CLASS/IMAGE")
    classes, domains = zip(*((path.parent.name, path.parent.parent.name) for path in paths), strict=True)
    return Samples(read_images(paths, DOMAIN_IMAGE_SIZE), np.array(classes), domain=np.array(domains)), None


def read_tiny_imagenet_c(folder: Path) -> Parts:
    """Images as CORRUPTION/SEVERITY/CLASS/file, 64 x 64; a corruption is a domain.

    Only the corruptions and severities that are there are read; the whole set takes 9.2 GB.
    """
    paths = _images(folder, "CORRUPTION/SEVERITY/CLASS/IMAGE")
    samples = Samples(
        read_images(paths, (64, 64)),
        np.array([path.parent.name for path in paths]),
        domain=np.array([path.parents[2].name for path in paths]),
        version_of=np.array([f"{path.parent.name}/{path.name}" for path in paths]),
    )
    return samples, None
