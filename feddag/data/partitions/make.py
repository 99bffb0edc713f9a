"""From a dataset and settings to a partition: what each client trains, is validated and is tested on."""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import numpy as np

from feddag.data.datasets import Dataset
from feddag.data.partitions.assignments import PARTITIONS
from feddag.data.partitions.partition import Partition, numbered
from feddag.data.partitions.samples import Assignment, Ints, SampleInfo
from feddag.data.partitions.settings import COMMON, PartitionSettings, one_of, whole
from feddag.data.partitions.tables import apportion
from feddag.data.shifts import Shift
from feddag.errors import FeddagError, nearest
from feddag.rng import rng


def settings_of(partition: str) -> dict[str, Any]:
    """The settings that a partition uses, with their defaults.

    >>> settings_of("pathological")["classes_per_client"]
    2
    """
    one_of("partition", partition, list(PARTITIONS))
    return {name: getattr(PartitionSettings, name) for name in (*_own_settings(partition), *COMMON)}


def _own_settings(partition: str) -> list[str]:
    parameters = inspect.signature(PARTITIONS[partition]).parameters.values()
    return [item.name for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY]


def make_partition(
    dataset: Dataset, *, partition: str, clients: int | None, seed: int, settings: Mapping[str, Any]
) -> Partition:
    """The clients of an experiment: the same for the same arguments, whatever was drawn before."""
    chosen = _checked(partition, settings)
    if not len(dataset.y_train):
        raise FeddagError(f"dataset '{dataset.name}' has no training samples")
    kept = _fraction(dataset.y_train, chosen.fraction, seed)
    _check_clients(clients, len(kept), partition, dataset.name)
    if chosen.test != "own" and not len(dataset.y_test) and partition != "natural":
        raise FeddagError(
            f"test = '{chosen.test}': dataset '{dataset.name}' has no test samples, so only 'own' is allowed"
        )
    if clients is not None:
        _held_out(clients, chosen.holdout, seed)  # refused before any work

    info = SampleInfo.of(dataset, kept)
    own = {name: getattr(chosen, name) for name in _own_settings(partition)}
    assignment = PARTITIONS[partition](info, clients, partial(rng, seed, "partition", partition), **own)
    count = int(assignment.client_of.max()) + 1
    train, y = assignment.client_of, info.y
    test = _given_tests(dataset, assignment, y, count) if chosen.test != "own" else None
    if test is not None and chosen.test == "mix" and assignment.owners is None:
        test = _divided_tests(dataset, test, train, y, rng(seed, "partition", "mix test"))
    test_from: Literal["test", "train"] = "test"
    if test is None:
        own_test = _split_off(train, y, chosen.test_share, rng(seed, "partition", "test"))
        train = np.where(own_test >= 0, -1, train)
        test, test_from = _by_client(own_test, kept, count), "train"
    validation = np.full_like(train, -1)
    if chosen.validation:
        validation = _split_off(train, y, chosen.validation, rng(seed, "partition", "validation"), always=False)
        train = np.where(validation >= 0, -1, train)
    return Partition(
        train=_by_client(train, kept, count),
        test=test,
        validation=_by_client(validation, kept, count),
        shifts=tuple(assignment.shifts or [Shift()] * count),
        truth=None if assignment.truth is None else numbered(assignment.truth),
        held_out=_held_out(count, chosen.holdout, seed),
        names=tuple(assignment.names or map(str, range(count))),
        test_from=test_from,
    )


def _checked(partition: str, settings: Mapping[str, Any]) -> PartitionSettings:
    allowed = settings_of(partition)
    for key in settings:
        if key not in allowed:
            raise FeddagError(
                f"partition = '{partition}': it has no setting '{key}'; allowed are {', '.join(allowed)}"
                + nearest(key, allowed)
            )
    return PartitionSettings(**settings)


def _check_clients(clients: int | None, samples: int, partition: str, dataset: str) -> None:
    if clients is not None:
        whole("clients", clients, 1, samples, f"the training samples of '{dataset}' in use")
    elif partition != "natural":
        raise FeddagError(f"clients is missing: partition '{partition}' needs a whole number from 1 to {samples}")


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


def _given_tests(dataset: Dataset, assignment: Assignment, y: Ints, clients: int) -> tuple[Ints, ...] | None:
    """Each client's part of the dataset's test samples, None where it is not known which client they belong to."""
    if not len(dataset.y_test):
        return None
    if assignment.owners is not None:
        owner_train, owner_test = dataset.owner_train, dataset.owner_test
        # All owners count, not only those in use: the kind of test must not depend on the seed.
        if owner_train is None or owner_test is None or not np.isin(owner_train, owner_test).all():
            return None
        client_of = np.full(owner_test.max() + 1, -1)
        client_of[assignment.owners] = np.arange(clients)
        return _by_client(client_of[owner_test], np.arange(len(dataset.y_test)), clients)
    if assignment.domains is not None and dataset.domain_test is None:
        return None
    used = assignment.client_of >= 0
    holds = np.zeros((clients, dataset.num_classes), np.bool_)
    holds[assignment.client_of[used], y[used]] = True
    found: dict[tuple[bytes, int], Ints] = {}
    tests_of = []
    for client, row in enumerate(holds):
        domain = -1 if assignment.domains is None else int(assignment.domains[client])
        key = (row.tobytes(), domain)
        if key not in found:
            fits = row[dataset.y_test]
            if dataset.domain_test is not None and domain >= 0:
                fits = fits & (dataset.domain_test == domain)
            found[key] = np.flatnonzero(fits)
        tests_of.append(found[key])
    return tuple(tests_of)


def _divided_tests(
    dataset: Dataset, allowed: tuple[Ints, ...], client_of: Ints, y: Ints, generator: np.random.Generator
) -> tuple[Ints, ...]:
    """The test samples that each client may have, divided as the training samples are: its class mix, nobody else's.

    Clients that may have the same samples of a class share them out; one with few training samples may get none.
    """
    held = np.zeros((len(allowed), dataset.num_classes), np.int64)
    np.add.at(held, (client_of[client_of >= 0], y[client_of >= 0]), 1)
    parts: list[list[Ints]] = [[] for _ in allowed]
    for label in np.flatnonzero(held.sum(axis=0)):
        sharing: dict[bytes, list[int]] = {}
        found: dict[int, bytes] = {}  # many clients share one index array: search it once
        for client in np.flatnonzero(held[:, label]).tolist():
            own = allowed[client]
            if id(own) not in found:
                found[id(own)] = own[dataset.y_test[own] == label].tobytes()
            sharing.setdefault(found[id(own)], []).append(client)
        for content, clients in sharing.items():
            samples = generator.permutation(np.frombuffer(content, np.int64))
            cuts = np.cumsum(apportion(held[clients, label].astype(float), len(samples)))
            for client, part in zip(clients, np.split(samples, cuts[:-1]), strict=True):
                parts[client].append(part)
    return tuple(np.sort(np.concatenate(own)) for own in parts)


def _split_off(client_of: Ints, y: Ints, share: float, generator: np.random.Generator, always: bool = True) -> Ints:
    """The client of each sample that is split off, -1 for all others.

    At least one sample of each of a client's classes stays, and at least one is split off, while any class has two. Of
    a client of several samples that has one of each class, one is split off only if there is `always` to be one: a
    model cannot be judged by a class that it has never seen.
    """
    used = np.flatnonzero(client_of >= 0)
    used = used[np.lexsort((generator.random(len(used)), y[used], client_of[used]))]  # by client, class, chance
    client, label = client_of[used], y[used]
    new_class = np.diff(label, prepend=-1) != 0
    new_client = np.diff(client, prepend=-1) != 0
    kept_first = new_class | new_client  # one sample of each class stays

    order = np.lexsort((label, ~kept_first, client))  # per client: those that stay, then the others by class
    used, client = used[order], client[order]
    size = np.bincount(client)
    classes = np.bincount(client, weights=kept_first[order]).astype(np.int64)
    spare = np.maximum(size - classes, (size > 1) & always)
    count = np.clip(np.rint(size * share).astype(np.int64), np.minimum(spare, 1), spare)

    # Of a client's last `spare` samples, `count` at equal steps: classes in proportion.
    start = np.cumsum(size) - size
    place = np.arange(len(used)) - (start + size - spare)[client]
    steps = np.maximum(spare, 1)[client]
    half = steps // 2
    taken = (place >= 0) & (((place + 1) * count[client] + half) // steps > (place * count[client] + half) // steps)
    split = np.full_like(client_of, -1)
    split[used[taken]] = client[taken]
    return split
