"""Some hundred damaged files of all kinds; `python -m tests.fuzz` tries as many as one likes."""

from pathlib import Path

import numpy as np
import pytest

from feddag.data.readers import limits
from tests.fuzz import FILES, IN_MEMORY, attempt, damaged_file, outcome
from tests.fuzz.corpus import kept, replay
from tests.fuzz.wholes import READERS, WHOLES

CASES = dict.fromkeys(FILES, 40) | {"mat": 4}  # each of those starts two processes
IN_MEMORY_CASES = {"experiment": 20, "signatures": 40, "reply": 100, "node": 60, "distances": 100}
TRUNCATIONS = dict.fromkeys(FILES, 120) | {"mat": 4}


@pytest.fixture(autouse=True)
def _little_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HARMLESS", 2**22)
    monkeypatch.delenv("FEDDAG_LARGEST_DATA", raising=False)


@pytest.mark.parametrize("kind", FILES)
def test_whole_files_are_read(tmp_path: Path, kind: str) -> None:
    for seed in range(1 if kind == "mat" else 5):
        (tmp_path / str(seed)).mkdir()
        READERS[kind](WHOLES[kind](np.random.default_rng(seed), tmp_path / str(seed))[0])


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_damaged_files_are_read_or_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    for seed in range(CASES[kind]):
        attempt(kind, seed, tmp_path)


@pytest.mark.parametrize("kind", IN_MEMORY)
@pytest.mark.filterwarnings("ignore")
def test_what_is_sent_or_typed_is_read_or_refused_in_one_sentence(tmp_path: Path, kind: str) -> None:
    for seed in range(IN_MEMORY_CASES.get(kind, 200)):
        attempt(kind, seed, tmp_path)


@pytest.mark.parametrize("path", kept(), ids=lambda path: f"{path.parent.name}-{path.name}")
@pytest.mark.filterwarnings("ignore")
def test_what_once_broke_something_is_read_or_refused_in_one_sentence(path: Path) -> None:
    replay(path)


@pytest.mark.parametrize("kind", FILES)
def test_truncated_files_are_refused_at_every_length(tmp_path: Path, kind: str) -> None:
    path, files = WHOLES[kind](np.random.default_rng(0), tmp_path)
    cut = files[0]
    whole = cut.read_bytes()
    lengths = np.unique(np.linspace(0, len(whole) - 1, TRUNCATIONS[kind]).astype(int))
    found = []
    for length in lengths:
        cut.write_bytes(whole[:length])
        found.append(outcome(lambda: READERS[kind](path)))
    # Half a table is a table, NumPy refuses half a matrix, and images have a test of their own.
    assert set(found) == {"refused"} or kind in ("csv", "matrix", "png", "table")


def test_the_same_seed_makes_the_same_file(tmp_path: Path) -> None:
    for kind in set(FILES) - {"mat", "tar"}:  # those hold the time at which they were made
        for folder in ("one", "other"):
            damaged_file(kind, 7, tmp_path / folder)
    files = [path for path in (tmp_path / "one").rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        twin = tmp_path / "other" / path.relative_to(tmp_path / "one")
        assert path.read_bytes() == twin.read_bytes(), path
