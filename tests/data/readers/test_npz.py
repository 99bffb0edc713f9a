import os
from pathlib import Path

import numpy as np

from feddag.data import readers
from tests.data import refused
from tests.data.readers import Hostile, both_parts, images


def test_npz_with_names(tmp_path: Path) -> None:
    path = tmp_path / "pacs48.npz"
    names = {"classes": ["dog", "cat"], "domains": ["photo", "sketch"]}
    np.savez_compressed(path, x=images(3, 4, 4, 3), y=np.uint8([1, 0, 1]), domain=np.uint8([0, 1, 1]), **names)
    samples, test = readers.read_npz(path)
    assert test is None
    assert samples.y.tolist() == ["cat", "dog", "cat"]
    assert samples.domain is not None
    assert samples.domain.tolist() == ["photo", "sketch", "sketch"]
    np.savez(path, x=images(3, 4, 4, 3), y=np.uint8([1, 0, 2]), classes=["dog", "cat"])
    with refused(path, "classes", "0 .. 1"):
        readers.read_npz(path)


def test_npz_with_split(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    held = {"x_train": images(2, 3), "y_train": ["a", "b"], "x_test": images(1, 3), "y_test": ["b"]}
    np.savez(path, **held, client_train=["u", "v"], client_test=["u"])
    train, test = both_parts(readers.read_npz(path))
    assert train.y.tolist() == ["a", "b"]
    assert test.owner is not None
    assert test.owner.tolist() == ["u"]
    np.savez(path, **held, client_test=["u"])
    with refused(path, "client_train"):
        readers.read_npz(path)
    del held["y_test"]
    np.savez(path, **held)
    with refused(path, "y_test"):
        readers.read_npz(path)
    np.savez(path, x=images(2, 3), y=[0, 1], clients=[1, 2])
    with refused(path, "'clients'", "did you mean 'client'?"):
        readers.read_npz(path)


def test_npz_refuses_damaged_files_and_objects(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=images(20, 3), y=np.arange(20))
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[200] ^= 255  # in the samples: the archive's checksum notices
    for content in (b"", b"PK\3\4", whole[:-1], whole[: len(whole) // 2], bytes(flipped)):
        path.write_bytes(content)
        with refused(path):
            readers.read_npz(path)
    np.savez(path, x=images(2, 3), y=np.array([Hostile(os.mkdir, str(tmp_path / "trace")), 1], dtype=object))
    with refused(path):
        readers.read_npz(path)
    assert not (tmp_path / "trace").exists()
