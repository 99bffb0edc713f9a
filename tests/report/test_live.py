"""The live page with a real run in a process of its own, and the terminal."""

import http.client
import io
import json
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pandas
import pytest
from rich.console import Console

import feddag
from feddag.deploy import server
from feddag.errors import FeddagError
from feddag.report.live import MOST_CONNECTIONS, LivePage, read_state
from feddag.report.terminal import show_run
from feddag.runner.directory import RunDirectory
from tests.engines.in_process import serve, write_federation
from tests.report.conftest import HOSTILE, HOSTILE_FILE, made_by_hand
from tests.test_cli import FEDDAG, QUICK
from tests.test_cli import feddag as command

PATIENCE = 120  # seconds: the machine may be busy
PACED = """
import sys, feddag
experiment = feddag.Experiment(clients=6, groups=3, epochs=1, rounds=3, workers=1)
feddag.run(experiment, "r", observer=lambda record: sys.stdin.readline())
"""


@contextmanager
def started(command: list[str], cwd: Path) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=cwd, text=True, **pipes)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def paced_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of three rounds in `folder/r` that stops after each and goes on when it is told a line."""
    with started([sys.executable, "-c", PACED], folder) as run:
        until(lambda: (folder / "r/history.jsonl").exists() or run.poll() is not None)
        assert run.poll() is None, run.stderr and run.stderr.read()
        yield run


def go_on(run: subprocess.Popen[str]) -> None:
    assert run.stdin is not None
    run.stdin.write("\n")
    run.stdin.flush()


def go_to_end(run: subprocess.Popen[str]) -> None:
    assert run.stdin is not None
    run.stdin.close()
    run.stdin = None  # communicate() would flush it
    assert run.wait(PATIENCE) == 0


@contextmanager
def watched_run(folder: Path) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], str]]:
    """A paced run, `feddag watch` beside it, and the address that it says."""
    with paced_run(folder) as run, started([*FEDDAG, "watch", "r"], folder) as watcher:
        assert watcher.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:\d+/", watcher.stdout.readline())
        assert address is not None
        yield run, watcher, address[0]


def fetched(address: str) -> Any:
    return json.loads(urlopen(address).read())


def test_it_follows_a_run_and_stops_with_it(tmp_path: Path) -> None:
    with watched_run(tmp_path) as (run, watcher, address):
        page = urlopen(address).read().decode()
        assert "data-live" in page and "connect-src 'self'" in page
        first = fetched(address + "state.json")
        assert (first["text"], first["over"]) == ("running, 1 round done", False)
        assert fetched(address + "document.json")["title"] == "feddag on digits"
        go_on(run)
        until(lambda: fetched(address + "state.json")["text"] == "running, 2 rounds done")
        assert fetched(address + "state.json")["stamp"] != first["stamp"]
        go_to_end(run)
        last = fetched(address + "state.json")
        assert (last["text"], last["over"]) == ("finished after 3 rounds", True)
        fetched(address + "document.json?" + quote(last["stamp"]))  # as an open page does: then all is seen
        said, complaint = watcher.communicate(timeout=PATIENCE)
        assert (watcher.returncode, complaint) == (0, "")
        assert said == "the run has finished after 3 rounds\n"


def test_it_notices_a_run_that_was_killed(tmp_path: Path) -> None:
    with paced_run(tmp_path) as run:
        live = LivePage(tmp_path / "r")
        assert not read_state(tmp_path / "r").over
        run.kill()
        run.wait()
    live.seen_the_end.set()  # nobody looks
    assert live.serve_to_end().text == "stopped after 1 round; it can be resumed"
    assert not RunDirectory(tmp_path / "r").is_running()


def test_a_run_on_flower_is_watched_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = feddag.Experiment(clients=3, groups=3, epochs=1, rounds=2, trainer="torch")
    write_federation(experiment, tmp_path)
    seen = []

    def look(record: dict[str, Any]) -> None:  # after each round, while the server app is at work
        state, document = json.loads(live.answer("/state.json")[0]), json.loads(live.answer("/document.json")[0])
        seen.append((state["text"], {section["id"] for section in document["sections"]}))

    monkeypatch.setattr(server, "_say", look)
    (tmp_path / "r").mkdir()
    (tmp_path / "r/experiment.toml").write_text(experiment.to_toml())
    live = LivePage(tmp_path / "r")
    serve(tmp_path, 3, monkeypatch)
    live.seen_the_end.set()
    assert live.serve_to_end().text == "finished after 2 rounds"
    assert [said for said, _ in seen] == ["running, 1 round done", "running, 2 rounds done"]
    told = {"learning", "proximity-matrix", "number", "holdings", "clients", "experiment"}
    assert all(told <= sections for _, sections in seen)


def threads_of(process: subprocess.Popen[str]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Threads"))


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_connections_that_ask_for_nothing_hold_few_threads_and_not_for_long(tmp_path: Path) -> None:
    with watched_run(tmp_path) as (_, watcher, address):
        fetched(address + "state.json")
        before = threads_of(watcher)
        port = int(address.rstrip("/").rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(400)]
        began = time.monotonic()
        assert fetched(address + "state.json")["text"] == "running, 1 round done"
        assert time.monotonic() - began < PATIENCE / 4
        assert threads_of(watcher) <= before + MOST_CONNECTIONS + 1
        until(lambda: all(map(is_closed, idle)))
        until(lambda: threads_of(watcher) <= before)
        for connection in idle:
            connection.close()


def test_a_browser_that_goes_away_is_no_error(real_run: Path, capsys) -> None:
    live = LivePage(real_run)
    thread = threading.Thread(target=live.server.serve_forever)
    thread.start()
    for _ in range(3):
        connection = socket.create_connection(("127.0.0.1", live.server.server_port))
        connection.sendall(b"GET / HTTP/1.0\r\nHost: localhost:1\r\n\r\n")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # slams the door
        connection.close()
    assert fetched(live.address + "state.json")["over"]
    live.server.shutdown()
    live.server.server_close()
    thread.join()
    assert capsys.readouterr().err == ""


def test_only_this_machine_is_answered_and_only_what_there_is(real_run: Path) -> None:
    live = LivePage(real_run)
    assert live.server.server_address[0] == "127.0.0.1"
    thread = threading.Thread(target=live.server.serve_forever)
    thread.start()
    codes = {}
    for host, path in [("evil.example", "/"), ("localhost", "/state.json"), ("127.0.0.1", "/../experiment.toml")]:
        connection = http.client.HTTPConnection("127.0.0.1", live.server.server_port)
        connection.request("GET", path, headers={"Host": f"{host}:{live.server.server_port}"})
        codes[host, path] = connection.getresponse().status
        connection.close()
    live.server.shutdown()
    live.server.server_close()
    thread.join()
    assert list(codes.values()) == [403, 200, 404]


def test_what_is_no_run_or_no_free_port_is_refused(real_run: Path, tmp_path: Path) -> None:
    with pytest.raises(FeddagError, match="is not a run directory"):
        LivePage(tmp_path)
    taken = LivePage(real_run)
    port = taken.server.server_port
    with pytest.raises(FeddagError, match=f"--port {port} cannot be used"):
        LivePage(real_run, port)
    taken.server.server_close()


def test_the_essentials_are_shown(real_run: Path) -> None:
    done = command("show", real_run, cwd=real_run)
    result = json.loads((real_run / "result.json").read_text())
    assert done.returncode == 0, done.stderr
    assert "feddag on digits, label-skew, seed 0; 4 of 4 rounds" in done.stdout
    assert f"{result['accuracy']['mean']:.3f}" in done.stdout
    assert "accuracy by round: " in done.stdout and "lowest accuracy: client" in done.stdout
    assert "drifted and" in done.stdout or "changed cluster" in done.stdout


def test_hostile_names_are_text_in_the_terminal(hostile_run: Path) -> None:
    done = command("show", hostile_run, cwd=hostile_run)
    assert done.returncode == 0, done.stderr
    assert f"feddag on {hostile_run.parent / HOSTILE_FILE}, natural" in done.stdout
    written = io.StringIO()
    show_run(Console(file=written, force_terminal=True, color_system=None), made_by_hand(3, HOSTILE[-3:]))
    assert all(part in written.getvalue() for part in ("[red]bold[/red] 0.", "evil 0.", f"{HOSTILE[-3]} 0."))
    assert not set("\x07\u202e") & set(done.stdout + written.getvalue()) and "\x1b]0" not in written.getvalue()


def test_history_loads_in_one_line_of_pandas(real_run: Path) -> None:
    table = pandas.read_json(real_run / "history.jsonl", lines=True)
    assert table["round"].tolist() == [1, 2, 3, 4]
    means = [record["accuracy"]["mean"] for record in feddag.load(real_run).history]
    assert table["accuracy"].str["mean"].tolist() == pytest.approx(means, rel=1e-12)  # pandas rounds its own way


def test_the_report_can_be_left_out_and_the_logger_must_be_known(tmp_path: Path) -> None:
    done = command("run", "--rounds", "1", "--no-report", "--out", "r", *QUICK, cwd=tmp_path)
    assert done.returncode == 0 and "report:" not in done.stdout
    assert not (tmp_path / "r/report.html").exists()
    done = command("run", "--rounds", "1", "--log", "tensorbord", *QUICK, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean 'tensorboard'?" in done.stderr
