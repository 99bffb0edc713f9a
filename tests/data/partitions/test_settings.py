"""A partition's settings: which it has, and that each default stands in one place."""

import ast
import inspect
from dataclasses import fields

import pytest

import feddag.experiment
from feddag.data.partitions import PARTITIONS, PartitionSettings, settings_of
from feddag.experiment import Experiment

NAMES = [item.name for item in fields(PartitionSettings)]


def test_settings_of_a_partition():
    assert settings_of("pairs") == {
        "concentration": 0.25,
        "groups": None,
        "holdout": 0.0,
        "validation": 0.0,
        "test": "classes",
        "test_share": 0.2,
        "fraction": 1.0,
    }


def test_every_setting_is_used_by_a_partition_and_is_a_field_of_the_experiment():
    assert {name for partition in PARTITIONS for name in settings_of(partition)} == set(NAMES)
    assert set(NAMES) <= set(Experiment.model_fields)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_partition_has_no_defaults_of_its_own(partition):
    for parameter in inspect.signature(PARTITIONS[partition]).parameters.values():
        assert parameter.default is inspect.Parameter.empty, parameter.name


@pytest.mark.parametrize("name", NAMES)
def test_the_experiment_takes_its_default_from_the_settings(name):
    tree = ast.parse(inspect.getsource(feddag.experiment))
    found = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
    ]
    assert len(found) == 1 and isinstance(found[0], ast.Call)
    assert ast.unparse(found[0].args[0]) == f"PartitionSettings.{name}"
