"""How much a file may unpack to, asked before it is read: a few kilobytes can announce, or become, gigabytes."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from stat import S_ISREG
from typing import BinaryIO

from feddag.errors import FeddagError
from feddag.system import memory

VARIABLE = "FEDDAG_LARGEST_DATA"
SHARE_OF_MEMORY = 4  # reading, splitting and handing out to clients each hold the samples once more
HARMLESS = 2**28  # bytes that every machine has to spare
MOST_UNPACKED = 300  # times the size on disk: photographs give 1 to 10, tables of many zeros up to 250, zeros 1000
JSON_GROWS, CSV_GROWS = 8, 32  # times its bytes that a text takes while it is parsed
CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def largest_data() -> int:
    """How many bytes of samples are read at most: FEDDAG_LARGEST_DATA, or a quarter of the memory.

    >>> os.environ[VARIABLE] = "3G"
    >>> largest_data() == 3 * 2**30
    True
    >>> del os.environ[VARIABLE]
    """
    chosen = os.environ.get(VARIABLE)
    if not chosen:
        return _memory() // SHARE_OF_MEMORY
    words = re.fullmatch(r"([0-9]{1,18})\s*([KMGT]?)B?", chosen.strip().upper())
    if words is None:
        raise FeddagError(f"{VARIABLE} = '{chosen[:80]}' is not a number of bytes such as 500M or 8G")
    return int(words[1]) * int(1024 ** " KMGT".index(words[2] or " "))


def _memory() -> int:
    """Bytes of memory of this machine, or of the container that this is."""
    found = [memory()]
    for path in CONTAINER_LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return min(found)


def most_bytes(packed: int) -> int:
    """How many bytes may come of so many on disk: unless that is little, hardly an honest file grows to 300 times.

    Where FEDDAG_LARGEST_DATA says how much is allowed, it alone counts.
    """
    if os.environ.get(VARIABLE):
        return largest_data()
    return min(largest_data(), max(HARMLESS, MOST_UNPACKED * packed))


class Budget:
    """What the files of one dataset may take together."""

    def __init__(self) -> None:
        self._size = self._packed = 0

    def take(self, path: Path, size: int, packed: int | None = None) -> None:
        """Count `size` bytes that will be kept of `path`, which has `packed` bytes on disk; refuse what is too much."""
        self._size += size
        self._packed += size if packed is None else packed
        self._compare(path, self._size, self._packed)

    def check(self, path: Path, size: int, packed: int | None = None) -> None:
        """Refuse what is too much, without counting it: it is in memory for a moment only."""
        self._compare(path, size, size if packed is None else packed)

    def _compare(self, path: Path, size: int, packed: int) -> None:
        if size > (limit := most_bytes(packed)):
            raise FeddagError(
                f"{path} would bring the data to {size:,} bytes of memory, and {limit:,} are allowed; "
                f"the environment variable {VARIABLE} allows more"
            )


def open_regular(path: Path) -> BinaryIO:
    """The file, opened for reading; a device or a pipe, which may never end, is refused."""
    if not S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a regular file")
    return path.open("rb")


def size_of(file: BinaryIO) -> int:
    """The size of an open regular file."""
    return os.fstat(file.fileno()).st_size


def content_of(path: Path, budget: Budget) -> bytes:
    """All bytes of a regular file, counted."""
    with open_regular(path) as file:
        budget.take(path, size_of(file))
        return file.read(size_of(file))


def text_of(path: Path, grows: int) -> str:
    """All text of a regular file, for a parser that for a moment takes `grows` times as many bytes."""
    with open_regular(path) as file:
        Budget().check(path, grows * size_of(file), size_of(file))
        return file.read(size_of(file)).decode()


def sizes_on_disk(paths: Sequence[Path]) -> int:
    """The bytes of these files together, each counted once however often it is named."""
    return sum(path.stat().st_size for path in set(paths))
