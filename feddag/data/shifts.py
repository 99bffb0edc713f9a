"""What is done to one client's samples: labels renamed (concept shift) and images corrupted (feature shift)."""

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feddag.data.corruptions import CORRUPTIONS, as_bytes
from feddag.errors import FeddagError, nearest, short

CHUNK = 512  # images worked on at once: a large test set must not become one huge float array


@dataclass(frozen=True)
class Shift:
    """How one client's samples differ from the dataset's: the same for training and test samples.

    >>> Shift("reverse").labels(np.array([0, 1, 9]), 10).tolist()
    [9, 8, 0]
    >>> Shift("swap-1").labels(np.array([0, 1, 2]), 10).tolist()  # partly renamed
    [1, 0, 2]
    """

    concept: str = "identity"
    corruption: str | None = None
    severity: int = 3

    def __post_init__(self) -> None:
        if self.concept not in ("identity", "reverse", "next") and not re.fullmatch(
            r"(rotate|swap)-\d{1,9}", self.concept
        ):
            known = ("identity", "reverse", "next", "rotate-2", "swap-1")
            raise FeddagError(
                f"concept = '{self.concept}': allowed are identity, reverse, next, rotate-K and swap-K with a number K"
                + nearest(self.concept, known)
            )
        if self.corruption is not None:
            check_corruption(self.corruption)
        if type(self.severity) is not int or not 1 <= self.severity <= 5:
            raise FeddagError(f"severity = {self.severity!r}: it must be a whole number from 1 to 5")

    def labels(self, y: NDArray[np.int64], num_classes: int) -> NDArray[np.int64]:
        """The labels as this client knows them."""
        if self.concept == "identity":
            return y
        if self.concept == "reverse":
            return num_classes - 1 - y
        if self.concept.startswith("swap-"):  # the first K pairs: 0 and 1, 2 and 3, ...
            swapped = 2 * min(int(self.concept.removeprefix("swap-")), num_classes // 2)
            return np.where(y < swapped, y ^ 1, y)
        step = 1 if self.concept == "next" else int(self.concept.removeprefix("rotate-"))
        return (y + step % num_classes) % num_classes

    def images(self, x: NDArray[np.generic], generator: np.random.Generator) -> NDArray[np.generic]:
        """The images (uint8, N x H x W x C) as this client sees them, in the same type and shape."""
        if self.corruption is None:
            return x
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3):
            raise FeddagError(
                f"corruption = '{self.corruption}': it needs uint8 images of shape N x H x W x 1 or 3,"
                f" not {x.dtype} samples of shape {x.shape[1:]}"
            )
        if self.corruption == "saturate" and x.shape[3] == 1:
            raise FeddagError("corruption = 'saturate': it needs colour images, and these are grey")
        corrupt, strengths = CORRUPTIONS[self.corruption]
        strength = strengths[self.severity - 1]
        shifted = np.empty_like(x)
        for start in range(0, len(x), CHUNK):
            part = x[start : start + CHUNK].astype(np.float32) / np.float32(255)
            shifted[start : start + CHUNK] = as_bytes(corrupt(part, strength, generator))
        return shifted


def concepts_of(num_classes: int) -> list[str]:
    """All concepts that differ for this number of classes, in the order in which a partition uses them.

    >>> concepts_of(4), concepts_of(2)
    (['identity', 'reverse', 'next', 'rotate-2', 'rotate-3'], ['identity', 'reverse'])
    """
    if num_classes < 3:  # of two classes, "next" is "reverse"; one class cannot be renamed
        return ["identity", "reverse"][:num_classes]
    return ["identity", "reverse", "next", *(f"rotate-{step}" for step in range(2, num_classes))]


def check_corruption(name: str) -> None:
    """Refuses a corruption that does not exist."""
    if name not in CORRUPTIONS:
        allowed = ", ".join(CORRUPTIONS)
        raise FeddagError(
            f"corruption '{short(name)}' does not exist: allowed are {allowed}{nearest(name, CORRUPTIONS)}"
        )
