"""Text that anybody may have written: experiment files, settings, names, and code that does not fit."""

import os
import signal
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from feddag.cli import main
from feddag.console import show_table
from feddag.errors import FeddagError
from feddag.experiment import Experiment, read_experiment
from feddag.fields import parse_setting
from feddag.files import parse_toml
from tests.test_cli import feddag

OWN = """
from torch import nn
from feddag import MethodSettings
from feddag.methods.fedavg import FedAvg

def one(shape): return nn.Flatten(), nn.Linear(64, 10)
def three(shape, classes, depth): return nn.Flatten(), nn.Linear(64, 10)
def alone(shape, classes): return nn.Linear(64, 10)
def words(shape, classes): return "encoder", "head"
constant = 3

class Greedy(FedAvg):
    name = "greedy"
    def __init__(self, settings, more): pass

class Poor(FedAvg):
    name = "poor"
    def __init__(self): pass

class Untyped(FedAvg):
    name = "untyped"
    Settings = {"mu": 1}
"""


def complaint(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What the program complains about, in one line of harmless text and with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["feddag", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2, said
    assert said.startswith("feddag: ") and said.endswith("\n") and len(said) < 3000
    assert said[:-1].isprintable() and len(said.splitlines()) == 1
    return said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a = " + "[" * 20_000, "nested too deeply"),
        ("a = " + "{a = " * 20_000, "nested too deeply"),
        ("rounds = " + "9" * 5000, "is not valid TOML"),
        ("rounds = " + "9" * 4000, "rounds = 9999"),
        ("a" + ".a" * 100_000 + " = 1", "hundreds of dots"),
        ("x" * 5000 + " = 1", "is not a field of an experiment"),
        ("self = 1", "'self' is not a field of an experiment"),
        ("cls = 1", "'cls' is not a field of an experiment"),
        ("values = 1", "'values' is not a field of an experiment"),
        ('dataset = "~nobody-of-this-name/x"', "~nobody-of-this-name"),
        ('partition = "' + "x" * 5000 + '"', "is not a partition"),
        ('"\\u001b[2J\\n" = 1', "is not a field of an experiment"),
        ('method = "\\u001b]0;taken\\u0007\\n"', "is not a method"),
        ('method = "nowhere:\\u001b[2J\\nX"', "could not be imported"),
        ("#" * 2**21, "is too large: allowed are 1 MB"),
        ("\0", "is not valid TOML"),
    ],
)
def test_any_text_is_an_experiment_or_one_sentence(in_tmp: Path, text: str, sentence: str, monkeypatch, capsys) -> None:
    Path("e.toml").write_text(text)
    assert sentence in complaint(["run", "e.toml"], monkeypatch, capsys)
    assert sorted(path.name for path in in_tmp.iterdir()) == ["e.toml"]


@pytest.mark.parametrize("path", ["/dev/zero", ".", "/dev/stdin", "pipe", "/proc/self/mem", "no\nfile", "\x1b[2J.toml"])
def test_what_is_no_file_is_refused_at_once(in_tmp: Path, path: str, monkeypatch, capsys) -> None:
    os.mkfifo("pipe")
    complaint(["run", path], monkeypatch, capsys)


def test_an_experiment_may_be_a_link(in_tmp: Path) -> None:
    Path("real.toml").write_text("rounds = 3\n")
    Path("e.toml").symlink_to("real.toml")
    assert read_experiment(Path("e.toml"), {}).rounds == 3


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("lr=0.1\nrounds=3", "is not one line"),
        ("lr=0.1\r\nrounds=3", "is not one line"),
        ("dataset=a\u2028b", "is not one line"),
        ("rounds=" + "9" * 5000, "cannot be read"),
        ("rounds=" + "9" * 4000, "too large a number"),
        ("rounds=-" + "9" * 300, "too large a number"),
        ("corruptions=" + "[" * 20_000, "nested too deeply"),
        ("\x1b[2J=1", "is not a field"),
        ("x" * 100_000, "is not of the form key=value"),
    ],
)
def test_a_setting_is_one_line_that_can_be_read(in_tmp: Path, setting: str, sentence: str, monkeypatch, capsys) -> None:
    assert sentence in complaint(["run", "--set", setting], monkeypatch, capsys)


def test_a_setting_keeps_all_that_was_given() -> None:
    assert parse_setting("mix=a # b") == ("mix", "a # b")
    assert parse_setting('mix="1:2" # a note') == ("mix", "1:2")
    assert parse_setting("lr = 0.5 ") == ("lr", 0.5)


@pytest.mark.parametrize("value", [10**5000, -(10**400), 2**64], ids=["5000 digits", "400 digits", "64 bits"])
def test_a_number_beyond_all_bounds_is_refused_in_python_too(value: int) -> None:
    with pytest.raises(FeddagError, match="too large a number"):
        Experiment(rounds=value)
    with pytest.raises(FeddagError, match="rounds = "):
        Experiment(rounds=[value])
    assert Experiment(seed=2**64).seed == 2**64


def test_dots_in_values_are_no_matter() -> None:
    assert parse_toml('dataset = "../../data/v1.2/x.npz"\nmix = [0.1, 0.2, 0.3]')["mix"] == [0.1, 0.2, 0.3]


@pytest.mark.parametrize(
    ("field", "name", "sentence"),
    [
        ("model", "one", "it has to be a function of (shape, num_classes)"),
        ("model", "three", "it has to be a function of (shape, num_classes)"),
        ("model", "constant", "it has to be a function of (shape, num_classes)"),
        ("model", "Poor", "it has to be a function of (shape, num_classes)"),
        ("model", "alone", "it has to return two modules"),
        ("model", "words", "it has to return two modules"),
        ("method", "Greedy", "its __init__ has to take settings and no more"),
        ("method", "Poor", "its __init__ has to take settings and no more"),
        ("method", "Untyped", "its Settings is no feddag.MethodSettings"),
        ("method", "one", "is not a subclass of feddag.Method"),
    ],
)
def test_own_code_that_does_not_fit_is_one_sentence(in_tmp: Path, field, name, sentence, monkeypatch, capsys) -> None:
    Path("unfit.py").write_text(OWN)
    sys.modules.pop("unfit", None)
    assert sentence in complaint(["run", "--set", f"{field}=unfit:{name}"], monkeypatch, capsys)


@pytest.mark.parametrize(
    "source", ["raise RuntimeError('\\x1b[2J\\nsecond line')", "def (:", "import nowhere", "1 / 0"]
)
def test_own_code_that_cannot_be_imported_is_one_harmless_sentence(in_tmp: Path, source, monkeypatch, capsys) -> None:
    Path("broken.py").write_text(source)
    sys.modules.pop("broken", None)
    assert "could not be imported" in complaint(["run", "--method", "broken:Method"], monkeypatch, capsys)


def test_a_bug_of_ones_own_is_shown_with_its_place_and_without_what_a_terminal_obeys(tmp_path: Path) -> None:
    (tmp_path / "buggy.py").write_text(
        "from feddag.methods.fedavg import FedAvg\n"
        "class Buggy(FedAvg):\n"
        "    name = 'buggy'\n"
        "    def start(self, federation):\n"
        "        raise RuntimeError('\\x1b]0;taken\\x07')\n"
    )
    done = feddag("run", "--method", "buggy:Buggy", "--rounds", "1", cwd=tmp_path)
    assert done.returncode == 1
    assert 'buggy.py", line 5' in done.stderr and "\x1b" not in done.stderr and "\x07" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ["run", "--method", "\x1b[2J"],
            ["run", "--dataset", "\x1b]0;taken\x07\n.npz"],
            ["\x1b[2J"],
            ["run", "--\x1b"],
        ),
        *(["run", "--resume", "a\nb"], ["show", "\x1b[2J"], ["report", "\u202e"], ["watch", "a\u2028b"]),
        *(["run", "--partition", "\x9b2J"], ["run", "--log", "\x1b"], ["run", "--rounds", "\x1b[2J"]),
        *(["compare", "--seeds", "\x1b"], ["data", "get", "\x1b"], ["sign", "\x1b.npz"], ["group", "\x1b.sig"]),
        *(["run", "--out", "/dev/null/\x1b\n"], ["show", "\udcff"], ["data", "show", "--dataset", "\x1b[2J/x"]),
    ],
)
def test_no_name_reaches_the_terminal_raw(in_tmp: Path, arguments: list[str], monkeypatch, capsys) -> None:
    complaint(arguments, monkeypatch, capsys)


def test_the_title_of_a_table_is_only_text() -> None:
    screen = StringIO()
    show_table(Console(file=screen, force_terminal=True, width=80), "\x1b]0;taken\x07 [red]x[/red]", ("a",), [("b",)])
    assert "\x1b]" not in screen.getvalue() and "\x07" not in screen.getvalue() and "[red" in screen.getvalue()


def test_a_folder_whose_name_no_terminal_can_show_is_used_all_the_same(tmp_path: Path) -> None:
    done = feddag("run", "--rounds", "1", "--clients", "4", "--set", "groups=2", "--out", "a\udcff\x1b", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout and "run directory: a" in done.stdout
