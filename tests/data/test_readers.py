import gzip
import io
import json
import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from feddag.data import readers
from feddag.data.readers import Samples
from feddag.errors import FeddagError
from tests.data import refused

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def divided(parts: readers.Parts) -> tuple[Samples, Samples]:
    train, test = parts
    assert test is not None
    return train, test


def save_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


# --- idx ---


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


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
    train, test = divided(readers.read_idx_folder(tmp_path))
    assert np.array_equal(train.x, images(3, 28, 28))
    assert train.y.tolist() == [2, 0, 1]
    assert test.y.tolist() == [9]


# --- CIFAR ---


def planes(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def test_cifar10_binary(tmp_path: Path) -> None:
    x = images(12, 32, 32, 3)
    for number in range(6):
        rows = np.hstack([np.full((2, 1), number, np.uint8), planes(x[2 * number : 2 * number + 2])])
        name = f"data_batch_{number + 1}.bin" if number < 5 else "test_batch.bin"
        (tmp_path / name).write_bytes(rows.tobytes())
    train, test = divided(readers.read_cifar10_binary(tmp_path))
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
    train, test = divided(readers.read_cifar100_binary(tmp_path))
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
    train, test = divided(readers.read_cifar10_python(tmp_path))
    assert np.array_equal(train.x, x[:10])
    assert train.y.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert np.array_equal(test.x, x[10:])
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(python2_batch(x[:2], [77, 5], key=b"fine_labels"))
    assert divided(readers.read_cifar100_python(tmp_path))[1].y.tolist() == [77, 5]


def test_cifar_python_batches_as_this_numpy_writes_them(tmp_path: Path) -> None:
    x = images(2, 32, 32, 3)
    for name in ("train", "test"):
        content = pickle.dumps({b"data": planes(x), b"fine_labels": [1, 2]}, protocol=4)
        (tmp_path / name).write_bytes(content)
    assert np.array_equal(divided(readers.read_cifar100_python(tmp_path))[0].x, x)


class Hostile:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call, self.arguments


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
    train, test = divided(readers.read_cifar10_png(tmp_path))
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


# --- SVHN ---


def test_svhn_mat_puts_samples_first_and_ten_means_zero(tmp_path: Path) -> None:
    x = images(3, 32, 32, 3)
    for name in ("train", "test"):
        held = {"X": x.transpose(1, 2, 3, 0), "y": np.uint8([[10], [1], [9]])}
        savemat(tmp_path / f"{name}_32x32.mat", held, do_compression=True)
    train, _ = divided(readers.read_svhn(tmp_path))
    assert np.array_equal(train.x, x)
    assert train.y.tolist() == [0, 1, 9]

    path = tmp_path / "test_32x32.mat"
    whole = path.read_bytes()
    for content in (b"", b"MATLAB 5.0" * 50, whole[:-100], whole[:100]):
        path.write_bytes(content)
        with refused(path):
            readers.read_svhn(tmp_path)
    savemat(path, {"X": x.astype(float), "y": [[1]]})
    with refused(path, "float64"):
        readers.read_svhn(tmp_path)
    savemat(path, {"y": [[1]]})
    with refused(path, "X"):
        readers.read_svhn(tmp_path)
    path.unlink()
    with refused(path, "missing"):
        readers.read_svhn(tmp_path)


# --- images ---


def test_image_folder_without_division(tmp_path: Path) -> None:
    x = images(3, 5, 4)
    save_image(tmp_path / "cat" / "b.png", x[1])
    save_image(tmp_path / "cat" / "a.png", x[0])
    save_image(tmp_path / "dog" / "c.bmp", x[2])
    (tmp_path / "cat" / ".hidden").write_text("left by a file browser")
    (tmp_path / "readme.txt").write_text("not in a class folder")
    samples, test = readers.read_image_folder(tmp_path)
    assert test is None
    assert np.array_equal(samples.x, x[..., np.newaxis])
    assert samples.y.tolist() == ["cat", "cat", "dog"]


def test_image_folder_with_division_and_colour_in_one_part(tmp_path: Path) -> None:
    save_image(tmp_path / "train" / "cat" / "a.png", np.full((2, 2), 7, np.uint8))
    coloured = images(2, 2, 3)
    save_image(tmp_path / "test" / "dog" / "a.png", coloured)
    train, test = divided(readers.read_image_folder(tmp_path))
    assert train.x.tolist() == [[[[7, 7, 7]] * 2] * 2]
    assert np.array_equal(test.x[0], coloured)
    assert (train.y.tolist(), test.y.tolist()) == (["cat"], ["dog"])


def test_images_of_differing_sizes_all_become_32_by_32(tmp_path: Path) -> None:
    save_image(tmp_path / "a" / "1.png", np.full((40, 50), 9, np.uint8))
    save_image(tmp_path / "b" / "2.png", np.full((8, 8), 200, np.uint8))
    samples, _ = readers.read_image_folder(tmp_path)
    assert samples.x.shape == (2, 32, 32, 1)
    assert (np.unique(samples.x[0]).tolist(), np.unique(samples.x[1]).tolist()) == ([9], [200])


def png(width: int, height: int) -> bytes:
    """A PNG that announces this size and holds nearly nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, kind)
    return held.getvalue()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "image"),
        (b"plain text", "image"),
        (encoded(images(40, 40, 3), "JPEG")[:-200], "truncated"),
        (png(4, 4), "image"),
        (png(10_000, 10_000), "bomb"),  # Pillow by itself only warns
        (png(60_000, 60_000), "bomb"),
        (encoded(images(4, 4), "GIF"), "identify"),  # a format that is kept shut
        (encoded(np.full((4, 4), 40_000, np.uint16), "PNG"), "8 bits"),
    ],
)
def test_image_folder_refuses_what_is_no_whole_8_bit_image(tmp_path: Path, content: bytes, word: str) -> None:
    save_image(tmp_path / "a" / "1.png", images(4, 4))
    (tmp_path / "a" / "2.png").write_bytes(content)
    with refused(tmp_path / "a" / "2.png", word):
        readers.read_image_folder(tmp_path)


def test_image_folder_without_images(tmp_path: Path) -> None:
    with refused(tmp_path, "CLASS/IMAGE"):
        readers.read_image_folder(tmp_path)


def test_domain_folder(tmp_path: Path) -> None:
    for domain, kind, grey in [("sketch", "dog", 1), ("photo", "dog", 2), ("photo", "cat", 3)]:
        save_image(tmp_path / domain / kind / "1.png", np.full((60, 48, 3), grey, np.uint8))
    samples, test = readers.read_domain_folder(tmp_path)
    assert test is None
    assert samples.x.shape == (3, 48, 48, 3)
    assert samples.x[:, 0, 0, 0].tolist() == [3, 2, 1]
    assert samples.y.tolist() == ["cat", "dog", "dog"]
    assert samples.domain is not None
    assert samples.domain.tolist() == ["photo", "photo", "sketch"]


def test_tiny_imagenet_c(tmp_path: Path) -> None:
    for corruption in ("fog", "snow"):
        for severity in ("1", "5"):
            path = tmp_path / corruption / severity / "n01" / "val_7.JPEG"
            save_image(path, np.full((64, 64, 3), 50 + 10 * int(severity), np.uint8))
    samples, _ = readers.read_tiny_imagenet_c(tmp_path)
    assert samples.x.shape == (4, 64, 64, 3)
    assert samples.x[:, 0, 0, 0].tolist() == [60, 100, 60, 100]
    assert samples.y.tolist() == ["n01"] * 4
    assert samples.domain is not None
    assert samples.domain.tolist() == ["fog", "fog", "snow", "snow"]
    assert samples.version_of is not None
    assert len(set(samples.version_of.tolist())) == 1
    broken = tmp_path / "fog" / "1" / "n01" / "val_7.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    with refused(broken):
        readers.read_tiny_imagenet_c(tmp_path)


# --- natural clients ---


def leaf(**users: list[int]) -> dict[str, object]:
    return {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {name: {"x": [[label / 255] * 784 for label in y], "y": y} for name, y in users.items()},
    }


def test_leaf_keeps_writers_and_restores_bytes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    (tmp_path / "train" / "all_data_0.json").write_text(json.dumps(leaf(f1=[3, 61], f2=[10])))
    (tmp_path / "train" / "all_data_1.json").write_text(json.dumps(leaf(f3=[5])))
    (tmp_path / "test" / "all_data_0.json").write_text(json.dumps(leaf(f2=[7])))
    train, test = divided(readers.read_leaf(tmp_path))
    assert train.x.shape == (4, 28, 28, 1)
    assert train.x[:, 0, 0, 0].tolist() == train.y.tolist() == [3, 61, 10, 5]
    assert train.owner is not None
    assert train.owner.tolist() == ["f1", "f1", "f2", "f3"]
    assert test.owner is not None
    assert test.owner.tolist() == ["f2"]
    undivided, nothing = readers.read_leaf(tmp_path / "train")
    assert nothing is None
    assert undivided.y.tolist() == [3, 61, 10, 5]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps(leaf(f1=[3]))[:-5],
        json.dumps(leaf(f1=[3]) | {"num_samples": [2]}),
        json.dumps(leaf(f1=[3]) | {"num_samples": [1, 1]}),
        json.dumps(leaf(f1=[3]) | {"user_data": {}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.0] * 783], "y": [3]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[1.5] * 784], "y": [3]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[float("nan")] * 784], "y": [3]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.0] * 784], "y": [[3]]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.0] * 784], "y": ["three"]}}}),
    ],
)
def test_leaf_refuses_damaged_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with refused(tmp_path / "bad.json"):
        readers.read_leaf(tmp_path)


def test_leaf_pixels_go_to_the_nearest_byte(tmp_path: Path) -> None:
    held = leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.498] * 784], "y": [3]}}}
    (tmp_path / "all.json").write_text(json.dumps(held))
    assert np.unique(readers.read_leaf(tmp_path)[0].x).tolist() == [127]  # 126.99


def test_leaf_without_files_or_samples(tmp_path: Path) -> None:
    with refused(tmp_path, ".json"):
        readers.read_leaf(tmp_path)
    (tmp_path / "empty.json").write_text(json.dumps(leaf()))
    with refused(tmp_path, "sample"):
        readers.read_leaf(tmp_path)


def test_user_csv(tmp_path: Path) -> None:
    for name, grey in (("a.jpg", 10), ("b.png", 20), ("c.jpg", 30)):
        save_image(tmp_path / "images" / name, np.full((30, 90, 3), grey, np.uint8))
    (tmp_path / "train.csv").write_text("user_id,image_id,class\nu2,a,10\nu1,b,9\n")
    samples, nothing = readers.read_user_csv(tmp_path)
    assert nothing is None
    assert samples.x.shape == (2, 64, 64, 3)
    assert samples.x[:, 5, 5, 0].tolist() == [10, 20]
    assert samples.y.tolist() == [10, 9]
    assert samples.owner is not None
    assert samples.owner.tolist() == ["u2", "u1"]
    (tmp_path / "test.csv").write_text("image_id,class\nc,9\n")  # as published: nobody owns a test image
    assert divided(readers.read_user_csv(tmp_path))[1].owner is None
    (tmp_path / "test.csv").write_text("user_id,image_id,class\nu1,c,9\n")
    test_owner = divided(readers.read_user_csv(tmp_path))[1].owner
    assert test_owner is not None
    assert test_owner.tolist() == ["u1"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "train.csv"),
        ("user_id,image_id,class\n", "train.csv"),
        ("user_id,image_id\nu,a\n", "class"),
        ("image_id,class\na,1\n", "user_id"),
        ("user_id,image_id,class\nu,a\n", "class"),
        ("user_id,image_id,class\nu,missing,1\n", "'missing'"),
        ('user_id,image_id,class\nu,"two\nlines",1\n', "two\\nlines"),
        (f"user_id,image_id,class\nu,{'a' * 100_000},1\n", "train.csv"),
        ("user_id,image_id,class\nu,../secret,1\n", "secret"),
        ("user_id,image_id,class\nu,{folder}/secret,1\n", "secret"),
        ('user_id,image_id,class\nu,"' + "a" * 200_000, "train.csv"),
    ],
)
def test_user_csv_refuses_damaged_files(tmp_path: Path, text: str, word: str) -> None:
    save_image(tmp_path / "images" / "a.jpg", images(4, 4, 3))
    save_image(tmp_path / "secret.jpg", images(4, 4, 3))
    (tmp_path / "train.csv").write_text(text.replace("{folder}", str(tmp_path)))
    with refused(word):
        readers.read_user_csv(tmp_path)


# --- npz ---


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


def test_npz_with_division(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    held = {"x_train": images(2, 3), "y_train": ["a", "b"], "x_test": images(1, 3), "y_test": ["b"]}
    np.savez(path, **held, client_train=["u", "v"], client_test=["u"])
    train, test = divided(readers.read_npz(path))
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
