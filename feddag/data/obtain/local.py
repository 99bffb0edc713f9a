"""The datasets of this machine: which are here, and how to get the others."""

import hashlib
import importlib.util
import io
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feddag.data.obtain.known import KNOWN, KnownSet, Source, how, lookup
from feddag.data.readers import Parts
from feddag.errors import FeddagError
from feddag.files import write_atomically

SYSTEM_FOLDER = Path("/usr/share/datasets")  # where Debian's dataset packages put their files


@dataclass(frozen=True)
class Availability:
    """One line of `feddag data list`: `path` is None if the dataset is not here, `how` says how to get it."""

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


def get(name: str) -> Path:
    """Get a dataset, check it and store it as `NAME.npz` in the first FEDDAG_DATA folder or else in ~/.cache/feddag."""
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
                return _save(parts, folder / f"{name}.npz")
        except OSError as error:
            raise FeddagError(f"cannot write into {folder}: {error.strerror or error}") from error
        except FeddagError as error:
            failures.append(f"{source.name}: {error}")
    raise FeddagError(f"'{name}' could not be obtained ({'; '.join(failures)})")


def _system_source(known: KnownSet) -> list[Source]:
    """The files that a system package has already put on this machine, if any."""
    path = _first_form([SYSTEM_FOLDER], known)
    return [Source(str(path), lambda name, folder: None, str(path), known.forms[path.name])] if path else []


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
        with suppress(OSError):  # a folder without read permission is skipped
            for form in known.forms:
                if (folder / form).exists():
                    return folder / form
    return None


def _scikit_learn_digits() -> Path:
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        raise FeddagError("dataset 'digits' comes with scikit-learn, which is not installed")
    return Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _save(parts: Parts, path: Path) -> Path:
    """One uncompressed archive: the fastest to load."""
    train, test = parts
    assert test is not None, "every dataset with a source has a train/test split"
    file = io.BytesIO()
    np.savez(file, x_train=train.x, y_train=train.y, x_test=test.x, y_test=test.y)
    write_atomically(path, file.getvalue())
    return path
