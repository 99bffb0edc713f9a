"""What led to the groups is in the run directory, from the start on and whenever the groups change."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feddag
from feddag.runner.trees import load_tree

QUICK = {"clients": 6, "groups": 3, "epochs": 1, "rounds": 2, "workers": 1}


@pytest.mark.parametrize(
    ("settings", "views"),
    [({}, {"classes", "data"}), ({"similarity": "fused"}, {"classes", "data", "gradient"})],
)
def test_feddag_leaves_what_its_report_shows(tmp_path: Path, settings: dict[str, Any], views: set[str]) -> None:
    run = feddag.run(feddag.Experiment(**QUICK, **settings, holdout=0.2), tmp_path / "r")
    diagnostics = load_tree(tmp_path / "r/grouping.safetensors")
    first = len(diagnostics["clients"])
    assert first == 6 - len(run.result["held_out"])
    assert len(diagnostics["distances"]) == first * (first - 1) // 2 and diagnostics["merges"].shape == (first - 1, 4)
    assert {name: len(view) for name, view in diagnostics["views"].items()}.keys() == views
    np.testing.assert_allclose(sum(diagnostics["weights"].values()), np.ones(first), atol=1e-6)
    assert all(learner != source for learner, source in diagnostics["graph"])
    assert diagnostics["class_counts"].shape == (6, 10)
    for client in diagnostics["clients"]:
        assert diagnostics["counts"][client].tolist() == diagnostics["class_counts"][client].tolist()


def test_a_method_without_groups_still_says_who_holds_what(tmp_path: Path) -> None:
    feddag.run(feddag.Experiment(**QUICK, method="fedavg"), tmp_path / "r")
    assert set(load_tree(tmp_path / "r/grouping.safetensors")) == {"class_counts", "classes"}
