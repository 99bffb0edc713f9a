"""Which device PyTorch trains on, and that all of it happens there."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import feddag
from feddag import native
from feddag.cli import main
from feddag.client.device import find_device
from feddag.client.trainer import native_network
from feddag.errors import FeddagError
from feddag.models import ModelSpec
from feddag.runner.run import prepare
from tests.client.made_up_device import SPECS

ROOT = Path(__file__).parents[2]


def test_training_and_scoring_happen_on_the_device_and_come_back() -> None:
    command = [sys.executable, "-m", "tests.client.made_up_device"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*SPECS, "encoder", "head"]


def test_a_device_changes_no_key_and_is_written_down() -> None:
    keys = {feddag.Experiment(device=device).key() for device in ("auto", "cpu", "cuda", "mps")}
    assert keys == {feddag.Experiment().key()}
    assert 'device = "cuda"\n' in feddag.Experiment(device="cuda").to_toml()


def test_what_is_not_there_is_refused_in_one_sentence(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["feddag", "run", "--set", "device=cuda"])
    with pytest.raises(SystemExit) as ended:
        main()
    sentence = "device = 'cuda' is not there: PyTorch finds none on this machine; allowed are 'auto', 'cpu'"
    assert ended.value.code == 2 and capsys.readouterr().err == f"feddag: {sentence}\n"
    with pytest.raises(FeddagError, match="device = 'mps' is not there"):
        find_device("mps")
    with pytest.raises(FeddagError, match="device = 'tpu' is not allowed: it should be 'auto', 'cpu', 'cuda' or 'mps'"):
        feddag.Experiment(device="tpu")


def test_native_and_a_card_exclude_each_other() -> None:
    with pytest.raises(FeddagError, match=r"trains on the processor alone, and device = 'cuda'; allowed is .*'torch'"):
        native_network(ModelSpec("mlp", (4,), 2), "native", "cuda")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "native"),
        ({"device": "cpu"}, "native"),
        ({"device": "cuda"}, "cuda"),
        ({"trainer": "torch"}, "cuda"),
        ({"trainer": "torch", "device": "cpu"}, "cpu"),
        ({"trainer": "torch", "device": "mps"}, "mps"),
        ({"model": "resnet9"}, "cuda"),
    ],
)
def test_which_device_it_is(
    fields: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if expected == "native" and not native.available():
        pytest.skip(native.reason())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    np.savez(tmp_path / "colours.npz", x=np.zeros((60, 24, 24, 3), np.uint8), y=np.arange(60) % 3)
    data = {"dataset": str(tmp_path / "colours.npz"), "partition": "iid", "clients": 2, "method": "fedavg"}
    config = prepare(feddag.Experiment(**data, **fields))[2]
    assert (config.network is not None) == (expected == "native")
    assert config.device == ("cpu" if expected == "native" else expected)
