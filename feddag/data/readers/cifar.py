"""CIFAR-10, CIFAR-100 and CIFAR-10-C in the forms they are published in."""

import io
import json
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from feddag.data.readers.images import read_image
from feddag.data.readers.limits import JSON_GROWS, Budget, content_of, open_regular, text_of
from feddag.data.readers.npz import array_size
from feddag.data.readers.samples import Parts, Samples, reading, whole_numbers
from feddag.errors import FeddagError

# What makes up nearly all of a batch: small numbers, text, and where they are kept. Each takes little memory, and none
# can be made to fall into one slot of a dictionary, which would take hours to fill.
COMMON_OPCODES = (
    *("BININT", "BININT1", "BININT2", "SHORT_BINSTRING", "BINSTRING", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET", "MEMOIZE", "MARK", "APPENDS"),
)
MOST_OPCODES, MOST_RARE_OPCODES = 2**21, 2000  # CIFAR-100 has some 400,000 and 300


def _cifar_images(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of 3,072 bytes, red plane first, as N x 32 x 32 x 3."""
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _cifar_binary_batch(path: Path, label_bytes: int, budget: Budget) -> Samples:
    with reading(path, "a complete CIFAR binary batch"):
        content = np.frombuffer(content_of(path, budget), np.uint8)
        record = label_bytes + 3072
        if content.size == 0 or content.size % record:
            raise ValueError(f"{content.size} bytes are not a multiple of {record}, the size of a record")
        rows = content.reshape(-1, record)
        return Samples(_cifar_images(rows[:, label_bytes:]), rows[:, label_bytes - 1])  # the last label is the finest


def read_cifar10_binary(folder: Path) -> Parts:
    """`data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin`."""
    budget = Budget()
    train = [_cifar_binary_batch(folder / f"data_batch_{number}.bin", 1, budget) for number in range(1, 6)]
    return _joined(train), _cifar_binary_batch(folder / "test_batch.bin", 1, budget)


def read_cifar100_binary(folder: Path) -> Parts:
    """`train.bin` and `test.bin`, whose records hold a coarse label, the fine label (used) and the image."""
    budget = Budget()
    return _cifar_binary_batch(folder / "train.bin", 2, budget), _cifar_binary_batch(folder / "test.bin", 2, budget)


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


def _check_pickle(content: bytes) -> None:
    """Refuse what would take much more memory or time than an honest batch of this size."""
    rare = 0
    for number, (opcode, argument, _) in enumerate(pickletools.genops(content)):
        rare += opcode.name not in COMMON_OPCODES
        if rare > MOST_RARE_OPCODES or number > MOST_OPCODES:
            raise ValueError("it is more complicated than a batch of images is")
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise ValueError("it asks for a table longer than itself")  # a few bytes could fill the memory


def _cifar_python_batch(path: Path, label_key: bytes, budget: Budget) -> Samples:
    with reading(path, "a complete CIFAR python batch"):
        content = content_of(path, budget)
        _check_pickle(content)
        held = _ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
        _, shape, _, fortran, pixels = held[b"data"].state
        if fortran or len(shape) != 2 or shape[1] != 3072:
            raise ValueError(f"its data has shape {shape}, not (N, 3072) in row order")
        rows = np.frombuffer(pixels, np.uint8).reshape(shape)
        return Samples(_cifar_images(rows), whole_numbers(held[label_key]))


def read_cifar10_python(folder: Path) -> Parts:
    """`data_batch_1` to `data_batch_5` and `test_batch`, read without the ordinary unpickler."""
    budget = Budget()
    train = [_cifar_python_batch(folder / f"data_batch_{number}", b"labels", budget) for number in range(1, 6)]
    return _joined(train), _cifar_python_batch(folder / "test_batch", b"labels", budget)


def read_cifar100_python(folder: Path) -> Parts:
    """`train` and `test` with their fine labels, read without the ordinary unpickler."""
    budget = Budget()
    train, test = (_cifar_python_batch(folder / name, b"fine_labels", budget) for name in ("train", "test"))
    return train, test


def read_cifar10_png(folder: Path) -> Parts:
    """Five training batches and a test batch as PNG, one image per row, with JSON lists of labels."""
    budget = Budget()

    def images(name: str) -> NDArray[np.uint8]:
        pixels = read_image(folder / name)
        budget.take(folder / name, pixels.nbytes, (folder / name).stat().st_size)
        if pixels.shape[1:] != (1024, 3):
            raise FeddagError(f"{folder / name} is not a CIFAR-10 sheet: its rows must be 1024 pixels wide, in colour")
        return pixels.reshape(-1, 32, 32, 3)

    def labels(name: str) -> NDArray[Any]:
        with reading(folder / name, "a JSON list of labels"):
            return whole_numbers(json.loads(text_of(folder / name, JSON_GROWS)))

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
    shape = (len(labels), 32, 32, 3)
    found = [_npy(path) for path in files]  # mapped: nothing is read yet
    for path, images in zip(files, found, strict=True):
        if images.dtype != np.uint8 or images.shape != shape:
            raise FeddagError(f"{path} holds {images.dtype} of shape {images.shape}, not uint8 of {shape}")
    Budget().take(folder, sum(images.nbytes for images in found))
    samples = Samples(
        np.concatenate(found),
        np.tile(labels, len(files)),
        domain=np.repeat([path.stem for path in files], len(labels)),
        version_of=np.arange(len(files) * len(labels)) % (len(labels) // 5),
    )
    return samples, None


def _npy(path: Path) -> NDArray[Any]:
    """A mapped array, whose file holds all that it announces."""
    with reading(path, "a complete .npy array"):
        with open_regular(path) as file:
            array_size(file)
        array: NDArray[Any] = npy.open_memmap(path, mode="r")
        return array


def _joined(batches: Sequence[Samples]) -> Samples:
    """Batches of plain labelled samples, one after the other."""
    return Samples(np.concatenate([batch.x for batch in batches]), np.concatenate([batch.y for batch in batches]))
