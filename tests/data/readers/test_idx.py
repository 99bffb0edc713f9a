import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddag.data import readers
from tests.data import refused
from tests.data.readers import both_parts, idx, images, quick


def test_idx_bytes_are_big_endian_dimensions_then_pixels(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255]))
    array = readers.read_idx(tmp_path / "a")
    assert array.tolist() == [[1, 2, 3], [4, 5, 255]]
    assert array.flags.writeable


@quick
@given(shape=st.lists(st.integers(0, 4), min_size=1, max_size=3), zipped=st.booleans(), change=st.integers(-3, 2))
def test_idx_reads_exactly_what_was_written_and_nothing_shorter_or_longer(
    tmp_path: Path, shape: list[int], zipped: bool, change: int
) -> None:
    array = images(*shape)
    whole = idx(array)
    content = whole[:change] if change < 0 else whole + b"\0" * change
    path = tmp_path / "some-idx"
    path.write_bytes(gzip.compress(content) if zipped else content)
    if change:
        with refused(path):
            readers.read_idx(path)
    else:
        assert np.array_equal(readers.read_idx(path), array)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b"\x1f\x8b but no gzip",
        gzip.compress(idx(images(50, 5)))[:-20],
        b"\0\0\x0d\x01\0\0\0\1" + b"\0" * 4,  # floats
        b"\0\0\x08\x00",  # no dimension
        b"\0\0\x08\x04" + b"\xff" * 16,  # more than any machine holds
    ],
)
def test_idx_refuses_damaged_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad-idx"
    path.write_bytes(content)
    with refused(path, "idx"):
        readers.read_idx(path)


def test_idx_folder_takes_plain_and_zipped_files(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images(3, 28, 28)))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.uint8([2, 0, 1]))))
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images(1, 28, 28, seed=1))))
    with refused("t10k-labels-idx1-ubyte", "missing"):
        readers.read_idx_folder(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx(np.uint8([9])))
    train, test = both_parts(readers.read_idx_folder(tmp_path))
    assert np.array_equal(train.x, images(3, 28, 28))
    assert train.y.tolist() == [2, 0, 1]
    assert test.y.tolist() == [9]
