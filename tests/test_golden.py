"""Short runs of different methods, datasets and trainers, each equal to what it has always been, to the last digit.

`python tests/test_golden.py` writes `golden.json` anew for this machine's processor: only where a defect that changes
results was mended, and then with the reason in the commit. Floating point differs between processors: on one that the
file does not know, accuracies may differ a little and groups not at all.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag import native

FILE = Path(__file__).with_name("golden.json")
QUICK: dict[str, Any] = {"clients": 8, "rounds": 3, "epochs": 1, "participation": 0.5}
RUNS: dict[str, dict[str, Any]] = {
    "feddag on digits": {"method": "feddag", "smoothing": 0.5, "drift_round": 2, "drift_every": 1, "groups": 3},
    "feddag, concepts and newcomers": {
        **{"method": "feddag", "partition": "concept-shift", "dataset": "colours", "holdout": 0.25, "clients": 12},
        **{"sharing": "encoder", "diversity": 0.1, "regroup_after": 2},
    },
    "feddag-star on series": {"method": "feddag-star", "dataset": "series", "model": "mlp", "partition": "dirichlet"},
    "feddag over time": {"method": "feddag", "dataset": "series", "partition": "concept-shift", "concepts": 2},
    "feddag-dagger on PyTorch": {"method": "feddag-dagger", "trainer": "torch", "schedule": "2:1", "workers": 2},
    "fedavg on small photographs": {"method": "fedavg", "dataset": "colours", "model": "cnn"},
    "fedavgm, pathological": {"method": "fedavgm", "partition": "pathological", "test": "own", "steps": 7},
    "fedprox on feature skew": {"method": "fedprox", "dataset": "colours", "partition": "feature-skew", "mu": 0.1},
    "fairavg, validated": {"method": "fairavg", "validation": 0.2, "evaluate": "validation"},
    "local with two threads": {"method": "local", "workers": 2, "partition": "pairs"},
    "oracle on ResNet-9": {"method": "oracle", "dataset": "colours", "model": "resnet9", "rounds": 2, "clients": 4},
}
ACCURACIES = ("accuracy", "accuracy_last", "accuracy_finetuned", "accuracy_best", "accuracy_unseen")
COUNTS = ("clusters", "truth", "ari", "bytes_up", "bytes_down", "sample_passes", "bytes_by_phase", "answers_missing")


def write_datasets(folder: Path) -> None:
    """Two small datasets that every machine makes alike: colour images of four classes, and series of three."""
    draw = np.random.default_rng(5)
    y = np.arange(360) % 4
    x = draw.integers(0, 90, (360, 24, 24, 3), dtype=np.uint8)
    for label in range(4):
        x[y == label, 6 * label : 6 * label + 6, :, label % 3] += 120
    np.savez(folder / "colours.npz", x_train=x[:280], y_train=y[:280], x_test=x[280:], y_test=y[280:])
    kind = np.arange(240) % 3
    time = np.arange(16) / 16
    series = np.sin(2 * np.pi * (kind[:, None] + 1) * time)[..., None] + draw.normal(0, 0.4, (240, 16, 2))
    parts = {"x_train": series[:180], "x_test": series[180:]}
    np.savez(
        folder / "series.npz",
        y_train=kind[:180],
        y_test=kind[180:],
        **{name: part.astype(np.float32) for name, part in parts.items()},
    )


def outcome(name: str, folder: Path) -> dict[str, Any]:
    """All that a run gives but seconds, versions and keys: its scores, its counts, and the bytes of every model."""
    given = {"trainer": "auto", "workers": 1, **QUICK, **RUNS[name]}
    if given.get("dataset") in ("colours", "series"):
        given["dataset"] = str(folder / f"{given['dataset']}.npz")
    run = feddag.run(feddag.Experiment(**given))
    models = hashlib.sha256()
    for client in range(run.result["clients"]):
        for key, tensor in sorted(run.network(client).state_dict().items()):
            models.update(key.encode() + tensor.contiguous().numpy().tobytes())
    return {
        **{key: run.result.get(key) for key in (*ACCURACIES, *COUNTS)},
        "rounds": [[record["loss"], record["per_client"], record["bytes_up"]] for record in run.history],
        "models": models.hexdigest(),
    }


def machine() -> str:
    """What floating-point results hang on beside the pinned packages."""
    return f"{native.instruction_set()}, torch {torch.backends.cpu.get_cpu_capability()}"


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golden")
    write_datasets(folder)
    return folder


@pytest.mark.parametrize("name", RUNS)
def test_results_are_what_they_were(name: str, datasets: Path) -> None:
    known = json.loads(FILE.read_text())
    found = json.loads(json.dumps(outcome(name, datasets)))
    if name in known.get(machine(), {}):
        expected = known[machine()][name]
        # PyTorch's convolutions add up in another order where caches have other sizes: a list has one of each kind.
        same = next((one for one in expected if one == found), expected[0]) if isinstance(expected, list) else expected
        for key, value in same.items():
            assert found[key] == value, key
    else:
        expected = next(runs[name] for runs in known.values() if name in runs)
        assert found["clusters"] == expected["clusters"] and found["bytes_up"] == expected["bytes_up"]
        assert found["accuracy"]["mean"] == pytest.approx(expected["accuracy"]["mean"], abs=0.1)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write_datasets(Path(place))
        written = json.loads(FILE.read_text()) if FILE.exists() else {}
        only = sys.argv[1:] or list(RUNS)
        mine = written.get(machine(), {}) | {name: outcome(name, Path(place)) for name in only}
        FILE.write_text(json.dumps(written | {machine(): mine}, indent=0) + "\n")
