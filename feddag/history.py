"""What a run leaves on disk, and how it is read back. Nothing is unpickled; a file is written whole or not at all.

A run directory holds experiment.toml (written first), partition.npz, grouping.safetensors (what led to the groups),
history.jsonl (a line a round), checkpoints/, states/ (what clients remember, by client and round) and, at the end,
result.json.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddag.errors import FeddagError
from feddag.federation import ClientId, Weights
from feddag.files import write_atomically
from feddag.packing import Arrays, pack, unpack

KEPT_CHECKPOINTS = 2  # the newest, and one before it in case the newest turns out damaged

Record = dict[str, Any]


class DamagedError(Exception):
    """A file whose content is not what was written."""


def save_tree(path: Path, tree: Any) -> None:
    """Save nested dicts and lists of tensors, arrays, numbers and text as one safetensors file with a checksum."""
    text, arrays = pack(tree)
    write_atomically(path, save(arrays, metadata={"tree": text, "sha256": _checksum(text, arrays)}))


def load_tree(path: Path) -> Any:
    """What `save_tree` saved; raises DamagedError if the file is not whole."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise DamagedError(f"{path.name}: {error}") from None
    if _checksum(metadata.get("tree", ""), arrays) != metadata.get("sha256"):
        raise DamagedError(f"{path.name}: the checksum does not match")
    return unpack(metadata["tree"], arrays)


def _checksum(text: str, arrays: Arrays) -> str:
    hasher = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        hasher.update(f"{name}{arrays[name].shape}{arrays[name].dtype}".encode())
        hasher.update(arrays[name].tobytes())
    return hasher.hexdigest()


class RunDirectory:
    """One run's place on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.partition = path / "partition.npz"
        self.history = path / "history.jsonl"
        self.grouping = path / "grouping.safetensors"
        self.result = path / "result.json"
        self._needed: dict[Path, set[Path]] = {}  # by checkpoint: the client states it refers to

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from running in the same directory; the lock ends with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise FeddagError(f"run directory '{self.path}' is in use by another process") from None
            yield

    def read_history(self) -> list[Record]:
        """The rounds recorded so far; a line without an end is still being written."""
        if not self.history.exists():
            return []
        return [json.loads(line) for line in self.history.read_text().split("\n")[:-1]]

    def read_result(self) -> Record | None:
        """The result, if the run has finished."""
        if not self.result.exists():
            return None
        try:
            result: Record = json.loads(self.result.read_text())
        except ValueError:
            raise FeddagError(f"'{self.result}' is damaged: it is not JSON") from None
        return result

    def append(self, record: Record) -> None:
        """Add a round to the history."""
        with self.history.open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def save_checkpoint(self, round: int, tree: dict[str, Any], states: dict[ClientId, tuple[int, Weights]]) -> None:
        """Save all that a resumed run needs. Client states are files of their own, written when they change."""
        for client, (changed, state) in states.items():
            path = self._state_path(client, changed)
            if not path.exists():
                save_tree(path, state)
        tree = tree | {
            "round": round,
            "states": {client: changed for client, (changed, _) in states.items()},
            "history_bytes": self.history.stat().st_size if self.history.exists() else 0,
        }
        checkpoint = self._checkpoint_path(round)
        save_tree(checkpoint, tree)
        self._needed[checkpoint] = {self._state_path(*item) for item in tree["states"].items()}
        self._prune()

    def load_checkpoint(self) -> tuple[dict[str, Any], dict[ClientId, tuple[int, Weights]]] | None:
        """The newest whole checkpoint and the client states that belong to it; None if there is none."""
        for path in sorted(self._checkpoints(), reverse=True):
            try:
                tree = load_tree(path)
                states = {
                    client: (changed, load_tree(self._state_path(client, changed)))
                    for client, changed in tree["states"].items()
                }
                written = self.history.stat().st_size if self.history.exists() else 0
                if written < tree["history_bytes"]:
                    raise DamagedError("the history is shorter than the checkpoint says")
            except DamagedError:
                continue
            return tree, states
        return None

    def rewind(self, checkpoint: dict[str, Any] | None) -> None:
        """Forget all but what belongs to this checkpoint (None: everything), before going on from it."""
        if self.history.exists():
            os.truncate(self.history, checkpoint["history_bytes"] if checkpoint else 0)
        kept = set()
        if checkpoint is not None:
            kept = {self._state_path(*item) for item in checkpoint["states"].items()}
            self._needed = {self._checkpoint_path(checkpoint["round"]): set(kept)}
            kept |= set(self._needed)
        for path in [*self._checkpoints(), *self._state_files()]:
            if path not in kept:
                path.unlink()

    def _prune(self) -> None:
        checkpoints = sorted(self._checkpoints())
        for path in checkpoints[:-KEPT_CHECKPOINTS]:
            path.unlink()
        self._needed = {
            path: states for path, states in self._needed.items() if path in checkpoints[-KEPT_CHECKPOINTS:]
        }
        for path in set(self._state_files()).difference(*self._needed.values()):
            path.unlink()

    def _checkpoints(self) -> list[Path]:
        return list((self.path / "checkpoints").glob("round-*.safetensors"))

    def _state_files(self) -> list[Path]:
        return list((self.path / "states").glob("client-*.safetensors"))

    def _checkpoint_path(self, round: int) -> Path:
        return self.path / "checkpoints" / f"round-{round:06d}.safetensors"

    def _state_path(self, client: ClientId, round: int) -> Path:
        return self.path / "states" / f"client-{client:06d}-round-{round:06d}.safetensors"
