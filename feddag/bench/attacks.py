"""What liars cost, and what each robust mean saves: small runs on digits, one client in ten lying in every round.

Once where all clients are alike, and once where groups of them hold different classes: there an honest client differs
from most others, too.
"""

import statistics
from collections.abc import Sequence
from typing import Any, get_args

from feddag.engines.attacks import Attack
from feddag.experiment import Experiment
from feddag.runner.run import run

Row = dict[str, Any]

METHODS = ("fedavg", "feddag")
ATTACKS: tuple[str, ...] = get_args(Attack)
RULES = ("none", "clip", "trimmed-mean", "median", "krum", "geometric-median")
COLUMNS = ("data", "method", "attack", *RULES)
DATA: dict[str, dict[str, Any]] = {
    "alike": {"partition": "iid"},
    "differing": {"partition": "label-skew", "label_fraction": 0.4, "groups": 2},
}
FIELDS: dict[str, Any] = {
    **{"clients": 20, "rounds": 10, "epochs": 2, "participation": 1.0, "attackers": 0.1},
    **{"finetune": False, "workers": 1},
}


def measure(
    seeds: Sequence[int] = (0, 1, 2), methods: Sequence[str] = METHODS, data: Sequence[str] = tuple(DATA)
) -> list[Row]:
    """A row for each kind of data, method and attack: the honest clients' accuracy by every rule, for each seed."""
    return [
        {
            **{"data": kind, "method": method, "attack": attack},
            **{rule: _accuracies(kind, method, attack, rule, seeds) for rule in RULES},
        }
        for kind in data
        for method in methods
        for attack in ATTACKS
    ]


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, for COLUMNS: means over seeds."""
    return [
        [row["data"], row["method"], row["attack"], *(f"{statistics.mean(row[rule]):.3f}" for rule in RULES)]
        for row in rows
    ]


def _accuracies(kind: str, method: str, attack: str, rule: str, seeds: Sequence[int]) -> list[float]:
    fields = {**FIELDS, **DATA[kind], "method": method, "attack": attack, "robust": rule}
    results = [run(Experiment(seed=seed, **fields)).result for seed in seeds]
    blocks = [result.get("accuracy_honest") or result["accuracy"] for result in results]
    return [block["mean"] for block in blocks]
