"""CIFAR-10, CIFAR-100 and CIFAR-10-C in the forms they are published in."""

import io
import json
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.images import read_image
from feddag.data.readers.samples import Parts, Samples, reading
from feddag.errors import FeddagError


def _cifar_images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of 3,072 bytes, red plane first, as N x 32 x 32 x 3."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _cifar_binary_batch(path: Path, label_bytes: int) -> Samples:
    with reading(path, "a complete CIFAR binary batch"):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        record = label_bytes + 3072
        if content.size == 0 or content.size % record:
            raise ValueError(f"{content.size} bytes are not a multiple of {record}, the size of a record")
        rows = content.reshape(-1, record)
        return Samples(_cifar_images(rows[:, label_bytes:]), rows[:, label_bytes - 1])  # the last label is the finest


def read_cifar10_binary(folder: Path) -> Parts:
    """`data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`."""
    train = [_cifar_binary_batch(folder / f"data_batch_{number}.bin", 1) for number in range(1, 6)]
    return _joined(train), _cifar_binary_batch(folder / "test_batch.bin", 1)


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
        raise ValueError(f"it asks for {module}.{name}, which such a file does not need")


def _cifar_python_batch(path: Path, label_key: bytes) -> Samples:
    with reading(path, "a complete CIFAR python batch"):
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
    return _joined(train), _cifar_python_batch(folder / "test_batch", b"labels")


def read_cifar100_python(folder: Path) -> Parts:
    """`train` and `test` with their fine labels, read without the ordinary unpickler."""
    return _cifar_python_batch(folder / "train", b"fine_labels"), _cifar_python_batch(folder / "test", b"fine_labels")


def read_cifar10_png(folder: Path) -> Parts:
    """Five training batches and a test batch as PNG, one image per row, with JSON lists of labels."""

    def images(name: str) -> NDArray[np.uint8]:
        pixels = read_image(folder / name)
        if pixels.shape[1:] != (1024, 3):
            raise FeddagError(f"{folder / name} is not a CIFAR-10 sheet: its rows must be 1024 pixels wide, in colour")
        return pixels.reshape(-1, 32, 32, 3)

    def labels(name: str) -> NDArray[Any]:
        with reading(folder / name, "a JSON list of labels"):
            return np.array(json.loads((folder / name).read_text()))

    train = np.concatenate([images(f"data_batch_{number}.png") for number in range(1, 6)])
    return Samples(train, labels("train_lables.json")), Samples(images("test_batch.png"), labels("test_lables.json"))


def read_cifar10_c(folder: Path) -> Parts:
    """One .npy file per corruption (its domain), the same pictures at five severities, and `labels.npy`.

    Only the corruptions that are there are read; all 19 take 2.9 GB.
    """
    labels = _npy(folder / "labels.npy")
    if labels.ndim != 1 or len(labels) % 5 or (labels.reshape(5, -1) != labels[: len(labels) // 5]).any():
        raise FeddagError(f"{folder / 'labels.npy'} must hold the labels of the same pictures five times")
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
    with reading(path, "a complete .npy array"):
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")  # refuses pickled objects
        return array


def _joined(batches: Sequence[Samples]) -> Samples:
    """Batches of plain labelled samples, one after the other."""
    return Samples(np.concatenate([batch.x for batch in batches]), np.concatenate([batch.y for batch in batches]))
