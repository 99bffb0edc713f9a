"""Which samples each client trains on, is validated on and is tested on, with the true groups kept."""

import hashlib
import inspect
import io
import json
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddag.data.datasets import Dataset
from feddag.data.dealing import PARTITIONS
from feddag.data.shifts import Shift
from feddag.data.tables import Deal, Ints, Pool, number, one_of, whole
from feddag.errors import FeddagError, nearest
from feddag.files import write_atomically
from feddag.rng import rng

__all__ = ["PARTITIONS", "Partition", "make_partition", "settings_of"]


@dataclass(frozen=True, eq=False)
class Partition:
    """The clients: their samples as sorted indices into a dataset, their shifts and their true groups.

    Clients with the same test samples share one array, which is why all arrays are read-only.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    """Indices into the dataset's test samples, or into its training samples where `test_from` says so."""
    validation: tuple[Ints, ...]
    """Indices into the training samples; empty where no validation share was asked for."""
    shifts: tuple[Shift, ...]
    truth: tuple[int, ...] | None
    """The true group of each client, numbered by first appearance."""
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
        truth = self._kinds()
        return tuple(client for client, giver in enumerate(self._takers(share, seed)) if truth[client] != truth[giver])

    def _kinds(self) -> tuple[int, ...]:
        return self.truth or tuple(range(len(self.train)))

    def _takers(self, share: float, seed: int) -> list[int]:
        """Whose samples each client holds after the drift: a share of those that train, at least two, exchange them."""
        training = [client for client in range(len(self.train)) if client not in self.held_out]
        truth = self._kinds()
        if len({truth[client] for client in training}) < 2:
            raise FeddagError("drift_round is set, but all clients are of one true group: none of them could change")
        count = min(len(training), max(2, round(share * len(training))))
        generator = rng(seed, "drift")
        movers: list[int] = []
        while len({truth[client] for client in movers}) < 2:
            movers = generator.choice(training, count, replace=False).tolist()
        by_group = sorted(movers, key=lambda client: (truth[client], client))
        largest = max(Counter(truth[client] for client in movers).values())
        taken = list(range(len(self.train)))
        for place, client in enumerate(by_group):  # shifted by the largest group, nobody meets its own group if it can
            taken[client] = by_group[(place + largest) % len(by_group)]
        return taken

    def drifted(self, share: float, seed: int) -> "Partition":
        """After a drift: some clients have exchanged all that they hold, each with one of another true group if it can.

        So labels, concepts or corruptions change, whatever makes the groups differ, and no sample is given out twice.
        """
        taken = self._takers(share, seed)
        changed: dict[str, Any] = {
            name: tuple(getattr(self, name)[client] for client in taken)
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
        """Reads what `save` wrote; a file that differs from it in anything is refused."""
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
                f"the partition file {path} is damaged or is no partition file; make the partition again"
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
            "test_of": np.array(_numbered([id(indices) for indices in self.test]), "<i8"),
            "shift_of": np.array(_numbered(self.shifts), "<i8"),
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
    """The same arrays, equal ones being one object."""
    once = {id(array): array for array in arrays}
    by_content: dict[bytes, Ints] = {}
    kept = {key: by_content.setdefault(hashlib.sha256(a.tobytes()).digest(), a) for key, a in once.items()}
    return tuple(kept[id(array)] for array in arrays)


def _numbered(groups: Sequence[Hashable]) -> tuple[int, ...]:
    """Groups as numbers by first appearance.

    >>> _numbered(["b", "a", "b"])
    (0, 1, 0)
    """
    numbers: dict[Hashable, int] = {}
    return tuple(numbers.setdefault(group, len(numbers)) for group in groups)


@dataclass(frozen=True)
class _Common:
    """The settings that every partition has."""

    holdout: float = 0.0
    """Share of the clients kept out of training."""
    validation: float = 0.0
    """Share of each client's training samples split off."""
    test: str = "classes"
    """A client's test samples: all of the classes that it holds, or a share of its "own" samples."""
    test_share: float = 0.2
    fraction: float = 1.0
    """Share of the training samples used at all."""

    def __post_init__(self) -> None:
        number("holdout", self.holdout, 0, 0.99)
        number("validation", self.validation, 0, 0.99)
        one_of("test", self.test, ("classes", "own"))
        number("test_share", self.test_share, 0.001, 0.99)
        number("fraction", self.fraction, 1e-6, 1)


def settings_of(partition: str) -> dict[str, Any]:
    """The settings that a partition uses, with their defaults.

    >>> settings_of("pathological")["classes_per_client"]
    2
    """
    one_of("partition", partition, list(PARTITIONS))
    parameters = inspect.signature(PARTITIONS[partition]).parameters.values()
    own = {item.name: item.default for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}
    return own | asdict(_Common())


def make_partition(
    dataset: Dataset, *, partition: str, clients: int | None, seed: int, settings: Mapping[str, Any]
) -> Partition:
    """The clients of an experiment: the same for the same arguments, whatever was drawn before."""
    allowed = settings_of(partition)
    for key in settings:
        if key not in allowed:
            raise FeddagError(
                f"partition = '{partition}': it has no setting '{key}'; allowed are {', '.join(allowed)}"
                + nearest(key, allowed)
            )
    common_names = {item.name for item in fields(_Common)}
    common = _Common(**{key: value for key, value in settings.items() if key in common_names})
    if not len(dataset.y_train):
        raise FeddagError(f"dataset '{dataset.name}' has no training samples")

    kept = _fraction(dataset.y_train, common.fraction, seed)
    pool = Pool.of(dataset, kept)
    if clients is None and partition != "natural":
        raise FeddagError(f"clients is missing: partition '{partition}' needs a whole number from 1 to {len(kept)}")
    if clients is not None:
        whole("clients", clients, 1, len(kept), f"the training samples of '{dataset.name}' in use")
    if common.test == "classes" and not len(dataset.y_test) and partition != "natural":
        raise FeddagError(f"test = 'classes': dataset '{dataset.name}' has no test samples, so only 'own' is allowed")
    if clients is not None:
        _held_out(clients, common.holdout, seed)  # refuse before work

    own = {key: value for key, value in settings.items() if key not in common_names}
    deal = PARTITIONS[partition](pool, clients, partial(rng, seed, "partition", partition), **own)
    count = int(deal.client_of.max()) + 1
    train, y = deal.client_of, pool.y
    test = _given_tests(dataset, deal, y, count) if common.test == "classes" else None
    test_from: Literal["test", "train"] = "test"
    if test is None:
        own_test = _split_off(train, y, common.test_share, rng(seed, "partition", "test"))
        train = np.where(own_test >= 0, -1, train)
        test, test_from = _by_client(own_test, kept, count), "train"
    validation = np.full_like(train, -1)
    if common.validation:
        validation = _split_off(train, y, common.validation, rng(seed, "partition", "validation"))
        train = np.where(validation >= 0, -1, train)
    return Partition(
        train=_by_client(train, kept, count),
        test=test,
        validation=_by_client(validation, kept, count),
        shifts=tuple(deal.shifts or [Shift()] * count),
        truth=None if deal.truth is None else _numbered(deal.truth),
        held_out=_held_out(count, common.holdout, seed),
        names=tuple(deal.names or map(str, range(count))),
        test_from=test_from,
    )


def _fraction(y: Ints, fraction: float, seed: int) -> Ints:
    """The samples in use: the same share of every class, at least one of each."""
    if fraction == 1:
        return np.arange(len(y))
    generator = rng(seed, "partition", "fraction")
    parts = []
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        parts.append(generator.permutation(members)[: max(1, round(fraction * len(members)))])
    return np.sort(np.concatenate(parts))


def _held_out(clients: int, holdout: float, seed: int) -> tuple[int, ...]:
    count = round(holdout * clients)
    if holdout and not 0 < count < clients:
        raise FeddagError(
            f"holdout = {holdout!r}: of {clients} clients this is {count}, and it must be 1 to {clients - 1} of them"
        )
    chosen = rng(seed, "partition", "holdout").choice(clients, count, replace=False)
    return tuple(sorted(chosen.tolist()))


def _by_client(client_of: Ints, indices: Ints, clients: int) -> tuple[Ints, ...]:
    """The (sorted) indices of each client, given the client of each index."""
    order = np.argsort(client_of, kind="stable")
    starts = np.searchsorted(client_of[order], np.arange(clients + 1))
    return tuple(np.split(indices[order[: starts[-1]]], starts[:-1])[1:])


def _given_tests(dataset: Dataset, deal: Deal, y: Ints, clients: int) -> tuple[Ints, ...] | None:
    """Each client's part of the dataset's test samples, None where these cannot be told apart by client."""
    if not len(dataset.y_test):
        return None
    if deal.owners is not None:
        owner_train, owner_test = dataset.owner_train, dataset.owner_test
        # Asked of all owners, not of those in use: the kind of test must not hang on the seed.
        if owner_train is None or owner_test is None or not np.isin(owner_train, owner_test).all():
            return None
        client_of = np.full(owner_test.max() + 1, -1)
        client_of[deal.owners] = np.arange(clients)
        return _by_client(client_of[owner_test], np.arange(len(dataset.y_test)), clients)
    if deal.domains is not None and dataset.domain_test is None:
        return None
    used = deal.client_of >= 0
    holds = np.zeros((clients, dataset.num_classes), np.bool_)
    holds[deal.client_of[used], y[used]] = True
    found: dict[tuple[bytes, int], Ints] = {}
    tests_of = []
    for client, row in enumerate(holds):
        domain = -1 if deal.domains is None else int(deal.domains[client])
        key = (row.tobytes(), domain)
        if key not in found:
            fits = row[dataset.y_test]
            if dataset.domain_test is not None and domain >= 0:
                fits = fits & (dataset.domain_test == domain)
            found[key] = np.flatnonzero(fits)
        tests_of.append(found[key])
    return tuple(tests_of)


def _split_off(client_of: Ints, y: Ints, share: float, generator: np.random.Generator) -> Ints:
    """The client of each sample that is split off, -1 for all others.

    Every client with two samples gives at least one and keeps at least one: of every class, while any class has two.
    """
    used = np.flatnonzero(client_of >= 0)
    used = used[np.lexsort((generator.random(len(used)), y[used], client_of[used]))]  # by client, class, chance
    client, label = client_of[used], y[used]
    new_class = np.diff(label, prepend=-1) != 0
    new_client = np.diff(client, prepend=-1) != 0
    kept_first = new_class | new_client  # one sample of each class stays

    order = np.lexsort((label, ~kept_first, client))  # each client's staying samples, then the others by class
    used, client = used[order], client[order]
    size = np.bincount(client)
    classes = np.bincount(client, weights=kept_first[order]).astype(np.int64)
    spare = np.maximum(size - classes, size > 1)
    count = np.clip(np.rint(size * share).astype(np.int64), np.minimum(spare, 1), spare)

    # Of a client's `spare` last samples, `count` ones at equal steps: classes give in proportion.
    start = np.cumsum(size) - size
    place = np.arange(len(used)) - (start + size - spare)[client]
    steps = np.maximum(spare, 1)[client]
    half = steps // 2
    taken = (place >= 0) & (((place + 1) * count[client] + half) // steps > (place * count[client] + half) // steps)
    split = np.full_like(client_of, -1)
    split[used[taken]] = client[taken]
    return split
