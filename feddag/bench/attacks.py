"""What liars cost, and what each robust mean saves: small runs on digits, one client in ten lying in every round."""

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
COLUMNS = ("method", "attack", *RULES)
FIELDS: dict[str, Any] = {
    **{"partition": "iid", "clients": 20, "rounds": 10, "epochs": 2, "participation": 1.0, "attackers": 0.1},
    **{"finetune": False, "workers": 1},
}


def measure(seeds: Sequence[int] = (0, 1, 2), methods: Sequence[str] = METHODS) -> list[Row]:
    """A row for each method and attack: the honest clients' accuracy by every rule, a number for each seed."""
    return [
        {"method": method, "attack": attack, **{rule: _accuracies(method, attack, rule, seeds) for rule in RULES}}
        for method in methods
        for attack in ATTACKS
    ]


def table(rows: Sequence[Row]) -> list[list[str]]:
    """The rows as text, for COLUMNS: means over seeds."""
    return [[row["method"], row["attack"], *(f"{statistics.mean(row[rule]):.3f}" for rule in RULES)] for row in rows]


def _accuracies(method: str, attack: str, rule: str, seeds: Sequence[int]) -> list[float]:
    results = [run(Experiment(method=method, attack=attack, robust=rule, seed=s, **FIELDS)).result for s in seeds]
    blocks = [result.get("accuracy_honest") or result["accuracy"] for result in results]
    return [block["mean"] for block in blocks]
