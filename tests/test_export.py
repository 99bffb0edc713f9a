"""From a newcomer to a model, and a model as a file that gives the same scores elsewhere."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import feddag
from feddag.cli import main
from feddag.cli.serving import FORMATS as SHOWN_FORMATS
from feddag.data.partitions import Partition
from feddag.errors import FeddagError
from feddag.runner.export import FORMATS
from feddag.runner.run import Run

COMMON = {"epochs": 2, "workers": 1, "participation": 1.0}
GROUPED = {"clients": 10, "groups": 2, "rounds": 2, "holdout": 0.2, "label_fraction": 0.4, "concentration": 5.0}
MIXING = """
from feddag.methods.fedavg import FedAvg
from feddag.weights import Mixture
class Mixing(FedAvg):
    name = 'mixing'
    def model_of(self, client):
        return Mixture((self.weights, {name: -value for name, value in self.weights.items()}), (0.75, 0.25))
"""


@pytest.fixture(scope="module")
def grouped(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FedDAG on digits, with two clients that came after the last round."""
    return feddag.run(feddag.Experiment(**COMMON, **GROUPED), tmp_path_factory.mktemp("grouped") / "run")


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same, and clients are compared by the updates of a warm-up as well."""
    fields = COMMON | GROUPED | {"similarity": "fused"}
    return feddag.run(feddag.Experiment(**fields), tmp_path_factory.mktemp("warmed") / "run")


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FedAvg of a convolutional network with dropout on colour images."""
    folder = tmp_path_factory.mktemp("colours")
    y = np.tile(np.arange(3), 40)
    x = np.random.default_rng(0).integers(0, 90, (120, 24, 24, 3))
    x[np.arange(120), :, :, y] += 100
    np.savez(folder / "colours.npz", x=x.astype(np.uint8), y=np.array(["red", "green", "blue"])[y])
    fields = {"method": "fedavg", "dataset": str(folder / "colours.npz"), "model": "cnn", "partition": "iid"}
    return feddag.run(feddag.Experiment(**fields, clients=2, rounds=1, steps=2, workers=1), folder / "run")


def called(arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["feddag", *arguments])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    written = capsys.readouterr()
    return int(ended.value.code or 0), written.out, written.err


def samples_of(run: Run, client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's training samples and labels, as they lie in scikit-learn."""
    dataset = feddag.data.datasets.load("digits")
    chosen = Partition.load(run.directory / "partition.npz").train[client]
    return dataset.x_train[chosen][..., 0], dataset.y_train[chosen]


# Placing --------------------------------------------------------------------------------------------------------------


def test_a_newcomer_gets_the_group_and_the_model_of_its_like(grouped: Run) -> None:
    assert grouped.clusters is not None and len(set(grouped.clusters)) == 2
    for client in (0, *grouped.result["held_out"]):
        placed = grouped.place(grouped.signature(*samples_of(grouped, client)))
        assert placed.group == grouped.clusters[client] and 0.5 < placed.confidence <= 1
        x = samples_of(grouped, client)[0]
        assert placed.model is not None
        assert np.array_equal(placed.model.scores(x), grouped.model(client).scores(x))
    placed = feddag.load(grouped.directory).place(grouped.signature(*samples_of(grouped, 0)))
    assert placed.group == grouped.clusters[0]


def test_a_client_of_two_groups_is_placed_with_less_confidence(grouped: Run) -> None:
    assert grouped.clusters is not None
    one, other = grouped.clusters.index(0), grouped.clusters.index(1)
    x, y = (np.concatenate(pair) for pair in zip(samples_of(grouped, one), samples_of(grouped, other), strict=True))
    mixed = grouped.place(grouped.signature(x, y))
    alone = grouped.place(grouped.signature(*samples_of(grouped, one)))
    assert mixed.confidence < alone.confidence


def test_a_stranger_has_no_group_and_no_model(grouped: Run) -> None:
    y = samples_of(grouped, 0)[1]
    held = set(np.concatenate([samples_of(grouped, client)[1] for client in range(10)]).tolist())
    absent = sorted(set(range(10)) - held) or [int(label) for label in held - set(y.tolist())]
    noise = np.random.default_rng(0).integers(0, 17, (60, 8, 8))
    placed = grouped.place(grouped.signature(noise, np.tile(absent[:2], 30)))
    assert (placed.group, placed.confidence, placed.model) == (None, 0.0, None)


def test_a_signature_is_that_of_the_run_and_labels_may_be_names(grouped: Run, warmed: Run) -> None:
    for run, compares_updates in ((grouped, False), (warmed, True)):
        x, y = samples_of(run, 0)
        made = run.signature(x, y)
        named = run.signature(x[..., None], [str(label) for label in y])
        for one, other in zip(vars(made).values(), vars(named).values(), strict=True):
            assert np.array_equal(one, other)
        assert made.counts.tolist() == np.bincount(y, minlength=10).tolist()
        assert (len(made.update) > 0) == compares_updates


def test_without_a_warm_up_a_signature_needs_nothing_of_the_run(grouped: Run) -> None:
    x, y = samples_of(grouped, 0)
    alone, made = feddag.signature(x, y, num_classes=10), grouped.signature(x, y)
    assert alone.counts.tolist() == made.counts.tolist()
    np.testing.assert_allclose(np.abs(alone.vectors), np.abs(made.vectors), atol=1e-4)
    assert grouped.clusters is not None and grouped.place(alone).group == grouped.clusters[0]


def test_a_mistake_of_our_own_is_not_taken_for_the_directorys(grouped: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(*arguments: object) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("feddag.runner.finished.sign_newcomer", mistaken)
    with pytest.raises(RuntimeError, match="a mistake"):
        grouped.signature(*samples_of(grouped, 0))
    monkeypatch.setattr("feddag.runner.finished.built", mistaken)
    with pytest.raises(FeddagError, match=r"holds no model of client 0 that .* could use \(RuntimeError: a mistake\)$"):
        grouped.model(0)


def test_what_cannot_be_placed_says_so(grouped: Run, warmed: Run, colours: Run) -> None:
    x, y = samples_of(grouped, 0)
    with pytest.raises(FeddagError, match=r"client newcomer: .*; run.signature\(x, y\) makes one that can be compared"):
        warmed.place(feddag.signature(x, y, num_classes=10))  # has no update of the run's warm-up
    with pytest.raises(FeddagError, match="'21' is not one of the run's 10 classes"):
        grouped.signature(x, 0 * y + 21)
    with pytest.raises(FeddagError, match="each sample needs a label"):
        grouped.signature(x, y[:-1])
    with pytest.raises(FeddagError, match="method = 'fedavg' does not group clients by signatures"):
        colours.place(feddag.signature(x, y))
    with pytest.raises(FeddagError, match="method = 'fedavg' has no models of clusters"):
        colours.model(cluster=0)
    with pytest.raises(FeddagError, match="cluster = 9 is not one of the clusters 0, 1"):
        grouped.model(cluster=9)
    for wrong in ({}, {"client": 0, "cluster": 0}):
        with pytest.raises(FeddagError, match="either which client's"):
            grouped.model(**wrong)


# Exporting ------------------------------------------------------------------------------------------------------------


def scores_elsewhere(path: Path, format: str, x: np.ndarray) -> np.ndarray:
    """What the exported file says about samples, by the program that it is meant for."""
    if format == "safetensors":
        return feddag.load_model(path).scores(x)
    if format == "torch-export":
        return torch.export.load(path).module()(torch.from_numpy(x)).detach().numpy()
    session = pytest.importorskip("onnxruntime").InferenceSession(path)
    return session.run(["scores"], {"samples": x})[0]


@pytest.mark.parametrize("format", FORMATS)
def test_an_exported_model_gives_the_same_scores_on_raw_samples(
    format: str, grouped: Run, colours: Run, tmp_path: Path
) -> None:
    if format == "onnx":
        pytest.importorskip("onnxscript")
    for run, whose in ((grouped, {"client": 3}), (grouped, {"cluster": 1}), (colours, {"client": 1})):
        path = feddag.export(run, tmp_path / "model", format, **whose)
        model = run.model(**whose)
        for count in (1, 5):
            raw = np.random.default_rng(count).integers(0, 200, (count, *model.form.sample_shape)).astype(np.float32)
            np.testing.assert_allclose(scores_elsewhere(path, format, raw), model.scores(raw), rtol=1e-4, atol=1e-4)
    assert list(tmp_path.iterdir()) == [path]


def test_class_names_travel_with_the_model(colours: Run, tmp_path: Path) -> None:
    path = feddag.export(colours, tmp_path / "m.safetensors", "safetensors", client=0)
    assert feddag.load_model(path).classes == ("blue", "green", "red")
    path = feddag.export(colours, tmp_path / "m.pt2", "torch-export", client=0)
    extra = {"feddag.json": ""}
    torch.export.load(path, extra_files=extra)
    assert json.loads(extra["feddag.json"])["classes"] == ["blue", "green", "red"]
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    path = feddag.export(colours, tmp_path / "m.onnx", "onnx", client=0)
    told = {entry.key: entry.value for entry in onnx.load(path).metadata_props}
    assert json.loads(told["feddag"])["classes"] == ["blue", "green", "red"]


def test_a_mixture_and_a_network_of_ones_own_are_exported(in_tmp: Path) -> None:
    Path("mixing_method.py").write_text(MIXING)
    Path("own_net.py").write_text(
        "from torch import nn\n"
        "def net(shape, num_classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.Tanh()), nn.Linear(7, num_classes)\n"
    )
    fields = {"method": "mixing_method:Mixing", "model": "own_net:net", "clients": 3, "groups": 1, "rounds": 1}
    run = feddag.run(feddag.Experiment(**fields, **COMMON))
    x = np.random.default_rng(0).integers(0, 17, (4, 8, 8, 1)).astype(np.float32)
    for format in ("safetensors", "torch-export"):
        path = feddag.export(run, "model", format, client=1)
        if format == "safetensors":
            with pytest.raises(FeddagError, match=r"code that does not come with feddag .model = 'own_net:net'"):
                feddag.load_model(path)
            found = feddag.load_model(path, trust=True).scores(x)
        else:
            found = scores_elsewhere(path, format, x)
        np.testing.assert_allclose(found, run.model(1).scores(x), rtol=1e-4, atol=1e-5)


def test_an_exported_file_that_is_not_as_feddag_writes_it_is_refused(grouped: Run, tmp_path: Path) -> None:
    path = feddag.export(grouped, tmp_path / "m.safetensors", "safetensors", client=0)
    weights = load_file(path)
    about = {**grouped.model(0).form.as_record(), "model": "mlp", "encoders": 1, "shares": None}
    for change, sentence in (
        ({"model": "os:system"}, "does not come with feddag"),
        ({"model": "nosuch"}, "is not a model"),
        ({"model": 3}, "damaged"),
        ({"encoders": 2}, "no weights"),
        ({"encoders": 3}, "damaged"),
        ({"shares": [1.0]}, "no weights"),
        ({"shares": []}, "damaged"),
        ({"sample_shape": [2**31, 2**31, 1]}, "damaged"),
        ({"std": [0.0]}, "damaged"),
        ({"format": 2}, "another version"),
    ):
        save_file(weights, path, metadata={"feddag": json.dumps(about | change)})
        with pytest.raises(FeddagError, match=sentence) as caught:
            feddag.load_model(path)
        assert "\n" not in str(caught.value)
    save_file(weights, path)
    with pytest.raises(FeddagError, match="does not say that feddag exported it"):
        feddag.load_model(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(FeddagError, match="damaged"):
        feddag.load_model(path)
    with pytest.raises(FeddagError, match="is missing"):
        feddag.load_model(tmp_path / "none")


def test_without_its_packages_onnx_is_refused_in_one_sentence(grouped: Run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("feddag.runner.export.find_spec", lambda name: None)
    with pytest.raises(FeddagError, match=r"pip install 'feddag\[onnx\]'"):
        feddag.export(grouped, tmp_path / "m.onnx", "onnx", client=0)
    with pytest.raises(FeddagError, match=r"format = 'onx' is not one of .*; did you mean 'onnx'"):
        feddag.export(grouped, tmp_path / "m.onnx", "onx", client=0)


# The commands ---------------------------------------------------------------------------------------------------------


def test_the_help_names_every_format() -> None:
    assert tuple(SHOWN_FORMATS) == FORMATS


def test_predict_says_the_class_of_each_sample(grouped: Run, in_tmp: Path, monkeypatch, capsys) -> None:
    x, y = samples_of(grouped, 3)
    np.savez("new.npz", x=x[:4])
    np.savez("known.npz", x=x, y=y)
    run = str(grouped.directory)
    code, shown, _ = called(["predict", run, "--client", "3", "new.npz", "--json", "said.json"], monkeypatch, capsys)
    model = grouped.model(3)
    assert code == 0 and [line.split()[1] for line in shown.splitlines()[1:]] == model.predict(x[:4])
    said = json.loads(Path("said.json").read_text())
    assert said["predicted"] == model.predict(x[:4]) and said["classes"] == list("0123456789")
    np.testing.assert_allclose(said["scores"], model.scores(x[:4]), rtol=1e-6)
    right = np.array(model.predict(x)) == y.astype(str)
    expected = np.mean([right[y == label].mean() for label in np.unique(y)])
    code, shown, _ = called(["predict", run, "--client", "3", "known.npz"], monkeypatch, capsys)
    assert code == 0 and shown.splitlines()[-1] == f"balanced accuracy {expected:.3f} on {len(y)} labelled samples"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["predict", "RUN", "x.npz"], "say either --client N or --cluster N"),
        (["predict", "RUN", "--client", "1", "--cluster", "1", "x.npz"], "say either --client N or --cluster N"),
        (["predict", "RUN", "--client", "99", "x.npz"], "client = 99 is not one of the 10 clients"),
        (["predict", "RUN", "--cluster", "99", "x.npz"], "cluster = 99 is not one of the clusters"),
        (["predict", "RUN", "--client", "1", "none.npz"], "none.npz is missing"),
        (["predict", "RUN", "--client", "1", "wide.npz"], "wide.npz: the model takes samples of shape N x 8 x 8 x 1"),
        (["predict", "RUN", "--client", "1", "odd.npz"], "odd.npz must hold an array 'x' of samples"),
        (["predict", "RUN", "--client", "1", "labels.npz"], "labels.npz: 'cat' is not one of the run's 10 classes"),
        (["predict", "RUN", "--client", "1", "few.npz"], "few.npz: there are 2 samples and 1 labels"),
        (["predict", "none", "--client", "1", "x.npz"], "holds no finished run"),
        (["export", "RUN"], "say either --client N or --cluster N"),
        (["export", "RUN", "--client", "0", "--format", "pickle"], "format = 'pickle' is not one of"),
    ],
)
def test_mistakes_are_one_sentence(arguments, sentence, grouped: Run, in_tmp: Path, monkeypatch, capsys) -> None:
    x = np.zeros((2, 8, 8))
    for name, arrays in {
        "x": {"x": x},
        "wide": {"x": np.zeros((2, 9, 8))},
        "odd": {"samples": x},
        "labels": {"x": x, "y": np.array(["cat", "1"])},
        "few": {"x": x, "y": np.array([1])},
    }.items():
        np.savez(f"{name}.npz", **arrays)
    given = [str(grouped.directory) if word == "RUN" else word for word in arguments]
    code, _, complaint = called(given, monkeypatch, capsys)
    assert code == 2 and sentence in complaint and complaint.count("\n") == 1


def test_export_writes_one_file(grouped: Run, in_tmp: Path, monkeypatch, capsys) -> None:
    code, shown, _ = called(["export", str(grouped.directory), "--cluster", "1"], monkeypatch, capsys)
    assert code == 0 and shown.startswith("run-cluster-1.safetensors: ")
    x = samples_of(grouped, 0)[0]
    exported = feddag.load_model("run-cluster-1.safetensors")
    assert np.array_equal(exported.scores(x), grouped.model(cluster=1).scores(x))
