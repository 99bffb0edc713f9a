"""A few runs that are killed and resumed to the same bytes; `python -m tests.kills` tries as many as one likes."""

import random
from pathlib import Path

import pytest

from tests.kills import killed_and_resumed, uninterrupted


@pytest.mark.parametrize(("method", "moment"), [("feddag", "any"), ("ditto", "writing")])
def test_a_killed_run_is_resumed_to_the_same_bytes(method: str, moment: str, tmp_path: Path) -> None:
    whole, chance = uninterrupted(method, tmp_path / "whole"), random.Random(0)
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        if killed_and_resumed(method, tmp_path / str(number), chance, whole, moment) != "late":
            return
    raise AssertionError("it always ended before it was killed")
