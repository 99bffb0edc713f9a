"""Bytes changed at random: cut, flipped, doubled, swapped, or set to the numbers that break sums."""

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

Random = np.random.Generator
Try = Callable[[random.Random, Path], object]
"""Makes something with something wrong and has feddag read it: a FeddagError or a WireError refuses it."""
EXTREMES = (
    b"\0",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\1",
    b"\0\0\0\x80",
    b"\xff\xff\xff\x7f",
    b"\0\0\0\0\1\0\0\0",
    b"\xff" * 8,
)


def damage(random: Random, content: bytes) -> bytes:
    """The same bytes, damaged in one to four places."""
    for _ in range(int(random.integers(1, 5))):
        content = WAYS[random.integers(len(WAYS))](random, content)
    return content


def _place(random: Random, content: bytes) -> int:
    """Anywhere, but more often near the beginning or the end, where headers are."""
    size = len(content)
    near = min(size, 200)
    first = int(random.integers(3))
    return int([random.integers(size + 1), random.integers(near + 1), size - random.integers(near + 1)][first])


def _span(random: Random, content: bytes) -> slice:
    start = _place(random, content)
    return slice(start, start + int(2 ** random.uniform(0, 10)))


def cut(random: Random, content: bytes) -> bytes:
    return content[: _place(random, content)]


def flipped(random: Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(int(2 ** random.uniform(0, 5)) if content else 0):
        changed[min(_place(random, content), len(content) - 1)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def extreme(random: Random, content: bytes) -> bytes:
    number = EXTREMES[random.integers(len(EXTREMES))]
    at = _place(random, content)
    return content[:at] + number + content[at + len(number) :]


def left_out(random: Random, content: bytes) -> bytes:
    gone = _span(random, content)
    return content[: gone.start] + content[gone.stop :]


def doubled(random: Random, content: bytes) -> bytes:
    twice = _span(random, content)
    return content[: twice.stop] + content[twice] + content[twice.stop :]


def inserted(random: Random, content: bytes) -> bytes:
    at = _place(random, content)
    return content[:at] + random.bytes(int(2 ** random.uniform(0, 8))) + content[at:]


def moved(random: Random, content: bytes) -> bytes:
    source, at = _span(random, content), _place(random, content)
    return content[:at] + content[source] + content[at + len(content[source]) :]


WAYS: list[Callable[[Random, bytes], bytes]] = [
    cut,
    flipped,
    flipped,
    extreme,
    extreme,
    left_out,
    doubled,
    inserted,
    moved,
]
