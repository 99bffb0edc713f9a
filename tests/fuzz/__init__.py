"""Damaged and hostile input of every kind that feddag reads, made from a seed, and whether it is refused well.

`attempt(kind, seed, scratch)` makes one and has it read: "read" or "refused", and an error for anything but one plain
sentence. `python -m tests.fuzz COUNT [KIND ...]` tries many; docs are in `__main__.py`. What once broke something, or
is tricky, is kept in `corpus/` (see `corpus.py`).
"""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from feddag.engines.flower.wire import WireError
from feddag.errors import FeddagError
from tests.fuzz.damage import Try, damage
from tests.fuzz.lies import LIES
from tests.fuzz.messages import MESSAGES
from tests.fuzz.numbers import NUMBERS
from tests.fuzz.runs import damaged_run, outcome_of_run
from tests.fuzz.texts import TEXTS
from tests.fuzz.wholes import READERS, WHOLES

FILES = tuple(WHOLES)
IN_MEMORY: dict[str, Try] = {**MESSAGES, **TEXTS, **NUMBERS}
KINDS = (*IN_MEMORY, *FILES, "run")
LONGEST_SENTENCE = 1000
SHARE_OF_LIES = 0.5
"""How often a file is well-formed but lies about what it holds; otherwise its bytes are damaged at random."""


def attempt(kind: str, seed: int, scratch: Path) -> str:
    """Make one and have it read: "read" if that is possible, "refused" if it is refused in one sentence."""
    if kind in IN_MEMORY:
        chance = random.Random(f"{kind} {seed}")
        return outcome(lambda: IN_MEMORY[kind](chance, scratch))
    target = scratch / f"{kind}-{seed}"
    try:
        if kind == "run":
            damaged_run(seed, target)
            return "read" if "read" in outcome_of_run(target).values() else "refused"
        path = damaged_file(kind, seed, scratch)
        return outcome(lambda: READERS[kind](path))
    finally:
        shutil.rmtree(target)


def damaged_file(kind: str, seed: int, folder: Path) -> Path:
    """A file, or a folder of them, of this kind, with something wrong; what a reader of this kind is given."""
    random = np.random.default_rng([seed, FILES.index(kind)])
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


def outcome(read: Callable[[], object]) -> str:
    """Read it: "read" if that is possible, "refused" if it is refused in one sentence."""
    try:
        read()
    except (FeddagError, WireError) as error:
        sentence = str(error)
        assert sentence and "\n" not in sentence and len(sentence) < LONGEST_SENTENCE, f"{sentence!r}"
        assert "Traceback" not in sentence
        return "refused"
    return "read"
