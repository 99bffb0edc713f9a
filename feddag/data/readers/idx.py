"""idx files: MNIST and Fashion-MNIST."""

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.limits import Budget, open_regular, size_of
from feddag.data.readers.samples import Parts, Samples, reading


def read_idx(path: Path, budget: Budget | None = None) -> NDArray[np.uint8]:
    """The byte array of one idx file, gzipped or not."""
    with reading(path, "a complete idx file of bytes"), open_regular(path) as packed:
        zipped = packed.read(2) == b"\x1f\x8b"
        packed.seek(0)
        with gzip.open(packed) if zipped else packed as file:
            zeros, element_type, dimensions = struct.unpack(">HBB", file.read(4))
            if zeros != 0 or element_type != 0x08 or not 1 <= dimensions <= 4:
                raise ValueError("its magic number is wrong")
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            size = math.prod(shape)
            (budget or Budget()).take(path, size, size_of(packed))
            content = file.read(size + 1)  # one more, to notice a file that is too long without unpacking all of it
            if len(content) != size:
                raise ValueError(
                    f"it announces {size} bytes and holds {'more' if len(content) > size else len(content)}"
                )
            return np.frombuffer(content, np.uint8).reshape(shape).copy()  # torch wants arrays it may write to


def read_idx_folder(folder: Path) -> Parts:
    """The four idx files of MNIST or Fashion-MNIST, each with or without .gz."""
    budget = Budget()

    def array(name: str) -> NDArray[np.uint8]:
        return read_idx(folder / name if (folder / name).exists() else folder / f"{name}.gz", budget)

    def part(prefix: str) -> Samples:
        return Samples(array(f"{prefix}-images-idx3-ubyte"), array(f"{prefix}-labels-idx1-ubyte"))

    return part("train"), part("t10k")
