"""Whole runs in this process: repeatable, resumable, and right in what they report."""

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import feddag
from feddag.client.step import to_tensor
from feddag.errors import FeddagError
from feddag.report.terminal import show_clustering
from feddag.runner.results import Accuracy

QUICK = {"clients": 6, "groups": 3, "rounds": 4, "epochs": 1, "participation": 0.5, "workers": 1}


def without_seconds(result: dict) -> dict:
    """The history, which the result names by its content, tells seconds as well."""
    return {name: value for name, value in result.items() if name not in ("seconds", "versions", "history_sha256")}


def test_accuracy_over_clients_by_hand() -> None:
    block = Accuracy.over([0.1, 0.2, *[1.0] * 18])
    assert block.mean == pytest.approx(0.915)
    assert block.worst_decile == pytest.approx(0.15)  # the worst two of twenty
    assert Accuracy.over([0.4, 0.8]).worst_decile == 0.4
    assert Accuracy.over([0.4, 0.8]).std == pytest.approx(0.2)


def test_the_result_says_what_the_history_says(tmp_path: Path) -> None:
    run = feddag.run(feddag.Experiment(method="oracle", **QUICK | {"rounds": 20}), tmp_path / "r")
    result = json.loads((tmp_path / "r/result.json").read_text())
    assert result == run.result
    history = np.array([record["per_client"] for record in run.history])
    assert history.shape == (20, 6)
    np.testing.assert_allclose(result["accuracy"]["per_client"], history[-2:].mean(0), atol=2e-6)  # the last tenth
    np.testing.assert_allclose(result["accuracy_last"]["per_client"], history[-1])
    np.testing.assert_allclose(result["accuracy_best"]["per_client"], history.max(0))
    assert result["accuracy"]["mean"] == pytest.approx(history[-2:].mean(), abs=1e-5)
    np.testing.assert_allclose(result["accuracy_by_round"], history.mean(1), atol=2e-6)
    np.testing.assert_allclose(result["volatility"], np.abs(history[11:] - history[10:-1]).mean(), atol=2e-6)
    assert run.accuracy.mean == result["accuracy"]["mean"] > 0.5
    assert result["clusters"] == result["truth"] == run.truth and result["ari"] == 1.0
    assert result["bytes_up"] == run.history[-1]["bytes_up"] > 0
    assert (tmp_path / "r/experiment.toml").stat().st_mtime_ns <= (tmp_path / "r/partition.npz").stat().st_mtime_ns


def test_the_groups_a_method_made_are_scored(in_tmp: Path) -> None:
    """Largest class shares 0.8, 0.9 | 0.5, 0.6; shares of the first class 0.8, 0.1 | 0.5, 0.4."""
    y = np.repeat([0, 1] * 4, [8, 2, 3, 27, 5, 5, 40, 60])
    client = np.repeat([0, 1, 2, 3], [10, 30, 10, 100])
    x = np.random.default_rng(0).normal(size=(150, 4))
    np.savez(in_tmp / "d.npz", x_train=x, y_train=y, client_train=client, x_test=x, y_test=y, client_test=client)
    (in_tmp / "fixed.py").write_text(
        "from feddag.methods.fedavg import FedAvg\n"
        "class Fixed(FedAvg):\n"
        "    name = 'fixed'\n"
        "    def clusters(self):\n"
        "        return {0: 1, 1: 1, 2: 0, 3: 0}\n"
    )
    fields = QUICK | {"dataset": "d.npz", "partition": "natural", "clients": None, "groups": None}
    result = feddag.run(feddag.Experiment(**fields, method="fixed:Fixed")).result
    assert result["clustering"] == {
        **{"found": 2, "true": None, "ari": None, "rand": None},
        **{"silhouette": None, "silhouette_classes": 0.107143, "was": 0.657143, "wadb": 0.333333},
    }
    assert feddag.run(feddag.Experiment(**fields, method="fedavg")).result["clustering"] is None
    known = feddag.run(feddag.Experiment(method="oracle", **QUICK)).result
    assert known["clustering"].items() >= {"found": 3, "true": 3, "ari": 1.0, "rand": 1.0}.items()
    assert known["ari"] == 1.0
    screen = StringIO()
    asked = result | {"method": "fedgwc"}  # what WAS and WADB were made for
    for shown in (result, asked, known | {"clustering": None}, {}):  # no groups, and an older result: no line
        show_clustering(Console(file=screen), shown)
    assert screen.getvalue() == (
        "groups: 2 found, true unknown; ARI -, Rand -, silhouette by classes 0.107\n"
        "groups: 2 found, true unknown; ARI -, Rand -, silhouette by classes 0.107, WAS 0.657, WADB 0.333\n"
    )


def test_passes_and_bytes_by_hand() -> None:
    experiment = feddag.Experiment(
        **QUICK | {"participation": 1.0, "rounds": 2, "epochs": 3, "groups": 5}, method="fedavg", finetune=False
    )
    result = feddag.run(experiment).result
    model = 4 * (64 * 128 + 128 + 128 * 10 + 10)
    assert result["sample_passes"] == 2 * 3 * 1438  # rounds x epochs x all of digits' training samples
    assert result["bytes_down"] == 2 * 6 * model
    assert result["bytes_up"] == 2 * 6 * (model + 8 + 8)  # and the loss and the number of samples
    assert result["accuracy_finetuned"] is None
    assert result["sample_passes_by_phase"] == {"train": 2 * 3 * 1438}
    assert result["by_client"]["bytes_down"] == [2 * model] * 6
    assert result["by_client"]["bytes_up"] == [2 * (model + 8 + 8)] * 6
    assert all(result["by_client"]["sample_passes"]) and sum(result["by_client"]["sample_passes"]) == 2 * 3 * 1438


@pytest.mark.parametrize("method", sorted(feddag.methods.all_methods()))
def test_the_written_experiment_repeats_the_run(tmp_path: Path, method: str) -> None:
    first = feddag.run(feddag.Experiment(method=method, **QUICK), tmp_path / "a")
    again = feddag.run(feddag.experiment.read_experiment(tmp_path / "a/experiment.toml", {}), tmp_path / "b")
    assert without_seconds(first.result) == without_seconds(again.result)


class StopError(Exception):
    """Stands for a kill at the end of a round."""


def stop_after(rounds: int):
    def observer(record: dict) -> None:
        if record["round"] == rounds:
            raise StopError

    return observer


@pytest.mark.parametrize("method", sorted(feddag.methods.all_methods()))
def test_a_stopped_run_goes_on_as_if_nothing_had_happened(tmp_path: Path, method: str) -> None:
    experiment = feddag.Experiment(method=method, **QUICK)
    whole = feddag.run(experiment, tmp_path / "whole").result
    for rounds in (1, 3):
        with pytest.raises(StopError):
            feddag.run(experiment, tmp_path / str(rounds), observer=stop_after(rounds))
        resumed = feddag.run(experiment, tmp_path / str(rounds), resume=True)
        assert without_seconds(resumed.result) == without_seconds(whole)
        assert [record["round"] for record in resumed.history] == [1, 2, 3, 4]


def test_a_damaged_checkpoint_costs_a_round_not_the_run(tmp_path: Path) -> None:
    experiment = feddag.Experiment(method="local", **QUICK)
    whole = feddag.run(experiment, tmp_path / "whole").result
    with pytest.raises(StopError):
        feddag.run(experiment, tmp_path / "r", observer=stop_after(3))
    newest = tmp_path / "r/checkpoints/round-000003.safetensors"
    newest.write_bytes(newest.read_bytes()[:100])
    assert without_seconds(feddag.run(experiment, tmp_path / "r", resume=True).result) == without_seconds(whole)


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    experiment = feddag.Experiment(**QUICK)
    first = feddag.run(experiment, tmp_path / "r").result
    assert feddag.run(experiment, tmp_path / "r", resume=True).result == first


def test_a_run_goes_on_only_with_its_own_experiment(tmp_path: Path) -> None:
    experiment = feddag.Experiment(**QUICK)
    with pytest.raises(StopError):
        feddag.run(experiment, tmp_path / "r", observer=stop_after(1))
    before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*.*")}
    with pytest.raises(FeddagError, match="another experiment"):
        feddag.run(experiment.with_(lr=0.5), tmp_path / "r", resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*.*")} == before
    assert feddag.run(experiment, tmp_path / "r", resume=True).experiment == experiment
    with pytest.raises(FeddagError, match="another experiment"):
        feddag.run(experiment.with_(lr=0.5), tmp_path / "r", resume=True)


def test_a_damaged_client_state_is_written_anew(tmp_path: Path) -> None:
    experiment = feddag.Experiment(method="local", **QUICK)
    with pytest.raises(StopError):
        feddag.run(experiment, tmp_path / "r", observer=stop_after(3))
    for path in (tmp_path / "r/states").glob("*-round-000003*"):
        path.write_bytes(path.read_bytes()[:50])
    resumed = feddag.run(experiment, tmp_path / "r", resume=True)
    whole = feddag.run(experiment, tmp_path / "whole")
    for client in range(6):
        one, other = resumed.network(client).state_dict(), whole.network(client).state_dict()
        assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(FeddagError, match="not one of the 6 clients"):
        whole.network(6)


def test_a_directory_with_something_in_it_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FeddagError, match="is not empty"):
        feddag.run(feddag.Experiment(**QUICK), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize("method", ["oracle", "local"])
def test_loading_a_run_gives_its_models_back(tmp_path: Path, method: str) -> None:
    run = feddag.run(feddag.Experiment(method=method, **QUICK))
    run.save(tmp_path / "kept")
    loaded = feddag.load(tmp_path / "kept")
    assert loaded.result == run.result and loaded.experiment.key() == run.experiment.key()
    dataset = feddag.data.datasets.load("digits")
    partition = feddag.data.partitions.Partition.load(tmp_path / "kept/partition.npz")
    for client in (0, 3):
        x = to_tensor(dataset.x_test[partition.test[client]], dataset.mean, dataset.std)
        y = torch.from_numpy(dataset.y_test[partition.test[client]])
        hits = loaded.network(client)(x).argmax(1) == y
        balanced = np.mean([hits[y == label].float().mean() for label in y.unique()])
        assert balanced == pytest.approx(run.result["accuracy_last"]["per_client"][client], abs=1e-6)


def test_validation_data_is_used_when_asked_for() -> None:
    common = QUICK | {"validation": 0.25, "method": "oracle", "concentration": 10.0}
    on_test = feddag.run(feddag.Experiment(**common)).result
    on_validation = feddag.run(feddag.Experiment(evaluate="validation", **common)).result
    assert on_test["partition_checksum"] == on_validation["partition_checksum"]
    assert on_test["sample_passes"] == on_validation["sample_passes"]
    assert on_test["accuracy"] != on_validation["accuracy"]


def test_a_client_without_a_sample_to_be_scored_on_has_no_score(in_tmp: Path) -> None:
    """Client c has one sample only: nothing of it can be split off for validation."""
    x, client = np.random.default_rng(0).normal(size=(21, 4)), np.repeat([0, 1, 2], [10, 10, 1])
    y = np.arange(21) % 2
    np.savez(in_tmp / "d.npz", x_train=x, y_train=y, client_train=client, x_test=x, y_test=y, client_test=client)
    fields = QUICK | {"dataset": "d.npz", "partition": "natural", "clients": None, "groups": None}
    result = feddag.run(feddag.Experiment(**fields, validation=0.3, evaluate="validation")).result
    assert [score is None for score in result["accuracy"]["per_client"]] == [False, False, True]
    assert 0 <= result["accuracy"]["mean"] <= 1
    json.dumps(result, allow_nan=False)


def test_the_native_trainer_is_refused_where_it_cannot_serve(tmp_path: Path) -> None:
    with pytest.raises(FeddagError, match=r"trainer = 'native' cannot train model = 'resnet9'.*allowed is 'torch'"):
        feddag.run(feddag.Experiment(dataset="digits", model="resnet9", trainer="native"), tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_torch_and_native_runs_agree() -> None:
    results = [feddag.run(feddag.Experiment(trainer=trainer, **QUICK)).result for trainer in ("torch", "auto")]
    assert results[0]["versions"]["trainer"] == "torch"
    assert abs(results[0]["accuracy"]["mean"] - results[1]["accuracy"]["mean"]) < 0.03


def test_refusals_leave_nothing_behind(tmp_path: Path) -> None:
    for fields in ({"method": "oracle", "partition": "dirichlet"}, {"model": "lenet5"}, {"dataset": "digitss"},
                   {"clients": 5000}, {"groups": 9}, {"model": "nowhere:f"}):  # fmt: skip
        with pytest.raises(FeddagError) as caught:
            feddag.run(feddag.Experiment(**QUICK | fields), tmp_path / "r")
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "r").exists(), fields


def test_own_data_own_model_and_own_method(in_tmp: Path) -> None:
    """A 12 x 2 time series, a network and an algorithm that the package has never seen."""
    generator = np.random.default_rng(0)
    y = np.repeat(["still", "moving"], 60)
    x = generator.normal(0, 0.1, (120, 12, 2)) + (y == "moving")[:, None, None]
    np.savez(in_tmp / "steps.npz", x=x, y=y, client=np.tile(["ann", "bob", "eve"], 40))
    (in_tmp / "mine.py").write_text(
        "from torch import nn\n"
        "from feddag.methods.fedavg import FedAvg\n"
        "def network(shape, num_classes):\n"
        "    encoder = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1], 5), nn.Tanh())\n"
        "    return encoder, nn.Linear(5, num_classes)\n"
        "class Mine(FedAvg):\n"
        "    name = 'mine'\n"
    )
    for workers in (1, 2):
        run = feddag.run(
            feddag.Experiment(
                dataset="steps.npz",
                partition="natural",
                model="mine:network",
                method="mine:Mine",
                rounds=5,
                participation=1.0,
                workers=workers,
                test="own",
            )
        )
        assert run.accuracy.mean == 1.0
        assert len(run.accuracy.per_client) == 3


def test_models_made_on_the_spot_are_held_while_they_are_scored(in_tmp: Path) -> None:
    """Models are told apart by their id: one that was let go of could pass its id, and its scores, on to another."""
    (in_tmp / "fresh.py").write_text(
        "import weakref\n"
        "from feddag.methods.fedavg import FedAvg\n"
        "class Model(dict): pass\n"
        "class Fresh(FedAvg):\n"
        "    name = 'fresh'\n"
        "    def round(self, federation, sampled):\n"
        "        super().round(federation, sampled)\n"
        "        self._made = []\n"
        "    def model_of(self, client):\n"
        "        model = Model(super().model_of(client))\n"
        "        self._made.append(weakref.ref(model))\n"
        "        assert all(made() is not None for made in self._made)\n"
        "        return model\n"
    )
    run = feddag.run(feddag.Experiment(method="fresh:Fresh", **QUICK | {"rounds": 1, "finetune": False}))
    assert run.result["accuracy"]["mean"] > 0
