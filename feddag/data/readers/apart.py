"""Files that are read in another process: a damaged one can crash the library that reads it."""

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, Literal

from numpy.typing import NDArray

from feddag.data.readers.limits import Budget, most_bytes, size_of
from feddag.data.readers.npz import read_array

CHILD = Path(__file__).with_name("child.py")
CPU_SECONDS, SECONDS = 120, 600  # the whole of SVHN takes 10


def read_apart(
    path: Path, file: BinaryIO, kind: Literal["matlab", "parquet"], budget: Budget
) -> dict[str, NDArray[Any]]:
    """The arrays of a MATLAB or a Parquet file, by name."""
    packed = size_of(file)
    memory = 4 * most_bytes(packed)  # unpacked, as an array, as a file, and what the library needs besides
    quiet = {"OPENBLAS_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(CHILD), kind, str(memory), str(CPU_SECONDS)],
            stdin=file,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, **quiet},
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"reading it took more than {SECONDS} seconds") from None
    if done.returncode < 0:
        raise ValueError(f"reading it ended in {signal.Signals(-done.returncode).name}")
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(said[-1] if said else "it could not be read")
    found = io.BytesIO(done.stdout)
    names = read_array(path, found, budget, packed).tolist()
    return {name: read_array(path, found, budget, packed // len(names)) for name in names}
