"""Damaged and hostile files of every kind that feddag reads, made from a seed, and whether they are refused well.

`damaged_file(kind, seed, folder)` writes one and `outcome(kind, path)` reads it: "read" or "refused", and an error for
anything but one plain sentence. `python -m tests.fuzz COUNT [KIND ...]` tries many; docs are in `__main__.py`.
"""

from pathlib import Path

import numpy as np

from feddag.errors import FeddagError
from tests.fuzz.damage import damage
from tests.fuzz.lies import LIES
from tests.fuzz.wholes import READERS, WHOLES

KINDS = tuple(WHOLES)
LONGEST_SENTENCE = 1000
SHARE_OF_LIES = 0.5
"""How often a file is well-formed but lies about what it holds; otherwise its bytes are damaged at random."""


def damaged_file(kind: str, seed: int, folder: Path) -> Path:
    """A file, or a folder of them, of this kind, with something wrong; what a reader of this kind is given."""
    random = np.random.default_rng([seed, KINDS.index(kind)])
    target = folder / f"{kind}-{seed}"
    target.mkdir(parents=True)
    path, files = WHOLES[kind](random, target)
    lies = LIES.get(kind, [])
    if lies and random.random() < SHARE_OF_LIES:
        lies[random.integers(len(lies))](random, files[random.integers(len(files))])
    else:
        spoilt = files[random.integers(len(files))]
        spoilt.write_bytes(damage(random, spoilt.read_bytes()))
    return path


def outcome(kind: str, path: Path) -> str:
    """Read it: "read" if that is possible, "refused" if it is refused in one sentence."""
    try:
        READERS[kind](path)
    except FeddagError as error:
        sentence = str(error)
        assert sentence and "\n" not in sentence and len(sentence) < LONGEST_SENTENCE, f"{kind} {path}: {sentence!r}"
        assert "Traceback" not in sentence
        return "refused"
    return "read"
