"""A small file that would become large is refused before it does, and what is no file is not waited for."""

import gzip
import json
import os
import signal
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from feddag.data import readers
from feddag.data.datasets import load
from feddag.data.readers import limits
from tests.data import refused
from tests.data.readers import images, save_image

LARGE = 2**24
TOO_MUCH = ("are allowed", "FEDDAG_LARGEST_DATA")


@pytest.fixture(autouse=True)
def _little_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that files which grow to megabytes do here what others do with gigabytes."""
    monkeypatch.setattr(limits, "HARMLESS", 2**18)
    monkeypatch.setattr(limits, "MOST_UNPACKED", 100)
    monkeypatch.delenv("FEDDAG_LARGEST_DATA", raising=False)


@contextmanager
def taking(most: int) -> Iterator[None]:
    """What happens inside must not take more bytes at any moment."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@contextmanager
def within(seconds: int) -> Iterator[None]:
    def late(*_: object) -> None:
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_the_limit_is_a_share_of_the_memory_or_what_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 2**26 < limits.largest_data() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, size in (("1000", 1000), ("2k", 2048), ("3 MB", 3 * 2**20), ("1T", 2**40)):
        monkeypatch.setenv("FEDDAG_LARGEST_DATA", text)
        assert limits.largest_data() == limits.most_bytes(1) == size
    for text in ("much", "-1", "1.5G", "G", "9" * 19):
        monkeypatch.setenv("FEDDAG_LARGEST_DATA", text)
        with refused("FEDDAG_LARGEST_DATA", text, "8G"):
            limits.largest_data()


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("max\n")
    (tmp_path / "other").write_text("4194304\n")
    monkeypatch.setattr(limits, "CONTAINER_LIMITS", (tmp_path / "one", tmp_path / "other", tmp_path / "none"))
    assert limits.largest_data() == 2**20


def test_an_npz_file_that_would_grow_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=np.zeros((LARGE // 64, 64), np.uint8), y=np.zeros(LARGE // 64, np.uint8))
    with taking(2**20), refused(path, *TOO_MUCH):
        readers.read_npz(path)
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "1G")
    assert readers.read_npz(path)[0].x.shape == (LARGE // 64, 64)
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "1M")
    np.savez(path, x=images(2**14, 64), y=np.zeros(2**14, np.uint8))
    with taking(2**20):  # what is not packed is mapped and not read
        assert isinstance(readers.read_npz(path)[0].x, np.memmap)
    np.savez(path, x=images(4, 4), y=np.zeros(2**21, np.uint8))
    with taking(2**20), refused(path, *TOO_MUCH):
        readers.read_npz(path)


def test_an_archive_that_lies_about_its_sizes_gains_nothing(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    np.savez_compressed(path, x=np.zeros((LARGE // 64, 64), np.uint8), y=np.zeros(LARGE // 64, np.uint8))
    with zipfile.ZipFile(path) as archive:
        sizes = [entry.file_size for entry in archive.infolist()]
    content = path.read_bytes()
    for size in sizes:
        content = content.replace(struct.pack("<I", size), struct.pack("<I", 200))
    path.write_bytes(content)
    with taking(2**20), refused(path):
        readers.read_npz(path)


def test_a_long_list_of_contents_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(3000):
            archive.writestr(f"{number}.npy", b"")
    with taking(2**20), refused(path, "list of contents is too long"):
        readers.read_npz(path)


def test_images_that_would_grow_are_not_decoded(tmp_path: Path) -> None:
    blank = np.zeros((1000, 1000, 3), np.uint8)
    for number in range(4):
        save_image(tmp_path / "large" / "a" / f"{number}.png", blank)
    with taking(2**20), refused("0.png", *TOO_MUCH):
        readers.read_image_folder(tmp_path / "large")
    for number in range(40):  # each of them is harmless
        save_image(tmp_path / "many" / "a" / f"{number}.png", blank[:200, :200])
    with taking(2**20), refused(tmp_path / "many" / "a", *TOO_MUCH):
        readers.read_image_folder(tmp_path / "many")


def test_one_image_named_by_every_row_is_not_copied_for_each(tmp_path: Path) -> None:
    save_image(tmp_path / "images" / "a.png", images(4, 4, 3))
    (tmp_path / "train.csv").write_text("user_id,image_id,class\n" + "u,a,1\n" * 1000)
    with taking(2**21), refused(tmp_path / "images", *TOO_MUCH):
        readers.read_user_csv(tmp_path)


def test_a_user_named_often_is_not_copied_for_each(tmp_path: Path) -> None:
    data = {"f": {"x": [[0.0] * 784] * 3, "y": [1, 2, 3]}}
    held = {"users": ["f"] * 500, "num_samples": [3] * 500, "user_data": data}
    (tmp_path / "all.json").write_text(json.dumps(held))
    with taking(2**20), refused(tmp_path / "all.json", "names a user twice"):
        readers.read_leaf(tmp_path)


def test_zipped_idx_files_that_would_grow(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, LARGE) + bytes(LARGE)))
    with taking(2**20), refused(path, *TOO_MUCH):
        readers.read_idx(path)


def test_all_files_of_a_dataset_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "20M")
    for number in range(1, 6):
        with (tmp_path / f"data_batch_{number}.bin").open("wb") as file:
            file.truncate(3073 * 2000)  # 6 MB that take no place on the disk
    with refused("data_batch_4.bin", *TOO_MUCH):
        readers.read_cifar10_binary(tmp_path)


def test_text_that_would_grow_when_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "1M")
    (tmp_path / "all.json").write_text(json.dumps([{}] * 100_000))
    with taking(2**20), refused("all.json", *TOO_MUCH):
        readers.read_leaf(tmp_path)
    (tmp_path / "train.csv").write_text("user_id,image_id,class\n" + "u,a,1\n" * 10_000)
    with taking(2**20), refused("train.csv", *TOO_MUCH):
        readers.read_user_csv(tmp_path)


def test_corruptions_that_would_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "1M")
    np.save(tmp_path / "labels.npy", np.zeros(500, np.uint8))
    np.save(tmp_path / "fog.npy", np.zeros((500, 32, 32, 3), np.uint8))
    with taking(2**20), refused(tmp_path, *TOO_MUCH):
        readers.read_cifar10_c(tmp_path)


def test_a_mat_file_that_would_grow_dies_in_a_process_of_its_own(tmp_path: Path) -> None:
    held = {"X": np.zeros((32, 32, 3, 6000), np.uint8), "y": np.zeros((6000, 1), np.uint8)}
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", held, do_compression=True)
    with taking(2**22), refused("train_32x32.mat"):
        readers.read_svhn(tmp_path)


FILES: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: readers.read_npz(folder / "own.npz"), "own.npz"),
    (lambda folder: load(str(folder / "own.npz")), "own.npz"),
    (readers.read_idx_folder, "train-images-idx3-ubyte"),
    (readers.read_idx_folder, "train-images-idx3-ubyte.gz"),
    (readers.read_cifar10_binary, "data_batch_1.bin"),
    (readers.read_cifar10_python, "data_batch_1"),
    (readers.read_cifar10_png, "data_batch_1.png"),
    (readers.read_cifar10_c, "labels.npy"),
    (readers.read_svhn, "train_32x32.mat"),
    (readers.read_leaf, "all.json"),
    (readers.read_user_csv, "train.csv"),
]


@pytest.mark.parametrize(("read", "name"), FILES, ids=[name for _, name in FILES])
def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path, read: Callable[[Path], object], name: str) -> None:
    os.mkfifo(tmp_path / name)
    with within(10), refused(tmp_path / name, "not a regular file"):
        read(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with within(10), refused(tmp_path / name, "not a regular file"):
        read(tmp_path)
