"""Run directories that are damaged in hundreds of ways: each is read, or refused in one sentence, and nothing is run.

`python -m tests.fuzz COUNT run` tries as many as one likes.
"""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import feddag
from feddag.cli import main
from feddag.errors import FeddagError
from feddag.report import read_run, write_report
from feddag.runner.checked import parse_history, read_result
from feddag.runner.compare import find_results
from tests.fuzz.runs import damaged_run, outcome_of_run, whole_run

IN_ONE_TEST = 25


@pytest.fixture(autouse=True)
def _nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked_up(name: str) -> None:
        raise AssertionError(f"{name} was looked up")

    monkeypatch.setattr("pkgutil.resolve_name", looked_up)


@pytest.mark.parametrize("first", range(0, 300, IN_ONE_TEST))
def test_a_damaged_run_is_read_or_refused_in_one_sentence(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + IN_ONE_TEST):
        what = damaged_run(seed, tmp_path / str(seed))
        try:
            outcome_of_run(tmp_path / str(seed))
        except Exception as error:
            error.add_note(f"seed {seed}: {what}")
            raise


@pytest.mark.parametrize("command", ["show", "report"])
def test_the_program_says_one_line_about_a_damaged_run(command: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    codes = set()
    for seed in range(1000, 1012):
        damaged_run(seed, tmp_path / str(seed))
        monkeypatch.setattr(sys, "argv", ["feddag", command, str(tmp_path / str(seed))])
        with pytest.raises(SystemExit) as ended:
            main()
        complaint = capsys.readouterr().err
        assert (ended.value.code, complaint.count("\n")) in ((0, 0), (2, 1)), complaint
        codes.add(ended.value.code)
    assert codes == {0, 2}


def test_a_whole_run_is_read(tmp_path: Path) -> None:
    for method in ("feddag", "local", "ifca"):
        assert set(outcome_of_run(whole_run(method)).values()) == {"read"}


def changed(source: Path, target: Path, **fields: Any) -> Path:
    """A result with some fields changed, or left out where they are None."""
    result = json.loads(source.read_text()) | fields
    target.write_text(json.dumps({name: value for name, value in result.items() if value != "left out"}))
    return target


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"clients": "left out"}, "clients is missing"),
        ({"clients": "4"}, "clients should be a valid integer"),
        ({"clients": 4.0}, "clients should be a valid integer"),
        ({"clients": True}, "clients should be a valid integer"),
        ({"clients": 3}, "participants and held_out are not distinct clients of this run"),
        ({"participants": [0, 0, 1, 2]}, "participants and held_out are not distinct clients of this run"),
        ({"participants": [0, 1]}, "there is not one accuracy for each of the participants"),
        ({"seconds": float("nan")}, "it is not JSON"),
        ({"seconds": 1e300}, "seconds should be less than or equal to"),
        ({"seconds": -1}, "seconds should be greater than or equal to 0"),
        ({"bytes_up": 10**100}, "bytes_up should be less than or equal to"),
        ({"accuracy": {"mean": 1.5}}, "accuracy.mean should be less than or equal to 1"),
        ({"truth": [0]}, "there is not one group for each client"),
        ({"bytes_by_phase": {"up": {}}}, "bytes_by_phase lacks a direction"),
        ({"versions": {"a" * 500: 3}}, "should be a valid string"),
    ],
)
def test_what_is_wrong_with_a_result_is_said(fields: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    path = changed(whole_run("local") / "result.json", tmp_path / "result.json", **fields)
    with pytest.raises(FeddagError, match=r"result\.json' is damaged: ") as caught:
        read_result(path)
    assert sentence in str(caught.value) and len(str(caught.value)) < 300
    assert find_results([tmp_path]) == {}  # a comparison runs it again


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"round": 0}, "line 1 is not round 1"),
        ({"loss": "high"}, "0.loss should be a valid number"),
        ({"per_client": [0.5]}, "round 1 has not one accuracy and one group for each client"),
        ({"clients": [1, 1, 2, 3]}, "round 1 names a client twice"),
        ({"missing": {"x": "gone"}}, "round 1 misses somebody who is not a client"),
        ({"events": [{"kind": "join", "clients": "all", "text": ""}]}, "events"),
    ],
)
def test_what_is_wrong_with_a_history_is_said(fields: dict[str, Any], sentence: str) -> None:
    first = json.loads((whole_run("local") / "history.jsonl").read_text().splitlines()[0])
    with pytest.raises(FeddagError, match=r"h\.jsonl' is damaged: ") as caught:
        parse_history(json.dumps(first | fields).encode() + b"\n", Path("h.jsonl"))
    assert sentence in str(caught.value)


def test_events_of_other_versions_are_no_damage() -> None:
    first = json.loads((whole_run("local") / "history.jsonl").read_text().splitlines()[0])
    events = ["a bare sentence", {"kind": "unheard of", "clients": [1], "text": "..."}]
    [record] = parse_history(json.dumps(first | {"events": events}).encode() + b"\n", Path("h.jsonl"))
    assert record["events"] == events


def test_kept_results_are_as_they_should_be() -> None:
    folder = Path(__file__).parent.parent / "results"
    assert len(find_results([folder])) == sum('"key"' in path.read_text() for path in folder.glob("*.json"))


def test_half_a_character_in_a_name_is_no_error(tmp_path: Path) -> None:
    feddag.load(whole_run("local")).save(tmp_path / "run")
    history = (tmp_path / "run/history.jsonl").read_text().splitlines()
    told = json.loads(history[0]) | {"events": ["half \ud800 a character"]}
    (tmp_path / "run/history.jsonl").write_text("\n".join([json.dumps(told), *history[1:], ""]))
    (tmp_path / "run/result.json").unlink()
    assert "half ? a character" in write_report(tmp_path / "run").read_text()


def test_an_empty_experiment_is_no_experiment(tmp_path: Path) -> None:
    run = feddag.load(whole_run("local"))
    run.save(tmp_path / "run")
    (tmp_path / "run/experiment.toml").write_text("")
    for look in (feddag.load, read_run):
        with pytest.raises(FeddagError, match=r"experiment\.toml' is damaged: method is missing"):
            look(tmp_path / "run")
