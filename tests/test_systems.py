"""Other operating systems, as far as they can be tried here: what they lack is hidden before feddag is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from feddag import system
from feddag.data.readers import child, limits
from feddag.errors import FeddagError
from feddag.runner.directory import RunDirectory

HIDE = """
import importlib.abc, os, signal, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "resource", "pwd", "grp", "termios"):
            raise ImportError(f"there is no {name} here")

sys.meta_path.insert(0, Hidden())
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules.pop(name, None)
for name in ("sched_getaffinity", "sysconf", "getloadavg", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
del signal.SIGHUP
"""
IMPORT_ALL = """
import importlib, pkgutil
import feddag

for module in pkgutil.walk_packages(feddag.__path__, "feddag."):
    if ".native._" not in module.name and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
for name in feddag.__all__:
    getattr(feddag, name)
"""
USE = """
import numpy as np
from feddag.cli import main

print(feddag.group(np.ones((6, 6)) - np.kron(np.eye(2), np.ones((3, 3)))).labels_.tolist())
sys.argv = ["feddag", "run", "--out", "r"]
main()
"""


def test_without_what_windows_lacks_all_is_imported_and_a_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HIDE + IMPORT_ALL + USE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout.startswith("[0, 0, 0, 1, 1, 1]\n"), done.stderr
    assert done.stderr.startswith("feddag: this system has no file locks that end with a process (fcntl)")
    assert done.stderr.endswith("use the Windows Subsystem for Linux\n") and done.stderr.count("\n") == 1


def test_what_the_system_does_not_tell_is_assumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("sched_getaffinity", "sysconf", "getloadavg"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(limits, "CONTAINER_LIMITS", ())
    monkeypatch.setattr(system, "fcntl", None)
    assert system.cores() == os.cpu_count() and system.load_average() is None
    assert limits.largest_data() == system.ASSUMED_MEMORY // limits.SHARE_OF_MEMORY
    assert not RunDirectory(tmp_path).is_running()
    with pytest.raises(FeddagError, match="no file locks"), RunDirectory(tmp_path).locked():
        pass


def test_a_file_can_be_read_apart_where_processes_have_no_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    child.limit(1, 1)  # a byte and a second: nothing would work any more
    assert bytearray(2**20)
