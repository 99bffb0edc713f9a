"""Real Flower programs on loopback: the same bytes as the local engine, through faults, with TLS and authentication.

Minutes long, and it needs Flower: `make test-flower` runs it.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import feddag
from feddag.deploy.keys import write_node_key
from feddag.deploy.launch import SUPERLINK, LocalFederation, processes_of, up
from feddag.deploy.status import health, read_status
from feddag.records import read_events
from feddag.report.live import LivePage
from feddag.runner.directory import RunDirectory

pytestmark = pytest.mark.skipif("FEDDAG_TEST_FLOWER" not in os.environ, reason="make test-flower runs it")

NODES = 4
QUICK: dict[str, Any] = {"clients": NODES, "groups": 2, "rounds": 3, "epochs": 1, "trainer": "torch", "workers": 1}
ROUND_SECONDS = 600


def experiment(method: str = "feddag", **more: Any) -> feddag.Experiment:
    return feddag.Experiment(method=method, **QUICK | {"participation": 1.0, "finetune": False} | more)


@pytest.fixture
def federate(tmp_path: Path) -> Iterator[Callable[..., LocalFederation]]:
    """A federation with its files written and its nodes started; every process of it is ended afterwards."""
    with contextlib.ExitStack() as stack:

        def start(chosen: feddag.Experiment, tls: bool = False) -> LocalFederation:
            (tmp_path / "here").mkdir()
            here = stack.enter_context(LocalFederation(tmp_path / "here", tmp_path / "logs", tls))
            here.write_app_and_sites(chosen, tmp_path / "run")
            here.start_superlink()
            here.nodes = [here.add_node(client) for client in range(NODES)]  # type: ignore[attr-defined]
            return here

        yield start
    assert processes_of(tmp_path / "here" / "flwr") == set()


def await_round(files: RunDirectory, number: int, run: subprocess.Popen[bytes]) -> None:
    """Until this round is recorded and its checkpoint written."""
    end = time.monotonic() + number * ROUND_SECONDS
    checkpoint = files.path / "checkpoints" / f"round-{number:06d}.safetensors"
    while not checkpoint.exists():
        assert time.monotonic() < end and run.poll() is None, "the run ended or hung"
        time.sleep(0.1)


def await_message(log: Path, run: subprocess.Popen[bytes]) -> None:
    """Until a node has begun to take the next message: killed then, it takes the message with it."""
    known = log.stat().st_size
    while b"Receiving: train.work" not in log.read_bytes()[known:]:
        assert run.poll() is None, "the run ended"
        time.sleep(0.01)


def end_group(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    os.killpg(process.pid, number)
    if number == signal.SIGKILL:
        process.wait()


def assert_same_as_local(files: RunDirectory, chosen: feddag.Experiment, where: Path) -> None:
    """The method's whole memory, bit for bit, and everything that the result says."""
    local = feddag.run(chosen, where)
    ours, theirs = files.load_checkpoint(), RunDirectory(where).load_checkpoint()
    assert ours is not None and theirs is not None
    assert_equal(ours.tree["method"], theirs.tree["method"])
    assert_equal(ours.held, theirs.held)
    result = files.read_result()
    skipped = ("seconds", "versions", "history_sha256")
    assert {k: v for k, v in result.items() if k not in skipped} == {
        k: v for k, v in local.result.items() if k not in skipped
    }
    assert result["answers_missing"] == 0


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert str(one) == str(other)


def test_the_same_bytes_as_the_local_engine_with_tls_and_authentication(federate, tmp_path: Path) -> None:
    chosen = experiment()
    here = federate(chosen, tls=True)
    stranger = tmp_path / "stranger"
    write_node_key(stranger)
    security = ["--root-certificates", here.folder / "keys" / "ca.crt", "--auth-supernode-private-key", stranger]
    refused = here.start_node("stranger", security, client=0)
    keyless = here.start_node("keyless", security[:2], client=0)
    plain = here.start_node("plain", ["--insecure", "--max-retries", "1"], client=0)
    impostor = tmp_path / "impostor"  # registered, and says that it is a client whose key it does not have
    write_node_key(impostor)
    here.call(["flwr", "supernode", "register", impostor.with_suffix(".pub"), SUPERLINK])
    here.start_node("impostor", [*security[:3], impostor], client=0)
    files = RunDirectory(tmp_path / "run")
    here.start_run(files.path)
    here.follow(files)
    assert_same_as_local(files, chosen, tmp_path / "local")
    assert refused.poll() not in (None, 0), "a node with an unknown key was let in"
    assert keyless.poll() not in (None, 0), "a node without a key was let in"
    assert plain.poll() not in (None, 0), "a node without TLS was let in"
    texts = {event["text"] for record in files.read_history() for event in record["events"]}
    assert texts == {"a node was refused: says it is client 0, and its key is not that client's"}


@pytest.mark.parametrize("method", ["feddag", "local"])  # local's models are on the nodes' disks alone
def test_a_node_that_is_killed_and_restarted_changes_nothing(federate, tmp_path: Path, method: str) -> None:
    chosen = experiment(method, rounds=8)
    here = federate(chosen, tls=True)
    files = RunDirectory(tmp_path / "run")
    run = here.start_run(files.path)
    await_round(files, 1, run)
    await_message(tmp_path / "logs" / "node-1.log", run)
    end_group(here.nodes[1])
    supervised = threading.Event()

    def supervise() -> None:
        """What systemd does on a real machine: Flower refuses a node until it has missed the old one's heartbeats."""
        node = here.add_node(1)
        while not supervised.wait(1):
            if node.poll() is not None:
                node = here.add_node(1)

    supervisor = threading.Thread(target=supervise)
    supervisor.start()
    try:
        here.follow(files)
    finally:
        supervised.set()
        supervisor.join()
    assert_same_as_local(files, chosen, tmp_path / "local")
    texts = [event.text for record in files.read_history() for event in read_events(record["events"])]
    assert any("client 1 in round" in text and "lost" in text for text in texts), texts


def test_a_killed_superlink_and_a_resumed_run_change_nothing(federate, tmp_path: Path) -> None:
    chosen = experiment()
    here = federate(chosen)
    files = RunDirectory(tmp_path / "run")
    run = here.start_run(files.path)
    await_round(files, 1, run)
    time.sleep(2)
    end_group(here.superlink)
    await_gone(files)
    end_group(run)
    here.start_superlink()
    here.start_run(files.path, resume=True)
    here.follow(files)
    assert_same_as_local(files, chosen, tmp_path / "local")


def await_gone(files: RunDirectory) -> None:
    """Until the old run's process has let go of the run directory."""
    end = time.monotonic() + 120
    while True:
        try:
            with files.locked():
                return
        except feddag.FeddagError:
            assert time.monotonic() < end
            time.sleep(0.2)


def test_a_dead_and_a_hanging_node_are_left_out(federate, tmp_path: Path) -> None:
    here = federate(experiment("fedavg"))
    files = RunDirectory(tmp_path / "run")
    run = here.start_run(files.path, deadline=75, patience=1)
    await_round(files, 1, run)
    end_group(here.nodes[1])
    end_group(here.nodes[2], signal.SIGSTOP)
    try:
        here.follow(files)
    finally:
        end_group(here.nodes[2], signal.SIGCONT)
    first, second, third = files.read_history()
    assert first["missing"] == {} and sorted(second["missing"]) == ["1", "2"]
    assert second["per_client"][1] is None and second["per_client"][0] is not None
    assert third["clients"] == [0, 3]  # with a patience of one round they have left
    assert sorted((event.kind, event.clients) for event in read_events(third["events"])) == [
        ("leave", (1,)),
        ("leave", (2,)),
    ]


def test_ctrl_c_takes_everything_down_and_resume_goes_on(tmp_path: Path) -> None:
    chosen = experiment("fedavg", rounds=3, clients=2)
    (tmp_path / "e.toml").write_text(chosen.to_toml())
    command = [str(Path(sys.executable).parent / "feddag"), "flower", "up"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "e.toml"), "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores Ctrl-C
    )
    try:
        await_round(RunDirectory(tmp_path / "run"), 1, process)  # type: ignore[arg-type]
        [folder] = tmp_path.glob("feddag-flower-*")
        assert len(processes_of(folder / "flwr")) >= 3
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    assert process.returncode == 130 and "--resume" in said
    assert processes_of(folder / "flwr") == set() and not folder.exists()
    subprocess.run([*command, "--resume", str(tmp_path / "run")], check=True, stdout=subprocess.DEVNULL)
    assert_same_as_local(RunDirectory(tmp_path / "run"), chosen, tmp_path / "local")


def test_the_live_page_and_the_status_follow_a_real_federation(federate, tmp_path: Path) -> None:
    here = federate(experiment("fedavg"))
    files = RunDirectory(tmp_path / "run")
    run = here.start_run(files.path)
    await_round(files, 1, run)
    live = LivePage(files.path, 0)
    serving = threading.Thread(target=live.serve_to_end)
    serving.start()
    answers, levels, here_now = set(), set(), set()
    while run.poll() is None:
        with urllib.request.urlopen(f"{live.address}document.json") as answer:
            answers.add(answer.status)
        status = read_status(files.path)
        levels.add(health(status)[0])
        here_now.add(tuple(status.here))
        time.sleep(0.5)
    with urllib.request.urlopen(f"{live.address}state.json") as answer:
        assert "finished" in json.dumps(json.load(answer))
    urllib.request.urlopen(f"{live.address}document.json?finished").close()
    serving.join(timeout=60)
    assert not serving.is_alive() and answers == {200}
    assert levels == {"OK"} and here_now == {(0, 1, 2, 3)}
    assert {client["version"] for client in read_status(files.path).told["clients"].values()} == {feddag.__version__}
    log = (tmp_path / "logs" / "node-0.log").read_text()
    assert "slow way" not in log and "\x1b[" not in log  # every message was answered by a fork; no colours in a file


def test_the_same_app_on_flowers_simulation_engine(tmp_path: Path) -> None:
    chosen = experiment("local")  # its clients remember
    up(chosen, tmp_path / "run", simulation=True)
    assert_same_as_local(RunDirectory(tmp_path / "run"), chosen, tmp_path / "local")


def test_the_simulation_runs_on_a_ray_cluster_that_is_there(tmp_path: Path, monkeypatch) -> None:
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        chosen = experiment("local")
        up(chosen, tmp_path / "run", simulation=True)
        assert len(cluster.list_all_nodes()) == 3  # it was joined, and is left as it was
    finally:
        cluster.shutdown()
    assert_same_as_local(RunDirectory(tmp_path / "run"), chosen, tmp_path / "local")
