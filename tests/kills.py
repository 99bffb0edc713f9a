"""Runs that are killed and resumed: `python -m tests.kills COUNT [--seed SEED]`.

Each is a `feddag run` in a process of its own, ended by SIGKILL at a random moment: while it starts, anywhere in its
rounds, or just when a file is being written. It is then resumed to its end, and must leave the same bytes as a run that
nobody stopped: the result, the history and the checkpoint with all models, but for the time they took.

Processes are forked from this one, which has imported all that they need; those that are killed while they start are
whole new ones.
"""

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import feddag.report.terminal
import feddag.runner.run  # noqa: F401 - imported before any process is forked
from feddag.cli import main as feddag_main
from feddag.files import TEMPORARY
from feddag.packing import pack
from feddag.runner.directory import FOLDERS, RunDirectory

COMMON = ("--set", "epochs=1", "--set", "workers=1", "--set", "participation=0.5", "--no-report", "--out", "run")
DRIFTING = ("--set", "drift_round=3", "--set", "drift_every=1", "--set", "holdout=0.2")
RUNS: dict[str, tuple[str, ...]] = {
    "feddag": ("--clients", "10", "--rounds", "6", *DRIFTING),  # clients sign anew; newcomers at the end
    "ditto": ("--clients", "6", "--rounds", "10"),  # models that clients keep themselves
    "ifca": ("--clients", "6", "--rounds", "10", "--set", "groups=3"),
}
TIMES = {"seconds", "versions", "history_sha256"}
"""What may differ from run to run: the history's digest covers the seconds of each round."""
MOMENTS = ("starting", "any", "any", "writing", "writing")
START_UP = 6.0  # seconds in which one that is starting is killed


class Forked:
    """`feddag` with these arguments in a process that was forked from this one."""

    def __init__(self, folder: Path, arguments: Sequence[str]) -> None:
        self._log = folder / "log"
        self.pid = os.fork()
        if self.pid == 0:
            self._work(folder, arguments)
        self._status: int | None = None

    def _work(self, folder: Path, arguments: Sequence[str]) -> None:
        os.chdir(folder)
        log = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["feddag", *arguments]
        code = 1
        try:
            feddag_main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        finally:
            sys.stdout.flush()
            os._exit(code)

    def has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def kill(self) -> None:
        if not self.has_ended():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def finish(self) -> None:
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]
        assert self._status == 0, self._log.read_text(errors="replace")


def command(method: str) -> tuple[str, ...]:
    return ("run", "--method", method, *RUNS[method], *COMMON)


def left_behind(directory: Path) -> tuple[Any, ...]:
    """All that a finished run has to say, without how long it took."""
    files = RunDirectory(directory)
    result = {name: value for name, value in json.loads(files.result.read_bytes()).items() if name not in TIMES}
    history = [record | {"seconds": 0} for record in files.read_history()]
    saved = files.load_checkpoint()
    assert saved is not None
    tree = {name: value for name, value in saved.tree.items() if name not in {*TIMES, "history_bytes"}}
    text, arrays = pack([tree, saved.states, saved.held])
    return result, history, text, {name: array.tobytes() for name, array in arrays.items()}


def kill_while_starting(method: str, folder: Path, chance: random.Random) -> str:
    """A whole new process, killed before its first checkpoint; mostly while Python is still importing."""
    program = (sys.executable, "-c", "from feddag.cli import main; main()", *command(method))
    process = subprocess.Popen(program, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + chance.uniform(0, START_UP)
    first = folder / "run/checkpoints"
    while time.monotonic() < end and not first.exists() and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    return "late" if process.wait() == 0 else "starting"


def kill_while_working(method: str, folder: Path, chance: random.Random, moment: str) -> str:
    """Killed some time after a random round, or as soon as a file is half written after it."""
    process, files = Forked(folder, command(method)), RunDirectory(folder / "run")
    after = chance.randrange(-1, int(RUNS[method][3]))  # -1: at once
    while after >= 0 and not process.has_ended() and files.count_rounds() < after:
        time.sleep(0.0005)
    if moment == "any":
        time.sleep(chance.uniform(0, 0.2))
    else:
        folders = [files.path / name for name in (".", *FOLDERS)]
        while not process.has_ended() and not any(any(each.glob(TEMPORARY)) for each in folders):
            pass
        time.sleep(chance.choice((0, 0, 1e-4, 1e-3)))
    ended = process.has_ended()
    process.kill()
    return "late" if ended else moment


def killed_and_resumed(method: str, folder: Path, chance: random.Random, whole: tuple[Any, ...], moment: str) -> str:
    """One run, killed and resumed to its end; returns when it was killed, and whether a file was half written."""
    if moment == "starting":
        moment = kill_while_starting(method, folder, chance)
    else:
        moment = kill_while_working(method, folder, chance, moment)
    if moment == "late":
        return moment
    run = folder / "run"
    half = ", a file half written" if any(run.rglob(TEMPORARY)) else ""
    begun = (run / "experiment.toml").exists()  # else there is nothing to resume: the same command again
    Forked(folder, ("run", "--resume", "run", "--no-report") if begun else command(method)).finish()
    assert left_behind(run) == whole, f"{method}, killed {moment}{half}: not the same run"
    assert not any(run.rglob(TEMPORARY))
    return moment + half


def uninterrupted(method: str, folder: Path) -> tuple[Any, ...]:
    """What the run leaves behind when nobody stops it."""
    folder.mkdir()
    Forked(folder, command(method)).finish()
    return left_behind(folder / "run")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance, began = random.Random(asked.seed), time.monotonic()
    found: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        whole = {method: uninterrupted(method, Path(scratch) / method) for method in RUNS}
        number = 0
        while found.total() - found["late"] < asked.count:
            method, folder = list(RUNS)[number % len(RUNS)], Path(scratch) / str(number)
            folder.mkdir()
            moment = killed_and_resumed(method, folder, chance, whole[method], MOMENTS[number % len(MOMENTS)])
            found[moment] += 1
            number += 1
            print(f"{found.total() - found['late']}: {method}, {moment}", flush=True)
    minutes = (time.monotonic() - began) / 60
    kills = {moment: count for moment, count in sorted(found.items()) if moment != "late"}
    print(f"{sum(kills.values())} kills in {minutes:.0f} minutes, each resumed to the same bytes: {kills}")


if __name__ == "__main__":
    main()
