"""What the documentation says can be typed: its Python runs, its commands exist, its links lead somewhere."""

import doctest
import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from feddag.cli import main

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [block for name, block in fenced if name == language]


PYTHON = [
    pytest.param(block, id=f"{page.name}-{n}")
    for page in PAGES
    for n, block in enumerate(blocks(page, "python"))
    if not block.startswith("# test_")  # those need the file before them: the guide is followed as a whole below
]
COMMANDS = sorted(
    {re.split(r" {2,}", line)[0] for page in PAGES for block in blocks(page, "") for line in block.splitlines()
     if line.startswith("feddag ")}
)  # fmt: skip


@pytest.mark.parametrize("block", PYTHON)
def test_python_in_the_documentation_runs(block: str, in_tmp: Path, capsys) -> None:
    exec(compile(block, "documentation", "exec"), {"__name__": "documentation"})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_in_the_documentation_exist(command: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", [*command.split(), "--help"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_tables_show_what_the_kept_results_say(monkeypatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    tables = importlib.import_module("tables")
    for module in (tables, importlib.import_module("measured")):
        assert doctest.testmod(module).failed == 0
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text) == text, f"{page.name}: make tables"
    shown = {path for row in tables.all_rows() for path in tables.files_of(row)}
    assert set((ROOT / "results").glob("*-s[0-9]*.json")) == shown, "a kept result that no table shows"


def test_the_guide_to_a_clustered_method_can_be_followed(in_tmp: Path) -> None:
    """As a reader would: save the files, type the commands, run the test."""
    page = ROOT / "docs" / "clustered-methods.md"
    for block in blocks(page, "python"):
        Path(block.splitlines()[0].removeprefix("# ")).write_text(block)
    commands = [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("feddag ")]
    assert [command.split()[1] for command in commands] == ["compare", "run"]
    for command in [*commands, "python -m pytest -q test_by_head.py"]:
        program, *arguments = command.split()
        done = subprocess.run([Path(sys.executable).parent / program, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit", sorted((ROOT / "docs" / "systemd").iterdir()), ids=lambda path: path.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    text = re.sub(r"/home/feddag/venv/bin/[\w-]+", "/bin/true", unit.read_text()).replace("User=feddag", "User=root")
    (tmp_path / unit.name).write_text(text.replace("WorkingDirectory=/home/feddag", "WorkingDirectory=/"))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / unit.name], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
