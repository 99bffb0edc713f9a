import io
import os
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

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


def zipped(path: Path, *entries: tuple[str, bytes], packing: int = zipfile.ZIP_DEFLATED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", packing) as archive:
        warnings.simplefilter("ignore")  # two entries of one name are the point
        for name, content in entries:
            archive.writestr(name, content)
    return path


def npy(array: np.ndarray) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


X, Y = npy(images(20, 3)), npy(np.arange(20) % 2)


@pytest.mark.parametrize(
    ("entries", "word"),
    [
        ([("x.npy", X), ("y.npy", Y), ("y.npy", Y)], "two arrays of one name"),
        ([("x.npy", X), ("y.npy", Y), ("y", Y)], "two arrays of one name"),
        ([("x.npy", X), ("y", Y)], "packed"),
        ([("x.npy", X), ("../y.npy", Y)], "no array 'y'"),
        ([("x.npy", X), ("y.npy", Y), ("../../x.npy", X)], "'../../x'"),
        ([("x.npy", X), ("y.npy", Y), ("/etc/x.npy", X)], "'/etc/x'"),
        ([("x.npy", X), ("y.npy", Y), ("x.npy/", b"")], "'x.npy/'"),
        ([("x.npy", X), ("y.npy", Y), ("n" * 9000, X)], "'nnn"),
        ([("x.npy", X + b"more"), ("y.npy", Y)], "announces 60 bytes"),
        ([("x.npy", X[:-1]), ("y.npy", Y)], "announces 60 bytes"),
        ([("x.npy", X.replace(b"(20, 3)", b"(-2, 3)")), ("y.npy", Y)], "x.npz"),
        ([("x.npy", X.replace(b"(20, 3), ", b"(9**9,),,")), ("y.npy", Y)], "x.npz"),
        ([("x.npy", X[:6] + b"\3" + X[7:]), ("y.npy", Y)], "plain numbers"),
        ([("x.npy", X[:10] + b"(" * 118 + X[128:]), ("y.npy", Y)], "x.npz"),
        ([("x.npy", npy(np.zeros(20, "i4,f8"))), ("y.npy", Y)], "plain numbers"),
        ([("x.npy", npy(np.zeros((20, 2), "c8"))), ("y.npy", Y)], "complex64"),
        ([("x.npy", b""), ("y.npy", b"")], "x.npz"),
    ],
)
def test_npz_refuses_entries_that_numpy_does_not_write(
    tmp_path: Path, entries: list[tuple[str, bytes]], word: str
) -> None:
    path = zipped(tmp_path / "x.npz", *entries)
    with refused(path, word):
        readers.read_npz(path)


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_npz_refuses_other_packings(tmp_path: Path, packing: int) -> None:
    path = zipped(tmp_path / "x.npz", ("x.npy", X), ("y.npy", Y), packing=packing)
    with refused(path, "packed"):
        readers.read_npz(path)


def test_an_npz_file_beyond_4_gb_has_two_more_records_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)  # so that this one has them too
    path = zipped(tmp_path / "x.npz", ("x.npy", X), ("y.npy", Y))
    content = path.read_bytes()
    assert content[-98:-94] == b"PK\6\6"
    assert np.array_equal(readers.read_npz(path)[0].y, np.arange(20) % 2)
    path.write_bytes(content[:-58] + struct.pack("<Q", 2**40) + content[-50:])
    with refused(path, "list of contents"):
        readers.read_npz(path)
    path.write_bytes(content[:-98] + b"PK\0\0" + content[-94:])
    with refused(path, "list of contents"):
        readers.read_npz(path)
