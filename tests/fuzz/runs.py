"""Damaged run directories, made from a seed, and whether everything that reads one refuses it well.

`damaged_run(seed, directory)` makes one and `outcome_of_run(directory)` looks at it in every way there is.
`python -m tests.fuzz COUNT run` tries many.
"""

import atexit
import contextlib
import hashlib
import io
import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import feddag
from feddag.data.partitions import partition
from feddag.errors import FeddagError
from feddag.report import read_run
from feddag.report.comparison import comparison_document
from feddag.report.live import read_state
from feddag.report.page import page
from feddag.report.run import run_document
from feddag.report.terminal import show_run
from feddag.runner.trees import load_tree, save_tree
from tests.fuzz.trees import changed

LONGEST_SENTENCE = 1000
COMMON = {"epochs": 1, "workers": 1, "participation": 0.5}
WHOLE: dict[str, dict[str, Any]] = {
    "feddag": {"clients": 10, "groups": 3, "rounds": 4, "drift_round": 2, "drift_every": 1, "holdout": 0.2},
    "local": {"clients": 4, "groups": 2, "rounds": 3},
    "ifca": {"clients": 6, "groups": 3, "rounds": 3},
}
FIELDS = (
    *('""', '"x"', "-1", "0", "1e308", "nan", "inf", "9" * 30, "9" * 5000, "[1, 2]", "{}", "true", "1979-05-27"),
    *('"subprocess:call"', '"os:system"', '"\\u001b[2J"', "[" * 30_000),
)
RAW = (b"9" * 5000, b"[" * 60_000, b'{"a":' * 30_000, b"1e999", b"NaN", b"-Infinity", b"\\ud800", b"\xff\xfe", b"\0")


@cache
def whole_run(method: str) -> Path:
    """A finished run that is as it should be."""
    folder = tempfile.mkdtemp(prefix="feddag-fuzz-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    feddag.run(feddag.Experiment(method=method, **COMMON, **WHOLE[method]), Path(folder) / "run")
    return Path(folder) / "run"


def damaged_run(seed: int, directory: Path) -> str:
    """Copy a whole run here, finished or not, and damage it in one to three places; returns what was done."""
    chance = random.Random(seed)
    method = chance.choice(list(WHOLE))
    shutil.copytree(whole_run(method), directory)
    done = [method]
    if chance.random() < 0.3:
        (directory / "result.json").unlink()
        done.append("unfinished")
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        path = chance.choice(sorted(path for path in directory.rglob("*") if _can_be_damaged(path)))
        ways = [*ANYWHERE, *INSIDE.get(path.suffix, []) * 3]
        way = chance.choice(ways)
        with contextlib.suppress(Exception):  # what is damaged already cannot always be changed once more
            way(chance, path)
        done.append(f"{way.__name__} {path.relative_to(directory)}")
    if chance.random() < 0.7:
        _agree(directory)
    return ", ".join(done)


def _can_be_damaged(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.name != ".lock" and path.stat().st_size < 2**30


def _agree(directory: Path) -> None:
    """Let the result name the history as it is now: so that what stands in it is looked at."""
    history, path = directory / "history.jsonl", directory / "result.json"
    if not (_can_be_damaged(history) and _can_be_damaged(path)):
        return
    with contextlib.suppress(ValueError, RecursionError, TypeError):
        result = json.loads(path.read_text())
        result["history_sha256"] = hashlib.sha256(history.read_bytes()).hexdigest()
        path.write_text(json.dumps(result))


# What can happen to any file -----------------------------------------------------------------------------------------


def flip(chance: random.Random, path: Path) -> None:
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice((1, 1, 2, 8))):
        if content:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def cut(chance: random.Random, path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content) + 1)] + chance.choice((b"", b"", b"\n", b"\0" * 9)))


def put_in(chance: random.Random, path: Path) -> None:
    content = path.read_bytes()
    place = chance.randrange(len(content) + 1)
    path.write_bytes(content[:place] + chance.choice(RAW) + content[place + chance.choice((0, 1, 3)) :])


def remove(chance: random.Random, path: Path) -> None:
    path.unlink()


def replace_by_something(chance: random.Random, path: Path) -> None:
    path.unlink()
    kind = chance.randrange(5)
    if kind == 0:
        os.mkfifo(path)
    elif kind == 1:
        path.mkdir()
    elif kind == 2:
        path.symlink_to(chance.choice(("/dev/zero", "/etc/passwd", "nowhere", path.name)))
    elif kind == 3:
        path.touch()
        os.truncate(path, 2**41)
    else:
        other = chance.choice([each for each in path.parent.iterdir() if each.is_file()] or [Path(__file__)])
        shutil.copy(other, path) if other.stat().st_size < 2**30 else path.touch()


# What can stand in one -----------------------------------------------------------------------------------------------


def change_json(chance: random.Random, path: Path) -> None:
    path.write_text(json.dumps(changed(chance, json.loads(path.read_text()))))


def change_lines(chance: random.Random, path: Path) -> None:
    lines = path.read_text().splitlines()
    number = chance.randrange(len(lines))
    lines[number] = json.dumps(changed(chance, json.loads(lines[number])))
    path.write_text("\n".join(lines if chance.random() < 0.9 else reversed(lines)) + "\n")


def change_fields(chance: random.Random, path: Path) -> None:
    lines = path.read_text().splitlines()
    number = chance.randrange(len(lines))
    name = lines[number].partition(" = ")[0]
    lines[number] = f"{name} = {chance.choice(FIELDS)}"
    path.write_text("\n".join(lines if chance.random() < 0.8 else lines[:number]) + "\n")


def change_tree(chance: random.Random, path: Path) -> None:
    tree = load_tree(path)
    for _ in range(100):
        try:
            return save_tree(path, changed(chance, tree))
        except (TypeError, ValueError, OverflowError, UnicodeError):  # not everything can be saved
            continue
    return None


def change_partition(chance: random.Random, path: Path) -> None:
    with np.load(path) as file:
        content = {name: file[name] for name in file.files if name != "checksum"}
    if chance.random() < 0.6:
        about = changed(chance, json.loads(content["about"].tobytes()))
        content["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    else:
        other = changed(chance, content)
        content = {name: array for name, array in other.items() if isinstance(array, np.ndarray)}
    content["checksum"] = np.frombuffer(partition._checksum(content).encode(), np.uint8)
    np.savez(path, **content)


Way = Callable[[random.Random, Path], None]
ANYWHERE: list[Way] = [flip, flip, cut, put_in, remove, replace_by_something]
INSIDE: dict[str, list[Way]] = {
    **{".json": [change_json], ".jsonl": [change_lines], ".toml": [change_fields]},
    **{".safetensors": [change_tree], ".npz": [change_partition]},
}


# Looking -------------------------------------------------------------------------------------------------------------


def looks(directory: Path) -> dict[str, Callable[[], Any]]:
    """Every way to look at a run directory that leaves it as it is."""
    return {
        "show": lambda: show_run(Console(file=io.TextIOWrapper(io.BytesIO(), "utf-8")), read_run(directory)),
        "report": lambda: page(run_document(read_run(directory))).encode(),
        "compare": lambda: page(comparison_document([read_run(directory), read_run(whole_run("local"))])).encode(),
        "watch": lambda: read_state(directory),
        "load": lambda: (run := feddag.load(directory)) and (run.history, run.accuracy, run.clusters),
        "model": lambda: feddag.load(directory).model(0),
    }


def outcome_of_run(directory: Path) -> dict[str, str]:
    """For each way to look: "read" or "refused"; anything but one plain sentence is an error."""
    found = {}
    for name, look in looks(directory).items():
        try:
            look()
            found[name] = "read"
        except FeddagError as error:
            if not 0 < len(str(error)) <= LONGEST_SENTENCE:
                raise AssertionError(f"{name}: {str(error)[:LONGEST_SENTENCE]}") from error
            found[name] = "refused"
    return found
