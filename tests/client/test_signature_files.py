"""Signature files from strangers: refused by their headers, naming the file, before anything large is in memory."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from feddag.client.signature import Signature, signature
from feddag.errors import FeddagError


def arrays(**changes: Any) -> dict[str, Any]:
    made = signature(np.random.default_rng(0).random((9, 5)), np.arange(9) % 2, 2, update=np.arange(4))
    return {**vars(made), **changes}


def refused_file(path: Path, *words: str) -> None:
    with pytest.raises(FeddagError) as caught:
        Signature.load(path)
    sentence = str(caught.value)
    assert sentence.startswith(f"'{path}' is not a signature: ") and "\n" not in sentence
    for word in words:
        assert word in sentence, sentence


VECTORS = arrays()["vectors"]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"vectors": VECTORS.astype(np.float64)}, "vectors must be float32"),
        ({"reliability": np.full(2, 0.5, np.float16)}, "reliability must be float32"),
        ({"counts": np.zeros(2, np.uint8)}, "counts must be int64"),
        ({"counts": np.zeros(2, np.bool_)}, "counts must be int64"),
        ({"counts": np.array([5, -1])}, "below 0"),
        ({"counts": np.array([5, 2**62])}, "above"),
        ({"counts": np.array([5])}, "a count and reliability per class"),
        ({"reliability": np.array([0.5, 2], np.float32)}, "not from 0 to 1"),
        ({"reliability": np.array([0.5, np.nan], np.float32)}, "not a finite number"),
        ({"update": np.full(4, np.inf, np.float32)}, "not a finite number"),
        ({"update_reliability": np.array(2, np.float32)}, "not from 0 to 1"),
        ({"update_reliability": np.zeros(1, np.float32)}, "one number"),
        ({"vectors": VECTORS * 3}, "not as long as principal vectors"),
        ({"vectors": VECTORS * np.float32(1e38)}, "not as long as principal vectors"),
        ({"vectors": VECTORS * np.float32(0.5)}, "not as long as principal vectors"),
        ({"vectors": VECTORS[:, :, 0]}, "classes x p x features"),
        ({"more": np.zeros(3)}, "and no others"),
    ],
)
def test_arrays_that_are_not_those_of_a_signature(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    path = tmp_path / "bad.sig"
    path.write_bytes(save(arrays(**changes)))
    refused_file(path, word)


def test_an_array_that_is_missing(tmp_path: Path) -> None:
    held = arrays()
    del held["counts"]
    (tmp_path / "bad.sig").write_bytes(save(held))
    refused_file(tmp_path / "bad.sig", "counts")


def with_header(path: Path, header: dict[str, Any], size: int) -> Path:
    """A file that begins with this header; the rest are zeros that take no place on the disk."""
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + size)
    return path


def sparse_signature(path: Path, shape: tuple[int, int, int]) -> Path:
    header, offset = {}, 0
    shapes = {"vectors": shape, "counts": shape[:1], "reliability": shape[:1], "update": (0,), "update_reliability": ()}
    for name, sides in shapes.items():
        size = int(np.prod(sides)) * (8 if name == "counts" else 4)
        kind = "I64" if name == "counts" else "F32"
        header[name] = {"dtype": kind, "shape": sides, "data_offsets": [offset, offset + size]}
        offset += size
    return with_header(path, header, offset)


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ((10, 10**6, 64), "vectors = 1000000 is more than samples of 64 features have: at most 64"),
        ((10**6, 3, 784), "allowed are 4294967296"),
        ((10**9, 0, 0), "allowed are 4294967296"),
    ],
)
def test_huge_arrays_are_refused_before_they_are_read(tmp_path: Path, shape: tuple[int, int, int], word: str) -> None:
    path = sparse_signature(tmp_path / "bad.sig", shape)
    tracemalloc.start()
    refused_file(path, word)
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"vectors": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}},
        {"vectors": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        {"vectors": {"dtype": "F32", "shape": [1], "data_offsets": [8, 4]}},
        {"vectors": []},
    ],
)
def test_headers_that_lie(tmp_path: Path, header: dict[str, Any]) -> None:
    refused_file(with_header(tmp_path / "bad.sig", header, 8))


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 8, b"\xff" * 100, struct.pack("<Q", 10**8) + b"{"])
def test_what_is_no_safetensors_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.sig").write_bytes(content)
    refused_file(tmp_path / "bad.sig")


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = save(arrays())
    path = tmp_path / "bad.sig"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        refused_file(path)


def test_a_pipe_a_device_a_folder_and_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused_file(tmp_path / "pipe", "not a regular file")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    refused_file(tmp_path / "zeros", "not a regular file")
    refused_file(tmp_path, "not a regular file")
    refused_file(tmp_path / "none", "No such file")


def test_more_vectors_than_features_are_refused_without_memory_for_them() -> None:
    """They would be zeros. Samples of one or two features have the usual three all the same."""
    x, y = np.random.default_rng(0).random((20, 64)), np.arange(20) % 10
    with pytest.raises(FeddagError, match="vectors = 1000000 is more than samples of 64 features have: at most 64"):
        signature(x, y, 10, vectors=10**6)
    assert signature(x, y, 10, vectors=64).vectors.shape == (10, 64, 64)
    assert signature(x[:, :2], y, 10).vectors.shape == (10, 3, 2)
