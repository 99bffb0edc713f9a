"""What not every operating system has: locks on files, the cores that this process may use, its memory.

On macOS all of it is there in some form; on Windows there are no locks of this kind, so that nothing can be run.
"""

import os
from types import ModuleType

from feddag.errors import FeddagError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

ASSUMED_MEMORY = 2**33  # bytes, where the system does not tell


def can_lock() -> bool:
    """Whether files can be locked here."""
    return fcntl is not None


def lock(number: int, *, shared: bool = False, wait: bool = False) -> None:
    """Lock an open file until it is closed, however this process ends; OSError if another has it and `wait` is false.

    Where files cannot be locked, a FeddagError says so.
    """
    if fcntl is None:
        raise FeddagError(
            "this system has no file locks that end with a process (fcntl), and without them nothing can be run: on "
            "Windows, use the Windows Subsystem for Linux"
        )
    fcntl.flock(number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


def cores() -> int:
    """How many cores this process may use; all of the machine, where the system does not tell.

    >>> cores() > 0
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory of this machine.

    >>> memory() > 2**20
    True
    """
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return ASSUMED_MEMORY


def load_average() -> float | None:
    """How many programs wanted a core in the last minute; None where the system does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
