"""What every reader returns, and the one sentence with which it refuses a file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Any error inside becomes one sentence that names the file and what it should have been."""
    try:
        yield
    except FeddagError:
        raise
    except Exception as error:  # parsers fed with damaged bytes raise anything
        if not path.exists():
            raise FeddagError(f"{path} is missing; it should be {kind}") from error
        reason = f"{error} is missing" if isinstance(error, KeyError) else str(error) or type(error).__name__
        raise FeddagError(f"{path} is not {kind}: {' '.join(reason.split())[:200]}") from error
