"""The program as a user runs it: real processes, real signals."""

import json
import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from feddag.cli import main
from feddag.client.signature import signature

FEDDAG = [sys.executable, "-c", "from feddag.cli import main; main()"]
QUICK = ["--clients", "6", "--set", "groups=3", "--set", "epochs=1", "--set", "participation=0.5"]


def feddag(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "60"}
    return subprocess.run([*FEDDAG, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, env=environment)


def listen_to_signals() -> None:
    """A background job ignores Ctrl-C, and one under nohup a terminal that closes; what they start inherits that."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(*arguments: str | Path, cwd: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*FEDDAG, *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen_to_signals,
    )


def wait_for_rounds(history: Path, rounds: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not (history.exists() and history.read_text().count("\n") >= rounds):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def outcome(directory: Path) -> bytes:
    """result.json but for what may differ."""
    result = json.loads((directory / "result.json").read_text())
    del result["seconds"], result["versions"], result["history_sha256"]
    return json.dumps(result).encode()


def test_a_run_says_what_it_did_and_where(tmp_path: Path) -> None:
    done = feddag("run", "--rounds", "2", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "feddag: round 2/2, accuracy" in done.stdout
    assert "worst decile" in done.stdout
    name = (
        "runs/digits-label-skew-feddag-clients=6-rounds=2-groups=3-participation=0.5-epochs=1-s0"  # what is not usual
    )
    assert f"run directory: {name}\n" in done.stdout
    assert "\x1b" not in done.stdout and "…" not in done.stdout  # piped: no colours, nothing cut off
    assert {path.name for path in (tmp_path / name).iterdir() if path.is_file()} == {
        *(".lock", "experiment.toml", "grouping.safetensors", "history.jsonl", "partition.npz"),
        *("report.html", "result.json", "serving.json"),
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "--method", "feddag-star", "--set", "sources=2"], "'sources' is not a field of method = 'feddag-s"),
        (["run", "--set", "rouns=3"], "'rouns' is not a field of an experiment; did you mean 'rounds'?"),
        (["run", "--method", "fedavgg"], "did you mean 'fedavg'"),
        (["run", "--dataset", "digitz"], "did you mean 'digits'"),
        (["run", "--partition", "natural"], "natural"),
        (["run", "--set", "lr=0"], "lr = 0 is not allowed: it should be greater than 0"),
        (["run", "nowhere.toml"], "experiment file 'nowhere.toml' cannot be read"),
        (["run", "--resume", "nowhere"], "is not a run directory"),
        (["run", "--clients", "9999"], "clients = 9999"),
        (["run", "--clients", "3", "--set", "groups=4"], "groups = 4"),
        (["compare", "--methods", "fedavg,oracel"], "did you mean 'oracle'"),
        (["compare", "--seeds", "0;1"], "--seeds '0;1'"),
        (["compare", "--methods", "fedavg,oracle", "--partition", "dirichlet"], "'oracle' needs true groups"),
        (["run", "--rounds", "many"], "'--rounds'"),
        (["run", "--speed", "9"], "--speed"),
        (["runn"], "runn"),
        (["run", "--method", ".a:X"], "could not be imported"),
        (["run", "--out", "/dev/null/x", "--rounds", "1"], "cannot be used"),
        (["data", "get", "cifar"], "did you mean 'cifar10'"),
        (["data", "show", "--partition", "pares"], "did you mean 'pairs'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(in_tmp: Path, monkeypatch, capsys, arguments, sentence) -> None:
    monkeypatch.setattr(sys, "argv", ["feddag", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    complaint = capsys.readouterr().err
    assert ended.value.code == 2
    assert sentence in complaint
    assert complaint.count("\n") == 1
    assert list(in_tmp.iterdir()) == []


def test_a_mistake_shows_no_traceback_in_a_real_process(tmp_path: Path) -> None:
    done = feddag("run", "--set", "rouns=3", cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_help_fits_on_two_screens(tmp_path: Path) -> None:
    shown = feddag("run", "--help", cwd=tmp_path).stdout
    assert len(shown.splitlines()) <= 48
    assert "--resume" in shown and "--set" in shown


def test_every_field_is_listed(tmp_path: Path) -> None:
    shown = feddag("fields", cwd=tmp_path).stdout
    for name in ("label_fraction", "concentration", "workers", "server_momentum"):
        assert re.search(rf"^{name} ", shown, re.MULTILINE)


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    arguments = ["--rounds", "25", "--method", "local", *QUICK]
    assert feddag("run", *arguments, "--set", "workers=1", "--out", "whole", cwd=tmp_path).returncode == 0
    process = start("run", *arguments, "--set", "workers=2", "--out", "killed", cwd=tmp_path)
    chance, kills = random.Random(0), 0
    while process.poll() is None and kills < 4:
        done = (tmp_path / "killed/history.jsonl").read_text().count("\n") if kills else 0
        wait_for_rounds(tmp_path / "killed/history.jsonl", min(24, done + 1), process)
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.wait()
        kills += 1
        process = start("run", "--resume", "killed", cwd=tmp_path)
    process.communicate()
    assert kills >= 2 and process.returncode == 0
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_ends_cleanly_within_two_seconds_and_says_how_to_resume(tmp_path: Path, signum) -> None:
    process = start("run", "--rounds", "5000", "--out", "r", "--set", "workers=2", *QUICK, cwd=tmp_path)
    wait_for_rounds(tmp_path / "r/history.jsonl", 2, process)
    began = time.monotonic()
    process.send_signal(signum)
    _, complaint = process.communicate(timeout=10)
    assert time.monotonic() - began < 2
    assert process.returncode == 128 + signum
    assert complaint.decode().endswith("feddag: stopped; go on with: feddag run --resume r\n")
    assert "Traceback" not in complaint.decode()


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_later(tmp_path: Path) -> None:
    """The system refuses to let any file grow beyond 20 kB, as a full disk would: a checkpoint is larger."""
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from feddag.cli import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); main()"
    )
    limited = [sys.executable, "-c", program]
    arguments = ["run", "--rounds", "5", *QUICK]
    done = subprocess.run([*limited, *arguments, "--out", "r"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "feddag: the disk is full; make room and go on with: feddag run --resume r\n"
    assert not list((tmp_path / "r").rglob("*.tmp"))
    assert feddag("run", "--resume", "r", cwd=tmp_path).returncode == 0
    assert feddag(*arguments, "--out", "whole", cwd=tmp_path).returncode == 0
    assert outcome(tmp_path / "r") == outcome(tmp_path / "whole")


def test_a_plain_script_may_use_worker_processes(tmp_path: Path) -> None:
    """No `if __name__ == "__main__"` is needed: workers do not import the user's script."""
    (tmp_path / "script.py").write_text(
        "import feddag\n"
        "e = feddag.Experiment(clients=6, groups=3, rounds=1, epochs=1, trainer='torch', workers=2)\n"
        "print(feddag.run(e).accuracy.mean)\n"
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1


def test_compare_keeps_and_reuses_results(tmp_path: Path) -> None:
    arguments = ["--rounds", "2", "--seeds", "0,1", *QUICK]
    first = feddag("compare", "--methods", "fedavg", "--keep", *arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert len(list((tmp_path / "results").glob("*.json"))) == 2
    for path in (tmp_path / "runs").iterdir():
        subprocess.run(["rm", "-r", str(path)], check=True)
    (tmp_path / "results/broken.json").write_text("{")
    second = feddag("compare", "--methods", "fedavg,oracle", "--json", "all.json", *arguments, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    assert second.stdout.count("kept result") == 2  # extended by a method: only that one is run
    assert re.search(r"^oracle +0\.\d{3} ± 0\.\d{3}", second.stdout, re.MULTILINE)
    results = json.loads((tmp_path / "all.json").read_text())
    assert [result["method"] for result in results] == ["fedavg", "fedavg", "oracle", "oracle"]
    checksums = {(result["seed"], result["partition_checksum"]) for result in results}
    assert len(results) == 4 and len(checksums) == 2  # every method on the identical partition


def test_compare_knows_the_fields_and_the_source_of_a_method_of_your_own(tmp_path: Path) -> None:
    source = (
        "from feddag import MethodSettings\n"
        "from feddag.methods.fedavg import FedAvg\n"
        "class Mine(FedAvg):\n"
        "    name = 'mine'\n"
        "    class Settings(MethodSettings):\n"
        "        spice: float = 1.0\n"
    )
    (tmp_path / "mine.py").write_text(source)
    arguments = ["compare", "--methods", "fedavg,mine:Mine", "--set", "spice=2", "--rounds", "1", *QUICK]
    first = feddag(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert feddag(*arguments, cwd=tmp_path).stdout.count("kept result") == 2
    (tmp_path / "mine.py").write_text(source + "# changed\n")
    assert feddag(*arguments, cwd=tmp_path).stdout.count("kept result") == 1


def test_processes_that_share_a_folder_find_their_groups(tmp_path: Path) -> None:
    """Four clients of two kinds, which hold other classes."""
    draw = np.random.default_rng(0)
    means = draw.normal(size=(4, 8, 8))
    for client in range(4):
        y = draw.choice([0, 1] if client % 2 else [2, 3], 40)
        np.savez(tmp_path / f"{client}.npz", x=means[y] + draw.normal(size=(40, 8, 8)), y=y)
        done = feddag("sign", f"{client}.npz", "-o", f"{client}.sig", "--classes", "4", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        size = (tmp_path / f"{client}.sig").stat().st_size
        looks = 4 * (4 * 19 + 190)
        assert 4 * 4 * 3 * 64 + looks < size < 4 * 4 * 3 * 64 + looks + 1000
        content = "4 classes x 3 vectors x 64 features, counts, reliabilities and looks"
        assert done.stdout == f"{client}.sig: {size:,} bytes; {content}\n"
    files = [f"{client}.sig" for client in range(4)]
    done = feddag("group", *files, "--json", "groups.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    table = ["groups", "file   group", "0.sig      0", "1.sig      1", "2.sig      0", "3.sig      1"]
    assert done.stdout.splitlines()[:6] == table
    assert re.search(r"^2 groups, clear \(4 clients, cut at distance 0\.\d{3}\)$", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("group 0 can learn from 1\ngroup 1 can learn from 0\n")
    kept = json.loads((tmp_path / "groups.json").read_text())
    assert kept["groups"] == {"0.sig": 0, "1.sig": 1, "2.sig": 0, "3.sig": 1}
    assert (kept["clusters"], kept["sources"], kept["fusion"]) == (2, [[1], [0]], "clarity")
    assert 0 < kept["threshold"] < 1 and kept["verdict"] == "2 groups, clear"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sign", "words.npz"], "words.npz: y must be one whole number per sample"),
        (["sign", "no-y.npz"], "no-y.npz holds no array 'y'"),
        (["sign", "objects.npz"], "objects.npz"),
        (["sign", "nowhere.npz"], "nowhere.npz"),
        (["sign", "good.npz", "--classes", "2"], "good.npz: y holds labels from 0 to 2, allowed are 0 to 1"),
        (["sign", "good.npz", "--inputs", "row"], "inputs = 'row' is not allowed"),
        (["sign", "good.npz", "-o", "good.npz/a.sig"], "cannot be used"),
        (["group", "good.sig", "bad.sig"], "'bad.sig' is not a signature"),
        (["group", "."], "'bad.sig' is not a signature"),
        (["group", "empty"], "there is no .sig file in empty"),
        (["sign", "good.npz", "good.npz", "-o", "one.sig"], "--out one.sig is not a folder, and there are 2 files"),
        (["sign", "good.npz", "--sketch", "2"], "sketch = 2 is not allowed: it should be at least 3"),
        (["group", "good.sig", "four.sig"], "client four.sig: its signature has vectors (4, 3, 3)"),
        (["group", "good.sig", "--fusion", "gradients"], "did you mean 'gradient'?"),
        (["group", "good.sig", "good.sig", "--fusion", "gradient"], "needs signatures with an update"),
        (["group"], "Missing argument"),
    ],
)
def test_what_cannot_be_signed_or_grouped(in_tmp: Path, monkeypatch, capsys, arguments, sentence) -> None:
    np.savez("words.npz", x=np.ones((2, 3)), y=np.array(["a", "b"]))
    np.savez("no-y.npz", x=np.ones((2, 3)))
    np.savez("objects.npz", x=np.ones((1, 3)), y=np.array([{}]))
    np.savez("good.npz", x=np.eye(3), y=np.arange(3))
    Path("bad.sig").write_bytes(b"no signature at all")
    signature(np.eye(3), np.arange(3)).save("good.sig")
    signature(np.eye(3), np.arange(3), 4).save("four.sig")
    Path("empty").mkdir()
    before = set(in_tmp.iterdir())
    monkeypatch.setattr(sys, "argv", ["feddag", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    complaint = capsys.readouterr().err
    assert ended.value.code == 2 and complaint.count("\n") == 1
    assert complaint.startswith("feddag: ") and sentence in complaint
    assert set(in_tmp.iterdir()) == before


def test_the_picture_of_the_clients(tmp_path: Path) -> None:
    shown = feddag("data", "show", "--clients", "8", "--set", "groups=4", cwd=tmp_path).stdout
    assert "client" in shown and "group" in shown
    assert len([line for line in shown.splitlines() if "█" in line or "▓" in line]) >= 1
    assert "digits" in feddag("data", "list", cwd=tmp_path).stdout


def test_a_terminal_gets_a_live_bar(tmp_path: Path) -> None:
    parent, child = pty.openpty()
    process = subprocess.Popen(
        [*FEDDAG, "run", "--rounds", "3", *QUICK],
        cwd=tmp_path,
        stdout=child,
        stderr=child,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "140"},
    )
    os.close(child)
    seen = b""
    while True:
        try:
            chunk = os.read(parent, 65536)
        except OSError:
            break
        if not chunk:
            break
        seen += chunk
    os.close(parent)
    assert process.wait() == 0
    text = seen.decode()
    assert "━" in text and "3/3" in text and "left" in text and "accuracy" in text
