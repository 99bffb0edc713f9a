"""What a federation is doing now, for whoever operates it: who is here, who answered when, and where the time goes."""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from feddag.federation import Reply
from feddag.files import write_atomically
from feddag.weights import ClientId

FILE = "status.json"
EVERY_SECONDS = 1.0
MOST_REASONS = 5

Phase = Literal["gathering", "waiting", "server"]
"""Waiting for clients to connect, waiting for answers, and everything that the server does itself."""


@dataclass
class ClientStatus:
    """One client, as far as the server knows."""

    here: bool = True
    version: str = ""
    """Of feddag on its node; empty if it is too old to say."""
    answered: float = 0.0
    """When its last usable answer came, in seconds since 1970; 0 if none did."""
    reason: str = ""
    """Why its last answer is missing; empty if it is not."""


@dataclass
class Status:
    """Kept by the engine, and written into a folder once a second while something happens."""

    folder: Path | None = None
    clients: dict[ClientId, ClientStatus] = field(default_factory=dict)
    seconds: dict[Phase, float] = field(default_factory=dict)
    phase: Phase = "server"
    round: int = 0
    expected: int = 0
    """How many clients there may be."""
    refused: list[str] = field(default_factory=list)
    """Why nodes were refused, each reason once, the last ones."""
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._since = self._written = self.now()

    def enter(self, phase: Phase, round: int | None = None) -> None:
        """Another phase begins, in this round."""
        self._count()
        self.phase = phase
        self.round = self.round if round is None else round
        self._write()

    def see(self, versions: Mapping[ClientId, str]) -> None:
        """These clients are connected, with these versions of feddag, and no others are."""
        before = {client for client, known in self.clients.items() if known.here}
        for client, version in versions.items():
            known = self.clients.setdefault(client, ClientStatus())
            known.here, known.version = True, version
        for client in before - versions.keys():
            self.clients[client].here = False
        if before != versions.keys() or self.now() - self._written > EVERY_SECONDS:
            self._count()
            self._write()

    def refuse(self, reason: str) -> None:
        """A node was not let in."""
        self.refused = [*(known for known in self.refused if known != reason), reason][-MOST_REASONS:]

    def answered(self, replies: Iterable[Reply], missing: Mapping[ClientId, str]) -> None:
        """These answers came, and those did not, with the reason."""
        for reply in replies:
            known = self.clients.setdefault(reply.client, ClientStatus())
            known.answered, known.reason = self.now(), ""
        for client, reason in missing.items():
            self.clients.setdefault(client, ClientStatus(here=False)).reason = reason

    def _count(self) -> None:
        now = self.now()
        self.seconds[self.phase] = self.seconds.get(self.phase, 0.0) + max(0.0, now - self._since)
        self._since = now

    def _write(self) -> None:
        self._written = self.now()
        if self.folder is not None:
            told = {
                "written": round(self._written, 3),
                "phase": self.phase,
                "round": self.round,
                "expected": self.expected,
                "refused": self.refused,
                "seconds": {phase: round(spent, 3) for phase, spent in self.seconds.items()},
                "clients": {str(client): vars(known) for client, known in sorted(self.clients.items())},
            }
            write_atomically(self.folder / FILE, json.dumps(told), durable=False)
