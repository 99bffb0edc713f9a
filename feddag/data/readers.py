"""One reader per file format: a file or folder in, samples out, or one sentence that says what is wrong with it."""

import csv
import gzip
import io
import json
import math
import pickle
import pickletools
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import loadmat

from feddag.errors import FeddagError, nearest

IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "TIFF", "WEBP")  # Pillow's other plugins stay shut: EPS starts a program
MIXED_SIZE = (32, 32)
USER_IMAGE_SIZE = (64, 64)
DOMAIN_IMAGE_SIZE = (48, 48)
LARGEST_IDX = 2**32


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as their file holds them: labels, owners and domains are still the file's own numbers or names.

    `version_of` says which picture a corrupted one was made from, so that all its versions stay on one side of the
    train/test division.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    owner: NDArray[Any] | None = None
    domain: NDArray[Any] | None = None
    version_of: NDArray[Any] | None = None


Parts = tuple[Samples, Samples | None]  # train and test; no test where the source is not divided
Reader = Callable[[Path], Parts]


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes one sentence that names the file and what it should have been."""
    try:
        yield
    except FeddagError:
        raise
    except Exception as error:  # parsers fed with damaged bytes raise anything
        if not path.exists():
            raise FeddagError(f"{path} is missing; it should be {kind}") from error
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise FeddagError(f"{path} is not {kind}: {' '.join(reason.split())[:200]}") from error


def joined(batches: Sequence[Samples]) -> Samples:
    """Batches of plain labelled samples, one after the other."""
    return Samples(np.concatenate([batch.x for batch in batches]), np.concatenate([batch.y for batch in batches]))


# --- idx (MNIST, Fashion-MNIST) -------------------------------------------------------------------------------------


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The byte array of one idx file, gzipped or not."""
    with reading(path, "a whole idx file of bytes"):
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as file:
            zeros, element_type, dimensions = struct.unpack(">HBB", file.read(4))
            if zeros != 0 or element_type != 0x08 or not 1 <= dimensions <= 4:
                raise ValueError("its magic number is wrong")
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            size = math.prod(shape)
            if size > LARGEST_IDX:
                raise ValueError(f"it announces {size} bytes, more than {LARGEST_IDX}")
            content = file.read(size + 1)  # one more, to notice a file that is too long without unpacking all of it
            if len(content) != size:
                raise ValueError(
                    f"it announces {size} bytes and holds {'more' if len(content) > size else len(content)}"
                )
            return np.frombuffer(content, np.uint8).reshape(shape).copy()  # torch wants arrays it may write to


def read_idx_folder(folder: Path) -> Parts:
    """The four idx files of MNIST or Fashion-MNIST, each with or without .gz."""

    def array(name: str) -> NDArray[np.uint8]:
        return read_idx(folder / name if (folder / name).exists() else folder / f"{name}.gz")

    def part(prefix: str) -> Samples:
        return Samples(array(f"{prefix}-images-idx3-ubyte"), array(f"{prefix}-labels-idx1-ubyte"))

    return part("train"), part("t10k")


# --- CIFAR ----------------------------------------------------------------------------------------------------------


def _cifar_images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of 3,072 bytes, red plane first, as N x 32 x 32 x 3."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _cifar_binary_batch(path: Path, label_bytes: int) -> Samples:
    with reading(path, "a whole CIFAR binary batch"):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        record = label_bytes + 3072
        if content.size == 0 or content.size % record:
            raise ValueError(f"{content.size} bytes are no whole number of {record}-byte records")
        rows = content.reshape(-1, record)
        return Samples(_cifar_images(rows[:, label_bytes:]), rows[:, label_bytes - 1])  # the last label is the finest


def read_cifar10_binary(folder: Path) -> Parts:
    """`data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`."""
    train = [_cifar_binary_batch(folder / f"data_batch_{number}.bin", 1) for number in range(1, 6)]
    return joined(train), _cifar_binary_batch(folder / "test_batch.bin", 1)


def read_cifar100_binary(folder: Path) -> Parts:
    """`train.bin` and `test.bin`, whose records hold a coarse label, the fine label (used) and the image."""
    return _cifar_binary_batch(folder / "train.bin", 2), _cifar_binary_batch(folder / "test.bin", 2)


class _PickledArray:
    """Stands in for everything numpy in a pickle: keeps what it is given, runs none of it."""

    state: Any = None

    def __init__(self, *_: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        self.state = state


class _ArrayUnpickler(pickle.Unpickler):
    """Reads plain containers and numpy arrays; any other class or function in the file is refused, never called."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"numpy": ("ndarray", "dtype"), "numpy.core.multiarray": ("_reconstruct",)}
        if name in allowed.get(module.replace("numpy._core", "numpy.core"), ()):
            return _PickledArray
        raise ValueError(f"it asks for {module}.{name}, which such a file never needs")


def _cifar_python_batch(path: Path, label_key: bytes) -> Samples:
    with reading(path, "a whole CIFAR python batch"):
        content = path.read_bytes()
        for opcode, argument, _ in pickletools.genops(content):
            if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
                raise ValueError("it asks for a table longer than itself")  # a few bytes could fill the memory
        held = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        _, shape, _, fortran, pixels = held[b"data"].state
        if fortran or len(shape) != 2 or shape[1] != 3072:
            raise ValueError(f"its data has shape {shape}, not (N, 3072) in row order")
        rows = np.frombuffer(pixels, np.uint8).reshape(shape)
        return Samples(_cifar_images(rows), np.array(held[label_key]))


def read_cifar10_python(folder: Path) -> Parts:
    """`data_batch_1` to `data_batch_5` and `test_batch`, read without the ordinary unpickler."""
    train = [_cifar_python_batch(folder / f"data_batch_{number}", b"labels") for number in range(1, 6)]
    return joined(train), _cifar_python_batch(folder / "test_batch", b"labels")


def read_cifar100_python(folder: Path) -> Parts:
    """`train` and `test` with their fine labels, read without the ordinary unpickler."""
    return _cifar_python_batch(folder / "train", b"fine_labels"), _cifar_python_batch(folder / "test", b"fine_labels")


def read_cifar10_png(folder: Path) -> Parts:
    """Five training batches and a test batch as PNG, one image a row, with JSON lists of labels."""

    def images(name: str) -> NDArray[np.uint8]:
        pixels = read_image(folder / name)
        if pixels.shape[1:] != (1024, 3):
            raise FeddagError(f"{folder / name} is not a CIFAR-10 sheet: its rows must be 1024 coloured pixels wide")
        return pixels.reshape(-1, 32, 32, 3)

    def labels(name: str) -> NDArray[Any]:
        with reading(folder / name, "a JSON list of labels"):
            return np.array(json.loads((folder / name).read_text()))

    train = np.concatenate([images(f"data_batch_{number}.png") for number in range(1, 6)])
    return Samples(train, labels("train_lables.json")), Samples(images("test_batch.png"), labels("test_lables.json"))


def read_cifar10_c(folder: Path) -> Parts:
    """One .npy a corruption (its domain), the same pictures at five severities, and `labels.npy`.

    Only the corruptions that are there are read; all 19 take 2.9 GB.
    """
    labels = _npy(folder / "labels.npy")
    if labels.ndim != 1 or len(labels) % 5 or (labels.reshape(5, -1) != labels[: len(labels) // 5]).any():
        raise FeddagError(f"{folder / 'labels.npy'} must hold the labels of the same pictures five times over")
    files = sorted(path for path in folder.glob("*.npy") if path.name != "labels.npy")
    if not files:
        raise FeddagError(f"{folder} holds no corruption: expected files such as fog.npy beside labels.npy")
    x = np.empty((len(files), len(labels), 32, 32, 3), np.uint8)
    for images, path in zip(x, files, strict=True):
        found = _npy(path)
        if found.dtype != np.uint8 or found.shape != images.shape:
            raise FeddagError(f"{path} holds {found.dtype} of shape {found.shape}, not uint8 of {images.shape}")
        images[:] = found
    samples = Samples(
        x.reshape(-1, 32, 32, 3),
        np.tile(labels, len(files)),
        domain=np.repeat([path.stem for path in files], len(labels)),
        version_of=np.arange(x.shape[0] * x.shape[1]) % (len(labels) // 5),
    )
    return samples, None


def _npy(path: Path) -> NDArray[Any]:
    with reading(path, "a whole .npy array"):
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects
        return array


# --- SVHN -----------------------------------------------------------------------------------------------------------


def _svhn_part(path: Path) -> Samples:
    with reading(path, "a whole SVHN cropped-digits .mat file"):
        held = loadmat(path, variable_names=["X", "y"])
        x, y = held["X"], held["y"].ravel()
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[:3] != (32, 32, 3):
            raise ValueError(f"X is {x.dtype} of shape {x.shape}, not uint8 of (32, 32, 3, N)")
        return Samples(np.ascontiguousarray(x.transpose(3, 0, 1, 2)), np.where(y == 10, 0, y))  # digit 0 is kept as 10


def read_svhn(folder: Path) -> Parts:
    """`train_32x32.mat` and `test_32x32.mat`."""
    return _svhn_part(folder / "train_32x32.mat"), _svhn_part(folder / "test_32x32.mat")


# --- images ---------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    with reading(path, "a whole PNG, JPEG, BMP, PPM, TIFF or WebP image"), warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path, formats=IMAGE_FORMATS) as image:
            if image.mode.startswith(("I", "F")):
                raise ValueError("it has more than 8 bits a channel")
            yield image


def read_image(path: Path, size: tuple[int, int] | None = None) -> NDArray[np.uint8]:
    """One image as H x W x 3, or H x W x 1 when it is grey, resized to `size` (width, height) where given."""
    with _opened(path) as image:
        plain = image.convert("L" if image.mode in ("1", "L", "LA") else "RGB")
        if size and plain.size != size:
            plain = plain.resize(size, Image.Resampling.BILINEAR)
        pixels = np.array(plain)
    return pixels.reshape(*pixels.shape[:2], -1)


def _stacked(paths: Sequence[Path], size: tuple[int, int]) -> NDArray[np.uint8]:
    """All images in one array; grey throughout has one channel, otherwise all have three."""
    width, height = size
    x = np.empty((len(paths), height, width, 3), np.uint8)
    coloured = False
    for pixels, path in zip(x, paths, strict=True):
        found = read_image(path, size)
        pixels[:] = found
        coloured |= found.shape[2] == 3
    return x if coloured else x[..., :1].copy()


def _images(folder: Path, layout: str) -> list[Path]:
    """The visible files that lie as deep in the folder as the layout says, in order."""
    found = folder.glob("/".join("*" for _ in layout.split("/")))
    paths = [path for path in found if path.is_file() and not path.name.startswith(".")]
    if not paths:
        raise FeddagError(f"{folder} holds no images: expected {layout} inside")
    return sorted(paths)


def read_image_folder(folder: Path) -> Parts:
    """Images as CLASS/file, or as train/CLASS/file and test/CLASS/file.

    Images that all have one size keep it; if their sizes differ, all are resized to 32 x 32.
    """
    divided = (folder / "train").is_dir() and (folder / "test").is_dir()
    train = _images(folder / "train" if divided else folder, "CLASS/IMAGE")
    test = _images(folder / "test", "CLASS/IMAGE") if divided else []
    sizes = set()
    for path in train + test:
        with _opened(path) as image:
            sizes.add(image.size)
    x = _stacked(train + test, sizes.pop() if len(sizes) == 1 else MIXED_SIZE)
    y = np.array([path.parent.name for path in train + test])
    if not divided:
        return Samples(x, y), None
    return Samples(x[: len(train)], y[: len(train)]), Samples(x[len(train) :], y[len(train) :])


def read_domain_folder(folder: Path) -> Parts:
    """Images as DOMAIN/CLASS/file (PACS, Office-Caltech), resized to 48 x 48."""
    paths = _images(folder, "DOMAIN/CLASS/IMAGE")
    classes, domains = zip(*((path.parent.name, path.parent.parent.name) for path in paths), strict=True)
    return Samples(_stacked(paths, DOMAIN_IMAGE_SIZE), np.array(classes), domain=np.array(domains)), None


def read_tiny_imagenet_c(folder: Path) -> Parts:
    """Images as CORRUPTION/SEVERITY/CLASS/file, 64 x 64; a corruption is a domain.

    Only the corruptions and severities that are there are read; the whole set takes 9.2 GB.
    """
    paths = _images(folder, "CORRUPTION/SEVERITY/CLASS/IMAGE")
    samples = Samples(
        _stacked(paths, (64, 64)),
        np.array([path.parent.name for path in paths]),
        domain=np.array([path.parents[2].name for path in paths]),
        version_of=np.array([f"{path.parent.name}/{path.name}" for path in paths]),
    )
    return samples, None


# --- natural clients ------------------------------------------------------------------------------------------------


def _leaf_part(folder: Path) -> Samples:
    """All LEAF json files of a folder; pixels come as 0 .. 1 and go back to the bytes they were."""
    x, y, owner = [], [], []
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FeddagError(f"{folder} holds no LEAF .json file")
    for path in files:
        with reading(path, "a whole LEAF FEMNIST file"):
            held = json.loads(path.read_text())
            for user, announced in zip(held["users"], held["num_samples"], strict=True):
                pixels = np.array(held["user_data"][user]["x"], np.float64).reshape(-1, 28, 28, 1)
                labels = np.array(held["user_data"][user]["y"], np.int64)
                if labels.ndim != 1 or not len(pixels) == len(labels) == announced:
                    raise ValueError(
                        f"user {user} has {len(pixels)} images, {labels.size} labels, announced {announced}"
                    )
                if not ((pixels >= 0) & (pixels <= 1)).all():
                    raise ValueError(f"user {user} has a pixel outside 0 .. 1")
                x.append(np.rint(pixels * 255).astype(np.uint8))
                y.append(labels)
                owner.extend([str(user)] * len(labels))
    if not owner:
        raise FeddagError(f"{folder} holds LEAF files without a single sample")
    return Samples(np.concatenate(x), np.concatenate(y), owner=np.array(owner))


def read_leaf(folder: Path) -> Parts:
    """LEAF's FEMNIST json files in `train/` and `test/`, or undivided in the folder itself; a writer is an owner."""
    if (folder / "train").is_dir():
        return _leaf_part(folder / "train"), _leaf_part(folder / "test")
    return _leaf_part(folder), None


def _user_csv_part(path: Path, columns: Sequence[str]) -> Samples:
    with reading(path, f"a CSV file with the columns {', '.join(columns)}"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise ValueError("it has no rows")
        there = [column for column in ("user_id", "image_id", "class") if column in columns or column in rows[0]]
        cells = {column: [row.get(column) or "" for row in rows] for column in there}
        for column in there:
            if not all(cells[column]):
                raise ValueError(f"column {column} is missing or has an empty cell")
        images = [_user_image(path.parent / "images", image_id) for image_id in cells["image_id"]]
    owner = _plain(cells["user_id"]) if "user_id" in cells else None
    return Samples(_stacked(images, USER_IMAGE_SIZE), _plain(cells["class"]), owner=owner)


def _user_image(folder: Path, image_id: str) -> Path:
    """Where that image lies; an id cannot lead out of the folder."""
    for path in (folder / f"{image_id}.jpg", folder / f"{image_id}.png"):
        if path.is_relative_to(folder) and ".." not in path.parts[len(folder.parts) :] and path.is_file():
            return path
    raise FeddagError(
        f"{folder} holds no .jpg or .png of image_id {image_id[:100]!r}, which a CSV file beside it names"
    )


def _plain(words: Sequence[str]) -> NDArray[Any]:
    """Words as integers if every one is written like an integer, so that 10 comes after 9.

    >>> _plain(["10", "9"]).tolist(), _plain(["10", "09"]).tolist()
    ([10, 9], ['10', '09'])
    """
    if all(word.isascii() and word.isdecimal() and len(word) < 19 and str(int(word)) == word for word in words):
        return np.array([int(word) for word in words], np.int64)
    return np.array(words)


def read_user_csv(folder: Path) -> Parts:
    """`train.csv` (user_id, image_id, class), `test.csv` (the same; user_id may be absent) and the files in `images/`.

    Images are resized to 64 x 64. Without `test.csv` the training rows are left to be divided.
    """
    train = _user_csv_part(folder / "train.csv", ("user_id", "image_id", "class"))
    test = folder / "test.csv"
    return train, _user_csv_part(test, ("image_id", "class")) if test.exists() else None


# --- npz ------------------------------------------------------------------------------------------------------------

NPZ_FIELDS = {"x": "x", "y": "y", "client": "owner", "domain": "domain"}  # name in the file -> field of Samples


def read_npz(path: Path) -> Parts:
    """`x`, `y`, optional `client` and `domain`, undivided or each with `_train` and `_test`.

    Where `classes` or `domains` name things, `y` or `domain` are indices into them.
    """
    with reading(path, "a whole .npz archive of plain arrays"), path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is no complete zip archive")
        with np.load(file, allow_pickle=False) as archive:
            held = {name: archive[name] for name in archive.files}
    endings = ("_train", "_test") if "x_train" in held else ("",)
    needed = [f"{name}{ending}" for ending in endings for name in ("x", "y")]
    allowed = [f"{name}{ending}" for ending in endings for name in NPZ_FIELDS] + ["classes", "domains"]
    needed += [f"{name}_train" for name in NPZ_FIELDS if f"{name}_test" in held]
    for name in needed:
        if name not in held:
            raise FeddagError(f"{path} holds no array '{name}'; needed are {', '.join(needed)}")
    for name in held:
        if name not in allowed:
            hint = nearest(name, allowed)
            raise FeddagError(f"{path} holds an array {name!r}, allowed here are {', '.join(allowed)}{hint}")

    def part(ending: str) -> Samples:
        found = {field: held[f"{name}{ending}"] for name, field in NPZ_FIELDS.items() if f"{name}{ending}" in held}
        for field, names in (("y", "classes"), ("domain", "domains")):
            if field in found and names in held:
                found[field] = _named(path, found[field], names, held[names])
        return Samples(**found)

    return part(endings[0]), part(endings[1]) if len(endings) == 2 else None


def _named(path: Path, index: NDArray[Any], names_key: str, names: NDArray[Any]) -> NDArray[Any]:
    if names.ndim != 1 or index.dtype.kind not in "iu" or (index < 0).any() or (index >= len(names)).any():
        raise FeddagError(f"{path} holds '{names_key}', so its indices must be integers 0 .. {names.size - 1}")
    named: NDArray[Any] = names[index]
    return named
