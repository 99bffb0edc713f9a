"""TensorBoard and MLflow get every round. Run by `make test-report`, which installs both; skipped elsewhere."""

import json
from pathlib import Path

import pytest

from tests.test_cli import QUICK, feddag


def test_tensorboard_has_every_round(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = feddag("run", "--rounds", "3", "--log", "tensorboard", "--out", "r", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    events = accumulator.EventAccumulator(str(tmp_path / "r/tensorboard"))
    events.Reload()
    history = [json.loads(line) for line in (tmp_path / "r/history.jsonl").read_text().splitlines()]
    written = [(event.step, event.value) for event in events.Scalars("accuracy/mean")]
    assert written == [(record["round"], pytest.approx(record["accuracy"]["mean"])) for record in history]


def test_mlflow_has_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    done = feddag("run", "--rounds", "2", "--log", "mlflow", "--out", "r", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    client = mlflow.MlflowClient()
    [run] = client.search_runs([client.get_experiment_by_name("feddag").experiment_id])
    assert run.info.status == "FINISHED" and run.data.params["method"] == "feddag"
    assert [m.step for m in client.get_metric_history(run.info.run_id, "accuracy/mean")] == [1, 2]
