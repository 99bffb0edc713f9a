"""Partitions changed for benchmarks: who differs in what, and the truth that goes with it."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from feddag.bench import groups, mixed, power
from feddag.data.datasets import load
from feddag.experiment import Experiment
from feddag.runner.run import prepare


def partition_of(**fields):
    return prepare(Experiment(dataset="digits", clients=12, **fields))[1]


def test_half_of_each_group_is_changed_and_the_truth_says_so() -> None:
    before = partition_of(partition="concept-shift")
    after = mixed.with_noise(before, np.random.default_rng(0))
    assert len(set(after.truth)) == 2 * len(set(before.truth))
    for client, (old, new) in enumerate(zip(before.shifts, after.shifts, strict=True)):
        assert new.concept == old.concept
        assert (new.corruption == "gaussian_noise") == (client in mixed.every_second(before))
    alike = {(shift.concept, shift.corruption): group for shift, group in zip(after.shifts, after.truth, strict=True)}
    assert len(set(alike.values())) == len(alike) == len(set(after.truth))


def test_few_that_differ_and_fewer_samples() -> None:
    before = partition_of(partition="iid")
    one = mixed.few_of(1, concept="reverse")(before, np.random.default_rng(0))
    assert sorted(np.bincount(one.truth).tolist()) == [1, 11]
    less = mixed.unequal(before, np.random.default_rng(0))
    for old, new in zip(before.train, less.train, strict=True):
        assert set(new) <= set(old) and 2 <= len(new) <= len(old)
    halves = mixed.half_of_the_classes("digits")(before, np.random.default_rng(0))
    labels = load("digits").y_train
    held = [set((labels[own] >= 5).tolist()) for own in halves.train]
    assert held == [{bool(group)} for group in halves.truth]


def test_what_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = mixed.Setting("digits", mixed.with_noise, {"partition": "concept-shift", "clients": 12}, coarse=True)
    monkeypatch.setattr(mixed, "SETTINGS", {"small": small})
    monkeypatch.setitem(small.fields, "model", "mlp")
    rows = mixed.measure(tmp_path / "m.json", [0])
    assert json.loads((tmp_path / "m.json").read_text())["rows"] == rows and rows[0]["true"] == 6
    monkeypatch.setattr(mixed, "_measured", None)
    assert mixed.measure(tmp_path / "m.json", [0]) == rows
    [line] = mixed.table(rows)
    assert line[:4] == ["small", "digits", "1", "6"] and len(line) == len(mixed.COLUMNS)


def test_one_thing_at_a_time_is_varied() -> None:
    cases = list(power.cases([0]))
    assert len(cases) == len(set(cases)) == 3 * (5 + 4 + 4)
    usual = {"noise": 3, "blur": 3, "renamed": 6}
    assert all(
        (strength != usual[what]) + (clients != 20) + (samples != 100) <= 1
        for what, strength, clients, samples, _ in cases
    )
    rows = [
        {"difference": "noise", "strength": s, "clients": 20, "samples": 100, "seed": 0, "clusters": 2, "ari": s / 10}
        for s in (1, 3)
    ]
    assert power.table(rows)[0] == ["noise", "strength", "1: 0.10, 3: 0.30"]
    assert power.table(rows)[1] == ["noise", "samples", "100: 0.30"]


def test_ways_of_grouping_are_added_to_rows_that_lack_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed = []
    some = [SimpleNamespace(nbytes=10)]
    monkeypatch.setattr(groups, "_grouped", lambda *_: {"clusters": 2, "ari": 1.0, "best": 1.0, "seconds": 0.0})
    monkeypatch.setattr(groups, "signatures_of", lambda experiment, sign: (signed.append(sign), (some, [0, 1]))[1])
    file = tmp_path / "groups.json"
    (ours,) = groups.measure(file, [0], ["20 clients"], [], ["samples"])
    assert ours["true"] == 2 and signed == [groups.SIGNED["samples"]]
    assert {groups.WAYS[way][0] for way in ours["ways"]} == {"samples"}
    (every,) = groups.measure(file, [0], ["20 clients"])
    # Ours not once more.
    assert signed == [groups.SIGNED[how] for how in ("samples", "updates", "printed", "released")]
    assert set(every["ways"]) == set(groups.WAYS)
    assert groups.table([every])[0][:5] == ["20 clients", "fmnist", "1", "2", "1 of 1"]
    groups.measure(file, [0], ["1,000 clients"])
    assert len(signed) == 5 and json.loads(file.read_text())["rows"][1]["ways"].keys() == {"feddag"}
