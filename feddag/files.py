"""Files that are written whole or not at all, and files that are read only where they are plain files.

A directory that somebody else handed over may hold links that lead out of it, pipes that never end and files of any
size: what is read or appended to is opened with `open_plain`, which refuses all of them.
"""

import errno
import os
import secrets
import stat
import tomllib
from pathlib import Path
from typing import Any

from feddag.errors import FeddagError, short

TEMPORARY = ".feddag-*.tmp"
"""What the names of half-written files look like, which a killed process leaves behind."""
LARGEST_TOML = 2**20  # bytes
MOST_DOTS = 200  # in a line of TOML: the time that keys of many parts take grows with their square
NO_LINK, NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)  # Windows has neither
NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)  # a link, a pipe or socket, a folder


def write_atomically(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file whole or not at all: a reader never sees half of it, a full disk leaves the old one.

    A durable one has also reached the disk on return, with its name: a power cut does not take it back.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "a.txt", "text")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'text'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(TEMPORARY.replace("*", secrets.token_hex(8)))  # a name that nobody can have planted
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_LINK, 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, have reached the disk, as far as the disk can tell."""
    number = os.open(path, os.O_RDONLY | NO_WAIT)
    try:
        os.fsync(number)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot do that for a folder
            raise
    finally:
        os.close(number)


def open_plain(path: Path, flags: int = os.O_RDONLY, *, links: bool = False) -> int:
    """Open a plain file. What is none is refused: a folder, a pipe, a device and, unless `links` are allowed, a link.

    A file that is written to must have only this one name, or what stands under the other would change as well.
    """
    try:
        number = os.open(path, flags | NO_WAIT | (0 if links else NO_LINK), 0o666)
    except OSError as error:
        if error.errno in NOT_A_FILE:
            raise FeddagError(f"'{path}' is not a plain file, and nothing else is used in its place") from None
        raise
    about = os.fstat(number)
    writing = flags & (os.O_WRONLY | os.O_RDWR)
    if not stat.S_ISREG(about.st_mode) or (writing and about.st_nlink > 1):
        os.close(number)
        kind = "is not a plain file" if not stat.S_ISREG(about.st_mode) else "is also another file (a hard link)"
        raise FeddagError(f"'{path}' {kind}, and nothing else is used in its place")
    return number


def read_plain(path: Path, most: int, *, links: bool = False) -> bytes:
    """The content of a plain file (see `open_plain`) of at most so many bytes; FileNotFoundError if there is none."""
    try:
        with os.fdopen(open_plain(path, links=links), "rb") as file:
            if os.fstat(file.fileno()).st_size > most:
                raise _too_large(path, most)
            content = file.read(most + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FeddagError(f"'{path}' cannot be read: {error.strerror}") from None
    if len(content) > most:  # some files say that they are empty and are not
        raise _too_large(path, most)
    return content


def check_plain(path: Path, most: int) -> None:
    """Refuse what `read_plain` would refuse, for a file that something else is going to read."""
    number = open_plain(path)
    size = os.fstat(number).st_size
    os.close(number)
    if size > most:
        raise _too_large(path, most)


def read_toml(path: Path, what: str = "experiment file") -> dict[str, Any]:
    """What a TOML file says that the user names; everything that can be wrong with it is one sentence."""
    try:
        text = read_plain(path, LARGEST_TOML, links=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FeddagError(f"{what} '{path}' cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse_toml(text)
    except ValueError as error:
        raise FeddagError(f"{what} '{path}' is not valid TOML: {short(error, 200)}") from None


def parse_toml(text: str) -> dict[str, Any]:
    """What TOML text says; ValueError for whatever is none, or too deep or too long to be meant.

    >>> parse_toml("rounds = 3")
    {'rounds': 3}
    """
    if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError("a line of it has hundreds of dots")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def refuse_link(folder: Path) -> None:
    """Refuse a link in place of a folder: what is written into it or deleted from it would be somewhere else."""
    if folder.is_symlink():
        raise FeddagError(f"'{folder}' is a link; it has to be a folder")


def _too_large(path: Path, most: int) -> FeddagError:
    return FeddagError(f"'{path}' is too large: allowed are {most // 2**20} MB")


def free_directory(wanted: Path) -> Path:
    """The wanted directory, or the first of `-2`, `-3`, ... that is free.

    >>> free_directory(Path("does-not-exist")).name
    'does-not-exist'
    """
    number, path = 1, wanted
    while path.exists():
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
