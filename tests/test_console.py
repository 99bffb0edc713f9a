"""What a terminal shows on the way and at the end."""

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import feddag
from feddag.cli import main
from feddag.console import progress, show_table
from feddag.report.terminal import sparkline


def screen(width: int = 80, terminal: bool = True) -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=width, force_terminal=terminal, highlight=False, color_system=None), text


class Watching:
    """Passes everything on to a bar, and remembers it."""

    def __init__(self, bar: Any) -> None:
        self.bar, self.told = bar, []

    def __call__(self, record: Any) -> None:
        self.bar(record)

    def answered(self, *how: Any) -> None:
        self.told.append(how)
        self.bar.answered(*how)


def test_the_warm_up_and_the_local_epochs_show_on_the_bar() -> None:
    console, text = screen(100)
    with progress(console, "feddag", 2) as bar:
        watching = Watching(bar)
        feddag.run(feddag.Experiment(clients=5, groups=2, rounds=2, epochs=1, workers=1), observer=watching)
    warm = [(done, of) for phase, round, done, of in watching.told if phase == "warm-up" and round == 0]
    assert warm == [(number, 5) for number in range(1, 6)]
    assert [done for phase, round, done, _ in watching.told if phase == "local epochs" and round == 3][-1] == 5
    assert "2/2" in text.getvalue()


def test_a_bar_shows_clients_before_the_first_round_and_hides_them_then() -> None:
    console, text = screen(100)
    with progress(console, "feddag", 2) as bar:
        bar.answered("warm-up", 0, 1, 5)  # type: ignore[attr-defined]
        bar._bar.refresh()  # type: ignore[attr-defined]
        assert re.search(r"feddag warm-up .*1/5 +clients", text.getvalue())
        before = len(text.getvalue())
        bar.answered("train", 1, 1, 5)  # type: ignore[attr-defined]
        bar._bar.refresh()  # type: ignore[attr-defined]
        assert "warm-up" not in text.getvalue()[before:]


def test_a_piped_program_says_how_far_it_is_where_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("feddag.console.time.monotonic", lambda: now[0])
    console, text = screen(terminal=False)
    with progress(console, "feddag", 3) as bar:
        for now[0], done in ((1.0, 1), (11.0, 2), (12.0, 3), (30.0, 4)):
            bar.answered("warm-up", 0, done, 5)  # type: ignore[attr-defined]
    assert text.getvalue() == "feddag: warm-up, 2 of 5 clients\nfeddag: warm-up, 4 of 5 clients\n"


def test_a_narrow_terminal_shows_what_matters() -> None:
    columns, row = ["method", "accuracy", "MB up", "MB down"], ["feddag", "0.900 ± 0.001", "0.10", "0.20"]
    for width, costs in ((80, 2), (36, 1), (29, 0), (10, 0)):
        console, text = screen(width)
        show_table(console, "", columns, [row], spare=2)
        assert sum(name in text.getvalue() for name in columns[2:]) == costs, width
    console, text = screen(10, terminal=False)
    show_table(console, "", columns, [row], spare=2)
    assert "MB down" in text.getvalue()


def test_datasets_fit_into_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["feddag", "data", "list"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("feddag.cli.data._near", lambda path: "here")
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20 and max(map(len, lines)) <= 80
    assert lines[0].split() == ["digits", "here", "1,438", "+", "359", "images,", "8x8x1"]


def test_the_sparkline_of_a_good_run_is_a_curve() -> None:
    assert sparkline([0.98, 0.99, 1.0]) == "▁▅█" and len(sparkline([0.5] * 100)) == 60


def test_a_run_of_a_method_of_ones_own_is_called_by_its_name(in_tmp: Path) -> None:
    source = "from feddag.methods.fedavg import FedAvg\nclass Mine(FedAvg):\n    name = 'my-own'\n"
    (in_tmp / "ownname.py").write_text(source + "class Plain(FedAvg): pass\n")
    quick = {"clients": 4, "groups": 2, "rounds": 1, "epochs": 1, "workers": 1}
    named = feddag.run(feddag.Experiment(method="ownname:Mine", **quick))
    plain = feddag.run(feddag.Experiment(method="ownname:Plain", **quick))
    assert named.result["method_name"] == "my-own" and plain.result["method_name"] == "Plain"
    assert repr(named).startswith("<Run of my-own on digits") and "My-own makes no groups" in repr(named)
