"""Files of earlier versions, kept in tests/kept, are read by this one: signatures, finished and unfinished runs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import feddag
from feddag.experiment import read_experiment
from feddag.records import read_events
from feddag.runner.directory import RunDirectory

VERSIONS = sorted((Path(__file__).parent / "kept").iterdir())


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def kept(request, tmp_path: Path, monkeypatch) -> Path:
    """A copy of what a version left behind, in the folder where its experiment finds its data."""
    shutil.copytree(request.param, tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "kept")
    return tmp_path / "kept"


def test_there_is_one_folder_for_each_version_that_wrote_files() -> None:
    assert "0.1.0" in [path.name for path in VERSIONS]


def test_a_signature_is_read_and_compared_with_todays(kept: Path) -> None:
    old = feddag.Signature.load(kept / "signature.safetensors")
    assert old.counts.tolist() == [40, 40, 40] and old.vectors.shape == (3, 3, 16)
    data = np.load(kept / "data.npz")
    new = feddag.signature(data["x"], data["y"])
    np.testing.assert_allclose(np.abs(old.vectors), np.abs(new.vectors), atol=1e-3)  # their signs are free
    assert feddag.group([old, new]).labels_.tolist() == [0, 0]


def test_a_finished_run_is_read(kept: Path) -> None:
    run = feddag.load(kept / "finished")
    told = json.loads((kept / "finished" / "result.json").read_text())
    assert run.accuracy.mean == told["accuracy"]["mean"] and len(run.history) == 3
    assert all(read_events(record["events"]) == [] for record in run.history)
    data = np.load(kept / "data.npz")
    path = feddag.export(run, kept / "model.safetensors", "safetensors", client=0)
    scores = feddag.load_model(path).scores(data["x"][:5])
    assert scores.shape == (5, 3) and np.isfinite(scores).all()


def test_an_unfinished_run_goes_on(kept: Path) -> None:
    files = RunDirectory(kept / "unfinished")
    experiment = read_experiment(files.experiment, {})
    assert len(files.read_history()) == 2
    assert len(feddag.run(experiment, files.path, resume=True).history) == 3


def test_a_run_of_a_method_that_has_changed_since_is_refused_with_a_sentence(kept: Path, monkeypatch) -> None:
    files = RunDirectory(kept / "unfinished")
    experiment = read_experiment(files.experiment, {})
    monkeypatch.setattr(experiment.method_class, "revision", 10**6)
    with pytest.raises(feddag.FeddagError, match="belongs to another experiment, or its data have changed"):
        feddag.run(experiment, files.path, resume=True)
