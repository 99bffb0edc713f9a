"""The served model takes samples as they lie in the user's file, and scores as the run said it would."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import feddag
from feddag.data.clients import ClientData, lay_out
from feddag.data.partitions import Partition
from feddag.errors import FeddagError
from feddag.runner.run import Run, prepare
from feddag.runner.serving import SampleFormat, ServedModel
from tests.engines.in_process import serve, write_federation

QUICK = {"clients": 6, "groups": 2, "rounds": 3, "epochs": 2, "participation": 0.5, "workers": 1, "seed": 1}
DATA = ("grey", "colours", "series", "vectors")


def write_data(folder: Path) -> None:
    """Small data of every kind, far from zero and of unequal spread: without its normalisation a model is lost."""
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 80)
    names = np.array(["ant", "bee", "cat"])[y]
    grey = random.integers(0, 60, (240, 9, 9))
    grey[np.arange(240), 2 * y] = 230
    np.savez(folder / "grey.npz", x=grey.astype(np.uint8), y=names)
    colours = random.integers(0, 90, (240, 6, 6, 3))
    colours[np.arange(240), :, :, y] += 100
    np.savez(folder / "colours.npz", x=colours.astype(np.uint8), y=names)
    steps = np.arange(32) / 32
    waves = np.sin(2 * np.pi * (1 + y)[:, None] * steps)[:, :, None] * [1.0, 0.5]
    np.savez(folder / "series.npz", x=(waves + random.normal(0, 0.3, (240, 32, 2))) * [1, 100] + [1000, -5], y=names)
    vectors = random.normal(size=(240, 5)) + 3 * np.eye(5)[y]
    np.savez(folder / "vectors.npz", x=vectors * [1, 10, 100, 1000, 0.1] + 500, y=names)


@pytest.fixture(scope="session")
def own_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own-data")
    write_data(folder)
    return folder


def own_tests(run: Run) -> ClientData:
    dataset, partition, _ = prepare(run.experiment)
    return lay_out(dataset, partition, run.experiment.seed)


def balanced_accuracy(model: ServedModel, data: ClientData, client: int, classes: tuple[str, ...]) -> float:
    """By class names, on raw samples: the mean over the client's test blocks, each of one class."""
    shares = []
    for number in data.blocks(client):
        x, y = data.block(number)
        shares.append(np.mean([name == classes[label] for name, label in zip(model.predict(x), y, strict=True)]))
    return float(np.mean(shares))


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("trainer", ["native", "torch"])
def test_raw_samples_score_as_the_run_said(kind: str, trainer: str, own_data: Path, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"method": "feddag", "dataset": str(own_data / f"{kind}.npz"), "trainer": trainer}
    fields = chosen | {"partition": "concept-shift", "concepts": 2, "lr": 0.1, "head": "random", **QUICK, "rounds": 8}
    run = feddag.run(feddag.Experiment(**fields), tmp_path / "r")
    data = own_tests(run)
    for client in range(6):
        model = run.model(client)
        assert model.classes == ("ant", "bee", "cat")
        scored = balanced_accuracy(model, data, client, model.classes)
        assert scored == pytest.approx(run.result["accuracy_last"]["per_client"][client], abs=1e-4)
    assert np.mean([run.result["accuracy_last"]["per_client"]]) > 0.5  # what is compared is more than chance


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "local"},
        {"method": "ditto"},
        {"method": "fedper"},
        {"method": "per-fedavg", "inner_lr": 0.2, "holdout": 0.3},
        {"method": "ifca"},
        {"method": "fedrc", "holdout": 0.3},
        {"method": "fedsoft"},
        {"method": "cgpfl", "holdout": 0.3},
        {"partition": "feature-skew", "method": "oracle"},
        {"method": "feddag", "holdout": 0.3},
    ],
    ids=lambda fields: "-".join(map(str, fields.values())),
)
def test_personal_chosen_corrupted_and_late_models_serve_as_well(fields: dict[str, Any], tmp_path: Path) -> None:
    run = feddag.run(feddag.Experiment(**QUICK | fields), tmp_path / "r")
    data, result = own_tests(run), run.result
    told = dict(zip(result["participants"], result["accuracy_last"]["per_client"], strict=True))
    if result["held_out"]:
        told |= dict(zip(result["held_out"], result["accuracy_unseen"]["per_client"], strict=True))
    assert len(told) == 6
    for client, accuracy in told.items():
        digits = tuple("0123456789")
        assert balanced_accuracy(run.model(client), data, client, digits) == pytest.approx(accuracy, abs=1e-4)


def test_a_run_on_nodes_serves_as_well(tmp_path: Path, monkeypatch) -> None:
    """There the server has no samples: what they look like is known from the app's task."""
    experiment = feddag.Experiment(**QUICK | {"method": "fedavg", "rounds": 1})
    write_federation(experiment, tmp_path)
    serve(tmp_path, 6, monkeypatch)
    here, there = feddag.run(experiment), feddag.load(tmp_path / "r")
    x = feddag.data.datasets.load("digits").x_test[:20]
    assert np.array_equal(there.model(0).scores(x), here.model(0).scores(x))
    assert there.model(0).classes == tuple("0123456789")


def test_a_served_model_by_hand() -> None:
    """(x - mean) / std for each channel, channels first for the network, and the largest score's name."""

    class Corner(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape[1:] == (2, 1, 3)
            return x[:, :, 0, 0]

    model = ServedModel(Corner(), SampleFormat((1, 3, 2), ("left", "right"), (10.0, 100.0), (2.0, 50.0)))
    image = np.zeros((2, 1, 3, 2), np.uint8)
    image[0, 0, 0], image[1, 0, 0] = (14, 150), (6, 150)
    assert model.scores(image).tolist() == [[2.0, 1.0], [-2.0, 1.0]]
    assert model.predict(image) == ["left", "right"]
    assert torch.equal(model(torch.from_numpy(image)), torch.tensor([[2.0, 1.0], [-2.0, 1.0]]))


def test_many_samples_are_scored_in_parts_and_none_is_no_error() -> None:
    model = ServedModel(nn.Identity(), SampleFormat((2,), ("a", "b"), (0.0, 0.0), (1.0, 1.0)))
    x = np.random.default_rng(0).normal(size=(1300, 2)).astype(np.float32)
    assert np.array_equal(model.scores(x), x)
    assert model.scores(x[:0]).shape == (0, 2) and model.predict(x[:0]) == []


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (np.zeros((3, 8, 8, 3)), r"samples of shape N x 8 x 8 x 1, and was given an array of shape \(3, 8, 8, 3\)"),
        (np.zeros((8, 8)), "takes samples of shape N x 8 x 8 x 1"),
        (np.full((1, 8, 8), np.nan), "not a finite 32-bit number"),
        (np.full((1, 8, 8), 1e300), "not a finite 32-bit number"),
        (np.full((1, 8, 8), "0"), "samples that are numbers"),
        (5, "takes samples of shape"),
    ],
)
def test_what_is_no_sample_is_refused(samples: Any, sentence: str) -> None:
    model = ServedModel(nn.Flatten(), SampleFormat((8, 8, 1), ("a", "b"), (0.0,), (1.0,)))
    assert model.scores(np.zeros((3, 8, 8))).shape == (3, 64)  # a grey image may lack its channel
    with pytest.raises(FeddagError, match=sentence):
        model.scores(samples)


# serving.json ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("serving") / "run"
    feddag.run(feddag.Experiment(method="fedavg", **QUICK), directory)
    return directory


@pytest.fixture
def handed(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_what_travels_in_the_run_directory(finished: Path) -> None:
    told = json.loads((finished / "serving.json").read_text())
    dataset = feddag.data.datasets.load("digits")
    assert told == {
        "format": 1,
        "sample_shape": [8, 8, 1],
        "classes": list("0123456789"),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }


def test_an_older_run_directory_is_read_and_says_what_it_cannot_do(handed: Path) -> None:
    (handed / "serving.json").unlink()
    run = feddag.load(handed)
    assert run.accuracy.mean > 0 and run.network(0) is not None
    with pytest.raises(FeddagError, match=r"has no serving.json, .* run.network\(client\) gives a network") as caught:
        run.model(0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "written by another version"),
        ({"sample_shape": [8, 8]}, "one mean and one std for each channel"),
        ({"sample_shape": [64, 1]}, "other samples or classes"),
        ({"sample_shape": [8, 8, -1]}, "sample_shape.2 should be greater"),
        ({"sample_shape": []}, "one mean and one std"),
        ({"sample_shape": [2**30] * 9, "mean": [0.0], "std": [1.0]}, "one mean and one std"),
        ({"classes": list("012345678")}, "other samples or classes"),
        ({"classes": list(range(10))}, "classes.0 should be a valid string"),
        ({"mean": [float("1e39")]}, "mean.0 should be less"),
        ({"mean": ["0"]}, "mean.0 should be a valid number"),
        ({"mean": [0.0, 0.0], "std": [1.0, 1.0]}, "one mean and one std"),
        ({"std": [0.0]}, "std.0 should be greater"),
        ({"std": [-1.0]}, "std.0 should be greater"),
        ({"std": None}, "std should be a valid list"),
    ],
)
def test_what_feddag_would_not_write_is_refused(handed: Path, change: dict[str, Any], sentence: str) -> None:
    path = handed / "serving.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(FeddagError, match=sentence) as caught:
        feddag.load(handed).model(0)
    assert "serving.json" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b'{"mean": NaN}', b"[" * 100_000, b"9" * 5000])
def test_what_is_no_json_is_refused(handed: Path, content: bytes) -> None:
    (handed / "serving.json").write_bytes(content)
    with pytest.raises(FeddagError, match=r"serving.json' is damaged"):
        feddag.load(handed).model(0)


def test_partition_and_samples_agree(finished: Path) -> None:
    """A client's raw training samples, from the files alone."""
    partition = Partition.load(finished / "partition.npz")
    dataset = feddag.data.datasets.load("digits")
    model = feddag.load(finished).model(0)
    x = dataset.x_train[partition.train[0]][:, :, :, 0]
    assert len(model.predict(x)) == len(partition.train[0]) and set(model.predict(x)) <= set("0123456789")
