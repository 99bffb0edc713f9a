"""A small, good file of every kind, and how each kind is read."""

import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from scipy.io import savemat

from feddag import group
from feddag.client.signature import Signature, signature
from feddag.data import datasets, readers
from feddag.data.obtain.fetch import _unpack
from tests.data.readers import idx, planes, save_image
from tests.data.test_obtain import tar
from tests.fuzz.damage import Random

PACKINGS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "jpeg")  # of TIFF files
Whole = tuple[Path, list[Path]]
"""What a reader is given, and the files of it that may be damaged."""


def images(random: Random, *shape: int) -> np.ndarray:
    return random.integers(0, 256, shape, dtype=np.uint8)


def npz(random: Random, folder: Path) -> Whole:
    path = folder / "own.npz"
    x = images(random, 20, 4, 4) if random.random() < 0.5 else random.normal(size=(20, 5, 2))
    held: dict[str, Any] = {"x": x, "y": random.integers(0, 3, 20)}
    if random.random() < 0.5:
        held |= {"y": random.choice(["cat", "dog"], 20), "client": random.choice(["u", "v"], 20)}
    elif random.random() < 0.5:
        held |= {"classes": ["a", "b", "c"]}
    (np.savez_compressed if random.random() < 0.5 else np.savez)(path, **held)
    return path, [path]


def _idx_files(random: Random, folder: Path, ending: str) -> Whole:
    files = []
    for prefix, count in (("train", 6), ("t10k", 3)):
        for name, array in (("images-idx3", images(random, count, 4, 4)), ("labels-idx1", images(random, count) % 10)):
            files.append(folder / f"{prefix}-{name}-ubyte{ending}")
            files[-1].write_bytes(gzip.compress(idx(array), mtime=0) if ending else idx(array))
    return folder, files


def cifar(random: Random, folder: Path) -> Whole:
    files = [folder / "train.bin", folder / "test.bin"]
    for path in files:
        rows = [random.integers(0, 20, (2, 1)), random.integers(0, 100, (2, 1)), images(random, 2, 3072)]
        path.write_bytes(np.hstack(rows).astype(np.uint8).tobytes())
    return folder, files


def cifar_python(random: Random, folder: Path) -> Whole:
    files = [folder / "train", folder / "test"]
    for path in files:
        held = {b"data": planes(images(random, 1, 32, 32, 3)), b"fine_labels": [int(random.integers(100))]}
        path.write_bytes(pickle.dumps(held, protocol=int(random.integers(3, 5))))
    return folder, files


def cifar_c(random: Random, folder: Path) -> Whole:
    files = [folder / f"{name}.npy" for name in ("labels", "fog", "snow")]
    np.save(files[0], np.tile(np.arange(4) % 10, 5))
    for path in files[1:]:
        np.save(path, images(random, 20, 32, 32, 3))
    return folder, files


def mat(random: Random, folder: Path) -> Whole:
    files = [folder / "train_32x32.mat", folder / "test_32x32.mat"]
    for path in files:
        held = {"X": images(random, 32, 32, 3, 2), "y": images(random, 2, 1) % 10}
        savemat(path, held, do_compression=bool(random.random() < 0.5))
    return folder, files


def png(random: Random, folder: Path) -> Whole:
    files = []
    endings = ("png", "jpg", "bmp", "webp", "tiff", "ppm")
    for number in range(12):
        files.append(folder / "ab"[number % 2] / f"{number}.{endings[random.integers(len(endings))]}")
        files[-1].parent.mkdir(exist_ok=True)
        packed = {"compression": PACKINGS[random.integers(len(PACKINGS))]} if files[-1].suffix == ".tiff" else {}
        pixels = images(random, 8, 8, 3) if random.random() < 0.7 else images(random, 8, 8)
        Image.fromarray(pixels).save(files[-1], **packed)
    return folder, files


def leaf(random: Random, folder: Path) -> Whole:
    users = {"f1": 3, "f2": 4}
    data = {
        user: {"x": random.random((count, 784)).round(2).tolist(), "y": random.integers(0, 62, count).tolist()}
        for user, count in users.items()
    }
    path = folder / "all_data_0.json"
    path.write_text(json.dumps({"users": list(users), "num_samples": list(users.values()), "user_data": data}))
    return folder, [path]


def csv(random: Random, folder: Path) -> Whole:
    for name in "abcdef":
        save_image(folder / "images" / f"{name}.png", images(random, 6, 6, 3))
    rows = [f"u{random.integers(3)},{name},{random.integers(4)}" for name in "abcdef"]
    (folder / "train.csv").write_text("\n".join(["user_id,image_id,class", *rows]) + "\n")
    return folder, [folder / "train.csv"]


def archive(random: Random, folder: Path) -> Whole:
    path = folder / "made.tar.gz"
    path.write_bytes(tar({f"inside/{name}": random.bytes(300) for name in ("train.bin", "test.bin")}))
    return path, [path]


def sig(random: Random, folder: Path) -> Whole:
    for name in ("good-1.sig", "good-2.sig", "bad.sig"):
        some_signature(random).save(folder / name)
    return folder, [folder / "bad.sig"]


def some_signature(random: Random) -> Signature:
    y = random.integers(0, 3, 12)
    update = random.normal(size=4).astype(np.float32)
    return signature(random.normal(size=(12, 5)), y, 3, update=update, update_reliability=0.5)


def matrix(random: Random, folder: Path) -> Whole:
    path = folder / "distances.npy"
    points = random.random((int(random.integers(1, 9)), 2))
    np.save(path, np.linalg.norm(points[:, None] - points, axis=2))
    return path, [path]


def table(random: Random, folder: Path) -> Whole:
    path = folder / "table.csv"
    people = random.integers(0, 2, 40)  # each has enough samples to set some aside
    drawn = zip(random.normal(size=(40, 2)), ["ann", "bob"] * 20, people, strict=True)
    rows = [f"{a:.3f},{b:.2e},{'sit' if kind else 'walk'},{who}" for (a, b), who, kind in drawn]
    path.write_text("\n".join(["height,weight,label,client", *rows, ""]))
    return path, [path]


WHOLES: dict[str, Callable[[Random, Path], Whole]] = {
    "npz": npz,
    "idx": lambda random, folder: _idx_files(random, folder, ""),
    "idx.gz": lambda random, folder: _idx_files(random, folder, ".gz"),
    "cifar": cifar,
    "cifar-python": cifar_python,
    "cifar-c": cifar_c,
    "mat": mat,
    "png": png,
    "leaf": leaf,
    "csv": csv,
    "tar": archive,
    "signature": sig,
    "matrix": matrix,
    "table": table,
}


def _as_dataset(read: readers.Reader) -> Callable[[Path], object]:
    """All the way to a dataset: what a reader lets through is checked again there."""
    return lambda path: datasets.assembled("fuzz", str(path), read(path))


def _grouped_signatures(folder: Path) -> object:
    files = sorted(folder.glob("*.sig"))
    found = group([Signature.load(path) for path in files], names=[path.name for path in files])
    assert np.isfinite(found.distances_).all()
    return found


def _grouped_matrix(path: Path) -> object:
    try:
        given = np.load(path, allow_pickle=False)
    except Exception:  # whoever has a matrix has loaded it: that is not feddag's part
        return None
    found = group(given.astype(object) if path.with_name("as objects").exists() else given)
    assert np.isfinite(found.distances_).all() and np.isfinite(found.threshold_)
    return found


READERS: dict[str, Callable[[Path], object]] = {
    "npz": lambda path: datasets.load(str(path)),
    "idx": _as_dataset(readers.read_idx_folder),
    "idx.gz": _as_dataset(readers.read_idx_folder),
    "cifar": _as_dataset(readers.read_cifar100_binary),
    "cifar-python": _as_dataset(readers.read_cifar100_python),
    "cifar-c": _as_dataset(readers.read_cifar10_c),
    "mat": _as_dataset(readers.read_svhn),
    "png": lambda path: datasets.load(str(path)),
    "leaf": _as_dataset(readers.read_leaf),
    "csv": _as_dataset(readers.read_user_csv),
    "table": lambda path: datasets.load(str(path)),
    "tar": lambda path: _unpack(path, path.parent),
    "signature": _grouped_signatures,
    "matrix": _grouped_matrix,
}
