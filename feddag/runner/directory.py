"""What a run leaves on disk, and how it is read back. Nothing is unpickled; a file is written whole or not at all.

A run directory holds experiment.toml (written first), partition.npz, grouping.safetensors (what led to the groups),
history.jsonl (a line a round), checkpoints/, states/ (what clients remember, by client and round), held/ (models of
single clients that a method keeps on the server, likewise) and, at the end, result.json.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddag.errors import FeddagError
from feddag.files import write_atomically
from feddag.packing import Arrays, pack, unpack
from feddag.records import ResultRecord, RoundRecord
from feddag.weights import ClientId, Weights

FORMAT = 2  # of checkpoints: raised when an older version's cannot be continued
CLIENT_FOLDERS = ("states", "held")
KEPT_CHECKPOINTS = 2  # the newest, and one before it in case the newest turns out damaged


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


@dataclass(frozen=True)
class Checkpoint:
    """What a resumed run goes on from."""

    tree: dict[str, Any]
    states: dict[ClientId, tuple[int, Weights]]
    """What each client remembers, and the round in which that changed."""
    held: dict[ClientId, Weights]
    """What the method keeps of each client on the server."""


class RunDirectory:
    """One run's place on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment = path / "experiment.toml"
        self.partition = path / "partition.npz"
        self.history = path / "history.jsonl"
        self.grouping = path / "grouping.safetensors"
        self.result = path / "result.json"
        self._needed: dict[Path, set[Path]] = {}  # by checkpoint: the files of single clients it refers to
        self._held: dict[ClientId, tuple[int, Weights]] = {}  # as last saved, with the round of the file

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

    def read_history(self) -> list[RoundRecord]:
        """The rounds recorded so far; a line without an end is still being written."""
        if not self.history.exists():
            return []
        return [json.loads(line) for line in self.history.read_text().split("\n")[:-1]]

    def read_result(self) -> ResultRecord | None:
        """The result, if the run has finished."""
        if not self.result.exists():
            return None
        try:
            result: ResultRecord = json.loads(self.result.read_text())
        except ValueError:
            raise FeddagError(f"'{self.result}' is damaged: it is not JSON") from None
        return result

    def append(self, record: RoundRecord) -> None:
        """Add a round to the history."""
        with self.history.open("a") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

    def save_checkpoint(
        self,
        round: int,
        tree: dict[str, Any],
        states: Mapping[ClientId, tuple[int, Weights]],
        held: Mapping[ClientId, Weights] | None = None,
    ) -> None:
        """Save all that a resumed run needs. What belongs to one client is a file, written when it changes."""
        for client, (changed, state) in states.items():
            path = self._client_path("states", client, changed)
            if not path.exists():
                save_tree(path, state)
        self._held = {client: self._hold(client, round, weights) for client, weights in (held or {}).items()}
        tree = tree | {
            "format": FORMAT,
            "round": round,
            "states": {client: changed for client, (changed, _) in states.items()},
            "held": {client: changed for client, (changed, _) in self._held.items()},
            "history_bytes": self.history.stat().st_size if self.history.exists() else 0,
        }
        checkpoint = self._checkpoint_path(round)
        save_tree(checkpoint, tree)
        self._needed[checkpoint] = self._files_of(tree)
        self._prune()

    def _hold(self, client: ClientId, round: int, weights: Weights) -> tuple[int, Weights]:
        known = self._held.get(client)
        if known is not None and known[1] is weights:
            return known
        save_tree(self._client_path("held", client, round), weights)
        return round, weights

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint and what clients had then; None if there is none."""
        for path in sorted(self._checkpoints(), reverse=True):
            try:
                tree = load_tree(path)
                if tree.get("format") != FORMAT:
                    raise FeddagError(
                        f"the checkpoints in '{self.path}' were written by another version of feddag; its result and "
                        "report can be read, but the run cannot go on and its models cannot be loaded"
                    )
                files = {
                    folder: {
                        client: (changed, load_tree(self._client_path(folder, client, changed)))
                        for client, changed in tree[folder].items()
                    }
                    for folder in CLIENT_FOLDERS
                }
                written = self.history.stat().st_size if self.history.exists() else 0
                if written < tree["history_bytes"]:
                    raise DamagedError("the history is shorter than the checkpoint says")
            except DamagedError:
                continue
            self._held = files["held"]
            return Checkpoint(tree, files["states"], {client: weights for client, (_, weights) in self._held.items()})
        return None

    def rewind(self, checkpoint: dict[str, Any] | None) -> None:
        """Forget all but what belongs to this checkpoint (None: everything), before going on from it."""
        if self.history.exists():
            os.truncate(self.history, checkpoint["history_bytes"] if checkpoint else 0)
        kept = set()
        if checkpoint is not None:
            kept = self._files_of(checkpoint)
            self._needed = {self._checkpoint_path(checkpoint["round"]): set(kept)}
            kept |= set(self._needed)
        for path in [*self._checkpoints(), *self._client_files()]:
            if path not in kept:
                path.unlink()

    def _prune(self) -> None:
        checkpoints = sorted(self._checkpoints())
        for path in checkpoints[:-KEPT_CHECKPOINTS]:
            path.unlink()
        self._needed = {
            path: states for path, states in self._needed.items() if path in checkpoints[-KEPT_CHECKPOINTS:]
        }
        for path in set(self._client_files()).difference(*self._needed.values()):
            path.unlink()

    def _checkpoints(self) -> list[Path]:
        return list((self.path / "checkpoints").glob("round-*.safetensors"))

    def _client_files(self) -> list[Path]:
        return [path for folder in CLIENT_FOLDERS for path in (self.path / folder).glob("client-*.safetensors")]

    def _files_of(self, tree: dict[str, Any]) -> set[Path]:
        return {self._client_path(folder, *item) for folder in CLIENT_FOLDERS for item in tree[folder].items()}

    def _checkpoint_path(self, round: int) -> Path:
        return self.path / "checkpoints" / f"round-{round:06d}.safetensors"

    def _client_path(self, folder: str, client: ClientId, round: int) -> Path:
        return self.path / folder / f"client-{client:06d}-round-{round:06d}.safetensors"
