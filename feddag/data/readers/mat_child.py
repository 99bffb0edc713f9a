"""Reads X and y of a MATLAB file in a process of its own, because a damaged file can crash SciPy's reader.

It is started by `svhn.py`, from standard input to standard output, and imports nothing of the package.
"""

import io
import resource
import sys
from pathlib import Path

import numpy as np
from scipy.io import loadmat


def limit(memory: int, seconds: int) -> None:
    """From here on this process takes so many more bytes and seconds at most, and leaves no core dump."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Write both arrays as .npy, one after the other, or end with a reason."""
    limit(*map(int, sys.argv[1:]))
    try:
        held = loadmat(sys.stdin.buffer, variable_names=["X", "y"])  # type: ignore[arg-type]
        found = io.BytesIO()
        for name in ("X", "y"):
            if name not in held:
                sys.exit(f"{name} is missing")
            np.save(found, held[name], allow_pickle=False)
        sys.stdout.buffer.write(found.getbuffer())
    except Exception as error:  # a parser fed with damaged bytes raises anything
        sys.exit(" ".join(str(error).split()) or type(error).__name__)


if __name__ == "__main__":
    main()
