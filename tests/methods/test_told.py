"""What methods say about themselves, as `feddag methods` shows it, is so."""

import sys

import numpy as np
import pytest

import feddag
from feddag.cli import main
from feddag.methods import all_methods

FAMILIES = {"baseline", "one model", "clustered", "personalised"}


@pytest.mark.parametrize("name", sorted(all_methods()))
def test_every_method_says_what_it_is(name: str) -> None:
    kind = all_methods()[name]
    assert kind.family in FAMILIES and kind.needs and kind.sends and kind.cost > 0
    assert kind.paper or kind.family == "baseline"
    assert (kind.family == "clustered") == issubclass(kind, feddag.ClusteredMethod) or name == "oracle"
    assert kind.needs_truth == (kind.needs == "true groups")


COSTLY = [
    "fedavg",
    "ditto",
    "per-fedavg",
    "pfedme",
    "fedper",
    "fedmix",
    "fedbr",
    "fblg",
    "feddag-dagger",
    "feddag-star",
    "feddag",
    "cgpfl",
    "fedrc",
    "fedgwc-pfedme",
]


def flops_of_a_round(name: str) -> int:
    draw = np.random.default_rng(0)
    y = np.arange(400) % 10  # 64 training samples for each of 5 clients: two batches of 32
    x = (draw.random((10, 28, 28))[y] * 160 + draw.random((400, 28, 28)) * 90).astype(np.uint8)[..., None]
    fields = {"clients": 5, "rounds": 2, "epochs": 1, "participation": 1.0, "workers": 1, "finetune": False}
    experiment = feddag.Experiment(method=name, dataset=feddag.dataset(x, y), partition="iid", **fields)
    first, second = feddag.run(experiment).result["training_flops_by_round"]
    return second - first


@pytest.mark.parametrize("name", COSTLY)
def test_a_round_costs_what_the_method_says(name: str) -> None:
    assert flops_of_a_round(name) / flops_of_a_round("fedavg") == pytest.approx(all_methods()[name].cost, rel=0.05)


def test_the_list_is_plain_where_it_is_piped(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["feddag", "methods"])
    with pytest.raises(SystemExit) as ended:
        main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert ended.value.code == 0 and head.split()[:2] == ["method", "family"] and "\x1b" not in head
    assert {row.split()[0] for row in rows} == set(all_methods())
    [ifca] = [row for row in rows if row.startswith("ifca ")]
    assert "clustered" in ifca and "Ghosh" in ifca and ifca.split("  ")[-1].strip() == "1.0"
    assert rows[0].split()[0] in ("local", "oracle")  # families stand together
