"""A finished partition: which samples each client trains on, is validated on and is tested on, kept in one file."""

import hashlib
import io
import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddag.data.partitions.samples import Ints
from feddag.data.shifts import Shift
from feddag.errors import FeddagError
from feddag.files import write_atomically
from feddag.rng import rng


@dataclass(frozen=True, eq=False)
class Partition:
    """The clients: their samples as sorted indices into a dataset, their shifts and their true groups.

    Clients with the same test samples share one array, which is why all arrays are read-only.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    """Indices into the dataset's test samples, or into its training samples where `test_from` says so."""
    validation: tuple[Ints, ...]
    """Indices into the training samples; empty where `validation` is 0."""
    shifts: tuple[Shift, ...]
    truth: tuple[int, ...] | None
    """The true group of each client, numbered in order of first appearance."""
    held_out: tuple[int, ...]
    """Clients kept out of training."""
    names: tuple[str, ...]
    test_from: Literal["test", "train"] = "test"

    def __post_init__(self) -> None:
        object.__setattr__(self, "test", _shared(self.test))
        for array in (*self.train, *self.test, *self.validation):
            array.setflags(write=False)

    def drifting(self, share: float, seed: int) -> tuple[int, ...]:
        """Which clients are of another true group after the drift."""
        truth = self._true_groups()
        return tuple(
            client for client, source in enumerate(self._drift_sources(share, seed)) if truth[client] != truth[source]
        )

    def _true_groups(self) -> tuple[int, ...]:
        return self.truth or tuple(range(len(self.train)))

    def _drift_sources(self, share: float, seed: int) -> list[int]:
        """Whose samples each client holds after the drift: a share of those that train, at least two, exchange them."""
        training = [client for client in range(len(self.train)) if client not in self.held_out]
        truth = self._true_groups()
        if len({truth[client] for client in training}) < 2:
            raise FeddagError("drift_round is set, but all clients are of one true group: none of them could change")
        count = min(len(training), max(2, round(share * len(training))))
        generator = rng(seed, "drift")
        movers: list[int] = []
        while len({truth[client] for client in movers}) < 2:
            movers = generator.choice(training, count, replace=False).tolist()
        by_group = sorted(movers, key=lambda client: (truth[client], client))
        largest = max(Counter(truth[client] for client in movers).values())
        source_of = list(range(len(self.train)))
        for place, client in enumerate(by_group):  # shifted by the largest group, so that groups differ if possible
            source_of[client] = by_group[(place + largest) % len(by_group)]
        return source_of

    def drifted(self, share: float, seed: int) -> "Partition":
        """After a drift: some clients have exchanged all samples, each with one of another true group if possible.

        So labels, concepts or corruptions change, whatever makes the groups differ, and no sample has two clients.
        """
        source_of = self._drift_sources(share, seed)
        changed: dict[str, Any] = {
            name: tuple(getattr(self, name)[client] for client in source_of)
            for name in ("train", "test", "validation", "shifts", "truth")
            if getattr(self, name) is not None
        }
        return replace(self, **changed)

    def checksum(self) -> str:
        """SHA-256 over the content: equal for equal partitions."""
        return _checksum(self._content())

    def save(self, path: Path | str) -> None:
        """Writes one npz file, whole or not at all."""
        content = self._content()
        content["checksum"] = np.frombuffer(_checksum(content).encode(), np.uint8)
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **content)
        try:
            write_atomically(Path(path), file.getvalue())
        except OSError as error:
            raise FeddagError(f"the partition file {path} cannot be written: {error.strerror}") from error

    @classmethod
    def load(cls, path: Path | str) -> "Partition":
        """Reads what `save` wrote; a file that differs in anything is refused."""
        try:
            with np.load(path, allow_pickle=False) as file:
                content = {name: file[name] for name in file.files}
            if content.pop("checksum").tobytes().decode() != _checksum(content):
                raise ValueError
            about = json.loads(content["about"].tobytes())
        except FileNotFoundError as error:
            raise FeddagError(f"the partition file {path} does not exist") from error
        except Exception as error:  # a flipped bit can make the zip and array readers raise nearly anything
            raise FeddagError(
                f"the partition file {path} is damaged or not a partition file; make the partition again"
            ) from error
        tests = _cut(content, "test")
        kinds = [Shift(**kind) for kind in about["shifts"]]
        return cls(
            train=_cut(content, "train"),
            test=tuple(tests[kind] for kind in content["test_of"]),
            validation=_cut(content, "validation"),
            shifts=tuple(kinds[kind] for kind in content["shift_of"]),
            truth=None if about["truth"] is None else tuple(about["truth"]),
            held_out=tuple(about["held_out"]),
            names=tuple(about["names"]),
            test_from=about["test_from"],
        )

    def _content(self) -> dict[str, NDArray[Any]]:
        tests = {id(indices): indices for indices in self.test}
        kinds = list(dict.fromkeys(self.shifts))
        about = {
            "shifts": [asdict(kind) for kind in kinds],
            "truth": self.truth,
            "held_out": self.held_out,
            "names": self.names,
            "test_from": self.test_from,
        }
        return {
            **_joined("train", self.train),
            **_joined("validation", self.validation),
            **_joined("test", list(tests.values())),
            "test_of": np.array(numbered([id(indices) for indices in self.test]), "<i8"),
            "shift_of": np.array(numbered(self.shifts), "<i8"),
            "about": np.frombuffer(json.dumps(about, sort_keys=True).encode(), np.uint8),
        }


def _joined(name: str, arrays: Sequence[Ints]) -> dict[str, NDArray[Any]]:
    ends = np.cumsum([len(array) for array in arrays])
    return {name: np.concatenate(arrays).astype("<i8"), f"{name}_ends": ends.astype("<i8")}


def _cut(content: Mapping[str, NDArray[Any]], name: str) -> tuple[Ints, ...]:
    return tuple(np.split(content[name].astype(np.int64), content[f"{name}_ends"][:-1]))


def _checksum(content: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(content):
        array = content[name]
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _shared(arrays: Sequence[Ints]) -> tuple[Ints, ...]:
    """The same arrays; equal ones become one object."""
    once = {id(array): array for array in arrays}
    by_content: dict[bytes, Ints] = {}
    kept = {key: by_content.setdefault(hashlib.sha256(a.tobytes()).digest(), a) for key, a in once.items()}
    return tuple(kept[id(array)] for array in arrays)


def numbered(groups: Sequence[Hashable]) -> tuple[int, ...]:
    """Groups as numbers, in order of first appearance.

    >>> numbered(["b", "a", "b"])
    (0, 1, 0)
    """
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(group, len(numbers)) for group in groups)
