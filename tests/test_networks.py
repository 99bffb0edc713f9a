"""Networks for series and vectors, and networks of one's own: what they are given, and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag.client.flops import forward_flops
from feddag.client.trainer import native_network
from feddag.encoders import default_model
from feddag.errors import FeddagError
from feddag.models import ModelSpec

QUICK: dict[str, Any] = {"method": "fedavg", "partition": "iid", "clients": 2, "rounds": 1, "epochs": 1, "workers": 1}


def series(count: int = 120, length: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Waves of three frequencies that begin anywhere: what tells them apart is at no fixed place."""
    random = np.random.default_rng(0)
    y = np.arange(count) % 3
    begin = random.uniform(0, 2 * np.pi, count)
    waves = np.sin(2 * np.pi * (2 * y + 1)[:, None] * np.arange(length) / length + begin[:, None])
    return np.stack([waves, random.normal(size=waves.shape)], axis=2).astype(np.float32), y


@pytest.mark.parametrize(("length", "channels"), [(8, 1), (9, 3), (16, 2), (33, 6), (128, 6)])
def test_the_network_for_series_takes_any_length_from_eight_on(length: int, channels: int) -> None:
    spec = ModelSpec("cnn1d", (length, channels), 5)
    assert spec.build()(torch.zeros(2, length, channels)).shape == (2, 5) and spec.features() == 128
    assert default_model((length, channels)) == "cnn1d"


@pytest.mark.parametrize("shape", [(7, 3), (3, 8, 8), (9,)])
def test_it_takes_nothing_else(shape: tuple[int, ...]) -> None:
    with pytest.raises(FeddagError, match=r"model = 'cnn1d' cannot take samples of shape .* allowed is 'mlp'"):
        ModelSpec("cnn1d", shape, 5).build()


def test_its_size_and_its_work_by_hand() -> None:
    """Three convolutions of 2 x 64 x 5, 64 x 128 x 5 and 128 x 128 x 3 weights, over 32, 16 and 8 steps in time."""
    spec = ModelSpec("cnn1d", (32, 2), 3)
    weights = 2 * 64 * 5 + 64 + 64 * 128 * 5 + 128 + 128 * 128 * 3 + 128 + 128 * 3 + 3
    assert sum(value.numel() for value in spec.build().state_dict().values()) == weights
    assert forward_flops(spec) == 2 * (32 * 2 * 64 * 5 + 16 * 64 * 128 * 5 + 8 * 128 * 128 * 3 + 128 * 3)


def test_convolutions_go_over_time_and_not_over_channels() -> None:
    spec = ModelSpec("cnn1d", (64, 2), 3)
    model = spec.build().eval()
    model.load_state_dict(spec.initial_weights(0, "a test"))
    x = torch.zeros(1, 64, 2)
    x[0, 20:24, 1] = torch.tensor([50.0, -100.0, 150.0, 50.0])
    later, other = torch.roll(x, 4, dims=1), x.flip(2)  # four steps later; in the other channel
    assert torch.allclose(model(x), model(later), atol=1e-4)
    assert not torch.allclose(model(x), model(other), atol=1e-2)


def test_what_happens_anywhere_in_time_needs_it() -> None:
    """Three short signals, each of which begins anywhere in a long noise."""
    random = np.random.default_rng(0)
    y = np.arange(150) % 3
    x = random.normal(0, 0.3, (150, 64, 1))
    signals = np.array([[3.0, -3.0, 3.0, -3.0], [3.0, 3.0, -3.0, -3.0], [3.0, 3.0, 3.0, 3.0]])
    for sample, label in zip(x, y, strict=True):
        begin = random.integers(0, 60)
        sample[begin : begin + 4, 0] += signals[label]
    data = feddag.dataset(x, y)
    fields = QUICK | {"rounds": 6, "epochs": 6, "lr": 0.05, "momentum": 0.9, "participation": 1.0}
    convolved = feddag.run(feddag.Experiment(dataset=data, **fields))
    flat = feddag.run(feddag.Experiment(dataset=data, model="mlp", **fields))
    assert convolved.result["versions"]["trainer"].startswith("native") or not feddag.native.available()
    assert convolved.result["model"] == "cnn1d" and convolved.accuracy.mean > flat.accuracy.mean + 0.1


def test_vectors_get_a_wider_network() -> None:
    run = feddag.run(feddag.Experiment(dataset=feddag.dataset(series()[0][:, :, 0], series()[1]), **QUICK))
    assert run.result["model"] == "mlp256" and run.network(0).head.in_features == 256
    assert native_network(ModelSpec("mlp256", (32,), 3)) is not None or not feddag.native.available()


def test_feddag_finds_groups_of_series() -> None:
    x, y = series(240)
    data = feddag.dataset(x, y)
    fields = {"partition": "concept-shift", "clients": 6, "concepts": 2, "rounds": 2, "epochs": 1, "workers": 1}
    run = feddag.run(feddag.Experiment(dataset=data, **fields))
    assert run.clusters is not None and run.model(0).predict(x[:2])


def test_a_change_of_default_networks_changes_keys_of_own_data_only(tmp_path: Path, monkeypatch) -> None:
    np.savez(tmp_path / "own.npz", x=series()[0], y=series()[1])
    own = [feddag.Experiment(dataset=str(tmp_path / "own.npz"), **QUICK | extra) for extra in ({}, {"model": "mlp"})]
    keys = [own[0].key(), own[1].key(), feddag.Experiment().key()]
    monkeypatch.setattr("feddag.experiment.DEFAULTS", 99)
    assert [own[0].key() == keys[0], own[1].key() == keys[1], feddag.Experiment().key() == keys[2]] == [
        False,
        True,
        True,
    ]


def test_the_models_of_an_older_run_on_series_are_still_found(tmp_path: Path) -> None:
    x, y = series()
    np.savez(tmp_path / "own.npz", x=x, y=y)
    experiment = feddag.Experiment(dataset=str(tmp_path / "own.npz"), model="mlp", **QUICK)
    feddag.run(experiment, tmp_path / "r")
    toml = tmp_path / "r/experiment.toml"  # as an older version wrote it, which had no other network for series
    toml.write_text("".join(line for line in toml.read_text().splitlines(True) if not line.startswith("model = ")))
    assert feddag.load(tmp_path / "r").model(0).predict(x[:1])


# Networks of one's own ------------------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn

def pair(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9)), nn.Linear(9, num_classes)

def sequence(shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, num_classes))

class Parts(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.encoder, self.head = nn.Flatten(), nn.Linear(64, num_classes)

class Plain(nn.Module):
    def __init__(self, shape, num_classes):
        super().__init__()
        self.first, self.last = nn.Linear(64, 9), nn.Linear(9, num_classes)
    def forward(self, x):
        return self.last(self.first(x.flatten(1)))

def three(shape, num_classes):
    return nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, num_classes)

def number(shape, num_classes):
    return 3

def colours(shape, num_classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), nn.Linear(144, num_classes)

def few(shape, num_classes):
    return nn.Flatten(), nn.Linear(64, 2)

def nothing():
    return None
"""


@pytest.fixture
def own(in_tmp: Path) -> None:
    (in_tmp / "own_networks.py").write_text(OWN)


@pytest.mark.parametrize("name", ["pair", "sequence", "Parts"])
def test_a_network_of_ones_own_comes_in_two_parts_or_can_be_divided(name: str, own: None) -> None:
    run = feddag.run(feddag.Experiment(model=f"own_networks:{name}", **QUICK))
    assert run.network(0).head.out_features == 10 and run.model(0).predict(np.zeros((1, 8, 8)))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Plain", "has to return two modules, an encoder and a head .* and returned a single module"),
        ("three", "has to return two modules, .* and returned a tuple"),
        ("number", "has to return two modules, .* and returned a int"),
        ("colours", "cannot take samples of shape 1x8x8: Given groups=1"),
        ("few", r"gives scores of shape \(1, 2\) for a sample, and not 10"),
        ("nothing", r"has to be a function of \(shape, num_classes\)"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(name: str, sentence: str, own: None) -> None:
    with pytest.raises(FeddagError, match=sentence) as caught:
        feddag.run(feddag.Experiment(model=f"own_networks:{name}", **QUICK))
    assert "\n" not in str(caught.value)


def test_series_reach_a_network_of_ones_own_as_time_by_channels(in_tmp: Path) -> None:
    (in_tmp / "seen.py").write_text(
        "from torch import nn\n"
        "class Time(nn.Module):\n"
        "    def forward(self, x):\n"
        "        assert x.shape[1:] == (32, 2), x.shape\n"
        "        return x.mean(1)\n"
        "def net(shape, num_classes):\n"
        "    time, channels = shape\n"
        "    assert (time, channels) == (32, 2)\n"
        "    return Time(), nn.Linear(channels, num_classes)\n"
    )
    run = feddag.run(feddag.Experiment(dataset=feddag.dataset(*series()), model="seen:net", **QUICK))
    assert run.model(1).scores(series()[0][:4]).shape == (4, 3)


def test_the_documented_networks_run(in_tmp: Path) -> None:
    """The blocks of docs/methods.md, saved under the names that they begin with; both are trained natively."""
    page = (Path(__file__).parents[1] / "docs/methods.md").read_text()
    for name, function, data in (("mine", "wide", "digits"), ("series", "small", feddag.dataset(*series()))):
        blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
        (block,) = (block for block in blocks if block.startswith(f"# {name}.py") and f"def {function}(" in block)
        (in_tmp / f"documented_{name}.py").write_text(block)
        run = feddag.run(feddag.Experiment(dataset=data, model=f"documented_{name}:{function}", **QUICK))
        assert run.result["versions"]["trainer"].startswith("native") or not feddag.native.available()


@pytest.mark.parametrize("labels", [np.linspace(0, 1, 120), np.arange(120) % 2 + 0.0])
def test_labels_that_are_fractions_are_refused(labels: np.ndarray, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=series()[0], y=labels)
    with pytest.raises(FeddagError, match="labels of type float64: only classification is supported"):
        feddag.run(feddag.Experiment(dataset=str(tmp_path / "own.npz"), **QUICK))
