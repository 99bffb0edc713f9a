"""Small files of every format, made up."""

import struct
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from PIL import Image

from feddag.data.readers import Parts, Samples

quick = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def both_parts(parts: Parts) -> tuple[Samples, Samples]:
    train, test = parts
    assert test is not None
    return train, test


def save_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def planes(x: np.ndarray) -> np.ndarray:
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


class Hostile:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call, self.arguments
