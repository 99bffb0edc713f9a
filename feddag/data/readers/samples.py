"""What every reader returns, and the one sentence with which it refuses a file."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.errors import FeddagError


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples as their file holds them: labels, owners and domains are still the file's own numbers or names.

    `version_of` says which picture a corrupted one was made from, so that all its versions stay on one side of the
    train/test split.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    owner: NDArray[Any] | None = None
    domain: NDArray[Any] | None = None
    version_of: NDArray[Any] | None = None


Parts = tuple[Samples, Samples | None]  # train and test; no test where the source has no split
Reader = Callable[[Path], Parts]


def whole_numbers(labels: object) -> NDArray[np.int64]:
    """A flat list of labels as an array. Nothing else will do: nested lists may unfold to more than any memory holds.

    >>> whole_numbers([3, 1]).tolist()
    [3, 1]
    """
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("its labels are not a list of whole numbers")
    return np.array(labels, np.int64)


def plain_words(words: Sequence[str]) -> NDArray[Any]:
    """Words as integers if every one is written like an integer, so that 10 comes after 9.

    >>> plain_words(["10", "9"]).tolist(), plain_words(["10", "09"]).tolist()
    ([10, 9], ['10', '09'])
    """
    if all(word.isascii() and word.isdecimal() and len(word) < 19 and str(int(word)) == word for word in words):
        return np.array([int(word) for word in words], np.int64)
    return np.array(words)


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Any error inside becomes one sentence that names the file and what it should have been."""
    try:
        yield
    except FeddagError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FeddagError(f"{path} is missing; it should be {kind}") from error
    except Exception as error:  # parsers fed with damaged bytes raise anything
        raise FeddagError(f"{path} is not {kind}: {' '.join(_reason(error).split())[:200]}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"  # the error's own words would show what is in the file
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
