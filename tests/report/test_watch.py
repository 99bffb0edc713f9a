"""The live page with a real run in a process of its own, and the terminal."""

import http.client
import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from feddag.errors import FeddagError
from feddag.report.watch import Watch, is_running, state_of
from tests.test_cli import FEDDAG, QUICK, feddag


@contextmanager
def started(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*FEDDAG, *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(true, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@contextmanager
def watched_run(tmp_path: Path, rounds: int) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], str]]:
    """A run, a watcher of it, and the watcher's address."""
    with started("run", "--rounds", str(rounds), "--out", "r", *QUICK, cwd=tmp_path) as run:
        until((tmp_path / "r/history.jsonl").exists)
        with started("watch", "r", cwd=tmp_path) as watcher:
            assert watcher.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:\d+/", watcher.stdout.readline())
            assert address is not None
            yield run, watcher, address[0]


def test_it_follows_a_run_and_stops_with_it(tmp_path: Path) -> None:
    with watched_run(tmp_path, rounds=400) as (run, watcher, address):
        page = urlopen(address).read().decode()
        assert "data-live" in page and "connect-src 'self'" in page
        first = json.loads(urlopen(address + "state.json").read())
        assert first["said"].startswith("running") and not first["over"]
        until(lambda: json.loads(urlopen(address + "state.json").read())["stamp"] != first["stamp"])
        assert json.loads(urlopen(address + "document.json").read())["title"] == "feddag on digits"
        assert run.wait(60) == 0
        said, complaint = watcher.communicate(timeout=20)
        assert (watcher.returncode, complaint) == (0, "")
        assert said == "the run has finished after 400 rounds\n"


def test_it_notices_a_run_that_was_killed(tmp_path: Path) -> None:
    with watched_run(tmp_path, rounds=100_000) as (run, watcher, _):
        run.kill()
        run.wait()
        said, _ = watcher.communicate(timeout=20)
        assert re.fullmatch(r"the run has stopped after \d+ rounds; it can be resumed\n", said)
    assert not is_running(tmp_path / "r")
    assert state_of(tmp_path / "r").over


def test_only_this_machine_is_answered_and_only_what_there_is(real_run: Path) -> None:
    watch = Watch(real_run)
    assert watch.server.server_address[0] == "127.0.0.1"
    thread = threading.Thread(target=watch.serve_to_end)
    thread.start()
    codes = {}
    for host, path in [("evil.example", "/"), ("localhost", "/state.json"), ("127.0.0.1", "/../experiment.toml")]:
        connection = http.client.HTTPConnection("127.0.0.1", watch.server.server_port)
        connection.request("GET", path, headers={"Host": f"{host}:{watch.server.server_port}"})
        codes[host, path] = connection.getresponse().status
        connection.close()
    watch.seen_the_end.set()
    thread.join(20)
    assert list(codes.values()) == [403, 200, 404]


def test_what_is_no_run_or_no_free_port_is_refused(real_run: Path, tmp_path: Path) -> None:
    with pytest.raises(FeddagError, match="is not a run directory"):
        Watch(tmp_path)
    taken = Watch(real_run)
    port = taken.server.server_port
    with pytest.raises(FeddagError, match=f"--port {port} cannot be used"):
        Watch(real_run, port)
    taken.server.server_close()


def test_the_essentials_are_shown(real_run: Path) -> None:
    done = feddag("show", real_run, cwd=real_run)
    result = json.loads((real_run / "result.json").read_text())
    assert done.returncode == 0, done.stderr
    assert "feddag on digits, label-skew, seed 0; 4 of 4 rounds" in done.stdout
    assert f"{result['accuracy']['mean']:.3f}" in done.stdout
    assert "accuracy by round: " in done.stdout and "worst served: client" in done.stdout
    assert "drifted and" in done.stdout or "changed cluster" in done.stdout


def test_history_loads_in_one_line_of_pandas(real_run: Path) -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.read_json(real_run / "history.jsonl", lines=True)
    assert table["round"].tolist() == [1, 2, 3, 4]


def test_the_report_can_be_left_out_and_the_logger_must_be_known(tmp_path: Path) -> None:
    done = feddag("run", "--rounds", "1", "--no-report", "--out", "r", *QUICK, cwd=tmp_path)
    assert done.returncode == 0 and "report:" not in done.stdout
    assert not (tmp_path / "r/report.html").exists()
    done = feddag("run", "--rounds", "1", "--log", "tensorbord", *QUICK, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "did you mean 'tensorboard'?" in done.stderr
