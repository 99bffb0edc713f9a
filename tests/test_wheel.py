"""The wheel: built from this tree, installed into an environment of its own, and used there as a new user would."""

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import feddag

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
IMPORTED_AS = {"pillow": "PIL", "scikit-learn": "sklearn", "typing-extensions": "typing_extensions"}


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of what is in the tree; without the native trainer, whose compiling takes minutes."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "feddag", folder / "feddag", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "-w", "dist")
    call(sys.executable, "-m", "pip", "wheel", *options, ".", cwd=folder, CXX="false", CC="false")
    [built] = (folder / "dist").glob("feddag-*.whl")
    return built


@pytest.fixture(scope="module")
def fresh(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel, and with what it depends on from this one; nothing of this tree."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env", with_pip=False)
    python = folder / "env/bin/python"
    [site] = (folder / "env/lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    call(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    return folder / "env/bin"


def test_what_is_installed_is_what_the_wheel_brought(fresh: Path, tmp_path: Path) -> None:
    program = "import feddag; print(feddag.__file__); print(feddag.__version__)"
    place, version = call(fresh / "python", "-c", program, cwd=tmp_path).split()
    assert Path(place).is_relative_to(fresh.parent) and version == feddag.__version__
    assert call(fresh / "feddag", "--version", cwd=tmp_path) == f"feddag {version}\n"


def test_a_run_its_page_and_its_model_in_a_fresh_environment(fresh: Path, tmp_path: Path) -> None:
    options = ("--clients", "3", "--rounds", "1", "--set", "groups=1", "--set", "epochs=1", "--out", "r")
    shown = call(fresh / "feddag", "run", "--method", "fedavg", *options, cwd=tmp_path, OMP_NUM_THREADS="1")
    assert "run directory: r" in shown and (tmp_path / "r/report.html").stat().st_size > 1000
    program = (
        "import feddag, numpy; print(feddag.load('r').model(0).predict(numpy.zeros((1, 8, 8)))[0] in '0123456789')"
    )
    assert call(fresh / "python", "-c", program, cwd=tmp_path).strip() == "True"


def test_the_wheel_holds_all_that_is_not_code(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    data = [path for ending in ("css", "js", "toml") for path in (ROOT / "feddag").rglob(f"*.{ending}")]
    wanted = {str(path.relative_to(ROOT)) for path in [*data, *(ROOT / "feddag").rglob("*.py")]} | {"feddag/py.typed"}
    assert len(data) > 2 and wanted <= held
    assert not [name for name in held if name.startswith(("tests", "docs", "results"))]


def imported_at_once(path: Path) -> set[str]:
    """The packages that a module imports whenever it is imported: not those inside functions, or for types only."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "").partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"feddag"}


def test_every_package_that_is_imported_is_a_dependency() -> None:
    names = [re.split(r"[<>=\[]", need)[0] for need in PROJECT["dependencies"]]
    declared = {IMPORTED_AS.get(name, name) for name in names}
    extras = {"bench/peers.py", "engines/flower/grid.py", "deploy/keys.py"}  # imported only where an extra is wanted
    for path in (ROOT / "feddag").rglob("*.py"):
        if str(path.relative_to(ROOT / "feddag")) not in extras:
            assert imported_at_once(path) <= declared, path


def test_the_documented_ways_to_install_name_extras_that_exist() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    told = {extra for page in pages for extra in re.findall(r"pip install '[^'\[]+\[([\w,-]+)\]'", page.read_text())}
    code = "".join(path.read_text() for path in (ROOT / "feddag").rglob("*.py"))
    told |= set(re.findall(r"pip install '(?:feddag|\.)\[([\w,-]+)\]'", code))
    assert {"onnx", "tables", "flower"} <= told <= set(PROJECT["optional-dependencies"])
