"""The measurements at tiny sizes: rows hold what they should. Nothing here looks at how long anything took."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from feddag import native
from feddag.bench import attacks, clustering, peers, released, scale, train
from feddag.bench import round as whole_round
from feddag.bench.common import split_into_clients, synthetic_dataset
from feddag.cli import main
from feddag.client.trainer import NativeTrainer
from feddag.errors import FeddagError


@pytest.fixture(autouse=True)
def _one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (train, whole_round, scale):
        monkeypatch.setattr(module, "CORES", 1)
    monkeypatch.setattr(train, "best_gemm", lambda: 1.0)


def stand_in(folder: Path, code: str) -> str:
    """A `python` that runs this code instead of what it is asked to; its arguments end with NAME FOLDER ROUNDS."""
    (folder / "stand_in.py").write_text(code)
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder}/stand_in.py" "$@"\n')
    script.chmod(0o755)
    return str(script)


def one_peer(name: str = "fedlab") -> dict[str, object]:
    (row,) = whole_round.measure([("mlp", 10)], [name], rounds=2, clients=2)
    return row


def test_synthetic_clients_have_the_sizes_asked_for() -> None:
    data = split_into_clients(synthetic_dataset(9, (3, 8, 8)), [2, 4, 3])
    assert [data.size(client) for client in range(3)] == [2, 4, 3]
    assert data.x.shape == (9, 8, 8, 3) and data.x.dtype == np.uint8
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("name", "parameters"), [("M1", 28938), ("lenet5", 61706), ("M2", 540710), ("cnn", 537610), ("cnn1d", 93642)]
)
def test_models_have_the_published_sizes(name: str, parameters: int) -> None:
    assert sum(value.numel() for value in train.MODELS[name].build().state_dict().values()) == parameters


def test_flops_of_m1_by_hand() -> None:
    first, second, dense = 2 * 28 * 28 * 16 * 25, 2 * 14 * 14 * 32 * 16 * 25, 2 * 32 * 49 * 10
    assert train.dense_flops(train.MODELS["M1"]) == 2 * first + 3 * second + 3 * dense  # no gradient of the pixels


def test_train_rows() -> None:
    threads = torch.get_num_threads()
    rows = train.measure(["mlp"], [5, 10], repeat=2, samples=10, clients=3)
    assert torch.get_num_threads() == threads
    assert native.available() == bool(rows[0]["fma_peak_gflops"])
    assert [(row["model"], row["batch_size"]) for row in rows] == [("mlp", 5), ("mlp", 10)]
    for row in rows:
        ways = [way for way in train.WAYS if way != "native" or native.available()]
        assert row["parameters"] == 64 * 128 + 128 + 128 * 10 + 10
        assert 3 * 5 <= row["samples"] <= 3 * 15
        assert all(row[way] > 0 and len(row["seconds"][way]) == 2 for way in ways)
        assert all(row[f"{way}_ratio"] > 0 for way in ways if way != "naive")
        assert all(row[f"{way}_core_ratio"] > 0 for way in train.ENGINES if way in ways)
        assert [len(times) for times in row["core_seconds"].values()] == [2] * (len(ways) - 1)
    json.dumps(rows)
    assert all(len(line) == len(train.COLUMNS) for line in train.table(rows))


def test_train_without_the_native_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "native_network", lambda spec: None)
    (row,) = train.measure(["mlp"], [10], repeat=1, samples=10, clients=2)
    assert row["native"] is row["native_ratio"] is row["native_gflops"] is row["native_core_ratio"] is None
    assert train.table([row])[0][4] == "-"


def test_naive_uses_the_dropout_that_others_use() -> None:
    kinds = [type(module) for module in train._stock(train.MODELS["cnn"].build()).modules()]
    assert kinds.count(torch.nn.Dropout) == 2
    assert train.Dropout not in kinds


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"models": ["lenet"]},
            "models: 'lenet' is not measured; allowed are M1, lenet5, M2, cnn, mlp, cnn1d; did you mean 'lenet5'?",
        ),
        ({"repeat": 0}, "repeat = 0 is not possible: at least 1 is needed"),
        ({"batch_sizes": [10, 0]}, "batch_sizes = 0 is not possible: at least 1 is needed"),
    ],
)
def test_train_refuses(arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(FeddagError) as refusal:
        train.measure(**arguments)  # type: ignore[arg-type]
    assert str(refusal.value) == sentence


def test_peers_build_the_same_mlp_as_the_package() -> None:
    ours = train.MODELS["mlp"].build().state_dict()
    encoder, head = peers.mlp((1, 8, 8), 10)
    theirs = {f"encoder.{key}": value for key, value in encoder.state_dict().items()}
    theirs |= {f"head.{key}": value for key, value in head.state_dict().items()}
    assert {name: value.shape for name, value in ours.items()} == {name: v.shape for name, v in theirs.items()}


def test_round_rows_of_feddag() -> None:
    rows = whole_round.measure([("mlp", 10)], ["feddag native", "feddag torch"], rounds=3, clients=4)
    for row in rows:
        if row["framework"] == "feddag native" and not native.available():
            assert row["skipped"] == "there is no native trainer here"
            continue
        assert row["skipped"] is None and row["samples"] == 1438
        assert row["first"] > 0 and row["later"] > 0
        assert len(row["seconds"]) == (3 + 2 if row["framework"] == "feddag native" else 3)  # twice, but one start
        assert row["loss_after"] < row["loss_before"]
    if native.available():
        assert rows[0]["ratio"] == 1 and rows[1]["ratio"] > 0
        assert rows[0]["loss_after"] == pytest.approx(rows[1]["loss_after"], rel=1e-3)  # the same work
    json.dumps(rows)
    assert all(len(line) == len(whole_round.COLUMNS) for line in whole_round.table(rows))


def test_a_peer_that_is_not_installed_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fedlab.py").write_text("raise ImportError('no such thing here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("FEDDAG_PEER_PYTHON", sys.executable)
    row = one_peer()
    assert row["skipped"] == "fedlab cannot be imported: no such thing here"
    assert row["first"] is row["later"] is row["ratio"] is None


def test_a_peer_that_crashes_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_PEER_PYTHON", stand_in(tmp_path, "import sys; sys.exit('SomeError: it broke')"))
    assert one_peer("flower")["skipped"] == "it failed with exit code 1: SomeError: it broke"


def test_a_peer_that_has_not_learnt_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import json, shutil, sys
name, folder, rounds = sys.argv[-3:]
shutil.copy(f"{folder}/first.npz", f"{folder}/{name}.npz")
print(json.dumps({"version": "7", "first": 3.0, "later": [1.0, 2.0, 4.0]}))
print("a last word")
"""
    monkeypatch.setenv("FEDDAG_PEER_PYTHON", stand_in(tmp_path, code))
    row = one_peer("pfl")
    assert str(row["skipped"]).startswith("it has not learnt: the loss went from 2.")
    assert row["later"] is None
    monkeypatch.setattr(whole_round, "LEARNT", 1.1)  # now it is good enough, and its numbers are taken
    row = one_peer("pfl")
    assert (row["version"], row["first"], row["later"], row["skipped"]) == ("7", 3.0, 2.0, None)


def test_a_peer_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDDAG_PEER_PYTHON", stand_in(tmp_path, "import time; time.sleep(60)"))
    monkeypatch.setattr(whole_round, "PEER_TIMEOUT", 0.2)
    assert one_peer()["skipped"] == "it did not finish within 0 s"


def test_round_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FeddagError, match="rounds = 1 is not possible"):
        whole_round.measure(rounds=1)
    with pytest.raises(FeddagError, match="frameworks: 'x' is not measured; allowed are feddag native, "):
        whole_round.measure(frameworks=["x"])
    with pytest.raises(FeddagError, match="cases: 'cnn' is not measured; allowed are M1, mlp"):
        whole_round.measure([("cnn", 10)])
    monkeypatch.setenv("FEDDAG_PEER_PYTHON", "/no/such/python")
    with pytest.raises(FeddagError, match="FEDDAG_PEER_PYTHON = '/no/such/python' cannot be run: No such file"):
        one_peer()


def test_a_client_of_the_written_work_is_what_feddag_sees(tmp_path: Path) -> None:
    data = split_into_clients(synthetic_dataset(7, (1, 8, 8)), [3, 4])
    whole_round._write_work(tmp_path, data, train.MODELS["mlp"].initial_weights(0, "model"), "mlp", 2)
    work = peers.Work(tmp_path)
    x, y = work.samples(1)
    assert (work.clients, work.batch_size, y.tolist()) == (2, 2, [3, 4, 5, 6])
    assert x.shape == (4, 1, 8, 8)
    assert x[0, 0, 0, 0] == pytest.approx((float(data.x[3, 0, 0, 0]) - 128) / 40)
    assert work.model()(x).shape == (4, 10)


def test_scale_row_in_this_process() -> None:
    untouched = NativeTrainer.fit
    row = scale.run_case(scale.many(40, rounds=3))
    assert NativeTrainer.fit is untouched
    assert (row["clients"], row["participants"], row["samples_per_client"]) == (40, 20, 10)
    assert row["rounds_per_second"] > 0 and row["peak_mb"] > 0
    if native.available():
        assert 0 <= row["outside_share"] <= 1 and row["outside_seconds"] >= 0
    assert len(scale.table([row])[0]) == len(scale.COLUMNS)


def test_scale_in_a_process_of_its_own() -> None:
    (row,) = scale.measure([scale.many(4, rounds=2)])
    assert (row["clients"], row["participants"], row["rounds"]) == (4, 4, 2)


def test_scale_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FeddagError, match="one scoring is needed for start-up"):
        scale.many(4, rounds=1)
    with pytest.raises(FeddagError, match="clients = 0 is not possible"):
        scale.many(0)
    monkeypatch.setattr(sys, "executable", stand_in(tmp_path, "import sys; sys.exit('it broke')"))
    with pytest.raises(FeddagError, match="the run of 4 clients ended with exit code 1: it broke"):
        scale.measure([scale.many(4)])


def test_stopwatch_adds_up() -> None:
    watch = scale.Stopwatch(lambda a, b: a + b)
    assert watch(1, b=2) == 3
    before = watch.seconds
    watch(1, 2)
    assert 0 < before < watch.seconds


def test_a_feddag_round_is_measured() -> None:
    from feddag.bench import dual

    (row,) = dual.measure(batch_sizes=(64,), repeat=1, clients=4)
    assert row["naive"] > 0 and row["torch_ratio"] == pytest.approx(row["naive"] / row["torch"])
    assert [len(line) for line in dual.table([row])] == [len(dual.COLUMNS)]


def test_clustering_in_processes_of_their_own_finds_the_groups() -> None:
    small, large = clustering.measure([40, 80])
    assert (small["clients"], small["groups"], small["ari"]) == (40, 20, 1.0)
    assert (large["clients"], large["groups"], large["ari"]) == (80, 20, 1.0)
    assert small["growth"] is None and large["growth"] == pytest.approx(
        np.log2(large["cpu_seconds"] / small["cpu_seconds"]), abs=0.01
    )
    assert small["seconds"] > 0 and small["peak_mb"] > 0
    assert clustering.table([small])[0][:1] == ["40"] and len(clustering.table([small])[0]) == len(clustering.COLUMNS)


def test_synthetic_signatures_are_as_noisy_as_they_say() -> None:
    signatures, truth = clustering.synthetic_signatures(clustering.GROUPS + 1)
    one, other, twin = signatures[0], signatures[1], signatures[-1]
    assert truth[-1] == truth[0] != truth[1]
    for label in range(10):
        moments = [item.vectors[label].T @ item.vectors[label] for item in (one, other, twin)]
        assert float((moments[0] * moments[2]).sum()) == pytest.approx(float(one.reliability[label]), abs=0.06)
        assert float((moments[0] * moments[1]).sum()) < 0.1
    assert float(one.update @ twin.update) == pytest.approx(float(one.update_reliability), abs=0.03)


def test_clustering_of_one_client() -> None:
    (row,) = clustering.measure_client(["mlp"], samples=40, repeat=1)
    assert row["ifca_seconds"] == pytest.approx(5 * 200 * row["evaluation_seconds"])
    assert row["ratio"] == pytest.approx(row["ifca_seconds"] / row["feddag_seconds"], abs=0.1)
    assert len(clustering.client_table([row])[0]) == len(clustering.CLIENT_COLUMNS)
    with pytest.raises(FeddagError, match="clients = 9, 0 is not allowed: give increasing numbers from 1 on"):
        clustering.measure([9, 0])


def test_attacks_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "FIELDS", attacks.FIELDS | {"rounds": 3, "clients": 10, "epochs": 1})
    rows = attacks.measure(seeds=[0], methods=["fedavg"], data=["alike"])
    assert [row["attack"] for row in rows] == list(attacks.ATTACKS)
    assert all(len(line) == len(attacks.COLUMNS) for line in attacks.table(rows))
    by_attack = {row["attack"]: row for row in rows}
    assert by_attack["sign-flip"]["none"][0] < by_attack["sign-flip"]["median"][0]


def test_a_class_of_one_sample_is_shown_as_it_is_and_one_of_many_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "DRAWS", 4)
    one, many = released._likeness("digits", 1), released._likeness("digits", 50)
    assert one["own"] == 1 and one["told_apart"] == 1 and one["others"] < 0.8
    assert many["own"] < 0.97 and many["told_apart"] < 0.8


@pytest.mark.parametrize("command", ["groups", "mixed", "landmarks"])
def test_an_unknown_setting_is_refused_with_a_suggestion(command: str, monkeypatch, capsys) -> None:
    known = {"groups": "4 corruptions", "mixed": "corruptions, unequal", "landmarks": "concept-shift"}[command]
    monkeypatch.setattr(sys, "argv", ["feddag", "bench", command, "--settings", known[:-1]])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(f"; did you mean '{known}'?")
