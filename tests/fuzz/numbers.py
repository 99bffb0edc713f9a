"""Signatures and distances as they are in memory, some of them of liars, and all the ways to group by them."""

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from feddag import group
from feddag.client.signature import Signature, signature
from feddag.errors import FeddagError
from feddag.server.grouping import FUSIONS
from feddag.server.printed_fusion import GATED_FUSIONS
from tests.fuzz.damage import Try

EXTREME = (0.0, 1.0, -1.0, 2.0, 1e-40, 1e-7, 1e30, 3e38, float("nan"), float("inf"), 0.5, 0.999999)
COUNTS = (0, 1, 2, 5, 2**31, 2**40, 2**40 + 1, 2**62, -1)


@cache
def _honest(client: int) -> Signature:
    draw = np.random.default_rng(client)
    y = np.repeat([client % 2, 2 + client % 2], 8)
    x = draw.normal(size=(16, 5)) + 3 * np.eye(5)[y]
    return signature(x, y, 4, update=draw.normal(size=6).astype(np.float32) + client % 2, update_reliability=0.7)


def _lying(chance: random.Random) -> Signature:
    """Another's signature with one to three of its arrays changed."""
    arrays = {name: array.copy() for name, array in vars(_honest(chance.randrange(6))).items()}
    for _ in range(chance.choice((1, 1, 2, 3))):
        name = chance.choice(list(arrays))
        array = arrays[name]
        values = COUNTS if name == "counts" else EXTREME
        way = chance.choice(("all", "one", "shape", "dtype", "negated", "other"))
        with np.errstate(all="ignore"):
            if way == "all":
                arrays[name] = np.full(array.shape, chance.choice(values)).astype(array.dtype)
            elif way == "one" and array.size and array.dtype.kind in "fi":
                array.reshape(-1)[chance.randrange(array.size)] = np.array(chance.choice(values)).astype(array.dtype)
            elif way == "shape":
                arrays[name] = chance.choice((array[None], array.ravel(), array[:0] if array.ndim else array, array.T))
            elif way == "dtype":
                arrays[name] = array.astype(chance.choice(("f8", "i4", "?", "f2", "i8", "c8", "O")))
            elif way == "negated":
                arrays[name] = np.asarray(-array) if array.dtype.kind in "fi" else array
            else:
                arrays[name] = vars(_honest(chance.randrange(6)))[name].copy()
    return Signature(**arrays)


def try_signatures(chance: random.Random, scratch: Path) -> None:
    """A liar among up to five honest clients; then it comes late, and is placed."""
    liar = _lying(chance)
    honest = [_honest(client) for client in range(chance.randint(0, 5))]
    everyone = [*honest, liar]
    chance.shuffle(everyone)
    trained = chance.random() < 0.01  # the paper's fusions train a network each time
    cheap = [name for name in FUSIONS if trained or name not in GATED_FUSIONS]
    options: dict[str, Any] = {"fusion": chance.choice(("clarity", *cheap))}
    if chance.random() < 0.3:
        options |= {
            "linkage": chance.choice(("average", "single", "complete", "weighted")),
            "sources": chance.choice((0, 1, 9)),
        }
    found = group(everyone, **options)
    assert np.isfinite(found.distances_).all() and len(found.labels_) == len(everyone)
    if honest:
        cluster = group(honest, **options).assign(liar)
        assert cluster is None or 0 <= cluster < len(honest)


def try_distances(chance: random.Random, scratch: Path) -> None:
    """A matrix of distances with something wrong, grouped; what is grouped is finite."""
    draw = np.random.default_rng(chance.getrandbits(32))
    size = chance.randint(1, 8)
    points = draw.random((size, 2))
    table: Any = np.linalg.norm(points[:, None] - points, axis=2)
    for _ in range(chance.choice((0, 1, 1, 2))):
        way = chance.randrange(6)
        with np.errstate(all="ignore"):
            if way == 0:
                table[draw.integers(size), draw.integers(size)] = chance.choice((*EXTREME, -1.0, 1e300, 1e-310, -0.0))
            elif way == 1:
                table = table * chance.choice((0, -1, 1e38, 1e-38, 1e300, 1e-310, np.nan))
            elif way == 2:
                table = table.astype(chance.choice(("f2", "f4", "i8", "u1", "U9", "?", "c16", "O", "S3")))
            elif way == 3:
                table = table.reshape(chance.choice(((-1,), (1, -1), (size, size, 1), (-1, 1))))
            elif way == 4:
                table = np.maximum(table, 0) if chance.random() < 0.5 and table.dtype.kind in "fiu" else table[:-1]
            else:
                table = table + chance.choice((0, 1e-7, 1e-3, 1)) if table.dtype.kind in "fiu" else table
        if table.ndim != 2 or table.dtype.kind not in "fiu" or len(table) != size or table.shape[1] != size:
            break
    names = [str(number) for number in range(size)] if chance.random() < 0.8 else chance.choice((["a"], [], None))
    found = group(table, linkage=chance.choice(("average", "single", "complete", "weighted")), names=names)
    assert np.isfinite(found.distances_).all() and np.isfinite(found.threshold_)
    try:
        found.assign(_honest(0))
    except FeddagError:
        return
    raise AssertionError("a newcomer was placed by distances alone")


NUMBERS: dict[str, Try] = {"signatures": try_signatures, "distances": try_distances}
