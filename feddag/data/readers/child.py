"""Reads a MATLAB or a Parquet file in a process of its own, because a damaged file can crash the library that reads it.

It is started by `apart.py`, from standard input to standard output, and imports nothing of the package.
"""

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np


def limit(memory: int, seconds: int) -> None:
    """From here on this process takes so many more bytes and seconds at most, and leaves no core dump.

    Windows has no such limits, and macOS none of memory.
    """
    try:
        import resource
    except ImportError:
        return
    told = Path("/proc/self/statm")
    if told.exists():
        in_use = int(told.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (in_use + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def matlab(loadmat: Any) -> dict[str, Any]:
    """The variables X and y."""
    held = loadmat(sys.stdin.buffer, variable_names=["X", "y"])
    for name in ("X", "y"):
        if name not in held:
            sys.exit(f"{name} is missing")
    return {name: held[name] for name in ("X", "y")}


def parquet(pyarrow: Any, reader: Any) -> dict[str, Any]:
    """Every column as an array: numbers, text, or lists of one length."""
    content = pyarrow.BufferReader(sys.stdin.buffer.read())
    table = reader.read_table(content, use_threads=False)
    found = {}
    for name in table.column_names:
        column = table.column(name)
        if column.null_count:
            sys.exit(f"column {name} has an empty cell")
        found[name] = np.array(column.to_pylist())
    return found


def main() -> None:
    """Write the names and then each array as .npy, one after the other, or end with a reason."""
    kind, memory, seconds = sys.argv[1:]
    try:
        if kind == "matlab":
            from scipy.io import loadmat

            limit(int(memory), int(seconds))
            held = matlab(loadmat)
        else:
            import pyarrow
            from pyarrow import parquet as reader

            limit(int(memory), int(seconds))
            held = parquet(pyarrow, reader)
        written = io.BytesIO()
        for array in (np.array(list(held), str), *held.values()):
            np.save(written, array, allow_pickle=False)
        sys.stdout.buffer.write(written.getbuffer())
    except MemoryError:
        sys.exit("it takes more memory than is allowed")
    except Exception as error:  # a parser fed with damaged bytes raises anything
        sys.exit(" ".join(str(error).split()) or type(error).__name__)


if __name__ == "__main__":
    main()
