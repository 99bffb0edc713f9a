"""Samples of natural clients: LEAF's json files, and CSV files of users and images."""

import csv
import io
import json
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.images import read_images
from feddag.data.readers.limits import CSV_GROWS, JSON_GROWS, Budget, text_of
from feddag.data.readers.samples import Parts, Samples, plain_words, reading, whole_numbers
from feddag.errors import FeddagError

USER_IMAGE_SIZE = (64, 64)


def _leaf_part(folder: Path) -> Samples:
    """All LEAF json files of a folder; pixels, stored as 0 .. 1, become bytes again."""
    x, y, owner = [], [], []
    files = sorted(folder.glob("*.json"))
    if not files:
        raise FeddagError(f"{folder} holds no LEAF .json file")
    budget = Budget()
    for path in files:
        with reading(path, "a complete LEAF FEMNIST file"):
            held = json.loads(text_of(path, JSON_GROWS))
            if len(set(held["users"])) != len(held["users"]):
                raise ValueError("it names a user twice")
            for user, announced in zip(held["users"], held["num_samples"], strict=True):
                pixels, labels = _pixels(held["user_data"][user]["x"]), whole_numbers(held["user_data"][user]["y"])
                if not len(pixels) == len(labels) == announced:
                    raise ValueError("a user has other numbers of images and labels than it announces")
                budget.take(path, pixels.nbytes)
                x.append(pixels)
                y.append(labels)
                owner.extend([str(user)] * len(labels))
    if not owner:
        raise FeddagError(f"{folder} holds LEAF files without a single sample")
    return Samples(np.concatenate(x), np.concatenate(y), owner=np.array(owner))


def _pixels(images: object) -> NDArray[np.uint8]:
    """Lists of 784 shares of white as images of bytes."""
    try:
        shares = np.array(images, np.float64).reshape(-1, 28, 28, 1)
    except (TypeError, ValueError):  # whose own words would show a value
        raise ValueError("the images of a user are not lists of 784 numbers") from None
    if not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("a user has a pixel outside 0 .. 1")
    return np.rint(shares * 255).astype(np.uint8)


def read_leaf(folder: Path) -> Parts:
    """LEAF's FEMNIST json files in `train/` and `test/`, or all in the folder itself; a writer is an owner."""
    if (folder / "train").is_dir():
        return _leaf_part(folder / "train"), _leaf_part(folder / "test")
    return _leaf_part(folder), None


DIGITS_AND_LETTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # LEAF's 62 classes, in order
LOOK_ALIKE = "cijklmopsuvwxyz"  # letters whose two cases are one class where there are 47 (EMNIST "by merge")


def read_leaf_merged(folder: Path) -> Parts:
    """The same with 47 classes: lower-case letters that look like their capitals are of their class."""
    kept = [letter for letter in DIGITS_AND_LETTERS if letter not in LOOK_ALIKE]
    merged = [kept.index(one.upper() if one in LOOK_ALIKE else one) for one in DIGITS_AND_LETTERS]
    train, test = read_leaf(folder)
    for part in (train, test):
        if part is not None and len(part.y) and not 0 <= part.y.min() <= part.y.max() < len(merged):
            raise FeddagError(f"{folder} holds a label that is not one of LEAF's {len(merged)} classes")
    return (
        replace(train, y=np.array(merged)[train.y]),
        None if test is None else replace(test, y=np.array(merged)[test.y]),
    )


def _user_csv_part(path: Path, columns: Sequence[str]) -> Samples:
    with reading(path, f"a CSV file with the columns {', '.join(columns)}"):
        rows = list(csv.DictReader(io.StringIO(text_of(path, CSV_GROWS), newline="")))
        if not rows:
            raise ValueError("it has no rows")
        there = [column for column in ("user_id", "image_id", "class") if column in columns or column in rows[0]]
        cells = {column: [row.get(column) or "" for row in rows] for column in there}
        for column in there:
            if not all(cells[column]):
                raise ValueError(f"column {column} is missing or has an empty cell")
        images = [_user_image(path.parent / "images", image_id) for image_id in cells["image_id"]]
    owner = plain_words(cells["user_id"]) if "user_id" in cells else None
    return Samples(read_images(images, USER_IMAGE_SIZE), plain_words(cells["class"]), owner=owner)


def _user_image(folder: Path, image_id: str) -> Path:
    """The file of that image; an id cannot lead out of the folder."""
    for path in (folder / f"{image_id}.jpg", folder / f"{image_id}.png"):
        if path.is_relative_to(folder) and ".." not in path.parts[len(folder.parts) :] and path.is_file():
            return path
    raise FeddagError(
        f"{folder} holds no .jpg or .png of image_id {image_id[:100]!r}, which a CSV file beside it names"
    )


def read_user_csv(folder: Path) -> Parts:
    """`train.csv` (user_id, image_id, class), `test.csv` (the same; user_id may be absent) and the files in `images/`.

    Images are resized to 64 x 64. Without `test.csv` there is no test part.
    """
    train = _user_csv_part(folder / "train.csv", ("user_id", "image_id", "class"))
    test = folder / "test.csv"
    return train, _user_csv_part(test, ("image_id", "class")) if test.exists() else None
