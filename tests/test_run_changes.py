"""Whole runs in which clients come late, stay away, drift or fail."""

import dataclasses
import sys
from pathlib import Path

import pytest

import feddag
from feddag.cli import main
from feddag.client.warmup import MakeSignature
from feddag.engines.local import LocalEngine
from feddag.errors import FeddagError
from feddag.records import Event, EventRecord
from feddag.report import write_report
from feddag.runner.directory import RunDirectory
from feddag.runner.results import drift_report
from tests.methods.pretend import WARM
from tests.test_run import QUICK, StopError, stop_after, without_seconds


def test_held_out_clients_join_only_at_the_end() -> None:
    result = feddag.run(feddag.Experiment(method="oracle", holdout=0.34, **QUICK)).result
    assert len(result["held_out"]) == 2
    assert len(result["accuracy"]["per_client"]) == 4
    assert len(result["accuracy_unseen"]["per_client"]) == len(result["accuracy_unseen_finetuned"]["per_client"]) == 2
    assert len(result["clusters"]) == result["clients"] == 6


@pytest.mark.parametrize("stopped", [False, True])
def test_clients_come_and_go_between_rounds(in_tmp: Path, monkeypatch, stopped: bool) -> None:
    (in_tmp / "watching.py").write_text(
        "from feddag.methods.fedavg import FedAvg\n"
        "class Watching(FedAvg):\n"
        "    name = 'watching'\n"
        "    def start(self, federation):\n"
        "        super().start(federation)\n"
        "        self.seen = [list(federation.clients)]\n"
        "    def join(self, federation, newcomers):\n"
        "        self.seen.append(['joined', federation.round, *newcomers])\n"
        "    def leave(self, federation, gone):\n"
        "        self.seen.append(['left', federation.round, *gone])\n"
    )
    here = {"clients": (0, 1, 2, 3)}
    monkeypatch.setattr("feddag.engines.local.LocalEngine.population", lambda self: here["clients"])

    def observer(record: dict) -> None:
        here["clients"] = (0, 1, 2, 3) if record["round"] == 1 else (1, 2, 3, 4, 5)
        if stopped and record["round"] == 2 and not (in_tmp / "stopped").exists():
            (in_tmp / "stopped").touch()
            raise StopError

    experiment = feddag.Experiment(method="watching:Watching", **QUICK)
    if stopped:
        with pytest.raises(StopError):
            feddag.run(experiment, in_tmp / "r", observer=observer)
    run = feddag.run(experiment, in_tmp / "r", resume=stopped, observer=observer)
    assert [len(record["clients"]) for record in run.history] == [4, 4, 5, 5]
    state = RunDirectory(in_tmp / "r").load_checkpoint().tree["method"]
    assert state["seen"] == [[0, 1, 2, 3], ["left", 3, 0], ["joined", 3, 4, 5]]
    assert run.result["participants"] == [1, 2, 3, 4, 5]
    assert len(run.accuracy.per_client) == 5


def drifted(client: int) -> EventRecord:
    return Event("drift", (client,), "...").as_record()


def test_all_clients_may_drift() -> None:
    history = [
        {"clients": [0, 1], "per_client": [0.5, 0.7], "round": 1, "events": [drifted(1)]},
        {"clients": [0, 1], "per_client": [0.1, 0.3], "round": 2, "events": [drifted(0)]},
    ]
    told = drift_report(history, 2, drifting=[0, 1], others=[])
    assert told["accuracy_drifting"] == {"before": 0.6, "at": 0.2, "after": 0.2} and told["accuracy_others"] == {}
    assert (told["noticed"], told["missed"], told["false_alarms"]) == (1, 1, 1)


def test_a_stage_in_which_nobody_is_scored_is_left_out() -> None:
    history = [{"clients": [0, 1], "per_client": [None, 0.5], "round": number, "events": []} for number in (1, 2)]
    told = drift_report(history, 2, drifting=[0], others=[1])
    assert told["accuracy_drifting"] == {} and told["accuracy_others"] == {"before": 0.5, "at": 0.5, "after": 0.5}


def deaf_to_signing(monkeypatch, client: int, until: int) -> None:
    """This client does not answer when it is asked for its signature, in all rounds before `until`."""
    perform = LocalEngine.perform

    def but_one(self, jobs, round, exchange):
        deaf = [
            job for job in jobs if job.client == client and isinstance(job.steps[0], MakeSignature) and round < until
        ]
        answered, missing = perform(self, [job for job in jobs if job not in deaf], round, exchange)
        return answered, missing | {job.client: "silent" for job in deaf}

    monkeypatch.setattr(LocalEngine, "perform", but_one)


def test_a_client_that_never_signs_has_no_group(in_tmp: Path, monkeypatch, capsys) -> None:
    deaf_to_signing(monkeypatch, 2, until=99)
    run = feddag.run(feddag.Experiment(method="feddag", **QUICK), in_tmp / "r")
    assert [client for client, group in enumerate(run.clusters) if group is None] == [2]
    assert run.history[-1]["clusters"] == run.clusters
    assert len(write_report(in_tmp / "r").read_text()) > 1000
    monkeypatch.setattr(sys, "argv", ["feddag", "show", "r"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("killed", [False, True])
def test_who_was_missing_at_the_start_is_told_in_the_first_round(in_tmp: Path, monkeypatch, killed: bool) -> None:
    deaf_to_signing(monkeypatch, 2, until=1)
    experiment = feddag.Experiment(method="feddag", **QUICK)
    if killed:
        save = RunDirectory.save_checkpoint

        def killed_after_the_start(self, *arguments):
            save(self, *arguments)
            raise StopError

        with monkeypatch.context() as patch:
            patch.setattr(RunDirectory, "save_checkpoint", killed_after_the_start)
            with pytest.raises(StopError):
                feddag.run(experiment, in_tmp / "r")
    run = feddag.run(experiment, in_tmp / "r", resume=killed)
    assert [record["missing"] for record in run.history] == [{"2": "silent"}, {}, {}, {}]
    assert run.result["answers_missing"] == 1 and None not in run.clusters


def test_a_warm_up_that_diverges_costs_the_client_and_not_the_run(in_tmp: Path, monkeypatch) -> None:
    run_step = MakeSignature.run

    def one_diverges(self, client):
        steep = dataclasses.replace(client.settings, lr=1e6)
        return run_step(self, dataclasses.replace(client, settings=steep) if client.id == 2 else client)

    monkeypatch.setattr(MakeSignature, "run", one_diverges)
    run = feddag.run(feddag.Experiment(method="feddag", **WARM, **QUICK))
    assert run.clusters[2] is None and None not in run.clusters[:2] + run.clusters[3:]
    assert run.history[0]["missing"] == {"2": "answered with a value that is not finite"}
    with pytest.raises(FeddagError, match="no client could be grouped: answered with a value that is not finite"):
        feddag.run(feddag.Experiment(method="feddag", lr=1e6, **WARM, **QUICK))


@pytest.mark.parametrize("method", ["feddag", "fedavg", "ifca", "local", "oracle"])
def test_clients_that_arrive_take_part_from_then_on(tmp_path: Path, method: str) -> None:
    experiment = feddag.Experiment(method=method, holdout=0.25, join_round=3, **QUICK | {"participation": 1.0})
    whole = feddag.run(experiment, tmp_path / "whole")
    late = whole.result["joined"]
    assert late and whole.result["held_out"] == [] and set(late) <= set(whole.result["participants"])
    before, since = whole.history[1]["clients"], whole.history[2]["clients"]
    assert not set(before) & set(late) and set(since) == {*before, *late}
    work = whole.result["by_client"]["sample_passes"]
    assert all(work[client] > 0 for client in late)  # they train, too
    assert len(whole.result["accuracy_joined"]["per_client"]) == len(late)
    for rounds in (2, 3):  # a stop just before they join, and just after
        with pytest.raises(StopError):
            feddag.run(experiment, tmp_path / str(rounds), observer=stop_after(rounds))
        resumed = feddag.run(experiment, tmp_path / str(rounds), resume=True)
        assert without_seconds(resumed.result) == without_seconds(whole.result)


def test_a_round_to_join_in_needs_clients_who_do() -> None:
    with pytest.raises(FeddagError, match="join_round = 2 needs holdout above 0"):
        feddag.Experiment(join_round=2)
    with pytest.raises(FeddagError, match="join_round = 9 is after the last round, and rounds = 4"):
        feddag.Experiment(join_round=9, holdout=0.2, rounds=4)
