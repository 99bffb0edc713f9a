"""The search for values of fields: what it tries, that it never sees a test sample, and what a comparison takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from feddag.cli import main
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.runner import tuning
from feddag.runner.tuning import Space, Tried, Tuned, read, save, search, space_of, tuned_file, with_tuned


def result_by(score: Any) -> tuple[list[Experiment], Any]:
    seen: list[Experiment] = []

    def result_of(experiment: Experiment) -> Any:
        seen.append(experiment)
        return {"accuracy": {"mean": score(experiment)}}

    return seen, result_of


def test_the_best_by_mean_accuracy_on_validation_samples_and_seeds_that_nothing_is_told_for() -> None:
    seen, result_of = result_by(lambda e: 1 - abs(e.settings.mu - 0.1) - e.seed / 1e4)
    found = search(Experiment(method="fedprox", seed=3, rounds=2), ["mu"], 20, [100, 102], result_of)
    assert found.tried[0].fields == {"mu": 0.1} and found.tried[0].accuracy == pytest.approx([0.99, 0.9898])
    assert {experiment.seed for experiment in seen} == {100, 102}
    assert {(e.evaluate, e.validation) for e in seen} == {("validation", 0.2)}  # never test samples
    assert len(seen) == 2 * len(found.tried) == 2 * 7  # the default and six around it
    assert {"mu": 0.01} in [one.fields for one in found.tried]


def test_the_budget_bounds_what_is_tried_and_the_defaults_are_always_among_it() -> None:
    space = space_of(Experiment(method="fedprox"), ["mu", "lr"])
    assert [len(values) for values in space.values.values()] == [7, 7]
    drawn = space.candidates(10)
    assert len(drawn) == 10 and drawn[0] == {"mu": 0.01, "lr": 0.01} and drawn == space.candidates(10)
    assert len({json.dumps(one) for one in drawn}) == 10
    assert len(space.candidates(100)) == 49
    assert Space({"a": [1, 2, 3]}).candidates(3) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_values_that_are_given_are_tried_and_those_that_are_not_allowed_left_out() -> None:
    experiment = Experiment(method="ifca")
    assert space_of(experiment, ["clusters=2/5"]).values == {"clusters": [3, 2, 5]}
    assert space_of(experiment, ["momentum"]).values["momentum"] == [0.5, 0.0167, 0.05, 0.167]  # below 1
    assert space_of(experiment, ["balanced"]).values == {"balanced": [False, True]}
    for over, said in (
        ("mu", "'mu' is not a field of method = 'ifca'"),
        ("model", "say which values"),
        ("clusters=-1", "none of the values is allowed"),
    ):
        with pytest.raises(FeddagError, match=said):
            space_of(experiment, [over])


@pytest.mark.parametrize(("budget", "seeds", "said"), [(1, [100], "too small"), (5, [7, 100], "seeds from 100 on")])
def test_what_would_not_be_honest_is_refused(budget: int, seeds: list[int], said: str) -> None:
    with pytest.raises(FeddagError, match=said):
        search(Experiment(method="fedprox"), ["mu"], budget, seeds, lambda _: pytest.fail("nothing is run"))


def kept(folder: Path, method: str, budget: int = 5, **fields: float) -> None:
    tried = [Tried(fields=fields, accuracy=[0.9]), Tried(fields={"lr": 0.01}, accuracy=[0.8])]
    setting = "digits-label-skew"
    found = Tuned(method=method, setting=setting, over=["lr"], budget=budget, seeds=[100], tried=tried)
    folder.mkdir(exist_ok=True)
    save(found, tuned_file(Experiment(method=method), folder))


def test_a_comparison_takes_the_best_of_each_method_and_equal_effort_only(tmp_path: Path) -> None:
    kept(tmp_path, "fedavg", lr=0.3)
    kept(tmp_path, "fedprox", lr=0.1, mu=0.5)
    chosen = with_tuned([Experiment(method="fedavg"), Experiment(method="fedprox", seed=1)], tmp_path)
    assert [(one.lr, one.seed) for one in chosen] == [(0.3, 0), (0.1, 1)] and chosen[1].settings.mu == 0.5
    with pytest.raises(FeddagError, match=r"there is no .*ditto\.json'; `feddag tune` makes it"):
        with_tuned([Experiment(method="ditto")], tmp_path)
    kept(tmp_path, "fedprox", budget=50, lr=0.1)
    with pytest.raises(FeddagError, match="unequal effort"):
        with_tuned([Experiment(method="fedavg"), Experiment(method="fedprox")], tmp_path)
    path = tuned_file(Experiment(method="fedavg"), tmp_path)
    path.write_text(path.read_text()[:40])
    with pytest.raises(FeddagError, match="is damaged"):
        read(path)


def test_values_found_for_other_data_are_not_taken(tmp_path: Path) -> None:
    kept(tmp_path, "fedavg", lr=0.3)
    for other in ({"clients": 7}, {"fraction": 0.5}, {"concentration": 1.0}, {"model": "lenet5"}):
        with pytest.raises(FeddagError, match=r"there is no .*; `feddag tune` makes it"):
            with_tuned([Experiment(method="fedavg", **other)], tmp_path)
    longer = Experiment(
        method="fedavg", rounds=90, balanced=True, training_flops=10**12
    )  # as a level comparison has it
    assert with_tuned([longer], tmp_path)[0].lr == 0.3


def test_tune_and_compare_from_the_command_line(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--clients", "4", "--rounds", "2", "--set", "epochs=1", "--set", "groups=2"]
    for method in ("fedavg", "fedprox"):
        monkeypatch.setattr("sys.argv", ["feddag", "tune", method, "--over", "lr=0.1", "--seeds", "100", *small])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
    said = capsys.readouterr().out
    assert (
        "accuracy on validation samples" in said
        and "kept in tuned/digits-label-skew-clients=4-groups=2-fedprox.json" in said
    )
    found = read(Path("tuned/digits-label-skew-clients=4-groups=2-fedavg.json"))
    assert len(found.tried) == 2 and found.seeds == [100]
    options = ["--methods", "fedavg,fedprox", "--tuned", "--no-report", "--json", "all.json", *small]
    monkeypatch.setattr("sys.argv", ["feddag", "compare", *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0 and len(json.loads(Path("all.json").read_text())) == 2
    best = found.tried[0].fields["lr"]
    assert any(f"lr = {best}" in path.read_text() for path in Path("runs").glob("*fedavg-s0*/experiment.toml"))


def test_seeds_and_samples_of_a_search_are_those_that_the_docs_promise() -> None:
    assert tuning.FIRST_SEED == 100 and tuning.on_validation(Experiment(validation=0.1), 100).validation == 0.1
