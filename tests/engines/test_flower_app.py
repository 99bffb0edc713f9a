"""`feddag flower init`: the app's files, and what is refused."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from feddag.deploy.app import Task
from feddag.experiment import read_experiment


def init(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from feddag.cli import main; main()", "flower", "init", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_app_holds_the_experiment_and_what_samples_look_like(in_tmp: Path) -> None:
    (in_tmp / "e.toml").write_text('dataset = "digits"\nclients = 5\nmethod = "fedprox"\nmu = 0.2\n')
    done = init("app", "--experiment", "e.toml")
    assert done.returncode == 0, done.stderr
    assert read_experiment(in_tmp / "app/federation/experiment.toml", {}) == read_experiment(in_tmp / "e.toml", {})
    task = Task.read(in_tmp / "app/federation")
    assert task.sample_shape == (8, 8, 1) and task.classes == tuple("0123456789")
    about = tomllib.loads((in_tmp / "app/pyproject.toml").read_text())
    assert about["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "federation.server:app",
        "clientapp": "federation.client:app",
    }
    assert about["tool"]["flwr"]["app"]["config"]["minimum"] == 2 and about["project"]["dependencies"] == []
    assert sum(path.stat().st_size for path in in_tmp.glob("app/**/*") if path.is_file()) < 10_000


def test_a_method_of_the_users_own_travels_with_the_app(in_tmp: Path) -> None:
    (in_tmp / "mine.py").write_text(
        "from feddag.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'mine'\n"
    )
    (in_tmp / "e.toml").write_text('method = "mine:Mine"\n')
    assert init("app", "--experiment", "e.toml").returncode == 0
    assert (in_tmp / "app/mine.py").read_text() == (in_tmp / "mine.py").read_text()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('dataset = "absent.npz"', "absent.npz"),
        ('model = "lenet5"\ndataset = "points.npz"', "model = 'lenet5' cannot take samples"),
        ('method = "nonsense"', "method = 'nonsense' is not a method"),
    ],
)
def test_what_cannot_work_is_refused_at_once(in_tmp: Path, text: str, reason: str) -> None:
    import numpy as np

    np.savez(in_tmp / "points.npz", x=np.zeros((20, 3), np.float32), y=np.arange(20) % 2)
    (in_tmp / "e.toml").write_text(text)
    done = init("app", "--experiment", "e.toml")
    assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
    assert not (in_tmp / "app").exists()


def test_a_folder_that_holds_something_is_left_alone(in_tmp: Path) -> None:
    (in_tmp / "e.toml").write_text("")
    assert init(".", "--experiment", "e.toml").returncode == 2
    assert [path.name for path in in_tmp.iterdir()] == ["e.toml"]


def test_a_core_without_flower() -> None:
    """Nothing but the late imports needs Flower: the package, its commands and the engine load without it."""
    block = "import sys; sys.modules['flwr'] = None; sys.modules['cryptography'] = None; import feddag.cli, "
    modules = "feddag.deploy.node, feddag.deploy.server, feddag.bench.flower"
    subprocess.run([sys.executable, "-c", block + modules], check=True)


def test_up_refuses_what_cannot_work_before_anything_is_started(in_tmp: Path) -> None:
    pytest.importorskip("flwr")
    command = [sys.executable, "-c", "from feddag.cli import main; main()", "flower", "up", "--out", "run"]
    for setting, reason in (("model=nonsense", "model = 'nonsense'"), ("dataset=absent", "absent")):
        done = subprocess.run([*command, "--nodes", "2", "--set", setting], capture_output=True, text=True)
        assert done.returncode == 2 and reason in done.stderr
        assert not (in_tmp / "run").exists()
