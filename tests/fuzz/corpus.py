"""The kept corpus: what once broke something, or is tricky, as small files in `corpus/KIND/`, all read by the suite.

A file of a kind that is read from files takes the place of one file of a good example of that kind. What fuzzing finds
belongs here: `python -m tests.fuzz` tells the kind and the seed, and `attempt` makes it again.
"""

import json
import tempfile
from pathlib import Path

import numpy as np

from feddag.cli.common import overrides
from feddag.deploy.site import Node
from feddag.experiment import read_experiment
from feddag.runner.checked import parse_history, read_result
from tests.fuzz import outcome
from tests.fuzz.messages import MESSAGES, replay_message
from tests.fuzz.texts import read_text
from tests.fuzz.wholes import READERS, WHOLES

CORPUS = Path(__file__).parent / "corpus"


def kept() -> list[Path]:
    """Every file of the corpus."""
    return sorted(path for path in CORPUS.glob("*/*") if path.is_file())


def replay(path: Path) -> str:
    """Have one read: "read" or "refused"; an error for anything else."""
    with tempfile.TemporaryDirectory() as scratch:
        return outcome(lambda: _read(path.parent.name, path, Path(scratch)))


def _read(kind: str, path: Path, scratch: Path) -> object:
    content = path.read_bytes()
    if kind in WHOLES:
        given, files = WHOLES[kind](np.random.default_rng(0), scratch)
        files[0].write_bytes(content)
        return READERS[kind](given)
    if kind in MESSAGES:
        return replay_message(kind, content.decode())
    if kind == "history":
        return parse_history(content, path)
    if kind == "result":
        return read_result(path)
    if kind == "node-config":
        return Node.of(json.loads(content), {})
    return read_text(content.decode()) if kind == "toml" else read_experiment(None, overrides([content.decode()]))
