"""Forks behind a shim: as if the program had been started there, and nothing is left running. Needs no Flower."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from feddag.deploy import shim, supernode
from feddag.deploy.launch import without_colours
from feddag.errors import FeddagError

SERVER = """
import os, sys, time
from pathlib import Path
from feddag.deploy import preload

def tell():
    import resource
    print(*sys.argv, os.environ["SHOWN"], Path.cwd().name, resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
    print("error", file=sys.stderr)
    sys.exit(int(sys.argv[1]))

def wait():
    print(os.getpid(), flush=True)
    time.sleep(60)

preload.load_programs = lambda: {"tell": tell, "wait": wait}
preload.main(Path(sys.argv[1]))
"""


def await_true(check: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not check():
        assert time.monotonic() < end
        time.sleep(0.02)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def cold(tmp_path: Path) -> Path:
    path = tmp_path / "cold"
    path.write_text('#!/bin/sh\necho cold "$@"\n')
    path.chmod(0o700)
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)])
    await_true((tmp_path / "socket").exists)
    yield process
    process.kill()
    process.wait()


def lease(folder: Path) -> socket.socket:
    link = shim.connect(str(folder))
    link.sendall(b"L")
    return link


def start(folder: Path, cold: Path, *argv: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-IS", shim.__file__, str(folder), str(cold), *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def test_a_fork_is_as_if_the_program_had_been_started_there(server, tmp_path: Path, cold: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    with lease(tmp_path):
        done = start(
            *(tmp_path, cold, "tell", "7", "more words"),
            cwd=tmp_path / "elsewhere",
            env={"SHOWN": "mine"},
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        )
        assert done.communicate(timeout=30) == ("tell 7 more words mine elsewhere 0\n", "error\n")
        assert done.returncode == 7


def test_a_fork_ends_with_its_shim_however_that_ends(server, tmp_path: Path, cold: Path) -> None:
    with lease(tmp_path):
        for number in (signal.SIGTERM, signal.SIGKILL):
            waiting = start(tmp_path, cold, "wait")
            assert waiting.stdout is not None
            fork = int(waiting.stdout.readline())
            assert fork != waiting.pid and alive(fork)
            waiting.send_signal(number)
            waiting.communicate()
            await_true(lambda fork=fork: not alive(fork))


def test_it_lives_as_long_as_somebody_has_a_lease_and_leaves_no_fork(server, tmp_path: Path, cold: Path) -> None:
    one, other = lease(tmp_path), lease(tmp_path)
    waiting = start(tmp_path, cold, "wait")
    assert waiting.stdout is not None
    fork = int(waiting.stdout.readline())
    one.close()
    time.sleep(0.3)
    assert server.poll() is None and alive(fork)
    other.close()
    assert server.wait(timeout=30) == 0 and not (tmp_path / "socket").exists()
    await_true(lambda: not alive(fork))
    waiting.communicate(timeout=30)


def test_without_an_answer_the_program_starts_the_slow_way_and_says_so(tmp_path: Path, cold: Path) -> None:
    said, why = start(tmp_path, cold, "tell", "7").communicate(timeout=30)
    assert said == "cold 7\n" and "no preloaded program (" in why and "tell starts the slow way" in why


def test_what_cannot_be_taken_over_starts_the_slow_way(server, tmp_path: Path, cold: Path) -> None:
    with lease(tmp_path):
        said, why = start(tmp_path, cold, "unknown", "7").communicate(timeout=30)
        assert said == "cold 7\n" and "KeyError" in why


def test_the_folder_where_nodes_meet_is_this_users_alone(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv(supernode.RUNTIME, str(tmp_path))
    folder = supernode.runtime_folder()
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    assert supernode.runtime_folder() != folder
    monkeypatch.delenv("FLWR_HOME")
    folder.chmod(0o770)
    with pytest.raises(FeddagError, match="can be written to by others"):
        supernode.runtime_folder()


def test_shims_call_the_folder_and_flowers_own_program(tmp_path: Path, cold: Path, monkeypatch) -> None:
    for name in supernode.PROGRAMS:
        (tmp_path / name).write_text(cold.read_text())
        (tmp_path / name).chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    supernode.write_shims(tmp_path)
    done = subprocess.run([tmp_path / "bin" / "flwr-clientapp", "a b"], capture_output=True, text=True)
    assert done.stdout == "cold a b\n" and "starts the slow way" in done.stderr


def test_a_node_looks_sooner_for_the_next_message_and_never_later_than_flower() -> None:
    now = 0.0
    pace = supernode.Pace(clock=lambda: now)
    assert pace.wait(0.5) == 0.1  # at work
    now = 1.0
    assert pace.wait(3.0) == 0.25
    now = 20.0
    assert pace.wait(3.0) == 1.0  # a twentieth of 20 seconds
    now = 1000.0
    assert pace.wait(3.0) == 3.0
    pace.wait(0.5)
    assert pace.wait(3.0) == 0.25


def test_the_preloaded_program_starts_no_thread_before_it_forks() -> None:
    told = "import feddag.deploy.node, os; print(len(os.listdir('/proc/self/task')))"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", told], env=environment, capture_output=True, text=True)
    assert done.stdout == "1\n"


class Ended(Exception):
    """The node's process is gone."""


@pytest.mark.parametrize("ended_too", [True, False])
def test_only_a_node_that_lives_on_says_that_the_preloaded_program_ended(ended_too: bool, monkeypatch, capsys) -> None:
    lease, other_end = socket.socketpair()
    other_end.close()
    sleeps = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if ended_too or len(sleeps) == 2:
            raise Ended

    monkeypatch.setattr(supernode.time, "sleep", sleep)
    with pytest.raises(Ended):
        supernode._keep(Path("nowhere"), lease)
    assert ("has ended" in capsys.readouterr().err) is not ended_too


def test_logs_of_a_federation_on_one_machine_end_without_colours(tmp_path: Path) -> None:
    log = tmp_path / "superlink.log"
    log.write_bytes(b"\x1b[92mINFO \x1b[0m:      ready\n")
    without_colours(log)
    assert log.read_bytes() == b"INFO :      ready\n"
