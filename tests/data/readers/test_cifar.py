import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feddag.data import datasets, readers
from feddag.data.readers import cifar
from feddag.errors import FeddagError
from tests.data import refused
from tests.data.readers import Hostile, both_parts, images, planes, quick, save_image


def test_cifar10_binary(tmp_path: Path) -> None:
    x = images(12, 32, 32, 3)
    for number in range(6):
        rows = np.hstack([np.full((2, 1), number, np.uint8), planes(x[2 * number : 2 * number + 2])])
        name = f"data_batch_{number + 1}.bin" if number < 5 else "test_batch.bin"
        (tmp_path / name).write_bytes(rows.tobytes())
    train, test = both_parts(readers.read_cifar10_binary(tmp_path))
    assert np.array_equal(train.x, x[:10])
    assert np.array_equal(test.x, x[10:])
    assert train.y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    truncated = tmp_path / "data_batch_3.bin"
    truncated.write_bytes(truncated.read_bytes()[:-1])
    with refused(truncated, "6145 bytes"):
        readers.read_cifar10_binary(tmp_path)
    truncated.write_bytes(b"")
    with refused(truncated):
        readers.read_cifar10_binary(tmp_path)


def test_cifar100_binary_takes_the_fine_label(tmp_path: Path) -> None:
    x = images(2, 32, 32, 3)
    rows = np.hstack([np.uint8([[19, 99], [3, 0]]), planes(x)])
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(rows.tobytes())
    train, test = both_parts(readers.read_cifar100_binary(tmp_path))
    assert train.y.tolist() == test.y.tolist() == [99, 0]
    assert np.array_equal(test.x, x)


def python2_batch(x: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """A batch in the words of Python 2's pickle, as the official files have it: byte strings, the old numpy names."""
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85U\x01b\x87R"
    dtype = b"cnumpy\ndtype\nU\x02u1K\0K\1\x87R(K\3U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb"
    state = b"(K\1K" + bytes([len(x)]) + b"M\0\x0c\x86" + dtype + b"\x89T" + struct.pack("<I", x.size)
    pixels = array + state + planes(x).tobytes() + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\2}(U\x04data" + pixels + b"U" + bytes([len(key)]) + key + numbers + b"u."


def test_cifar_python_batches_as_python_2_wrote_them(tmp_path: Path) -> None:
    x = images(12, 32, 32, 3)
    for number in range(6):
        name = f"data_batch_{number + 1}" if number < 5 else "test_batch"
        (tmp_path / name).write_bytes(python2_batch(x[2 * number : 2 * number + 2], [number, 9 - number]))
    train, test = both_parts(readers.read_cifar10_python(tmp_path))
    assert np.array_equal(train.x, x[:10])
    assert train.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert np.array_equal(test.x, x[10:])
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(python2_batch(x[:2], [77, 5], key=b"fine_labels"))
    assert both_parts(readers.read_cifar100_python(tmp_path))[1].y.tolist() == [77, 5]


def test_cifar_python_batches_as_this_numpy_writes_them(tmp_path: Path) -> None:
    x = images(2, 32, 32, 3)
    for name in ("train", "test"):
        content = pickle.dumps({b"data": planes(x), b"fine_labels": [1, 2]}, protocol=4)
        (tmp_path / name).write_bytes(content)
    assert np.array_equal(both_parts(readers.read_cifar100_python(tmp_path))[0].x, x)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused_and_runs_nothing(tmp_path: Path, protocol: int) -> None:
    trace = tmp_path / "trace"
    for call, *arguments in [
        (os.system, f"touch {trace}"),
        (eval, f"open({str(trace)!r}, 'w')"),
        (exec, f"open({str(trace)!r}, 'w')"),
        (os.mkdir, str(trace)),
        (np.save, str(trace), 1),
    ]:
        content = pickle.dumps({b"data": Hostile(call, *arguments), b"fine_labels": [1]}, protocol=protocol)
        (tmp_path / "train").write_bytes(content)
        with refused(tmp_path / "train", "asks for"):
            readers.read_cifar100_python(tmp_path)
        assert [path.name for path in tmp_path.iterdir()] == ["train"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no pickle",
        python2_batch(images(2, 32, 32, 3), [1, 2], b"fine_labels")[:-10],
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": images(2, 5), b"fine_labels": [1, 2]}, protocol=4),
        pickle.dumps({b"data": planes(images(2, 32, 32, 3))}, protocol=4),
        pickle.dumps({b"data": b"bytes", b"fine_labels": [1]}, protocol=4),
        b"\x80\4cnumpy\nndarray.tofile\n.",
    ],
)
def test_cifar_python_refuses_damaged_batches(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "train").write_bytes(content)
    with refused(tmp_path / "train"):
        readers.read_cifar100_python(tmp_path)


@pytest.mark.parametrize("content", [b"K\1r\xff\xff\xff\x0f.", b"K\1p999999999\n."])
def test_a_short_pickle_cannot_fill_the_memory(tmp_path: Path, content: bytes) -> None:
    """It numbers one value so high that the ordinary table of values would take gigabytes."""
    (tmp_path / "train").write_bytes(content)
    with refused(tmp_path / "train", "table"):
        readers.read_cifar100_python(tmp_path)


@quick
@given(at=st.integers(0, 200), byte=st.integers(0, 255))
def test_cifar_python_with_one_byte_changed_is_read_or_refused(tmp_path: Path, at: int, byte: int) -> None:
    content = bytearray(python2_batch(images(1, 32, 32, 3), [1], b"fine_labels"))
    content[at] = byte
    (tmp_path / "train").write_bytes(content)
    (tmp_path / "test").write_bytes(content)
    try:
        readers.read_cifar100_python(tmp_path)
    except FeddagError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most changes are refused, some leave a valid file


def test_cifar10_png_sheets(tmp_path: Path) -> None:
    x = images(12, 32, 32, 3)
    for number in range(6):
        name = f"data_batch_{number + 1}.png" if number < 5 else "test_batch.png"
        save_image(tmp_path / name, x[2 * number : 2 * number + 2].reshape(2, 1024, 3))
    (tmp_path / "train_lables.json").write_text("[0,1,2,3,4,5,6,7,8,9]")
    (tmp_path / "test_lables.json").write_text("[4,")
    with refused("test_lables.json"):
        readers.read_cifar10_png(tmp_path)
    (tmp_path / "test_lables.json").write_text("[4, 2]")
    train, test = both_parts(readers.read_cifar10_png(tmp_path))
    assert np.array_equal(train.x, x[:10])
    assert np.array_equal(test.x, x[10:])
    assert train.y.tolist() == list(range(10))
    assert test.y.tolist() == [4, 2]
    sheet = tmp_path / "data_batch_5.png"
    sheet.write_bytes(sheet.read_bytes()[:-500])
    with refused(sheet):
        readers.read_cifar10_png(tmp_path)
    save_image(sheet, images(2, 1000, 3))
    with refused(sheet, "1024"):
        readers.read_cifar10_png(tmp_path)


def test_cifar10_c_makes_a_domain_of_every_corruption(tmp_path: Path) -> None:
    labels = np.tile([3, 1], 5)
    x = {"fog": images(10, 32, 32, 3), "snow": images(10, 32, 32, 3, seed=1)}
    np.save(tmp_path / "labels.npy", labels)
    with refused(tmp_path, "fog.npy"):
        readers.read_cifar10_c(tmp_path)
    for name, held in x.items():
        np.save(tmp_path / f"{name}.npy", held)
    samples, test = readers.read_cifar10_c(tmp_path)
    assert test is None
    assert np.array_equal(samples.x, np.concatenate([x["fog"], x["snow"]]))
    assert samples.y.tolist() == [3, 1] * 10
    assert samples.domain is not None
    assert samples.domain.tolist() == ["fog"] * 10 + ["snow"] * 10
    assert samples.version_of is not None
    assert samples.version_of.tolist() == [0, 1] * 10

    fog = tmp_path / "fog.npy"
    whole = fog.read_bytes()
    fog.write_bytes(whole[:-1])
    with refused(fog):
        readers.read_cifar10_c(tmp_path)
    np.save(fog, np.array([{"an": "object"}], dtype=object), allow_pickle=True)
    with refused(fog):
        readers.read_cifar10_c(tmp_path)
    np.save(fog, images(9, 32, 32, 3))
    with refused(fog, "(9, 32, 32, 3)"):
        readers.read_cifar10_c(tmp_path)
    np.save(tmp_path / "labels.npy", np.arange(10))
    with refused("labels.npy", "five times"):
        readers.read_cifar10_c(tmp_path)


def nested(depth: int) -> list[object]:
    """A few lines of a file that would unfold to 2^depth labels."""
    held: list[object] = [1]
    for _ in range(depth):
        held = [held, held]
    return held


@pytest.mark.parametrize("labels", [nested(31), [1.5], ["cat"], [True], [10**30], (1,), {0: 1}, None])
def test_cifar_python_takes_only_a_flat_list_of_labels(tmp_path: Path, labels: object) -> None:
    held = {b"data": planes(images(1, 32, 32, 3)), b"fine_labels": labels}
    (tmp_path / "train").write_bytes(pickle.dumps(held, protocol=4))
    with refused(tmp_path / "train"):
        readers.read_cifar100_python(tmp_path)


@pytest.mark.parametrize(
    "held",
    [
        [{} for _ in range(5000)],  # little on disk, much in memory
        {(2**61 - 1) * number: None for number in range(5000)},  # all in one slot of a dictionary
        {(number, number): None for number in range(5000)},
        {b"labels": list(range(2**21))},
    ],
)
def test_a_pickle_that_is_more_than_a_batch_is_not_loaded(tmp_path: Path, held: object) -> None:
    (tmp_path / "train").write_bytes(pickle.dumps(held, protocol=4))
    with refused(tmp_path / "train", "more complicated"):
        readers.read_cifar100_python(tmp_path)


def test_a_batch_as_large_as_the_published_ones_is_not_too_complicated() -> None:
    names = [f"picture_{number:06d}.png".encode() for number in range(50_000)]
    held = {b"fine_labels": [1] * 50_000, b"coarse_labels": [1] * 50_000, b"filenames": names}
    for protocol in (2, 4):
        cifar._check_pickle(pickle.dumps(held if protocol > 2 else held | {b"filenames": []}, protocol=protocol))


@pytest.mark.parametrize("text", ["[[1], [2]]", '["cat"]', "[1.5, 2]", "{}", "3", "[true]", "[1" + "0" * 5000 + "]"])
def test_cifar10_png_takes_only_a_flat_list_of_labels(tmp_path: Path, text: str) -> None:
    for number in range(6):
        name = f"data_batch_{number + 1}.png" if number < 5 else "test_batch.png"
        save_image(tmp_path / name, images(1, 1024, 3))
    (tmp_path / "train_lables.json").write_text(text)
    with refused(tmp_path / "train_lables.json"):
        readers.read_cifar10_png(tmp_path)


@pytest.mark.parametrize("labels", [np.zeros(5), np.zeros(10, "U3"), np.zeros((5, 2), int), np.zeros(0, int)])
def test_cifar10_c_refuses_strange_labels(tmp_path: Path, labels: np.ndarray) -> None:
    np.save(tmp_path / "labels.npy", labels)
    np.save(tmp_path / "fog.npy", np.zeros((len(labels), 32, 32, 3), np.uint8))
    with refused(tmp_path):
        datasets.assembled("c", str(tmp_path), readers.read_cifar10_c(tmp_path), datasets.CIFAR10)
