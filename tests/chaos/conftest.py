"""The order of the scenarios, a log of what was done to whom and when, and a table at the end."""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from feddag.records import RoundRecord

SEED = int(os.environ.get("FEDDAG_CHAOS_SEED", "0"))
COLUMNS = ("disturbance", "rounds", "resumed", "missing answers", "accuracy", "undisturbed", "verdict", "minutes")


@dataclass
class Chronicle:
    """Says and writes down what happens, and remembers a row for each scenario."""

    path: Path
    began: float = field(default_factory=time.monotonic)
    scenario: str = ""
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A line with the time since the beginning."""
        minutes, seconds = divmod(time.monotonic() - self.began, 60)
        line = f"{minutes:3.0f}:{seconds:04.1f}  {self.scenario:<22} {text}"
        print(line, flush=True)
        with self.path.open("a") as log:
            log.write(line + "\n")

    def add(self, history: list[RoundRecord], resumed: int, accuracy: float, usual: str, verdict: str) -> None:
        """A row of the table."""
        reasons = Counter(reason for record in history for reason in record["missing"].values())
        missing = "; ".join(f"{count} x {reason}" for reason, count in reasons.items()) or "none"
        self.rows.append((self.scenario, str(len(history)), str(resumed), missing, f"{accuracy:.3f}", usual, verdict))


@pytest.fixture(scope="session")
def _book() -> Iterator[Chronicle]:
    path = Path(os.environ.get("FEDDAG_CHAOS_LOG", "chaos.log")).absolute()
    path.unlink(missing_ok=True)
    book = Chronicle(path)
    book.scenario = "all"
    book.say(f"seed {SEED}")
    yield book
    table = [COLUMNS, ("---",) * len(COLUMNS), *book.rows]
    lines = ["| " + " | ".join(row) + " |" for row in table]
    with path.open("a") as log:
        log.write("\n" + "\n".join(lines) + "\n")
    print("", *lines, sep="\n", flush=True)


@pytest.fixture
def chronicle(_book: Chronicle, request: pytest.FixtureRequest) -> Iterator[Chronicle]:
    """The log of one scenario; a row of its own in the table, also when it fails."""
    name = request.node.name.removeprefix("test_").replace("_", " ")
    _book.scenario = request.node.callspec.id if hasattr(request.node, "callspec") else name
    began, rows = time.monotonic(), len(_book.rows)
    _book.say("begins")
    yield _book
    minutes = f"{(time.monotonic() - began) / 60:.1f}"
    if len(_book.rows) == rows:
        _book.rows.append((_book.scenario, *["-"] * 5, "skipped or FAILED"))
    _book.rows[-1] = (*_book.rows[-1], minutes)


@pytest.fixture
def dice(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of this scenario's own: the same whatever the order."""
    return random.Random(f"{SEED} {request.node.name}")


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Scenarios come in an order drawn from the seed; the storm is the last."""
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    places = [number for number, item in enumerate(items) if item in here]
    random.Random(SEED).shuffle(here)
    here.sort(key=lambda item: "storm" in item.name)
    for place, item in zip(places, here, strict=True):
        items[place] = item
