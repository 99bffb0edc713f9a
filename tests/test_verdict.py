"""What a result means, in words: each sentence from numbers made up by hand."""

from pathlib import Path
from typing import Any

import pytest

import feddag
from feddag.runner.naming import compare_command, differences, directory_name
from feddag.runner.results import score_groups
from feddag.runner.verdict import known_baselines, verdict
from tests.test_cli import feddag as typed


def block(mean: float, worst: float | None = None) -> dict[str, Any]:
    return {"mean": mean, "std": 0.0, "worst_decile": mean if worst is None else worst, "per_client": []}


def result(mean: float = 0.9, method: str = "feddag", **fields: Any) -> Any:
    known = {"method": method, "seed": 0, "clients": 4, "clusters": [0, 0, 1, 1], "truth": [0, 0, 1, 1], "ari": 1.0}
    known |= {"accuracy": block(mean), "accuracy_finetuned": None, "accuracy_by_round": [mean] * 10}
    return known | fields


BESIDE = [result(0.7, "local", clusters=None), result(0.5, "fedavg", clusters=None), result(0.9, "oracle")]


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, "2 groups found, exactly the true ones"),
        ({"clusters": [0, 0, 1, 2], "ari": 0.85}, "3 groups found, almost the 2 true ones (ARI 0.85)"),
        ({"clusters": [0, 0, 1, 2], "ari": 0.5}, "3 groups found, partly the 2 true ones (ARI 0.50)"),
        ({"clusters": [0, 1, 0, 1], "ari": 0.1}, "2 groups found, not the 2 true ones (ARI 0.10)"),
        ({"clusters": [0, 0, 0, 0], "ari": 0.0}, "no groups found where there are 2"),
        ({"clusters": [0, 1, 2, 3], "ari": 0.0}, "no groups: every client is unlike all others, where there are 2"),
        ({"clusters": [0, 0, 0, 0], "truth": None, "ari": None}, "no groups: clients are alike"),
        ({"truth": None, "ari": None}, "2 groups found"),
        ({"truth": None, "ari": None, "clustering": {"silhouette": 0.6}}, "2 clear groups found"),
        ({"truth": None, "ari": None, "clustering": {"silhouette": 0.3}}, "2 fairly clear groups found"),
        (
            {"truth": None, "ari": None, "clustering": {"silhouette": 0.2}},
            "2 groups found, hardly apart (silhouette 0.20)",
        ),
        ({"clusters": [0, 0, 1, None], "truth": [0, 0, 1, 2], "ari": 1.0}, "2 groups found, exactly the true ones"),
        ({"clusters": None, "method": "fedprox"}, "fedprox makes no groups"),
        ({"clusters": None, "method": "mine:Own", "method_name": "own"}, "own makes no groups"),
        ({"clusters": None, "method": "local"}, "every client trained alone"),
        ({"method": "oracle"}, "the 2 true groups were given"),
    ],
)
def test_what_was_found(fields: dict[str, Any], found: str) -> None:
    assert verdict(result(**fields)).found.startswith(found)


@pytest.mark.parametrize(
    ("mean", "level", "worth"),
    [
        (0.9, "good", "better than training alone (local, 0.700) and one model for all (fedavg, 0.500), as good as"),
        (0.705, "plain", "as good as training alone (local, 0.700), better than one model for all (fedavg, 0.500), wo"),
        (0.6, "poor", "worse than training alone (local, 0.700) and knowing the true groups (oracle, 0.900), better"),
    ],
)
def test_whether_it_is_good_beside_what_is_known(mean: float, level: str, worth: str) -> None:
    said = verdict(result(mean), BESIDE)
    assert said.level == level and said.worth.startswith(f"accuracy {mean:.3f}, {worth}")
    began = {"good": "It worked: ", "poor": "It did not pay: ", "plain": ""}[level]
    assert said.headline.startswith(began + "2 groups found" if began else "2 groups found")


def test_without_anything_to_compare_with_only_numbers_are_said() -> None:
    said = verdict(result(0.9, accuracy=block(0.9, 0.85)))
    assert said.level == "plain" and said.worth == "accuracy 0.900, and 0.850 in the worst tenth of clients"
    assert said.next == "see what training alone and one model for all give: feddag compare"


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"mean": 0.6}, "use local, which is 10 points better here"),
        ({"accuracy_finetuned": block(0.993)}, "local epochs add 9 points: serve tuned models"),
        ({"accuracy_finetuned": block(0.91)}, "use the models (feddag predict, feddag export)"),
        ({"accuracy_by_round": [0.1 * n for n in range(10)]}, "accuracy still rises: run more rounds"),
        ({"accuracy_by_round": [0.9]}, "use the models (feddag predict, feddag export)"),
        ({"accuracy": block(0.9, 0.4)}, "the worst tenth of clients has 0.400: look at them client by client"),
        ({}, "use the models (feddag predict, feddag export)"),
    ],
)
def test_what_to_do_next(fields: dict[str, Any], step: str) -> None:
    assert verdict(result(**fields), BESIDE).next == step


def test_true_groups_are_those_of_all_clients_also_of_one_without_a_cluster() -> None:
    assert score_groups({0: 0, 1: 0, 2: 1}, [0, 0, 1, 2], None, {})["true"] == 3


def test_how_far_groups_are_apart_by_the_distances_that_made_them() -> None:
    """Two pairs, 0 apart inside and 1 between: silhouette 1. With 0.5 inside, (1 - 0.5) / 1."""
    apart: Any = {"clients": [4, 5, 6, 7], "distances": [0.0, 1, 1, 1, 1, -0.1]}
    assert score_groups({4: 0, 5: 0, 6: 1, 7: 1}, None, None, apart)["silhouette"] == 1.0
    nearer: Any = {"clients": [4, 5, 6, 7], "distances": [0.5, 1, 1, 1, 1, 0.5]}
    assert score_groups({4: 0, 5: 0, 6: 1, 7: 1}, None, None, nearer)["silhouette"] == 0.5
    for told in ({}, {"distances": "near"}, {"distances": [1.0]}, {"distances": [1.0], "clients": "ab"}):
        assert score_groups({4: 0, 5: 0, 6: 1}, None, None, told)["silhouette"] is None  # type: ignore[arg-type]


def test_directories_are_named_by_what_differs() -> None:
    experiment = feddag.Experiment(clients=8, model="mlp256", seed=2)
    assert directory_name(experiment) == "digits-label-skew-feddag-clients=8-model=mlp256-s2"
    assert differences(experiment.resolved()) == {"clients": 8, "model": "mlp256"}
    strange = feddag.Experiment(method="fedavg", dataset="/x/my data [1].npz", partition="natural", model="a/b:c")
    assert directory_name(strange) == "my_data_1_-natural-fedavg-model=a_b_c-s0"
    assert len(directory_name(experiment.with_(mix="9" * 500, partition="heterogeneity-mix"))) < 130


def test_the_command_that_compares_is_the_same_experiment() -> None:
    experiment = feddag.Experiment(partition="dirichlet", finetune=False, clients=8, seed=1)
    command = compare_command(experiment.resolved(), ["local", "feddag"], Path("my runs"))
    assert command == (
        "feddag compare --methods local,feddag --partition dirichlet --clients 8 --set finetune=false --seeds 1 "
        "--runs 'my runs'"
    )


QUICK = ("--clients", "6", "--rounds", "2", "--set", "groups=2", "--set", "epochs=1")


def test_a_run_says_first_what_it_means_and_knows_the_baselines_beside_it(tmp_path: Path) -> None:
    alone = typed("run", *QUICK, cwd=tmp_path).stdout.splitlines()
    sentence = next(line for line in alone if "Next: " in line)
    assert alone.index(sentence) < alone.index(next(line for line in alone if line.startswith("method ")))
    command = sentence.partition("one model for all give: ")[2]
    assert (
        command == "feddag compare --methods local,fedavg,feddag --clients 6 --rounds 2 --set groups=2 --set epochs=1"
    )
    shown = typed(*command.split()[1:], cwd=tmp_path).stdout
    assert "feddag seed 0: kept result" in shown and " against " in shown
    name = "digits-label-skew-feddag-clients=6-rounds=2-groups=2-epochs=1-s0"
    again = typed("show", f"runs/{name}", cwd=tmp_path).stdout.splitlines()[0]
    assert "training alone (local, 0." in again and "one model for all (fedavg, 0." in again
    run = feddag.load(tmp_path / "runs" / name)
    assert {each["method"] for each in known_baselines(run.directory, run.experiment.resolved(), run.result)} == {
        "local",
        "fedavg",
    }
    other = run.experiment.with_(lr=0.5).resolved()
    assert known_baselines(run.directory, other, run.result) == []
    assert known_baselines(run.directory, run.experiment.resolved(), run.result | {"partition_checksum": "x"}) == []
