"""What an operator is told about a federation: by the engine's file, in a line, in a table and to Prometheus."""

import json
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import feddag
from feddag.cli import app
from feddag.client.step import Result
from feddag.deploy.status import LEVELS, StatusServer, health, metrics, read_status, table
from feddag.engines.flower.status import FILE, Status
from feddag.federation import Reply
from feddag.system import lock
from tests.engines.in_process import run_on_nodes


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The run directory of a small federation."""
    folder = tmp_path_factory.mktemp("federation")
    with pytest.MonkeyPatch.context() as patch:
        chosen = feddag.Experiment(method="fedavg", clients=3, rounds=2, epochs=1, participation=1.0, finetune=False)
        run_on_nodes(chosen, folder, patch)
    return folder / "r"


@pytest.fixture
def told(finished: Path, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of it, and what its status says."""
    for path in finished.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path, json.loads((tmp_path / FILE).read_text())


def test_time_is_counted_by_phase_and_the_file_written_once_a_second(tmp_path: Path) -> None:
    now = 100.0
    status = Status(tmp_path, now=lambda: now)
    status.enter("gathering")
    now = 103.0
    status.see({0: "0.1.0", 1: ""})
    now = 103.5
    status.enter("waiting", 1)
    status.see({0: "0.1.0", 1: ""})
    now = 105.5
    status.answered([Reply(0, [Result()], 5)], {1: "its node was lost"})
    status.see({0: "0.1.0"})
    written = json.loads((tmp_path / FILE).read_text())
    assert written["seconds"] == {"server": 0.0, "gathering": 3.5, "waiting": 2.0} and written["round"] == 1
    assert written["clients"] == {
        "0": {"here": True, "version": "0.1.0", "answered": 105.5, "reason": ""},
        "1": {"here": False, "version": "", "answered": 0.0, "reason": "its node was lost"},
    }
    now = 105.9
    status.answered([Reply(0, [Result()], 5)], {})
    status.see({0: "0.1.0"})
    assert json.loads((tmp_path / FILE).read_text()) == written  # less than a second ago, and nobody came or went


def test_a_finished_federation(finished: Path) -> None:
    status = read_status(finished)
    assert status.state == "finished" and status.here == [0, 1, 2] and status.missing == {}
    level, line = health(status)
    assert level == "OK" and line.startswith("OK: finished; round 2 of 2; 3 clients at the end; last answer ")
    assert "accuracy 0." in line
    assert [row[:3] for row in table(status)] == [[client, "here", feddag.__version__] for client in "012"]


def test_levels(told: tuple[Path, dict[str, Any]]) -> None:
    directory, content = told
    (directory / "result.json").unlink()
    level, line = health(read_status(directory))
    assert level == "CRITICAL" and "the run has stopped and can be resumed" in line
    running = (directory / ".lock").open("w")
    lock(running.fileno())
    assert health(read_status(directory))[0] == "OK"
    content["clients"]["1"] |= {"here": False, "reason": "its node was lost"}
    (directory / FILE).write_text(json.dumps(content))
    level, line = health(read_status(directory))
    assert level == "WARNING" and "missing 1 (its node was lost)" in line
    for client in content["clients"].values():
        client["here"] = False
    (directory / FILE).write_text(json.dumps(content))
    assert health(read_status(directory))[0] == "CRITICAL"


def test_a_server_that_waits_and_says_nothing_hangs(told: tuple[Path, dict[str, Any]]) -> None:
    directory, content = told
    (directory / "result.json").unlink()
    running = (directory / ".lock").open("w")
    lock(running.fileno())

    def said(phase: str, later: float) -> tuple[str, str]:
        (directory / FILE).write_text(json.dumps(content | {"phase": phase}))
        return health(read_status(directory), content["written"] + later)

    assert said("waiting", 50)[0] == said("server", 500)[0] == "OK"
    level, line = said("waiting", 150)
    assert level == "WARNING" and line.endswith("no word from the server for 2 min")


def test_a_finished_run_whose_client_never_answered_is_a_warning(told: tuple[Path, dict[str, Any]]) -> None:
    directory, content = told
    content["clients"]["1"]["reason"] = "its data cannot be used"
    (directory / FILE).write_text(json.dumps(content | {"round": 3}))
    level, line = health(read_status(directory))
    assert level == "WARNING" and line.startswith("WARNING: finished; round 2 of 2; ")


def test_while_clients_connect(told: tuple[Path, dict[str, Any]]) -> None:
    directory, content = told
    (directory / "result.json").unlink()
    (directory / "history.jsonl").unlink()
    running = (directory / ".lock").open("w")
    lock(running.fileno())

    def said(seconds: float, here: int, refused: list[str]) -> tuple[str, str]:
        clients = {str(client): content["clients"][str(client)] | {"answered": 0.0} for client in range(here)}
        gathering = {"phase": "gathering", "round": 0, "seconds": {"gathering": seconds}, "expected": 3}
        (directory / FILE).write_text(json.dumps(content | gathering | {"clients": clients, "refused": refused}))
        return health(read_status(directory))

    assert said(12, 0, [])[0] == said(12, 2, [])[0] == "OK"
    level, line = said(130, 2, [])
    assert (level, line) == (
        "WARNING",
        "WARNING: waiting for clients to connect since 2 min; 2 clients here; no answer yet; "
        "missing 2 (has not connected)",
    )
    assert said(130, 0, [])[0] == "CRITICAL"
    level, line = said(12, 2, ["says it is client 7, and clients = 3"])
    assert level == "WARNING" and line.endswith("refused a node that says it is client 7, and clients = 3")


def test_prometheus_reads_it(told: tuple[Path, dict[str, Any]]) -> None:
    directory, content = told
    content["clients"]["1"]["reason"] = 'said: "no"\\'
    (directory / FILE).write_text(json.dumps(content))
    lines = metrics(read_status(directory)).splitlines()
    assert "feddag_rounds_total 2" in lines and "feddag_clients_here 3" in lines
    assert 'feddag_client_missing{client="1",reason="said: \\"no\\"\\\\"} 1' in lines
    assert sum(line.startswith("feddag_phase_seconds_total{phase=") for line in lines) == 3
    result = json.loads((directory / "result.json").read_text())
    assert f"feddag_payload_up_bytes_total {result['bytes_up']}" in lines
    moment = content["clients"]["0"]["answered"]
    [line] = [line for line in lines if line.startswith('feddag_last_answer_timestamp_seconds{client="0"}')]
    assert float(line.split()[-1]) == pytest.approx(moment, abs=0.001)
    assert len([line for line in lines if line.startswith("# TYPE")]) == len(
        {line.split()[2] for line in lines if "#" in line}
    )


def test_it_is_served_on_loopback_to_names_of_this_machine(told: tuple[Path, dict[str, Any]]) -> None:
    directory, _ = told
    with StatusServer(directory, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert b"feddag_accuracy 0." in urllib.request.urlopen(f"{address}/metrics").read()
        assert urllib.request.urlopen(f"{address}/health").read().startswith(b"OK: finished")
        for request, code in (
            (urllib.request.Request(f"{address}/metrics", headers={"Host": "evil.example:80"}), 403),
            (urllib.request.Request(f"{address}/other"), 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request)
            assert refused.value.code == code
        (directory / "result.json").unlink()
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{address}/health")
        assert refused.value.code == 503 and b"has stopped" in refused.value.read()
        server.shutdown()


def test_the_command(finished: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["flower", "status", str(finished)])
    assert done.exit_code == 0 and "OK: finished" in done.output and "last answer" in done.output
    done = CliRunner().invoke(app, ["flower", "status", str(finished), "--health"])
    assert done.exit_code == LEVELS["OK"] and done.output.count("\n") == 1
    done = CliRunner().invoke(app, ["flower", "status", str(finished), "--metrics"])
    assert done.output.startswith("# HELP feddag_running")
    with pytest.raises(feddag.FeddagError, match="is not the run directory of a federation"):
        read_status(tmp_path)
    (tmp_path / FILE).write_text('{"written": "x"}')
    with pytest.raises(feddag.FeddagError, match="is damaged"):
        read_status(tmp_path)
