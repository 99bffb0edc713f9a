"""What a run leaves on disk, and how it is read back. Nothing is unpickled; a file is written whole or not at all.

A run directory holds experiment.toml (written first), partition.npz, grouping.safetensors (what led to the groups),
history.jsonl (a line a round), checkpoints/, states/ (what clients remember, by client and round), held/ (models of
single clients that a method keeps on the server, likewise) and, at the end, serving.json (what a model needs to take
samples as they are) and result.json. All are plain files and folders: a link or a pipe in the place of one is refused.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
from torch import Tensor
from typing_extensions import TypedDict

from feddag import system
from feddag.errors import FeddagError
from feddag.files import TEMPORARY, open_plain, refuse_link, sync, write_atomically
from feddag.records import Amount, Between, Count, ResultRecord, RoundRecord, Size
from feddag.runner.checked import check, damaged, read_result
from feddag.runner.history import History
from feddag.runner.trees import DamagedError, load_tree, save_tree
from feddag.weights import ClientId, Weights

FORMAT = 2  # of checkpoints: raised when an older version's cannot be continued
CLIENT_FOLDERS = ("states", "held")
FOLDERS = ("checkpoints", *CLIENT_FOLDERS)
KEPT_CHECKPOINTS = 2  # the newest, and one before it in case the newest turns out damaged
MOST_CLIENTS = 2**24  # that a checkpoint may name: two numbers of a damaged one could stand for any number of them
SYNC_SHARE = 20  # waiting for the disk takes at most one part in so many of a run's time


class CheckpointTree(TypedDict):
    """What a checkpoint holds in any case, as far as it is the same for all methods."""

    format: int
    key: str
    round: Count
    present: list[Count | tuple[Count, Count]]
    """Clients, and runs of them from the first to the last; older versions wrote every client."""
    method: dict[str, Any]
    traffic: dict[str, dict[str | Count, Count] | tuple[list[str | Count], list[Count]]]
    """By what is counted: names and their counts; older versions wrote a dict."""
    missing: dict[Count, str]
    barred: NotRequired[dict[Count, str]]
    chosen: dict[Count, Count]
    model: tuple[str, tuple[Size, ...], Size, Annotated[int, Between(1, 2)]]
    """The network's name, the shape of a sample, classes and encoders."""
    holds_states: bool
    joined: NotRequired[bool]
    tuned: NotRequired[bool]
    common: NotRequired[dict[str, Any]]
    """What the common model beside the method remembers, where there is one."""
    seconds: Amount
    states: dict[Count, Count]
    """Of each client that remembers something: the round in which that changed."""
    held: dict[Count, Count]
    history_bytes: Count
    history_sha256: NotRequired[str]


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
        self.serving = path / "serving.json"
        self.result = path / "result.json"
        self._history = History(self.history)
        self._lock: int | None = None
        self._needed: dict[Path, set[Path]] = {}  # by checkpoint: the files of single clients it refers to
        self._held: dict[ClientId, tuple[int, Weights]] = {}  # as last saved, with the round of the file
        self._forget_syncs()

    def _forget_syncs(self) -> None:
        self._durable: Path | None = None  # the last checkpoint that has reached the disk with all that it needs
        self._synced: set[Path] = set()  # files of single clients that have
        self._next_sync = 0.0

    def has_content(self) -> bool:
        """Whether there is anything in it beside what a run leaves that was killed before it wrote its first file."""
        found = self.path.iterdir() if self.path.exists() else ()
        return any(path.name != ".lock" and not path.match(TEMPORARY) for path in found)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from running in the same directory; the lock ends with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in FOLDERS:
            refuse_link(self.path / name)
        lock = open_plain(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                system.lock(lock)
            except OSError:
                raise FeddagError(f"run directory '{self.path}' is in use by another process") from None
            self._lock = lock
            for path in [path for folder in (".", *FOLDERS) for path in (self.path / folder).glob(TEMPORARY)]:
                path.unlink()  # half written by a process that was killed
            yield
        finally:
            self._lock = None
            os.close(lock)

    def is_running(self) -> bool:
        """Whether a process runs in this directory: then it holds the lock, which we only touch to see."""
        if not system.can_lock():
            return False
        try:
            lock = open_plain(self.path / ".lock")
        except FileNotFoundError:
            return False
        try:
            system.lock(lock, shared=True)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    def check_still_there(self) -> None:
        """Refuse to go on where the directory was taken away: what follows would be half a run that looks whole."""
        if self._lock is None:
            return
        try:
            there = os.path.samestat(os.fstat(self._lock), (self.path / ".lock").lstat())
        except OSError:
            there = False
        if not there:
            raise FeddagError(f"run directory '{self.path}' was removed or replaced while the run was under way")

    def read_history(self, result: ResultRecord | None = None) -> list[RoundRecord]:
        """The rounds recorded so far. With a result, they must be those that it was made of."""
        self.check_still_there()
        return self._history.read(result)

    def count_rounds(self) -> int:
        """How many rounds have been scored and recorded, without a look at what stands in them."""
        return self._history.lines()

    def read_result(self) -> ResultRecord | None:
        """The result, if the run has finished."""
        return read_result(self.result)

    def read_final_result(self) -> ResultRecord | None:
        """The result, unless the run was killed before it kept models of after the last round: joined, or tuned."""
        result = self.read_result()
        if result is None:
            return None
        needed = ["joined"] * bool(result["held_out"]) + ["tuned"] * ("personal" in result)
        saved = self.load_checkpoint() if needed else None
        return result if saved is None or all(saved.tree.get(name, True) for name in needed) else None

    def append(self, record: RoundRecord) -> None:
        """Add a round to the history."""
        self.check_still_there()
        self._history.append(record)

    def finish(self, result: ResultRecord) -> ResultRecord:
        """Write the result down, with what the history was that it was made of."""
        self.check_still_there()
        self.make_durable()
        result = {**result, "history_sha256": self._history.mark()["history_sha256"]}
        write_atomically(self.result, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        return result

    def save_checkpoint(
        self,
        round: int,
        tree: dict[str, Any],
        states: Mapping[ClientId, tuple[int, Weights]],
        held: Mapping[ClientId, Weights] | None = None,
    ) -> None:
        """Save all that a resumed run needs. What belongs to one client is a file, written when it changes."""
        try:
            self._save_checkpoint(round, tree, states, held or {})
        except FileNotFoundError:  # it was taken away in the middle
            self.check_still_there()
            raise

    def _save_checkpoint(
        self,
        round: int,
        tree: dict[str, Any],
        states: Mapping[ClientId, tuple[int, Weights]],
        held: Mapping[ClientId, Weights],
    ) -> None:
        self.check_still_there()
        for client, (changed, state) in states.items():
            path = self._client_path("states", client, changed)
            if not path.exists():
                save_tree(path, state, durable=False)
        self._held = {client: self._hold(client, round, weights) for client, weights in held.items()}
        tree = tree | {
            "format": FORMAT,
            "round": round,
            "present": _as_runs(tree["present"]),
            "states": {client: changed for client, (changed, _) in states.items()},
            "held": {client: changed for client, (changed, _) in self._held.items()},
            **self._history.mark(),
        }
        checkpoint = self._checkpoint_path(round)
        save_tree(checkpoint, tree, durable=False)
        self._needed[checkpoint] = self._files_of(tree)
        if time.monotonic() >= self._next_sync:
            self.make_durable()
        self._prune()

    def _hold(self, client: ClientId, round: int, weights: Weights) -> tuple[int, Weights]:
        known = self._held.get(client)
        if known is not None and known[1] is weights and self._client_path("held", client, known[0]).exists():
            return known
        path = self._client_path("held", client, round)
        self._synced.discard(path)
        save_tree(path, weights, durable=False)
        return round, weights

    def make_durable(self) -> None:
        """Wait until the newest checkpoint and all that it refers to have reached the disk.

        Where that is slow it is not done every round; until it is, the last one that has reached the disk is kept.
        """
        if not self._needed:
            return
        began = time.monotonic()
        checkpoint = max(self._needed)
        files = self._needed[checkpoint]
        for path in sorted(files - self._synced):
            sync(path)
        self._history.sync()
        sync(checkpoint)
        for folder in {path.parent for path in files - self._synced} | {checkpoint.parent, self.path}:
            sync(folder)
        self._durable, self._synced = checkpoint, set(files)
        ended = time.monotonic()
        self._next_sync = ended + SYNC_SHARE * (ended - began)

    def load_checkpoint(self) -> Checkpoint | None:
        """The newest whole checkpoint and what clients had then; None if there is none.

        One that is whole and still not as feddag writes it is refused. A history that is shorter than a checkpoint says
        may have been cut off by a power cut, and an older checkpoint is used; one that differs is refused, because
        nobody knows what else is wrong.
        """
        for path in sorted(self._checkpoints(), reverse=True):
            try:
                tree = self._load_checkpoint(path)
                files = {
                    folder: {
                        client: (changed, _load_weights(self._client_path(folder, client, changed)))
                        for client, changed in tree[folder].items()
                    }
                    for folder in CLIENT_FOLDERS
                }
                if not self._history.reaches(tree):
                    raise DamagedError("the history is shorter than the checkpoint says")
            except DamagedError:
                continue
            self._held = files["held"]
            return Checkpoint(tree, files["states"], {client: weights for client, (_, weights) in self._held.items()})
        return None

    def _load_checkpoint(self, path: Path) -> dict[str, Any]:
        tree = load_tree(path)
        if isinstance(tree, dict) and tree.get("format") != FORMAT:
            raise FeddagError(
                f"the checkpoints in '{self.path}' were written by another version of feddag; its result and "
                "report can be read, but the run cannot go on and its models cannot be loaded"
            )
        known: dict[str, Any] = check(CheckpointTree, tree, path)
        if path != self._checkpoint_path(known["round"]):
            raise damaged(path, "it is of another round")
        return known | {"present": _from_runs(known["present"], path)}

    def rewind(self, checkpoint: dict[str, Any] | None) -> None:
        """Forget all but what belongs to this checkpoint (None: everything), before going on from it."""
        self._history.cut(checkpoint["history_bytes"] if checkpoint else 0)
        self._forget_syncs()
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
        kept = {*checkpoints[-KEPT_CHECKPOINTS:], *([self._durable] if self._durable else [])}
        for path in set(checkpoints) - kept:
            path.unlink()
        self._needed = {path: states for path, states in self._needed.items() if path in kept}
        for path in set(self._client_files()).difference(*self._needed.values()):
            path.unlink()

    def _checkpoints(self) -> list[Path]:
        return list(self._folder("checkpoints").glob("round-*.safetensors"))

    def _client_files(self) -> list[Path]:
        return [path for folder in CLIENT_FOLDERS for path in self._folder(folder).glob("client-*.safetensors")]

    def _files_of(self, tree: dict[str, Any]) -> set[Path]:
        return {self._client_path(folder, *item) for folder in CLIENT_FOLDERS for item in tree[folder].items()}

    def _checkpoint_path(self, round: int) -> Path:
        return self._folder("checkpoints") / f"round-{round:06d}.safetensors"

    def _client_path(self, folder: str, client: ClientId, round: int) -> Path:
        return self._folder(folder) / f"client-{client:06d}-round-{round:06d}.safetensors"

    def _folder(self, name: str) -> Path:
        refuse_link(self.path / name)
        return self.path / name


def _as_runs(clients: Sequence[ClientId]) -> list[tuple[ClientId, ClientId]]:
    """The first and the last client of each run without a gap: most runs have all clients, and these grow by none.

    >>> _as_runs([0, 1, 2, 5])
    [(0, 2), (5, 5)]
    """
    numbers = np.array(clients, np.int64)
    gaps = np.flatnonzero(np.diff(numbers) != 1)
    firsts, lasts = np.append(numbers[:1], numbers[gaps + 1]), np.append(numbers[gaps], numbers[-1:])
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def _from_runs(runs: Sequence[ClientId | tuple[ClientId, ClientId]], path: Path) -> list[ClientId]:
    """The clients of `_as_runs`, sorted; one that stands alone may be a number.

    >>> _from_runs([(0, 2), 5], Path("round-000001.safetensors"))
    [0, 1, 2, 5]
    """
    pairs = [(run, run) if isinstance(run, int) else run for run in runs]
    clients: list[ClientId] = []
    for first, last in pairs:
        if not (clients[-1] if clients else -1) < first <= last or len(clients) + last - first >= MOST_CLIENTS:
            raise damaged(path, "its clients are not in order, or too many")
        clients.extend(range(first, last + 1))
    return clients


def _load_weights(path: Path) -> Weights:
    weights = load_tree(path)
    if not isinstance(weights, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in weights.items()
    ):
        raise damaged(path, "it holds no weights")
    return weights
