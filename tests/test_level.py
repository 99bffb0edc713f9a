"""A level comparison: equal stabilisers, equal training, paired differences."""

import contextlib
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import feddag
from feddag.cli import main
from feddag.errors import FeddagError
from feddag.experiment import read_experiments
from feddag.records import ResultRecord
from feddag.runner.compare import Compared, compare_methods
from feddag.runner.level import compare_level, level_note, span, stabilisers
from feddag.runner.paired import against_last, paired_difference

DOCS = Path(__file__).parent.parent / "docs"
QUICK: dict[str, Any] = {"clients": 6, "groups": 3, "epochs": 1, "workers": 1, "finetune": False, "participation": 0.5}


# Differences ----------------------------------------------------------------------------------------------------------


def test_a_paired_difference_by_hand() -> None:
    found = paired_difference({0: 0.9, 1: 0.7, 5: 1.0}, {1: 0.6, 0: 0.6, 7: 0.0})
    assert found is not None  # 0.3 and 0.1: mean 0.2, deviation 0.1414, of the mean 0.1, and Student's t is 12.706
    assert [found.mean, found.low, found.high] == pytest.approx([0.2, 0.2 - 1.2706, 0.2 + 1.2706], abs=1e-4)
    three = paired_difference({0: 0.1, 1: 0.2, 2: 0.3}, {0: 0.0, 1: 0.0, 2: 0.0})
    assert three is not None  # deviation 0.1, of the mean 0.1 / sqrt(3), and Student's t is 4.3027
    assert [three.low, three.high] == pytest.approx([0.2 - 0.24841, 0.2 + 0.24841], abs=1e-5)
    assert str(three) == "+0.200 [-0.048, +0.448]"


def test_a_difference_needs_two_common_seeds() -> None:
    assert paired_difference({0: 0.5, 1: 0.6}, {1: 0.5, 2: 0.6}) is None
    assert against_last([{0: 0.5}, {0: 0.6}]) == [None, None]


# FLOPs as the end of a run --------------------------------------------------------------------------------------------


def flops_by_round(result: ResultRecord) -> list[int]:
    return result["training_flops_by_round"]


def test_rounds_go_on_until_training_has_taken_enough(tmp_path: Path) -> None:
    short = feddag.run(feddag.Experiment(method="fedavg", rounds=2, **QUICK))
    wanted = 3 * short.result["training_flops"]
    experiment = feddag.Experiment(method="fedavg", rounds=2, training_flops=wanted, **QUICK)
    run = feddag.run(experiment, tmp_path / "r")
    by_round = flops_by_round(run.result)
    assert by_round[-2] < wanted <= by_round[-1] == run.result["training_flops"]
    assert run.result["rounds"] == len(run.history) == len(by_round) > 2
    assert by_round[:2] == flops_by_round(short.result)
    run.model(0)  # the last checkpoint is that of the last round
    assert experiment.key() != feddag.Experiment(method="fedavg", rounds=2, **QUICK).key()
    enough = feddag.run(experiment.with_(training_flops=by_round[0]))
    assert enough.result["rounds"] == 1  # fewer than `rounds`, where these suffice


def test_a_run_towards_flops_is_resumed(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def stop(record: Any) -> None:
        if record["round"] == 3:
            raise Stop

    experiment = feddag.Experiment(method="local", rounds=2, training_flops=10**8, smoothing=0.5, **QUICK)
    with pytest.raises(Stop):
        feddag.run(experiment, tmp_path / "r", observer=stop)
    whole, resumed = feddag.run(experiment), feddag.run(experiment, tmp_path / "r", resume=True)
    assert whole.result["rounds"] == resumed.result["rounds"] > 3
    assert whole.result["accuracy"] == resumed.result["accuracy"]
    assert flops_by_round(whole.result) == flops_by_round(resumed.result)


def test_flops_that_are_never_counted_are_out_of_reach(monkeypatch) -> None:
    monkeypatch.setattr("feddag.client.trainer.flops_of", lambda *arguments: 0)
    with pytest.raises(FeddagError, match=r"training_flops = 10 is out of reach: 2 rounds took 0 to train"):
        feddag.run(feddag.Experiment(method="fedavg", rounds=2, training_flops=10, **QUICK))


# All of it ------------------------------------------------------------------------------------------------------------


def compared(folder: Path, methods: str, rounds: int = 3, **fields: Any) -> tuple[list[Compared], list[str]]:
    """A level comparison, and what was run for it."""
    began: list[str] = []

    def watching(experiment: feddag.Experiment) -> Any:
        began.append(experiment.method)
        return contextlib.nullcontext(lambda record: None)

    def compare(experiments: Any) -> Any:
        return compare_methods(experiments, folder / "runs", folder / "results", watching, counted=True)

    given = {**stabilisers(), "rounds": rounds, **QUICK, **fields}
    experiments = read_experiments(None, given, methods.split(","), [0, 1])
    return compare_level(experiments, compare, compare), began


def test_all_methods_train_as_much_as_the_costliest(tmp_path: Path) -> None:
    found, began = compared(tmp_path, "oracle,fedavg,feddag")
    assert began == [*("oracle", "fedavg", "feddag"), *("feddag",) * 2, *("oracle",) * 2, *("fedavg",) * 2]
    assert [each.result["method"] for each in found] == [
        name for name in ("oracle", "fedavg", "feddag") for _ in (0, 1)
    ]
    for each in found:
        [wanted] = [
            other.result["training_flops"]
            for other in found
            if other.result["method"] == "feddag" and other.result["seed"] == each.result["seed"]
        ]
        by_round = flops_by_round(each.result)
        if each.result["method"] == "feddag":
            assert each.result["rounds"] == 3 and not each.experiment.training_flops
        else:
            assert (by_round[-2:-1] or [0])[0] < wanted <= by_round[-1]  # the least number of rounds
        own = each.experiment.settings
        assert (own.sampling, own.balanced, own.smoothing) == ("clusters", True, 0.7)
    again, began = compared(tmp_path, "oracle,fedavg,feddag")
    assert not began and [each.result for each in again] == [each.result for each in found]


@pytest.mark.parametrize(("times", "costliest"), [(1.4, "fedprox"), (1.6, "fedavg")])
def test_the_last_method_is_the_yardstick_unless_a_round_of_another_takes_half_as_much_again(
    tmp_path: Path, monkeypatch, times: float, costliest: str
) -> None:
    cost = {"fedavg": times, "fedprox": 1.0}
    monkeypatch.setattr("feddag.runner.level._of_a_round", lambda result: cost[result["method"]])
    found, began = compared(tmp_path, "fedavg,fedprox")
    other = ({"fedavg", "fedprox"} - {costliest}).pop()
    assert began == ["fedavg", "fedprox", costliest, costliest, other, other]
    assert [each.experiment.training_flops > 0 for each in found] == [each.experiment.method == other for each in found]


def test_what_a_round_costs_does_not_depend_on_who_is_drawn(tmp_path: Path) -> None:
    told: list[int] = []

    def compare(experiments: Any) -> Any:
        return compare_methods(
            experiments,
            tmp_path / "runs",
            tmp_path / "results",
            lambda one: contextlib.nullcontext(lambda record: None),
        )

    def probe(experiments: Any) -> Any:
        for each in compare(experiments):
            by_round = flops_by_round(each.result)
            told.append(by_round[-1] - by_round[-2])
            yield each

    given = {**stabilisers(), **QUICK, "rounds": 2, "concentration": 0.1, "batch_size": 2}
    for seed in range(3):
        compare_level(read_experiments(None, given, ["fedavg", "fedavgm"], [seed]), compare, probe)
    assert len(told) == 6 and len(set(told)) == 1


def test_a_comparison_that_does_not_score_every_round_can_be_level(tmp_path: Path) -> None:
    first, _ = compared(tmp_path, "fedavg", evaluate_every=2)
    assert [len(each.result["training_flops_by_round"]) for each in first] == [2, 2]  # after rounds 2 and 3


def test_a_result_that_is_too_old_to_tell_its_flops_is_run_again(tmp_path: Path) -> None:
    first, _ = compared(tmp_path, "fedavg", rounds=2)
    assert len(first) == 2
    for path in (tmp_path / "runs").glob("*/result.json"):
        path.write_text(re.sub(r'"training_flops": \d+,', "", path.read_text()))
    second, began = compared(tmp_path, "fedavg", rounds=2)
    assert len(began) == 3 and [each.result["accuracy"] for each in second] == [
        each.result["accuracy"] for each in first
    ]


def test_the_note_says_what_was_made_equal() -> None:
    results: list[Any] = [{"method": m, "rounds": n} for m, n in (("fedavg", 60), ("fedavg", 63), ("feddag", 30))]
    fields = [stabilisers() | {"training_flops": flops} for flops in (7 * 10**12, 8 * 10**12)]
    assert level_note(list(zip([*fields, stabilisers()], results, strict=True))) == (
        "level: the same stabilisers (sampling = clusters, balanced = true, smoothing = 0.7, head = sharp, "
        "softmax = own), trained for 7-8 "
        "TFLOP: fedavg 60-63 rounds, feddag 30 rounds"
    )
    assert span([4]) == "4"


def test_compare_level_on_the_command_line(in_tmp: Path, monkeypatch, capsys) -> None:
    Path("experiments").mkdir()
    Path("experiments/tiny.toml").write_text("clients = 4\nrounds = 2\nepochs = 1\nworkers = 1\ngroups = 2\n")
    command = [
        "feddag",
        "compare",
        "experiments/tiny.toml",
        "--level",
        "--methods",
        "fedavg,feddag-star",
        "--seeds",
        "0,1",
        "--keep",
    ]
    for smoothing in (0.5, 0.7, 0.7):
        monkeypatch.setattr(sys, "argv", [*command, f"--set=smoothing={smoothing}"])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        assert f"balanced = true, smoothing = {smoothing}, head = sharp, softmax = own)" in said.out
        [head] = [line for line in said.out.splitlines() if line.startswith("method")]
        assert head.split()[-9:] == ["rounds", "vs", "feddag-star", "MB", "up", "MB", "down", "sec", "TFLOP"]
        assert re.search(r"^fedavg .* [+-]0\.\d{3} \[[+-]\d\.\d{3}, [+-]\d\.\d{3}\] ", said.out, re.MULTILINE)
    page = Path("runs/comparison.html").read_text()
    assert "vs feddag-star" in page and "Level: the same stabilisers" in page and "TFLOP" in page
    monkeypatch.syspath_prepend(DOCS)
    tables = importlib.import_module("tables")
    monkeypatch.setattr(importlib.import_module("kept"), "ROOT", in_tmp)
    rows = [tables.Row("tiny", method, seeds=(0, 1), costliest="feddag-star") for method in ("fedavg", "feddag-star")]
    drawn = tables.drawn(tables.Table("level", ["accuracy", "rounds", "TFLOP", "vs feddag-star"], rows))
    _, _, fedavg, star = drawn.splitlines()
    assert re.fullmatch(r"\| `fedavg` \| 0\.\d{3} ± .* \| \d+(-\d+)? \| .* \| [+-]0\.\d{3} \[.*\] \|", fedavg)
    assert re.fullmatch(r"\| `feddag-star` \| .* \| 2 \| .* \|  \|", star)


def test_a_method_of_ones_own_that_cannot_be_smoothed_says_so(in_tmp: Path, monkeypatch) -> None:
    Path("plain.py").write_text(
        "from feddag import Method\n"
        "class Plain(Method):\n"
        "    name = 'plain'\n"
        "    def start(self, federation): self.weights = federation.initial_weights()\n"
        "    def round(self, federation, sampled): pass\n"
        "    def model_of(self, client): return self.weights\n"
    )
    monkeypatch.syspath_prepend(in_tmp)
    with pytest.raises(FeddagError, match=r"smoothing = 0.7 does nothing with method = 'plain:Plain'"):
        read_experiments(None, stabilisers(), ["fedavg", "plain:Plain"], [0])
    sys.modules.pop("plain", None)
