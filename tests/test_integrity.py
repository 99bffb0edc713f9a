"""What a run leaves is what it was: flipped bits, directories that vanish, and what has reached the disk."""

import errno
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag.cli import main
from feddag.errors import FeddagError
from feddag.files import write_atomically
from feddag.report import read_run
from feddag.runner import directory
from feddag.runner.directory import RunDirectory
from tests.test_cli import QUICK as FLAGS
from tests.test_cli import start, wait_for_rounds
from tests.test_history import TREE, record, state
from tests.test_run import QUICK, StopError, stop_after, without_seconds

EXPERIMENT = feddag.Experiment(method="local", **QUICK)


def flip_bit(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4  # a digit stays a digit or becomes another character
    path.write_bytes(content)


def digits_of(path: Path) -> list[int]:
    """Places in a history where a flipped bit makes another number: JSON all the same."""
    text = path.read_text()
    return [n for n, sign in enumerate(text) if sign in "0123" and text[n - 1] in "0123456789"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("integrity") / "run"
    feddag.run(EXPERIMENT, directory)
    return directory


@pytest.mark.parametrize("where", [0, -1])
def test_a_flipped_bit_in_the_history_of_a_finished_run_is_noticed(finished: Path, tmp_path: Path, where: int) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    assert feddag.load(run).history and read_run(run).history
    loaded = feddag.load(run)
    flip_bit(run / "history.jsonl", digits_of(run / "history.jsonl")[where])
    for look in (feddag.load, read_run, lambda path: feddag.run(EXPERIMENT, path, resume=True)):
        with pytest.raises(FeddagError, match=r"history\.jsonl' is damaged: it is not the one that the result was"):
            look(run)
    with pytest.raises(FeddagError, match="is not the one"):
        _ = loaded.history


def test_a_result_without_a_digest_is_read_as_before(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    result = json.loads((run / "result.json").read_text())
    del result["history_sha256"]
    (run / "result.json").write_text(json.dumps(result))
    flip_bit(run / "history.jsonl", digits_of(run / "history.jsonl")[0])
    assert len(feddag.load(run).history) == len(read_run(run).history) == QUICK["rounds"]


def test_a_flipped_bit_in_the_history_of_an_unfinished_run_is_noticed(tmp_path: Path) -> None:
    whole = feddag.run(EXPERIMENT, tmp_path / "whole").result
    with pytest.raises(StopError):
        feddag.run(EXPERIMENT, tmp_path / "r", observer=stop_after(3))
    history = tmp_path / "r/history.jsonl"
    content = history.read_bytes()
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*.*") if path != history}
    for place in (digits_of(history)[0], digits_of(history)[-1]):
        flip_bit(history, place)
        with pytest.raises(FeddagError, match=r"history\.jsonl' is damaged: it is not the one that the checkpoints"):
            feddag.run(EXPERIMENT, tmp_path / "r", resume=True)
        history.write_bytes(content)
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*.*") if path != history} == before

    for lost in (content[:-9], content[:-9] + b"\0" * 9):  # after a power cut: the round before is whole
        history.write_bytes(lost)
        assert without_seconds(feddag.run(EXPERIMENT, tmp_path / "r", resume=True).result) == without_seconds(whole)
        (tmp_path / "r/result.json").unlink()
        content = history.read_bytes()


@pytest.mark.parametrize("method", ["feddag", "local", "ifca", "ditto"])
def test_a_resumed_run_goes_on_and_does_not_begin_again(tmp_path: Path, method: str) -> None:
    experiment = EXPERIMENT.with_(method=method)
    with pytest.raises(StopError):
        feddag.run(experiment, tmp_path / "r", observer=stop_after(3))
    before = (tmp_path / "r/history.jsonl").read_bytes()  # with the seconds that each round took
    feddag.run(experiment, tmp_path / "r", resume=True)
    assert (tmp_path / "r/history.jsonl").read_bytes().startswith(before)


def test_a_history_that_something_else_writes_to_ends_the_run(tmp_path: Path) -> None:
    files = RunDirectory(tmp_path)
    files.append(record(1))
    with files.history.open("a") as file:
        file.write("more\n")
    with pytest.raises(FeddagError, match="was changed while the run was under way"):
        files.append(record(2))


@pytest.mark.parametrize("moment", [0, 1, 2, 4])
def test_a_directory_that_is_removed_in_mid_run_ends_it(tmp_path: Path, moment: int, monkeypatch) -> None:
    """After the start, after a round, after the last round."""
    save = RunDirectory.save_checkpoint

    def then_remove(self, round, *arguments):
        save(self, round, *arguments)
        if round == moment:
            shutil.rmtree(tmp_path / "r")

    monkeypatch.setattr(RunDirectory, "save_checkpoint", then_remove)
    with pytest.raises(FeddagError, match="was removed or replaced while the run was under way"):
        feddag.run(EXPERIMENT, tmp_path / "r")
    assert not (tmp_path / "r/result.json").exists()


def test_a_directory_that_is_replaced_in_mid_run_is_left_alone(tmp_path: Path) -> None:
    def replace(told: dict) -> None:
        if told["round"] == 2:
            (tmp_path / "r").rename(tmp_path / "moved")
            (tmp_path / "r").mkdir()

    with pytest.raises(FeddagError, match="was removed or replaced"):
        feddag.run(EXPERIMENT, tmp_path / "r", observer=replace)
    assert list((tmp_path / "r").iterdir()) == []
    assert feddag.run(EXPERIMENT, tmp_path / "moved", resume=True).history[-1]["round"] == QUICK["rounds"]


def test_the_program_says_that_its_directory_is_gone(tmp_path: Path) -> None:
    process = start("run", "--rounds", "5000", "--out", "r", *FLAGS, cwd=tmp_path)
    wait_for_rounds(tmp_path / "r/history.jsonl", 2, process)
    (tmp_path / "r").rename(tmp_path / "gone")
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint.count(b"\n")) == (2, 1)
    assert b"'r' was removed or replaced while the run was under way" in complaint


def test_a_directory_that_goes_while_a_checkpoint_is_written_is_said_to_be_gone(tmp_path: Path, monkeypatch) -> None:
    """At whatever moment: here between the checkpoint's file and its way to the disk."""
    files = RunDirectory(tmp_path / "r")
    with files.locked():
        save = directory.save_tree

        def take_away(*args: Any, **how: Any) -> None:
            save(*args, **how)
            files.path.rename(tmp_path / "gone")

        monkeypatch.setattr(directory, "save_tree", take_away)
        with pytest.raises(FeddagError, match="was removed or replaced while the run was under way"):
            files.save_checkpoint(1, TREE, {})


def test_a_file_reaches_the_disk_before_its_name_does(tmp_path: Path, monkeypatch) -> None:
    done = []
    monkeypatch.setattr("os.fsync", lambda number: done.append(Path(f"/proc/self/fd/{number}").readlink().name))
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, path: (done.append(f"to {path.name}"), replace(self, path)))
    write_atomically(tmp_path / "a.txt", "text")
    assert done[0].startswith(".feddag-") and done[1:] == ["to a.txt", tmp_path.name]
    done.clear()
    write_atomically(tmp_path / "a.txt", "text", durable=False)
    assert done == ["to a.txt"]


def test_a_file_system_that_cannot_sync_folders_is_no_error(tmp_path: Path, monkeypatch) -> None:
    def cannot(number: int) -> None:
        if Path(f"/proc/self/fd/{number}").readlink().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.fsync", cannot)
    write_atomically(tmp_path / "a.txt", "text")
    assert (tmp_path / "a.txt").read_text() == "text"


def test_the_last_checkpoint_that_reached_the_disk_is_kept_until_another_has(tmp_path: Path, monkeypatch) -> None:
    synced: list[str] = []

    def slow_disk(number: int) -> None:
        synced.append(Path(f"/proc/self/fd/{number}").readlink().name)
        time.sleep(0.01)

    monkeypatch.setattr("os.fsync", slow_disk)
    files = RunDirectory(tmp_path)
    for number in range(5):
        files.append(record(number + 1))
        files.save_checkpoint(number, TREE, {0: (number, state(number))})
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == [f"round-00000{number}.safetensors" for number in (0, 3, 4)]
    assert "client-000000-round-000000.safetensors" in {path.name for path in (tmp_path / "states").iterdir()}
    first = ["client-000000-round-000000.safetensors", "history.jsonl", "round-000000.safetensors"]
    assert synced[:3] == first and sorted(synced[3:]) == sorted([tmp_path.name, "checkpoints", "states"])

    synced.clear()
    files._next_sync = 0.0
    files.save_checkpoint(5, TREE, {0: (4, state(4))})
    assert {"client-000000-round-000004.safetensors", "history.jsonl", "round-000005.safetensors"} <= set(synced)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        f"round-00000{number}.safetensors" for number in (4, 5)
    ]


def test_the_result_is_written_after_its_checkpoint_has_reached_the_disk(tmp_path: Path, monkeypatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda number: synced.append(Path(f"/proc/self/fd/{number}").readlink().name))
    monkeypatch.setattr("feddag.runner.directory.SYNC_SHARE", 10**9)  # as if the disk were as slow as can be
    feddag.run(EXPERIMENT, tmp_path / "r")
    last = f"round-{QUICK['rounds']:06d}.safetensors"
    assert synced.count("round-000000.safetensors") == synced.count(last) == 1
    assert not any(name.startswith("round-000002") for name in synced)


def test_an_empty_experiment_is_not_resumed(tmp_path: Path, monkeypatch, capsys) -> None:
    with pytest.raises(StopError):
        feddag.run(EXPERIMENT, tmp_path / "r", observer=stop_after(1))
    (tmp_path / "r/experiment.toml").write_text("")
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["feddag", "run", "--resume", str(tmp_path / "r")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and "experiment.toml' is damaged: method is missing" in capsys.readouterr().err


def test_a_run_killed_after_its_result_still_keeps_the_models_of_newcomers(tmp_path: Path, monkeypatch) -> None:
    experiment = feddag.Experiment(method="feddag", clients=8, groups=2, rounds=2, epochs=1, holdout=0.25, workers=1)
    whole = feddag.run(experiment, tmp_path / "whole")
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "finish", _finish_and_die)
        with pytest.raises(KeyboardInterrupt):
            feddag.run(experiment, tmp_path / "killed")
    resumed = feddag.run(experiment, tmp_path / "killed", resume=True)
    newcomer = whole.result["held_out"][0]
    expected, found = whole.network(newcomer).state_dict(), resumed.network(newcomer).state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def _finish_and_die(files: RunDirectory, result: Any) -> None:
    write_atomically(files.result, json.dumps({**result, "history_sha256": files._history.mark()["history_sha256"]}))
    raise KeyboardInterrupt
