"""A partition on disk, and after a drift."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.data.partitions import PARTITIONS, Partition, make_partition
from feddag.errors import FeddagError
from tests.data import refused
from tests.data.partitions import ENOUGH, part, toy


@given(name=st.sampled_from(sorted(PARTITIONS)), test=st.sampled_from(["classes", "own"]), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_what_is_loaded_is_what_was_saved(tmp_path_factory, name, test, seed):
    path = tmp_path_factory.mktemp("partition") / "partition.npz"
    made = part(toy(owners=17), name, 8, seed, test=test, validation=0.1, holdout=0.25, **ENOUGH.get(name, {}))
    made.save(path)
    loaded = Partition.load(path)
    for field in ("train", "test", "validation"):
        pairs_of_arrays = zip(getattr(made, field), getattr(loaded, field), strict=True)
        assert all(a.tolist() == b.tolist() and a.dtype == b.dtype for a, b in pairs_of_arrays)
    for field in ("shifts", "truth", "held_out", "names", "test_from"):
        assert getattr(loaded, field) == getattr(made, field)
    assert loaded.checksum() == made.checksum()
    assert [p.name for p in path.parent.iterdir()] == ["partition.npz"]
    first = path.read_bytes()
    loaded.save(path)
    assert path.read_bytes() == first


def test_checksum_sees_content_not_sharing():
    made = part(toy(), "label-skew", 6)
    copied = Partition(
        train=made.train,
        test=tuple(indices.copy() for indices in made.test),
        validation=made.validation,
        shifts=made.shifts,
        truth=made.truth,
        held_out=made.held_out,
        names=made.names,
    )
    assert copied.checksum() == made.checksum()
    assert len({id(indices) for indices in copied.test}) == len({id(indices) for indices in made.test})


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "partition.npz"
    made = part(toy(), "iid", 5)
    made.save(path)
    whole_file = path.read_bytes()
    for damaged in (whole_file[:-30], whole_file[: len(whole_file) // 2], b"", b"PK\x03\x04", b"text"):
        path.write_bytes(damaged)
        with refused("partition.npz", "damaged"):
            Partition.load(path)

    content = dict(np.load(tmp_path / path, allow_pickle=False)) if path.write_bytes(whole_file) else {}
    content["train"] = content["train"][::-1]
    np.savez(path, **content)
    with refused("partition.npz", "damaged"):
        Partition.load(path)
    np.savez(path, other=np.arange(3))
    with refused("partition.npz", "damaged"):
        Partition.load(path)
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with refused("partition.npz", "damaged"):
        Partition.load(path)
    with refused("missing.npz", "does not exist"):
        Partition.load(tmp_path / "missing.npz")
    with refused("partition.npz", "cannot be written"):
        made.save(path / "below" / "a" / "file" / "partition.npz")


@given(at=st.floats(0, 1), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_is_refused_or_harmless(tmp_path_factory, at, bit):
    path = tmp_path_factory.mktemp("partition") / "partition.npz"
    made = part(toy(), "iid", 5)
    made.save(path)
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1 << bit
    path.write_bytes(content)
    try:
        loaded = Partition.load(path)
    except FeddagError:
        return
    assert loaded.checksum() == made.checksum()  # a bit that means nothing, such as a file's date


@pytest.mark.parametrize("seed", range(30))
def test_clients_that_drift_are_those_whose_true_group_changes(seed: int) -> None:
    partition = make_partition(toy(), partition="concept-shift", clients=10, seed=seed, settings={})
    drifting, after = partition.drifting(0.3, seed), partition.drifted(0.3, seed)
    assert drifting  # drawn until two groups are among them
    assert set(drifting) == {client for client in range(10) if partition.truth[client] != after.truth[client]}
    assert sorted(np.concatenate(after.train)) == sorted(np.concatenate(partition.train))


def test_where_all_are_alike_none_can_drift() -> None:
    with pytest.raises(FeddagError, match="drift_round is set, but all clients are of one true group"):
        make_partition(toy(), partition="iid", clients=10, seed=0, settings={}).drifted(0.3, 0)
