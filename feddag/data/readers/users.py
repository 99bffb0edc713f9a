"""Samples of natural clients: LEAF's json files, and CSV files of users and images."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.images import read_images
from feddag.data.readers.samples import Parts, Samples, reading
from feddag.errors import FeddagError

USER_IMAGE_SIZE = (64, 64)


def _leaf_part(folder: Path) -> Samples:
    """All LEAF json files of a folder; pixels, stored as 0 .. 1, become bytes again."""
    x, y, owner = [], [], []
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FeddagError(f"{folder} holds no LEAF .json file")
    for path in files:
        with reading(path, "a complete LEAF FEMNIST file"):
            held = json.loads(path.read_text())
            for user, announced in zip(held["users"], held["num_samples"], strict=True):
                pixels = np.array(held["user_data"][user]["x"], np.float64).reshape(-1, 28, 28, 1)
                labels = np.array(held["user_data"][user]["y"], np.int64)
                if labels.ndim != 1 or not len(pixels) == len(labels) == announced:
                    raise ValueError(
                        f"user {user} has {len(pixels)} images, {labels.size} labels, and {announced} announced"
                    )
                if not ((pixels >= 0) & (pixels <= 1)).all():
                    raise ValueError(f"user {user} has a pixel outside 0 .. 1")
                x.append(np.rint(pixels * 255).astype(np.uint8))
                y.append(labels)
                owner.extend([str(user)] * len(labels))
    if not owner:
        raise FeddagError(f"{folder} holds LEAF files without a single sample")
    return Samples(np.concatenate(x), np.concatenate(y), owner=np.array(owner))


def read_leaf(folder: Path) -> Parts:
    """LEAF's FEMNIST json files in `train/` and `test/`, or all in the folder itself; a writer is an owner."""
    if (folder / "train").is_dir():
        return _leaf_part(folder / "train"), _leaf_part(folder / "test")
    return _leaf_part(folder), None


def _user_csv_part(path: Path, columns: Sequence[str]) -> Samples:
    with reading(path, f"a CSV file with the columns {', '.join(columns)}"):
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        if not rows:
            raise ValueError("it has no rows")
        there = [column for column in ("user_id", "image_id", "class") if column in columns or column in rows[0]]
        cells = {column: [row.get(column) or "" for row in rows] for column in there}
        for column in there:
            if not all(cells[column]):
                raise ValueError(f"column {column} is missing or has an empty cell")
        images = [_user_image(path.parent / "images", image_id) for image_id in cells["image_id"]]
    owner = _plain(cells["user_id"]) if "user_id" in cells else None
    return Samples(read_images(images, USER_IMAGE_SIZE), _plain(cells["class"]), owner=owner)


def _user_image(folder: Path, image_id: str) -> Path:
    """The file of that image; an id cannot lead out of the folder."""
    for path in (folder / f"{image_id}.jpg", folder / f"{image_id}.png"):
        if path.is_relative_to(folder) and ".." not in path.parts[len(folder.parts) :] and path.is_file():
            return path
    raise FeddagError(
        f"{folder} holds no .jpg or .png of image_id {image_id[:100]!r}, which a CSV file beside it names"
    )


def _plain(words: Sequence[str]) -> NDArray[Any]:
    """Words as integers if every one is written like an integer, so that 10 comes after 9.

    >>> _plain(["10", "9"]).tolist(), _plain(["10", "09"]).tolist()
    ([10, 9], ['10', '09'])
    """
    if all(word.isascii() and word.isdecimal() and len(word) < 19 and str(int(word)) == word for word in words):
        return np.array([int(word) for word in words], np.int64)
    return np.array(words)


def read_user_csv(folder: Path) -> Parts:
    """`train.csv` (user_id, image_id, class), `test.csv` (the same; user_id may be absent) and the files in `images/`.

    Images are resized to 64 x 64. Without `test.csv` there is no test part.
    """
    train = _user_csv_part(folder / "train.csv", ("user_id", "image_id", "class"))
    test = folder / "test.csv"
    return train, _user_csv_part(test, ("image_id", "class")) if test.exists() else None
