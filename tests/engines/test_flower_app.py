"""`feddag flower init`: the app's files, and what is refused."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from feddag.deploy.app import Task
from feddag.experiment import read_experiment


def init(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from feddag.cli import main; main()", "flower", "init", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=os.environ | environment)


def test_the_app_holds_the_experiment_and_what_samples_look_like(in_tmp: Path) -> None:
    (in_tmp / "e.toml").write_text('dataset = "digits"\nclients = 5\nmethod = "fedprox"\nmu = 0.2\n')
    done = init("app", "--experiment", "e.toml")
    assert done.returncode == 0, done.stderr
    written = read_experiment(in_tmp / "app/federation/experiment.toml", {})
    assert written.resolved() == read_experiment(in_tmp / "e.toml", {}).resolved()
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


OWN_METHOD = """
from feddag.methods.fedavg import FedAvg
{imports}

class Mine(FedAvg):
    name = "mine"
"""
OWN_STEP = """
from dataclasses import dataclass
from feddag.client.train import Train

@dataclass(frozen=True)
class Own(Train):
    pass
"""


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def own_files(app: Path) -> set[str]:
    files = {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
    return {name for name in files if not name.startswith("federation/") and name != "pyproject.toml"}


@pytest.mark.parametrize(
    ("method", "files"),
    [
        (
            "mine:Mine",
            {
                "mine.py": OWN_METHOD.format(imports="import steps\nfrom parts.maths import half"),
                "steps.py": OWN_STEP,
                "parts/__init__.py": "",
                "parts/maths.py": "def half(x):\n    return x / 2\n",
            },
        ),
        (
            "lab.methods.mine:Mine",
            {
                "lab/__init__.py": "",
                "lab/methods/__init__.py": "",
                "lab/methods/mine.py": OWN_METHOD.format(imports="from ..steps import Own"),
                "lab/steps.py": OWN_STEP,
            },
        ),
    ],
)
def test_what_an_own_method_imports_travels_too_and_works_from_the_app_alone(
    in_tmp: Path, method: str, files: dict[str, str]
) -> None:
    write_files(in_tmp / "home", files | {"unused.py": "", "e.toml": f'method = "{method}"\n'})
    assert init("../app", "--experiment", "e.toml", cwd=in_tmp / "home").returncode == 0
    assert own_files(in_tmp / "app") == set(files)
    assert all((in_tmp / "app" / name).read_text() == text for name, text in files.items())
    (in_tmp / "home").rename(in_tmp / "gone")
    step = next(name for name in files if name.endswith("steps.py")).removesuffix(".py").replace("/", ".")
    on_node = f"from feddag.deploy.node import known_steps; assert '{step}:Own' in known_steps('{method}')"
    subprocess.run([sys.executable, "-c", on_node], cwd=in_tmp / "app", check=True)


def test_what_feddag_brings_itself_does_not_travel(in_tmp: Path) -> None:
    (in_tmp / "e.toml").write_text('model = "feddag.bench.peers:m1"\n')
    assert init("app", "--experiment", "e.toml").returncode == 0
    assert own_files(in_tmp / "app") == set()


def test_own_code_that_cannot_travel_is_refused_before_anything_is_written(in_tmp: Path) -> None:
    write_files(
        in_tmp,
        {
            "home/mine.py": OWN_METHOD.format(imports="import elsewhere"),
            "home/taken.py": OWN_METHOD.format(imports="import federation"),
            "home/federation.py": "",
            "other/elsewhere.py": "",
        },
    )
    for method, reason in (("mine:Mine", "keep it in one folder"), ("taken:Mine", "the app has its own; rename yours")):
        (in_tmp / "home/e.toml").write_text(f'method = "{method}"\n')
        done = init("app", "--experiment", "e.toml", cwd=in_tmp / "home", PYTHONPATH=str(in_tmp / "other"))
        assert done.returncode == 2 and reason in done.stderr and done.stderr.count("\n") == 1
        assert not (in_tmp / "home/app").exists()


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


@pytest.mark.parametrize(("told", "ends"), [("--parent-pid", True), ("--insecure", False)])
def test_a_server_that_lost_its_superlink_lets_go_of_the_run_directory_even_if_it_hangs(told: str, ends: bool) -> None:
    hanging = (
        "import signal, time\n"
        "from feddag.deploy.server import end_with_parent\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "end_with_parent(grace=0.1)\n"
        "print('ready', flush=True)\n"
        "time.sleep(5)\n"
        "print('still here', flush=True)\n"
    )
    starting = (
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {hanging!r}, {told!r}])\n"
        "sys.stdin.readline()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", starting], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdin is not None and parent.stdout is not None
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    assert ("still here" in parent.stdout.read()) is not ends  # read() returns when the child is gone
    parent.wait()
