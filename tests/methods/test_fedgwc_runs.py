"""FedGWC in whole runs on digits: resumed over a split, and with clients that come, change and stay silent."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddag
from feddag.client.adapt import Adapt
from feddag.client.train import Train
from feddag.engines.local import LocalEngine
from feddag.report import read_run, write_report
from feddag.report.run import run_document
from feddag.runner.trees import load_tree
from feddag.server.evidence import CHANGE
from tests.test_run import StopError, stop_after, without_seconds

NOISY: dict[str, Any] = {
    **{"partition": "heterogeneity-mix", "mix_kind": "domains", "mix": "50,50,0", "clients": 12, "participation": 0.5},
    **{"rounds": 14, "epochs": 1, "batch_size": 8, "workers": 1, "finetune": False},
}
EAGER: dict[str, dict[str, Any]] = {
    "fedgwc": {"level": 0.5},
    "fedgwc-paper": {"epsilon": 1.0, "mu": 0.01},
    "fedgwc-released": {"epsilon": 0.9, "per_cluster": 4, "server_momentum": 0.5},
    "fedgwc-pfedme": {"level": 0.5, "inner_steps": 2},
    "fedgwc-per-fedavg": {"level": 0.5},
}
"""Settings that split early, whether there are groups or not."""


def split_rounds(run: feddag.Run) -> list[int]:
    return [record["round"] for record in run.history for event in record["events"] if dict(event)["kind"] == "split"]


def arrays(path: Path) -> bytes:
    """The arrays of a file: its header names entries in any order, and tells seconds."""
    content = path.read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def content(directory: Path) -> list[Any]:
    """What a run leaves but for times: its models and evidence, what a page shows, and its history."""
    history = [json.loads(line) for line in (directory / "history.jsonl").read_text().splitlines()]
    last = max(directory.glob("checkpoints/*.safetensors"))
    told = [{name: value for name, value in record.items() if name != "seconds"} for record in history]
    return [arrays(last), arrays(directory / "grouping.safetensors"), *told]


@pytest.mark.parametrize("method", EAGER)
def test_a_run_stopped_around_a_split_ends_with_the_same_bytes(tmp_path: Path, method: str) -> None:
    experiment = feddag.Experiment(method=method, **EAGER[method], **NOISY)
    whole = feddag.run(experiment, tmp_path / "whole")
    split = split_rounds(whole)[0]
    assert split < 14
    for rounds in {max(split - 1, 1), split}:
        with pytest.raises(StopError):
            feddag.run(experiment, tmp_path / str(rounds), observer=stop_after(rounds))
        resumed = feddag.run(experiment, tmp_path / str(rounds), resume=True)
        assert without_seconds(resumed.result) == without_seconds(whole.result)
        assert content(tmp_path / str(rounds)) == content(tmp_path / "whole")


@pytest.mark.parametrize("method", EAGER)
def test_newcomers_drift_and_silence_are_survived(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    perform = LocalEngine.perform

    def some_are_silent(self: Any, jobs: Any, round: int, exchange: int) -> Any:
        """A few in most rounds, all but one in round 4 and all in round 5."""
        few = {client for client in range(12) if (client + round) % 5 == 0}
        silent = {4: set(range(1, 12)), 5: set(range(12))}.get(round, few)
        train = [job for job in jobs if isinstance(job.steps[0], Train) and not isinstance(job.steps[0], Adapt)]
        deaf = [job for job in train if job.client in silent]
        answered, missing = perform(self, [job for job in jobs if job not in deaf], round, exchange)
        return answered, missing | {job.client: "silent" for job in deaf}

    monkeypatch.setattr(LocalEngine, "perform", some_are_silent)
    changes = {"holdout": 0.25, "join_round": 6, "drift_round": 8, "drift_share": 0.3}
    run = feddag.run(feddag.Experiment(method=method, **EAGER[method], **changes, **NOISY), tmp_path / "r")
    assert run.result["answers_missing"] > 12 and len(run.history) == 14
    assert run.result["drift"] is not None and len(run.result["joined"]) == 3
    assert set(run.result["participants"]) == set(range(12))
    assert len(write_report(tmp_path / "r").read_text()) > 1000


@pytest.mark.parametrize("method", EAGER)
def test_a_page_shows_the_matrices_how_they_settled_and_the_splits(tmp_path: Path, method: str) -> None:
    run = feddag.run(feddag.Experiment(method=method, **EAGER[method], **NOISY), tmp_path / "r")
    told = load_tree(tmp_path / "r" / "grouping.safetensors")
    assert set(told["views"]) == {"interaction", "affinity"} and "distances" not in told
    changes = told["by_round"][CHANGE]
    assert sorted({int(number) for rows in changes.values() for number in np.asarray(rows)[:, 0]}) == list(range(1, 15))
    document = run_document(read_run(tmp_path / "r"))
    drawn = {figure["id"]: figure for part in document["sections"] for figure in part.get("figures", [])}
    assert {"proximity", "by-round-0", "timeline", "classes"} <= set(drawn)
    assert [choice["label"] for choice in drawn["proximity"]["choices"]["of"]] == ["interaction", "affinity"]
    assert split_rounds(run)[0] in drawn["timeline"]["data"][0]["x"]
    scores = run.result["clustering"]
    known = scores is not None and scores["was"] is not None and scores["wadb"] is not None
    assert ("WAS / WADB" in {tile["label"] for tile in document["tiles"]}) == known


def test_a_run_that_never_splits_still_shows_its_matrix(tmp_path: Path) -> None:
    short = NOISY | {"rounds": 3}
    run = feddag.run(feddag.Experiment(method="fedgwc", **short), tmp_path / "r")
    told = load_tree(tmp_path / "r" / "grouping.safetensors")
    assert set(run.clusters or ()) == {0} and len(told["by_round"][CHANGE]["all clients"]) == 3
