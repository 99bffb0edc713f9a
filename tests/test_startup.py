"""Help, mistakes in typing and `import feddag` load nothing heavy, and help reads well."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

import feddag
from feddag.cli import app, main
from feddag.cli.grouping import FUSION_NAMES
from feddag.server.grouping import FUSIONS

HEAVY = {"torch", "numpy", "scipy", "sklearn", "pydantic", "plotly", "pandas", "PIL"}
CALLED = "from feddag.cli import main; main()"


def loaded_by(program: str, *arguments: str) -> tuple[set[str], str]:
    """Which heavy packages a program loads in a process of its own, and what it wrote."""
    told = f"import sys\ntry:\n    {program}\nfinally:\n    print('\\nloaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", told, *arguments], capture_output=True, text=True)
    written, _, modules = done.stdout.rpartition("\nloaded")
    assert "feddag" in modules.split(), done.stderr
    return HEAVY & set(modules.split()), written + done.stderr


@pytest.mark.parametrize(
    "arguments",
    [[], ["--help"], ["-h"], ["--version"], ["run", "--help"], ["run", "-h"], ["group", "-h"], ["flower", "up", "-h"]],
)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    loaded, written = loaded_by(CALLED, *arguments)
    assert loaded == set() and ("Usage: " in written or written == f"feddag {feddag.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nosuchcommand"], "'nosuchcommand' is not a command of `feddag`; allowed are run, compare,"),
        (["runn"], "; did you mean 'run'?"),
        (["data", "lst"], "is not a command of `feddag data`; allowed are list, get, show; did you mean 'list'?"),
        (["run", "--speed", "9"], "No such option"),
        (["run", "--rounds", "many"], "'many' is not a valid integer"),
        (["data", "get"], "Missing argument"),
    ],
)
def test_a_mistake_in_typing_loads_nothing_heavy(arguments: list[str], sentence: str) -> None:
    loaded, written = loaded_by(CALLED, *arguments)
    assert loaded == set() and sentence in written and written.count("\n") == 1


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import feddag; dir(feddag)") == (set(), "")
    assert loaded_by("from feddag import FeddagError") == (set(), "")
    assert "torch" in loaded_by("from feddag import Experiment")[0]


def test_every_public_name_is_there_at_its_first_use() -> None:
    assert set(feddag.__all__) <= set(dir(feddag))
    assert {name for name in feddag.__all__ if getattr(feddag, name) is None} == set()
    assert feddag.run is __import__("feddag.report.presented", fromlist=["run"]).run
    names: dict[str, Any] = {}
    exec("from feddag import *\nfrom feddag import native", names)
    assert set(feddag.__all__) < set(names) and names["native"] is feddag.native
    assert feddag.experiment.Experiment is feddag.Experiment
    with pytest.raises(AttributeError, match="module 'feddag' has no attribute 'rum'"):
        feddag.rum  # noqa: B018


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """Every command that can be typed."""
    yield before
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *before, name)


@pytest.mark.parametrize("path", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_help_is_whole_and_plain(path: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("sys.argv", ["feddag", *path, "-h"])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main()
    shown = capsys.readouterr().out
    assert not ended.value.code
    assert "\\" not in shown and "-h, --help" in shown and shown.count("rguments:") <= 1
    listed = [line for line in shown.splitlines() if line.startswith("  ")]
    assert not [line for line in listed if line.endswith("...")], "a command's first line is too long for the list"
    for title in ("Arguments:\n", "Options:\n", "Commands:\n"):  # each line says what it is for
        for line in shown.partition(title)[2].partition("\n\n")[0].splitlines():
            assert "  " in line.strip() or line.startswith("   "), line


def test_the_help_names_every_way_to_fuse() -> None:
    assert FUSION_NAMES == FUSIONS
