"""Files that survive: trees of tensors, damaged checkpoints, client states by round."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.errors import FeddagError
from feddag.files import write_atomically
from feddag.runner.directory import RunDirectory
from feddag.runner.trees import DamagedError, load_tree, save_tree

TREE = {  # what a checkpoint holds beside what `save_checkpoint` adds
    **{"key": "k", "present": [0, 1], "method": {}, "traffic": {}, "missing": {}, "chosen": {}},
    **{"model": ("mlp", (1, 4, 4), 3, 1), "holds_states": True, "seconds": 0.0},
}

leaves = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=10,
)


@given(tree=trees)
@settings(max_examples=50, deadline=None)
def test_a_tree_comes_back_as_it_was(tree, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("tree") / "t.safetensors"
    save_tree(path, tree)
    assert load_tree(path) == tree


def test_tensors_and_arrays_come_back_and_shared_ones_stay_shared(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    tree = {3: {"w": shared}, "again": [shared, shared.t()], "labels": np.array([1, 2])}
    tree |= {"empty": torch.zeros(0), "counter": torch.tensor(3), "numpy": np.int64(4)}
    save_tree(tmp_path / "t.safetensors", tree)
    back = load_tree(tmp_path / "t.safetensors")
    assert torch.equal(back[3]["w"], shared) and back["again"][0] is back[3]["w"]
    assert torch.equal(back["again"][1], shared.t())
    assert isinstance(back["labels"], np.ndarray) and back["labels"].tolist() == [1, 2]
    assert back["empty"].shape == (0,)
    assert back["counter"].shape == () and back["counter"] == 3  # a layer's counter of batches
    assert back["numpy"] == 4


def test_a_checkpoint_does_not_grow_with_clients_that_do_nothing(tmp_path: Path) -> None:
    sizes = []
    for clients in ([*range(100), *range(200, 300)], [*range(10_000), *range(20_000, 30_000)]):
        files = RunDirectory(tmp_path / str(len(clients)))
        with files.locked():
            files.save_checkpoint(1, TREE | {"present": clients}, {})
        assert files.load_checkpoint().tree["present"] == clients
        [file] = files.path.glob("checkpoints/*")
        sizes.append(file.stat().st_size)
    assert sizes[1] <= sizes[0] + 32  # some digits


def test_a_checkpoint_may_name_every_client_as_older_versions_did(tmp_path: Path) -> None:
    files = RunDirectory(tmp_path)
    with files.locked():
        files.save_checkpoint(1, TREE, {})
    [file] = tmp_path.glob("checkpoints/*")
    save_tree(file, load_tree(file) | {"present": [0, 1, 4]})
    assert files.load_checkpoint().tree["present"] == [0, 1, 4]


@pytest.mark.parametrize("present", [[(0, 2**40)], [(3, 2)], [(0, 2), (2, 3)], [1, 0], [(0, 2**23), (2**24, 2**25)]])
def test_clients_of_a_checkpoint_that_cannot_be_are_refused(tmp_path: Path, present: list[object]) -> None:
    files = RunDirectory(tmp_path)
    with files.locked():
        files.save_checkpoint(1, TREE, {})
    [file] = tmp_path.glob("checkpoints/*")
    save_tree(file, load_tree(file) | {"present": present})
    with pytest.raises(FeddagError, match="not in order, or too many"):
        files.load_checkpoint()


def test_what_cannot_be_saved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="set cannot be saved"):
        save_tree(tmp_path / "t.safetensors", {"x": {1, 2}})
    assert list(tmp_path.iterdir()) == []


def test_any_damage_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_tree(path, {"w": torch.arange(8.0), "n": 3})
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", whole[:-3] + b"\x07" + whole[-2:], whole.replace(b"[[", b"[ ", 1)):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError):
            load_tree(path)


def test_a_write_that_breaks_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", lambda number: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def record(number: int) -> dict:
    """A line of a history."""
    return {
        **{"round": number, "accuracy": {"mean": 0.5, "std": 0.0, "worst_decile": 0.5}, "loss": 1.0, "clients": [0, 1]},
        **{"per_client": [0.5, None], "clusters": None, "bytes_up": 1, "bytes_down": 1, "sample_passes": 1},
        **{"missing": {}, "events": []},
    }


def state(value: float) -> dict[str, torch.Tensor]:
    return {"model/w": torch.tensor([value])}


def test_the_newest_whole_checkpoint_is_used_and_older_ones_are_pruned(tmp_path: Path) -> None:
    files = RunDirectory(tmp_path)
    states: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}
    for number in range(1, 6):
        states = states | {number % 2: (number, state(number))}
        files.append(record(number))
        files._next_sync = 0.0  # as if the disk took no time
        files.save_checkpoint(number, TREE | {"method": {"n": number}}, states)
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    # rounds 4 and 5 need the states of rounds 3 and 4, and 4 and 5
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == [
        "client-000000-round-000004.safetensors",
        "client-000001-round-000003.safetensors",
        "client-000001-round-000005.safetensors",
    ]
    saved = files.load_checkpoint()
    assert saved is not None
    tree, back = saved.tree, saved.states
    assert tree["round"] == 5 and back[1] == (5, state(5))

    newest = tmp_path / "checkpoints" / "round-000005.safetensors"
    newest.write_bytes(newest.read_bytes()[:-2])
    saved = files.load_checkpoint()
    assert saved is not None
    tree, back = saved.tree, saved.states
    assert tree["round"] == 4 and back[1] == (3, state(3)) and back[0] == (4, state(4))
    files.rewind(tree)
    assert [each["round"] for each in files.read_history()] == [1, 2, 3, 4]
    assert not newest.exists()

    # the state of round 5 belonged to nothing any more: a resumed run writes it anew
    assert not (tmp_path / "states" / "client-000001-round-000005.safetensors").exists()

    (tmp_path / "states" / "client-000001-round-000003.safetensors").write_bytes(b"")
    assert files.load_checkpoint() is None
    files.rewind(None)
    assert files.read_history() == []


def test_a_directory_in_use_is_refused(tmp_path: Path) -> None:
    with RunDirectory(tmp_path).locked(), pytest.raises(FeddagError, match="in use"), RunDirectory(tmp_path).locked():
        pass


def test_a_checkpoint_of_another_version_is_refused_with_a_sentence(tmp_path: Path) -> None:
    files = RunDirectory(tmp_path)
    files.save_checkpoint(1, TREE, {})
    [path] = (tmp_path / "checkpoints").iterdir()
    save_tree(path, {name: value for name, value in load_tree(path).items() if name not in ("format", "held")})
    with pytest.raises(FeddagError, match="were written by another version of feddag"):
        files.load_checkpoint()
