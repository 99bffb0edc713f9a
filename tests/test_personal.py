"""The model that each client chooses at the end: what is told about it, where it is kept, and that it is served."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddag
from feddag.client.evaluate import balanced_accuracy
from feddag.client.personal import CANDIDATES, CHOSEN
from feddag.data.clients import lay_out, set_aside
from feddag.errors import FeddagError
from feddag.report import read_run
from feddag.report.run import run_document
from feddag.runner.directory import RunDirectory
from feddag.runner.run import Run, prepare
from feddag.runner.trees import load_tree
from feddag.weights import digest
from tests.engines.in_process import run_on_nodes
from tests.test_export import called

QUICK: dict[str, Any] = {
    **{"clients": 5, "groups": 2, "rounds": 2, "epochs": 2, "participation": 1.0, "workers": 1, "finetune": False},
    **{"label_fraction": 0.4, "concentration": 5.0},
}
AUTO: dict[str, Any] = QUICK | {"personal": "auto"}
TIMES = ("seconds", "versions", "history_sha256")


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """FedDAG's clusters on digits, the common model trained beside them, and one client that joined last."""
    fields = AUTO | {"method": "feddag-star", "holdout": 0.2, "head": "random", "softmax": "all"}
    return feddag.run(feddag.Experiment(**fields), tmp_path_factory.mktemp("chosen") / "run")


def test_samples(run: Run, client: int) -> tuple[np.ndarray, np.ndarray]:
    """A client's test samples as they lie in the file, and their labels."""
    dataset, partition, _ = prepare(run.experiment)
    data = lay_out(dataset, partition, run.experiment.seed)
    blocks = [data.block(number) for number in data.blocks(client)]
    return np.concatenate([x for x, _ in blocks]), np.concatenate([y for _, y in blocks])


test_samples.__test__ = False  # type: ignore[attr-defined]


def test_the_served_model_has_the_accuracy_that_was_told(chosen: Run) -> None:
    told = chosen.result["personal"]
    assert told["clients"] == [*chosen.result["participants"], *chosen.result["held_out"]] and len(told["clients"]) == 5
    assert set(told["accuracy"]) == {*CANDIDATES, CHOSEN}
    assert sum(told["chose"].values()) == 5 and len(set(told["choice"]) - {"group"}) > 0
    for place, client in enumerate(told["clients"]):
        x, y = test_samples(chosen, client)
        for tuned, name in ((True, CHOSEN), (False, "group")):
            predicted = chosen.model(client, tuned=tuned).scores(x).argmax(axis=1)
            expected = told["accuracy"][name]["per_client"][place]
            assert balanced_accuracy(predicted, y) == pytest.approx(expected, abs=1e-6), (client, name)


def test_what_is_counted(chosen: Run) -> None:
    result = chosen.result
    for phase in ("common", "personal"):
        assert result["training_flops_by_phase"][phase] > 0 and result["sample_passes_by_phase"][phase] > 0
        assert result["bytes_by_phase"]["down"][phase] > 0
    # five shares; right and of how many by class for five candidates and the chosen one; the number of samples
    assert result["bytes_by_phase"]["up"]["personal"] == 5 * (5 * 8 + 6 * 10 * 2 * 8 + 8)
    passes = {
        "common": 2 * 2,
        "personal": 2 + 2 + 2 * 2,
    }  # two rounds of two epochs; head, full, alone as in two rounds
    dataset, partition, _ = prepare(chosen.experiment)
    data = set_aside(lay_out(dataset, partition, 0), 0)
    trained = {"common": result["participants"], "personal": range(5)}
    for phase, epochs in passes.items():
        samples = sum(data.size(client) for client in trained[phase])
        assert result["sample_passes_by_phase"][phase] == epochs * samples, phase


def test_nobody_trains_on_what_is_set_aside(chosen: Run) -> None:
    dataset, partition, _ = prepare(chosen.experiment)
    plain = lay_out(dataset, partition, 0)
    data = set_aside(plain, 0)
    for client in range(5):
        kept, aside = data.samples(client), data.samples_aside(client)
        total = len(partition.train[client])
        assert len(aside[1]) == max(10, round(0.2 * total)) and len(kept[1]) + len(aside[1]) == total
        together = sorted(x.tobytes() + bytes([y]) for part in (kept, aside) for x, y in zip(*part, strict=True))
        assert together == sorted(x.tobytes() + bytes([y]) for x, y in zip(*plain.samples(client), strict=True))
        assert data.size(client) == len(kept[1])


@pytest.mark.parametrize(
    "method",
    ["fedavg", "local", "ditto", "fedper", "per-fedavg", "ifca", "feddag", "pacfl", "fedsoft", "fedrc"],
)
def test_every_method_can(method: str, tmp_path: Path) -> None:
    run = feddag.run(feddag.Experiment(method=method, **AUTO), tmp_path / "r")
    told = run.result["personal"]
    assert ("common" in run.result["training_flops_by_phase"]) == (method not in ("fedavg", "ditto", "per-fedavg"))
    if method == "fedavg":
        assert told["accuracy"]["common"] == told["accuracy"]["group"] == run.result["accuracy_last"]
    if method == "ditto":
        assert told["accuracy"]["common"] != told["accuracy"]["group"]
    x, y = test_samples(run, 1)
    predicted = run.model(1, tuned=True).scores(x).argmax(axis=1)
    assert balanced_accuracy(predicted, y) == pytest.approx(told["accuracy"][CHOSEN]["per_client"][1], abs=1e-6)


def test_only_what_was_asked_for_is_tried(tmp_path: Path) -> None:
    run = feddag.run(feddag.Experiment(method="fedavg", **QUICK, personal="head"), tmp_path / "r")
    assert set(run.result["personal"]["accuracy"]) == {"group", "head", CHOSEN}
    for saved in RunDirectory(tmp_path / "r").load_checkpoint().states.values():  # type: ignore[union-attr]
        assert set(saved[1]) <= {"tuned/shares", "tuned head/head.weight", "tuned head/head.bias"}
    assert not {"common", "personal"} & set(feddag.run(feddag.Experiment(method="fedavg", **QUICK)).result)


def test_none_is_what_it_was() -> None:
    keys = [feddag.Experiment(**fields).key() for fields in ({}, {"personal": "none"}, {"personal": "auto"})]
    assert keys[0] == keys[1] != keys[2]
    with pytest.raises(FeddagError, match=r"personal = 'ful' is not allowed: .*did you mean 'full'"):
        feddag.Experiment(personal="ful")


def test_whoever_has_too_few_samples_keeps_a_group_model_that_is_of_use() -> None:
    labels = np.arange(24) % 2  # 24 samples: a third of them are 8
    noise = np.random.default_rng(0).normal(size=(6, 24, 6))
    samples = [(part + 6 * labels[:, None]).astype(np.float32) for part in noise]
    clients = [(x, labels, x, labels) for x in samples[:-1]] + [(samples[-1], 1 - labels, samples[-1], 1 - labels)]
    data = feddag.dataset(clients=clients)
    fields = {"rounds": 3, "epochs": 10, "participation": 1.0, "personal": "full", "workers": 1}
    told = feddag.run(feddag.Experiment(dataset=data, method="fedavg", **fields)).result["personal"]
    assert told["choice"] == [*["group"] * 5, "full"]  # the last client calls every class by the other's name
    chosen, group = (told["accuracy"][name]["per_client"] for name in (CHOSEN, "group"))
    assert chosen[:-1] == group[:-1] and chosen[-1] > group[-1]


def test_what_learnt_only_held_classes_answers_with_these(tmp_path: Path) -> None:
    """FedDAG's softmax knows only held classes: so must a model trained alone, a tuned one and the common one."""
    run = feddag.run(feddag.Experiment(method="feddag-star", **AUTO), tmp_path / "r")
    dataset, partition, _ = prepare(run.experiment)
    states = RunDirectory(tmp_path / "r").load_checkpoint().states  # type: ignore[union-attr]
    told = run.result["personal"]["accuracy"]
    compared = 0
    for client, indices in enumerate(partition.train):
        for name in ("head", "full", "alone", "common"):
            bias = states[client][1].get(f"tuned {name}/head.bias")
            if bias is not None:
                compared += 1
                assert np.flatnonzero(bias.numpy() > -999).tolist() == np.unique(dataset.y_train[indices]).tolist()
        x, y = test_samples(run, client)
        predicted = run.model(client, tuned=True).scores(x).argmax(axis=1)
        assert balanced_accuracy(predicted, y) == pytest.approx(told[CHOSEN]["per_client"][client], abs=1e-6)
    assert compared >= 4
    # what the common model was told apart from, no client's test samples hold
    assert told["common"]["mean"] > 0.5 and told["alone"]["mean"] > 0.5


def test_a_mixture_has_nothing_to_tune(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mixed_method.py").write_text(
        "from feddag.methods.fedavg import FedAvg\nfrom feddag.weights import Mixture\n"
        "class Mixed(FedAvg):\n    name = 'mixed'\n    def model_of(self, client):\n"
        "        return Mixture((self.weights, {k: 0.5 * v for k, v in self.weights.items()}), (0.75, 0.25))\n"
    )
    monkeypatch.syspath_prepend(in_tmp)
    run = feddag.run(feddag.Experiment(method="mixed_method:Mixed", **AUTO), in_tmp / "r")
    assert set(run.result["personal"]["accuracy"]) == {"group", "alone", "common", CHOSEN}
    x, y = test_samples(run, 0)
    told = run.result["personal"]["accuracy"][CHOSEN]["per_client"][0]
    model = run.model(0, tuned=True)
    assert balanced_accuracy(model.scores(x).argmax(axis=1), y) == pytest.approx(told, abs=1e-6)
    feddag.export(run, in_tmp / "m.safetensors", "safetensors", client=0, tuned=True)
    again = feddag.load_model(in_tmp / "m.safetensors")
    np.testing.assert_allclose(again.scores(x), model.scores(x), atol=1e-5)


class Stop(Exception):
    pass


@pytest.mark.parametrize("moment", ["round", "choice", "result"])
def test_a_stopped_run_ends_with_the_same_bytes(chosen: Run, moment: str, tmp_path: Path, monkeypatch) -> None:
    def stop(*_: Any) -> None:
        raise Stop

    with monkeypatch.context() as patched:
        if moment == "choice":  # clients have chosen, and nothing is written down yet
            patched.setattr(RunDirectory, "finish", stop)
        if moment == "result":  # the result is there, the models are not
            patched.setattr(RunDirectory, "save_checkpoint", _only(RunDirectory.save_checkpoint, 3, stop))
        with pytest.raises(Stop):
            feddag.run(chosen.experiment, tmp_path / "r", observer=stop if moment == "round" else None)
    assert (tmp_path / "r/result.json").exists() == (moment == "result")
    again = feddag.run(chosen.experiment, tmp_path / "r", resume=True)
    assert _lasting(again.result) == _lasting(chosen.result)
    kept = [
        {path.name: digest(load_tree(path)) for path in (run.directory / "states").iterdir()} for run in (again, chosen)
    ]
    assert kept[0] == kept[1] and len(kept[0]) == 5


def _only(real: Any, times: int, stop: Any) -> Any:
    done = []

    def call(*args: Any) -> None:
        done.append(1)
        if len(done) > times:
            stop()
        real(*args)

    return call


def _lasting(result: Any) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in TIMES}


def test_flowers_nodes_choose_the_same_and_keep_it_at_home(chosen: Run, tmp_path: Path, monkeypatch) -> None:
    experiment = feddag.Experiment(**AUTO, method="feddag-star")
    run, here = run_on_nodes(experiment, tmp_path, monkeypatch), feddag.run(experiment)
    assert run.result["personal"] == here.result["personal"]
    assert run.result["bytes_by_phase"] == here.result["bytes_by_phase"]
    assert run.result["training_flops_by_phase"] == here.result["training_flops_by_phase"]
    assert not list((tmp_path / "r").rglob("client-*"))
    with pytest.raises(FeddagError, match="keeps its tuned model on its own machine"):
        run.model(0, tuned=True)
    assert len(list((tmp_path / "state").rglob("round-*.safetensors"))) == 5


def test_pytorch_and_the_native_trainer_choose_alike(tmp_path: Path) -> None:
    fields = AUTO | {"method": "fedavg"}
    runs = [feddag.run(feddag.Experiment(**fields, trainer=trainer)) for trainer in ("native", "torch")]
    one, other = (run.result["personal"] for run in runs)
    assert one["choice"] == other["choice"]
    for name, block in one["accuracy"].items():
        np.testing.assert_allclose(block["per_client"], other["accuracy"][name]["per_client"], atol=0.02)
    assert runs[0].result["bytes_by_phase"] == runs[1].result["bytes_by_phase"]
    assert runs[0].result["sample_passes_by_phase"] == runs[1].result["sample_passes_by_phase"]


def test_on_the_command_line(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    fields = {name: value for name, value in AUTO.items() if name not in ("clients", "rounds")}
    settings = [word for name, value in fields.items() for word in ("--set", f"{name}={json.dumps(value)}")]
    command = ["run", "--method", "fedavg", "--clients", "5", "--rounds", "2", "--out", "r", "--no-report", *settings]
    code, shown, _ = called(command, monkeypatch, capsys)
    assert code == 0 and "what clients may use from now on" in shown
    run = feddag.load("r")
    told = run.result["personal"]
    [line] = [line for line in shown.splitlines() if line.startswith("alone")]
    assert line.split()[1:3] == [f"{told['accuracy']['alone'][part]:.3f}" for part in ("mean", "worst_decile")]
    x, y = test_samples(run, 2)
    np.savez("data.npz", x=x, y=y)
    code, shown, _ = called(["predict", "r", "--client", "2", "--tuned", "data.npz"], monkeypatch, capsys)
    assert code == 0 and f"balanced accuracy {told['accuracy'][CHOSEN]['per_client'][2]:.3f}" in shown
    code, shown, _ = called(["export", "r", "--client", "2", "--tuned"], monkeypatch, capsys)
    assert code == 0
    exported = feddag.load_model("r-client-2-tuned.safetensors")
    np.testing.assert_allclose(exported.scores(x), run.model(2, tuned=True).scores(x), atol=1e-5)
    code, shown, said = called(["predict", "r", "--cluster", "0", "--tuned", "data.npz"], monkeypatch, capsys)
    assert code == 2 and "a cluster has no tuned model" in said
    code, shown, _ = called(["show", "r"], monkeypatch, capsys)
    assert code == 0 and "what clients may use from now on" in shown


def test_without_the_field_there_is_no_tuned_model() -> None:
    run = feddag.run(feddag.Experiment(method="fedavg", **QUICK))
    with pytest.raises(FeddagError, match="personal = 'none'"):
        run.model(0, tuned=True)


def test_the_page_has_a_section_of_its_own(chosen: Run) -> None:
    [found] = [part for part in run_document(read_run(chosen.directory))["sections"] if part["id"] == "personal"]
    rows = {row[0]: row for row in found["table"]["rows"]}
    told = chosen.result["personal"]
    assert rows[CHOSEN][2] == told["accuracy"][CHOSEN]["mean"] and rows[CHOSEN][4] == 5
    assert sum(rows[name][4] for name in rows if name != CHOSEN) == 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"choice": []}, "not one choice and one accuracy"),
        ({"clients": [0, 0, 1, 2, 3]}, "distinct clients"),
        ({"accuracy": {}}, "not one choice and one accuracy"),
        ({"chose": {"group": -1}}, "personal"),
    ],
)
def test_a_damaged_result_is_refused(chosen: Run, change: dict[str, Any], says: str, tmp_path: Path) -> None:
    result = json.loads((chosen.directory / "result.json").read_text())
    result["personal"] |= change
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(FeddagError, match=says):
        RunDirectory(tmp_path).read_result()
