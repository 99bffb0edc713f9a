"""Runs that are killed and resumed: `python -m tests.kills COUNT [--seed SEED]`.

Each is a `feddag run` in a process of its own, ended by SIGKILL at a random moment: while it starts, anywhere in its
rounds, or just when a file is being written. It is then resumed to its end, and must leave the same bytes as a run that
nobody stopped: the result, the history and the checkpoint with all models, but for the time they took.
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
from pathlib import Path
from typing import Any

from feddag.files import TEMPORARY
from feddag.packing import pack
from feddag.runner.directory import RunDirectory

DIGITS = ("--set", "epochs=1", "--set", "workers=1", "--set", "participation=0.5", "--no-report")
RUNS: dict[str, tuple[str, ...]] = {
    # drift with clients signing anew, newcomers at the end
    "feddag": ("--clients", "10", "--rounds", "5", "--set", "drift_round=2", "--set", "drift_every=1", "--set", "holdout=0.2"),
    # models that clients keep themselves
    "ditto": ("--clients", "6", "--rounds", "8"),
    "ifca": ("--clients", "6", "--rounds", "8", "--set", "groups=3"),
}  # fmt: skip
TIMES = {"seconds", "versions", "history_sha256"}
"""What may differ from run to run: the history's digest covers the seconds of each round."""
PATIENCE = 300
MOMENTS = ("starting", "any", "writing", "writing")


def start(command: str, folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    program = (sys.executable, "-c", "from feddag.cli import main; main()", command, *arguments)
    return subprocess.Popen(program, cwd=folder, env=environment, **quiet)


def finish(process: subprocess.Popen[bytes]) -> None:
    _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaint.decode()


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


def kill_somewhere(process: subprocess.Popen[bytes], run: Path, chance: random.Random, usual: float) -> str:
    """End it at a random moment; returns which kind of moment it was, "late" if it had ended by itself."""
    moment, began = chance.choice(MOMENTS), time.monotonic()
    if moment == "starting":
        end = began + chance.uniform(0, usual / 2)
        while time.monotonic() < end and not (run / "checkpoints").exists() and process.poll() is None:
            time.sleep(0.001)
    else:
        while not (run / ".lock").exists() and process.poll() is None:
            time.sleep(0.002)
        if moment == "any":
            time.sleep(chance.uniform(0, usual / 2))
        else:
            wanted, seen = chance.randint(1, 40), set[str]()
            while len(seen) < wanted and process.poll() is None:
                seen |= {
                    str(path)
                    for folder in (".", "checkpoints", "states", "held")
                    for path in (run / folder).glob(TEMPORARY)
                }
            time.sleep(chance.choice((0, 0, 1e-4, 1e-3)))
    ended = process.poll() is not None
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return "late" if ended else moment


def killed_and_resumed(method: str, folder: Path, chance: random.Random, whole: tuple[Any, ...], usual: float) -> str:
    """One run, killed and resumed to its end; returns when it was killed, and whether a file was half written."""
    process = start("run", folder, "--method", method, *RUNS[method], *DIGITS, "--out", "run")
    moment = kill_somewhere(process, folder / "run", chance, usual)
    if moment == "late":
        return moment
    half = " with half a file" if any((folder / "run").rglob(TEMPORARY)) else ""
    if (folder / "run/experiment.toml").exists():
        finish(start("run", folder, "--resume", "run", "--no-report"))
    else:  # nothing was begun: the same command again
        finish(start("run", folder, "--method", method, *RUNS[method], *DIGITS, "--out", "run"))
    assert left_behind(folder / "run") == whole, f"{method}, killed {moment}{half}: not the same run"
    assert not any((folder / "run").rglob(TEMPORARY))
    return moment + half


def uninterrupted(method: str, folder: Path) -> tuple[tuple[Any, ...], float]:
    """What the run leaves behind when nobody stops it, and how many seconds it takes with its start."""
    began = time.monotonic()
    finish(start("run", folder, "--method", method, *RUNS[method], *DIGITS, "--out", "run"))
    return left_behind(folder / "run"), time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    found: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        whole = {}
        for method in RUNS:
            (Path(scratch) / method).mkdir()
            whole[method] = uninterrupted(method, Path(scratch) / method)
        number = kills = 0
        while kills < asked.count:
            method = list(RUNS)[number % len(RUNS)]
            folder = Path(scratch) / str(number)
            folder.mkdir()
            moment = killed_and_resumed(method, folder, chance, *whole[method])
            found[moment] += 1
            number, kills = number + 1, kills + (moment != "late")
            print(f"{kills}: {method}, {moment}", flush=True)
    print(f"{kills} kills, each resumed to the same bytes: {dict(sorted(found.items()))}")


if __name__ == "__main__":
    main()
