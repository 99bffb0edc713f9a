"""What a server is given to group, checked: whatever is wrong is told in one sentence that names it."""

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.errors import FeddagError, nearest
from feddag.server.clustering import Linkage
from feddag.server.complement import Absent, Alignment
from feddag.server.fusion import VIEWS
from feddag.server.printed_fusion import GATED_FUSIONS
from feddag.server.similarity import Floats, square

MOST_EXACT = 5_000  # clients that are compared pair by pair, unless the user says otherwise
USUAL_LANDMARKS = 2_000
ROUNDING = 1e-5  # of the largest distance: what is less comes of computing with 32 bits


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Refuse a word that is not allowed, with the one it may have been."""
    if value not in allowed:
        raise FeddagError(
            f"{name} = '{value}' is not allowed; allowed are {', '.join(allowed)}{nearest(value, allowed)}"
        )


def check_options(
    linkage: Linkage, alignment: Alignment, absent: Absent, sources: int, delta: float, least_silhouette_ratio: float
) -> None:
    """Refuse options of `feddag.group` that mean nothing, whatever the signatures."""
    one_of("linkage", linkage, get_args(Linkage))
    one_of("alignment", alignment, get_args(Alignment))
    one_of("absent", absent, get_args(Absent))
    if sources < 0:
        raise FeddagError(f"sources = {sources} is not allowed: it should be at least 0")
    for name, value in (("delta", delta), ("least_silhouette_ratio", least_silhouette_ratio)):
        if not 0 <= value <= 1:
            raise FeddagError(f"{name} = {value} is not allowed: it should be from 0 to 1")


def client_names(names: Sequence[str] | None, clients: int) -> list[str]:
    """What messages call the clients: their names, of which there must be one each, or their numbers."""
    if names is not None and len(names) != clients:
        raise FeddagError(f"there are {len(names)} names for {clients} clients")
    return [str(number) for number in range(clients)] if names is None else list(names)


def check_views(fusion: str, views: Sequence[str], *, updates: bool) -> None:
    """Refuse unknown views, and those that need an update where clients have sent none."""
    for view in views:
        one_of("views", view, VIEWS)
    if not views:
        raise FeddagError(f"views is empty; allowed are {', '.join(VIEWS)}")
    if not updates and fusion in ("gradient", *GATED_FUSIONS):
        raise FeddagError(f"fusion = '{fusion}' needs signatures with an update")
    if not updates and set(views) == {"gradient"}:
        raise FeddagError("views = 'gradient' needs signatures with an update")


def check_alike(signatures: Sequence[Signature], names: Sequence[str]) -> None:
    """Refuse signatures that cannot be compared, or that are broken, naming the client."""
    for item, name in zip(signatures, names, strict=True):
        if not isinstance(item, Signature):
            kind = type(item).__name__
            raise FeddagError(
                f"client {name}: a {kind} is no signature; give signatures, or distances as one NumPy array"
            )
    if not signatures:
        raise FeddagError("there is no signature to group")
    first = signatures[0]
    for item, name in zip(signatures, names, strict=True):
        if item.vectors.shape != first.vectors.shape or item.update.shape != first.update.shape:
            raise FeddagError(
                f"client {name}: its signature has vectors {item.vectors.shape} and an update of {len(item.update)},"
                f" and that of client {names[0]} {first.vectors.shape} and {len(first.update)}"
            )
        try:
            item.check()
        except FeddagError as error:
            raise FeddagError(f"client {name}: {error}") from None


def check_matrix(matrix: NDArray[Any]) -> None:
    """Refuse what cannot be the distances of every client to every other, whatever its numbers."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise FeddagError(f"a precomputed matrix must be square, and this one has shape {matrix.shape}")
    if matrix.dtype.kind not in "iuf":
        raise FeddagError(f"a precomputed matrix must hold numbers, and this one holds {matrix.dtype}")


def condense(matrix: NDArray[Any], names: Sequence[str]) -> Floats:
    """The distances above the diagonal of a square matrix; refuses what no distances are, naming the client."""
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite and is refused
        table = matrix.astype(np.float32)
    condensed = np.asarray(table / 2 + table.T / 2, np.float32)[np.triu_indices(len(table), 1)]
    check_distances(condensed, names)
    rounding = ROUNDING * float(np.abs(condensed).max(initial=0))
    for right, wrong in (
        (np.abs(table.diagonal()) <= rounding, "has a distance to itself that is not 0"),
        ((table >= 0).all(axis=1), "has a distance that is below 0"),
        ((np.abs(table - table.T) <= rounding).all(axis=1), "is not as far from another as that one is from it"),
    ):
        if not right.all():
            raise FeddagError(f"client {names[int(right.argmin())]} {wrong}")
    return condensed


def check_distances(condensed: Floats, names: Sequence[str]) -> None:
    """Refuse distances that are not finite, naming the client."""
    bad = np.flatnonzero(~np.isfinite(condensed))
    if len(bad):
        table = square(np.isfinite(condensed).astype(np.float32))
        np.fill_diagonal(table, 1)
        raise FeddagError(f"client {names[int(table.sum(1).argmin())]}: its distances are not finite numbers")


def landmarks_wanted(landmarks: int | None, clients: int) -> int:
    """How many clients are compared pair by pair, to group the others by; 0 where all are.

    >>> landmarks_wanted(None, 5000), landmarks_wanted(None, 5001), landmarks_wanted(50, 100), landmarks_wanted(0, 9000)
    (0, 2000, 50, 0)
    """
    if landmarks is None:
        return 0 if clients <= MOST_EXACT else USUAL_LANDMARKS
    if landmarks < 0 or landmarks == 1:
        raise FeddagError(f"landmarks = {landmarks} is not allowed: it should be 0 or at least 2")
    return landmarks if landmarks < clients else 0
