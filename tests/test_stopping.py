"""Signals while the program starts, in real processes: a clean end at any moment, with the code that shells use."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_cli import QUICK, start

PATIENCE = 60


def wait_until_it_listens(process: subprocess.Popen[bytes]) -> None:
    """Until the process has a handler for SIGTERM; Python itself listens to SIGINT from the start."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        if int(caught, 16) & 1 << (signal.SIGTERM - 1):
            time.sleep(0.01)  # the other handlers follow
            return
        time.sleep(0.005)
    raise AssertionError("it does not listen")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.0, 0.15, 0.6, 1.5])
def test_a_program_that_is_still_starting_stops_cleanly(tmp_path: Path, number: int, delay: float) -> None:
    process = start("run", "--rounds", "5000", "--out", "r", *QUICK, cwd=tmp_path)
    wait_until_it_listens(process)
    time.sleep(delay)
    process.send_signal(number)
    said, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, complaint
    assert complaint.decode().startswith("feddag: stopped") and complaint.count(b"\n") == 1
    assert b"Traceback" not in said


def test_a_terminal_that_closes_does_not_end_what_was_started_with_nohup(tmp_path: Path) -> None:
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); from feddag.cli import main; main()"
    command = [sys.executable, "-c", program, "run", "--rounds", "1", "--out", "r", "--no-report", *QUICK]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_until_it_listens(process)
    process.send_signal(signal.SIGHUP)
    _, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaint
    assert (tmp_path / "r/result.json").exists()


def test_help_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", "from feddag.cli import main; main()", "fields"],
        cwd=tmp_path,
        stdout=write,
        stderr=subprocess.PIPE,
    )
    os.close(write)
    os.close(read)
    _, complaint = process.communicate(timeout=PATIENCE)
    assert b"Traceback" not in complaint


def test_a_signal_that_comes_while_an_object_is_deleted_is_not_lost(tmp_path: Path) -> None:
    program = """
import signal, time
from feddag.cli.signals import Stopped, listen

class Deleted:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)

listen()
try:
    Deleted()
    time.sleep(20)
except Stopped as stopped:
    raise SystemExit(stopped.code)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "")
