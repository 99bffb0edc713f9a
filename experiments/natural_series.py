"""Series of persons as datasets whose clients are those persons. The data lie inside two packages of PyPI:

pip install --no-deps aeon seglearn

Only their files are read; neither package is imported.
"""

import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

import feddag
from feddag.data.datasets import Dataset

WINDOW, STRIDE = 128, 2  # of the watch: 2.56 s at 50 Hz, every second value
TEST_SHARE = 0.3  # the end of each recording


def inside(package: str, path: str) -> Path:
    """A file of an installed package."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise feddag.FeddagError(f"the data lie inside a package: pip install --no-deps {package}")
    return Path(found.submodule_search_locations[0]) / path


class OnlyArrays(pickle.Unpickler):
    """Reads plain containers and NumPy's arrays; any other class or function in the file is refused, never called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how older pickles write bytes
            return lambda text, _: text.encode("latin1")
        allowed = {"numpy": ("ndarray", "dtype"), "numpy.core.multiarray": ("_reconstruct",)}
        if name not in allowed.get(module.replace("numpy._core", "numpy.core"), ()):
            raise feddag.FeddagError(f"the data ask for {module}.{name}, which arrays do not need")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def japanese_vowels() -> Dataset:
    """Nine speakers say two vowels; the class is the speaker (Kudo et al., 1999). So every client has one class."""
    parts = []
    for name in ("TRAIN", "TEST"):
        text = inside("aeon", f"datasets/data/JapaneseVowels/JapaneseVowels_eq_{name}.ts").read_text()
        rows = [line.split(":") for line in text.partition("@data\n")[2].splitlines() if line]
        x = np.array([[[float(v) for v in channel.split(",")] for channel in row[:-1]] for row in rows], np.float32)
        parts.append((x.transpose(0, 2, 1), np.array([int(row[-1]) - 1 for row in rows])))
    (x, y), (test_x, test_y) = parts
    clients = [(x[y == c], y[y == c], test_x[test_y == c], test_y[test_y == c]) for c in range(9)]
    return feddag.dataset(clients=clients, name="japanese-vowels")


def watch() -> Dataset:
    """Ten subjects do seven shoulder exercises with each arm, a watch on the wrist (Burns et al., 2018).

    Windows do not overlap, and each recording's end is for testing.
    """
    with inside("seglearn", "data/watch_dataset.npy").open("rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        held = OnlyArrays(file).load().item()
    clients = []
    for subject in np.unique(held["subject"]):
        parts: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        labels: tuple[list[int], list[int]] = ([], [])
        for number in np.flatnonzero(held["subject"] == subject):
            series = np.asarray(held["X"][number], np.float32)
            starts = np.arange(0, len(series) - WINDOW + 1, WINDOW)
            first_tested = round((1 - TEST_SHARE) * len(starts))
            for place, start in enumerate(starts):
                tested = int(place >= first_tested)
                parts[tested].append(series[start : start + WINDOW : STRIDE])
                labels[tested].append(int(held["y"][number]))
        clients.append((np.stack(parts[0]), np.array(labels[0]), np.stack(parts[1]), np.array(labels[1])))
    return feddag.dataset(clients=clients, name="watch")
