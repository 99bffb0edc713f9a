"""history.jsonl: a line a round, only ever appended to, and known by its content.

A checkpoint and the result say what the history was when they were written: a flipped bit in it is noticed.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from feddag.errors import FeddagError
from feddag.files import open_plain, read_plain, sync
from feddag.records import ResultRecord, RoundRecord
from feddag.runner.checked import damaged, parse_history
from feddag.weights import ClientId

LARGEST_HISTORY = 2**31  # bytes
_json = partial(json.dumps, ensure_ascii=False, allow_nan=False)


class History:
    """One run's history on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size: int | None = None  # as far as it was written or looked at here
        self._hash = hashlib.sha256()
        self._clients: tuple[list[ClientId], str] = [], "[]"  # who was there in the last round, and that as text

    def read(self, result: ResultRecord | None = None) -> list[RoundRecord]:
        """The rounds recorded so far. With a result, they must be those that it was made of."""
        content = self._content()
        if self._size is not None and hashlib.sha256(content).digest() != self._hash.digest():
            raise damaged(self.path, "it was changed while the run was under way")
        told = result.get("history_sha256") if result else None
        if told is not None and hashlib.sha256(content).hexdigest() != told:
            raise damaged(self.path, "it is not the one that the result was made of")
        return parse_history(content, self.path)

    def lines(self) -> int:
        """How many rounds are recorded."""
        return self._content().count(b"\n")

    def append(self, record: RoundRecord) -> None:
        """Add a round."""
        content = f"{self._text(record)}\n".encode("utf-8", "replace")
        before = self._known()
        with os.fdopen(open_plain(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as file:
            if os.fstat(file.fileno()).st_size != before:
                raise FeddagError(f"'{self.path}' was changed while the run was under way")
            file.write(content)
        self._hash.update(content)
        self._size = before + len(content)

    def mark(self) -> dict[str, Any]:
        """What the history is now, for a checkpoint."""
        return {"history_bytes": self._known(), "history_sha256": self._hash.hexdigest()}

    def reaches(self, mark: Mapping[str, Any]) -> bool:
        """Whether the history goes as far as a mark. It must be what it was then; older marks know only its size."""
        content = self._content()[: mark["history_bytes"]]
        written = content.rstrip(b"\0")  # what had not reached the disk before a power cut may have become zeros
        if len(written) < mark["history_bytes"]:
            return False
        told = mark.get("history_sha256")
        if told is not None and hashlib.sha256(content).hexdigest() != told:
            raise damaged(self.path, "it is not the one that the checkpoints were written with")
        return True

    def cut(self, size: int) -> None:
        """Forget all but the first bytes."""
        self._size = None
        if self.path.exists():
            number = open_plain(self.path, os.O_WRONLY)
            try:
                os.ftruncate(number, size)
            finally:
                os.close(number)

    def sync(self) -> None:
        """Wait until all of it has reached the disk."""
        if self._known():
            sync(self.path)

    def _text(self, record: RoundRecord) -> str:
        """The record as JSON. Who is there hardly changes, so it becomes text only when it does."""
        if self._clients[0] != record["clients"]:
            self._clients = record["clients"], _json(record["clients"])
        texts = {name: _json(value) for name, value in record.items() if name not in ("clients", "per_client")}
        texts |= {"clients": self._clients[1], "per_client": _scores(record["per_client"])}
        return "{" + ", ".join(f"{_json(name)}: {texts[name]}" for name in record) + "}"

    def _known(self) -> int:
        """How long it is; what was there before this process is read once."""
        if self._size is None:
            content = self._content()
            self._size, self._hash = len(content), hashlib.sha256(content)
        return self._size

    def _content(self) -> bytes:
        try:
            return read_plain(self.path, LARGEST_HISTORY)
        except FileNotFoundError:
            return b""


def _scores(scores: Sequence[float | None]) -> str:
    """Scores as JSON. Many clients share one, and a float takes long to become text: each of them becomes it once.

    >>> _scores([0.5, None, 0.25, 0.5])
    '[0.5, null, 0.25, 0.5]'
    """
    if not scores:
        return "[]"
    distinct = list(set(scores))
    texts = dict(zip(distinct, _json(distinct)[1:-1].split(", "), strict=True))
    return f"[{', '.join(map(texts.__getitem__, scores))}]"
