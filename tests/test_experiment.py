"""One sentence for every mistake; the same experiment from TOML, flags and Python."""

from pathlib import Path

import numpy as np
import pytest

from feddag.errors import FeddagError
from feddag.experiment import Experiment, read_experiment
from feddag.fields import RENAMED, parse_setting


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"rouns": 3}, "'rouns' is not a field of an experiment; did you mean 'rounds'?"),
        ({"lr": -1}, "lr = -1 is not allowed: it should be greater than 0"),
        ({"lr": "fast"}, "lr = 'fast' is not allowed: it should be a valid number"),
        ({"lr": float("nan")}, "lr = nan is not allowed: it should be a finite number"),
        ({"rounds": 0}, "rounds = 0 is not allowed: it should be greater than or equal to 1"),
        ({"rounds": 2.5}, "rounds = 2.5 is not allowed: it should be a valid integer"),
        ({"participation": 1.5}, "participation = 1.5 is not allowed: it should be less than or equal to 1"),
        (
            {"test": "clases"},
            "test = 'clases' is not allowed: it should be 'classes', 'mix' or 'own'; did you mean 'classes'?",
        ),
        ({"evaluate": "validation"}, "evaluate = 'validation' needs validation above 0, and validation = 0.0"),
        ({"method": "fedprox", "mu": -1}, "mu = -1 is not allowed: it should be greater than or equal to 0"),
        ({"rounds": {"many": 1}}, "rounds = {'many': 1} is not allowed: it should be a valid integer"),
    ],
)
def test_mistakes_get_one_sentence(fields, sentence) -> None:
    with pytest.raises(FeddagError) as caught:
        Experiment(**fields)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("key", "wrong", "right"), [("method", "fedavgg", "fedavg"), ("partition", "labelskew", "label-skew")]
)
def test_unknown_names_get_the_nearest_spelling(key, wrong, right) -> None:
    with pytest.raises(FeddagError, match=f"{key} = '{wrong}' .*allowed are .*did you mean '{right}'") as caught:
        Experiment(**{key: wrong})
    assert "\n" not in str(caught.value)


def test_cli_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('rounds = 7\nmethod = "fedprox"\nmu = 0.5\n')
    experiment = read_experiment(file, {"rounds": 9})
    assert (experiment.rounds, experiment.settings.mu, experiment.lr) == (9, 0.5, 0.01)


def test_toml_repeats_the_experiment(tmp_path: Path) -> None:
    experiment = Experiment(method="fedavgm", server_momentum=0.8, partition="dirichlet", concentration=0.1, seed=4)
    (tmp_path / "e.toml").write_text(experiment.to_toml())
    again = read_experiment(tmp_path / "e.toml", {})
    assert again.resolved() == experiment.resolved()
    assert again.key() == experiment.key()
    assert "label_fraction" not in experiment.resolved()  # dirichlet has no use for it


def test_fields_of_other_methods_are_accepted_and_ignored() -> None:
    assert Experiment(method="fedavg", mu=0.3).key() == Experiment(method="fedavg").key()
    assert Experiment(method="fedprox", mu=0.3).key() != Experiment(method="fedprox").key()


def test_the_key_ignores_workers_and_nothing_else() -> None:
    key = Experiment().key()
    assert Experiment(workers=5).key() == key
    for changed in ({"seed": 1}, {"rounds": 3}, {"label_fraction": 0.3}, {"method": "local"}, {"finetune": False}):
        assert Experiment(**changed).key() != key, changed


def test_keys_are_what_they_were_before_every_method_had_the_stabilisers() -> None:
    keys = {method: Experiment(method=method).key() for method in ("fedavg", "local", "oracle")}
    assert keys == {"fedavg": "5c92bc43ddd9e2b7", "local": "ce6ef5e4a41d3e26", "oracle": "1fb0c6be89556d90"}
    for field in ({"balanced": True}, {"smoothing": 0.5}, {"sampling": "clusters"}):
        assert Experiment(method="fedavg", **field).key() != keys["fedavg"]


def test_a_filled_in_number_of_clients_may_be_chosen_again() -> None:
    assert Experiment(rounds=2).with_(partition="natural").clients is None
    assert Experiment(rounds=2, clients=7).with_(partition="natural").clients == 7


def test_text_of_any_script_survives_toml(in_tmp: Path) -> None:
    np.savez(in_tmp / "données-🙂.npz", x=np.zeros((4, 2)), y=np.arange(4))
    experiment = Experiment(dataset="données-🙂.npz", corruptions=["fog", "invert"])
    (in_tmp / "e.toml").write_text(experiment.to_toml())
    assert read_experiment(in_tmp / "e.toml", {}).dataset == experiment.dataset
    assert experiment.corruptions == "fog,invert"


def test_own_data_is_known_by_its_content(in_tmp: Path) -> None:
    for name in ("a.npz", "b.npz"):
        np.savez(in_tmp / name, x=np.zeros((4, 2)), y=np.arange(4))
    one, same = Experiment(dataset="a.npz"), Experiment(dataset="b.npz")
    assert one.key() == same.key()
    assert one.dataset == str(in_tmp / "a.npz")  # found again from any folder
    np.savez(in_tmp / "b.npz", x=np.ones((4, 2)), y=np.arange(4))
    assert one.key() != same.key()


@pytest.mark.parametrize("text", ["rounds", "=3", ""])
def test_a_setting_needs_a_key_and_a_value(text) -> None:
    with pytest.raises(FeddagError, match="key=value"):
        parse_setting(text)


@pytest.mark.parametrize(("content", "sentence"), [(b"rounds = ", "not valid TOML"), (b"\xff\xfe", "cannot be read")])
def test_broken_files_get_one_sentence(tmp_path: Path, content, sentence) -> None:
    (tmp_path / "e.toml").write_bytes(content)
    with pytest.raises(FeddagError, match=sentence) as caught:
        read_experiment(tmp_path / "e.toml", {})
    assert "\n" not in str(caught.value)
    with pytest.raises(FeddagError, match="cannot be read: No such file"):
        read_experiment(tmp_path / "none.toml", {})


def test_a_pattern_is_told_in_words() -> None:
    with pytest.raises(FeddagError, match=r"^schedule = '2:3' is not allowed: it should be full \(both phases"):
        Experiment(schedule="2:3")


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_field_that_was_renamed_says_so(old: str, new: str) -> None:
    with pytest.raises(FeddagError, match=f"the field '{old}' is now called '{new}'"):
        Experiment(**{old: 0.3})
    assert new in {*Experiment.model_fields, *Experiment().method_class.Settings.model_fields}
