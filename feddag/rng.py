"""Everything random comes from one seed by name, so that order, worker count and resumption change nothing."""

import hashlib

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

Words = NDArray[np.uint64]


class _Key(ISeedSequence):
    """Gives a bit generator its key. Passed as `key`, NumPy first asks the system for entropy, which it then drops."""

    def __init__(self, words: Words) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> Words:
        return self._words


def stream_key(seed: int, *names: str | int) -> int:
    """A 128-bit key that belongs to this seed and this name alone.

    >>> stream_key(0, "train", 1, 2) == stream_key(0, "train", 1, 2) != stream_key(0, "train", 12)
    True
    """
    return int.from_bytes(_key(seed, names), "little")


def rng(seed: int, *names: str | int) -> np.random.Generator:
    """The generator of that name: a counter-based stream (Philox), independent of every other name's.

    >>> rng(0, "sample", 3).integers(100) == rng(0, "sample", 3).integers(100)
    np.True_
    """
    words = np.frombuffer(_key(seed, names), "<u8")  # as Philox takes them; an int costs it three times as much
    return np.random.Generator(np.random.Philox(_Key(words)))  # type: ignore[arg-type]  # NumPy's types name one kind


def _key(seed: int, names: tuple[str | int, ...]) -> bytes:
    text = "\x1f".join([str(seed), *[f"{type(name).__name__}:{name}" for name in names]])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def dropout_mask(key: int, layer: int, step: int, shape: tuple[int, ...], p: float) -> NDArray[np.float32]:
    """What a dropout layer multiplies its input with: 0 where dropped, 1 / (1 - p) where kept.

    A pure function of (key, layer, step, element), so that any trainer, in any language, draws the same mask:
    the Philox4x64 words of counter (·, layer, step, 0), four 16-bit values a word, lowest bits first.

    >>> mask = dropout_mask(7, 0, 0, (2, 3), 0.5)
    >>> sorted(set(mask.ravel().tolist())) in ([0.0, 2.0], [0.0], [2.0])
    True
    """
    elements = int(np.prod(shape))
    words = np.random.Philox(key=key, counter=[0, layer, step, 0]).random_raw(-(-elements // 4))
    draws = words.astype("<u8", copy=False).view("<u2")[:elements].reshape(shape)
    return np.where(draws >= round(p * 65536), np.float32(1 / (1 - p)), np.float32(0))
