"""What every partition promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.data.partitions import PARTITIONS, settings_of
from feddag.data.partitions.make import _split_off
from feddag.data.partitions.partition import numbered
from feddag.rng import rng
from tests.data.partitions import ENOUGH, part, toy


@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    clients=st.integers(5, 14),
    seed=st.integers(0, 10**6),
    classes=st.integers(4, 10),
    validation=st.sampled_from([0.0, 0.1, 0.5]),
    test=st.sampled_from(["classes", "mix", "own"]),
    fraction=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=120, deadline=None)
def test_promises_of_every_partition(name, clients, seed, classes, validation, test, fraction):
    data = toy(per_class=60, classes=classes, owners=16)
    labels = {"label_fraction": 0.5} if "label_fraction" in settings_of(name) else {}
    options = {"validation": validation, "test": test, "fraction": fraction, **labels, **ENOUGH.get(name, {})}
    made = part(data, name, clients, seed, **options)

    assert len(made.train) == len(made.test) == len(made.validation) == len(made.shifts) == len(made.names) == clients
    assert all(len(indices) >= 1 for indices in made.train)
    assert made.test_from == ("train" if test == "own" else "test")
    own_tests = made.test if test == "own" else ()
    used = np.concatenate([*made.train, *made.validation, *own_tests])
    assert len(np.unique(used)) == len(used) <= fraction * len(data.y_train)
    assert all((np.diff(indices) > 0).all() for indices in (*made.train, *made.validation, *made.test))
    assert sum(map(len, made.validation)) > 0 or not validation
    if made.truth is not None:
        assert numbered(made.truth) == made.truth

    test_labels = data.y_train if test == "own" else data.y_test
    for trained, validated, tested in zip(made.train, made.validation, made.test, strict=True):
        held = np.concatenate([trained, validated, tested]) if test == "own" else np.concatenate([trained, validated])
        if test == "classes" and name != "natural":
            assert set(test_labels[tested]) == set(data.y_train[held])
            assert len(tested) == 4 * len(set(data.y_train[held]))  # all test samples of these classes
        if test == "mix" and name != "natural":
            assert set(test_labels[tested]) <= set(data.y_train[held])
        assert tested.dtype == trained.dtype == validated.dtype == np.int64

    again = part(data, name, clients, seed, **options)
    assert again.checksum() == made.checksum()
    if name != "natural":  # the same owners may be drawn again
        assert part(data, name, clients, seed + 1, **options).checksum() != made.checksum()


def test_other_draws_in_between_change_nothing():
    data = toy()
    first = part(data, "label-skew", 10, seed=3).checksum()
    for name in ("iid", "pacfl", "dirichlet"):
        part(data, name, 10, seed=3)
    assert part(data, "label-skew", 10, seed=3).checksum() == first


def test_settings_that_leave_a_partition_alone_leave_its_samples_alone():
    data = toy()
    plain, split = part(data, "pairs", 12), part(data, "pairs", 12, validation=0.2, holdout=0.25)
    together = [np.union1d(a, b) for a, b in zip(split.train, split.validation, strict=True)]
    assert all((a == b).all() for a, b in zip(plain.train, together, strict=True))
    assert len(split.held_out) == 3
    assert plain.held_out == ()


def test_equal_tests_are_one_read_only_array():
    made = part(toy(), "label-skew", 30)
    assert len({id(indices) for indices in made.test}) == 5
    with pytest.raises(ValueError, match="read-only"):
        made.test[0][0] = 7


def test_fraction_takes_the_same_share_of_every_class_and_at_least_one():
    data = toy(per_class=60)
    used = np.concatenate(part(data, "iid", 5, fraction=0.1).train)
    assert np.bincount(data.y_train[used]).tolist() == [6] * 10
    used = np.concatenate(part(data, "iid", 5, fraction=0.001).train)
    assert np.bincount(data.y_train[used]).tolist() == [1] * 10


def test_tests_of_the_clients_mix_are_divided_as_the_training_samples_are():
    data = toy(per_class=60, tests=12)
    made = part(data, "heterogeneity-mix", 6, test="mix", mix="50,0,50")
    tested = np.concatenate(made.test)
    assert len(np.unique(tested)) == len(tested)
    for label in range(10):
        held = np.array([(data.y_train[indices] == label).sum() for indices in made.train])
        mine = np.array([(data.y_test[indices] == label).sum() for indices in made.test])
        assert mine.sum() == (12 if held.sum() else 0)
        assert np.abs(mine - 12 * held / max(held.sum(), 1)).max() < 1


def test_tests_of_the_clients_mix_stay_in_its_domain_and_with_its_owner():
    data = toy(domains=3, images=False, tests=12)
    made = part(data, "feature-skew", 6, concentration=1.0, test="mix")
    for trained, tested in zip(made.train, made.test, strict=True):
        assert set(data.domain_test[tested]) <= set(data.domain_train[trained])
    tested = np.concatenate(made.test)
    assert len(np.unique(tested)) == len(tested) == 120
    natural = part(toy(owners=6), "natural", None, test="mix")
    assert natural.test[2].tolist() == list(range(2, 40, 6))


def test_split_off_by_hand():
    client_of = np.array([0] * 10 + [1] * 3 + [2] + [-1])
    y = np.array([0] * 5 + [1] * 5 + [0, 1, 2] + [0] + [0])
    split = _split_off(client_of, y, 0.2, rng(0, "split"))
    judged = _split_off(client_of, y, 0.2, rng(0, "split"), always=False)
    for client in np.unique(client_of[client_of >= 0]):  # nobody is judged by a class that it has no sample of left
        mine = client_of == client
        assert set(y[mine & (judged >= 0)]) <= set(y[mine & (judged < 0)])
    assert split[:5].tolist().count(0) == 1  # two of ten, one of each class
    assert split[5:10].tolist().count(0) == 1
    assert split[10:13].tolist().count(1) == 1  # three classes of one sample: one sample all the same
    assert split[13] == -1  # the only one stays
    assert split[14] == -1  # it has no client


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=80),
    st.floats(0.01, 0.99),
    st.integers(0, 99),
)
@settings(max_examples=150, deadline=None)
def test_split_off_keeps_a_sample_and_every_class_it_can(samples, share, seed):
    client_of, y = np.array(samples).T
    client_of = np.unique(client_of, return_inverse=True)[1]
    split = _split_off(client_of, y, share, rng(seed, "split"))
    for client in range(client_of.max() + 1):
        mine, off = y[client_of == client], y[split == client]
        stay = y[(client_of == client) & (split < 0)]
        spare = len(mine) - len(set(mine))
        assert len(stay) + len(off) == len(mine)
        assert len(off) == np.clip(round(len(mine) * share), min(1, len(mine) - 1), max(spare, len(mine) > 1))
        assert len(stay) >= 1
        assert set(stay) == set(mine) or spare == 0
        if spare:
            expected = len(off) * (np.bincount(mine, minlength=4) - (np.bincount(mine, minlength=4) > 0)) / spare
            assert np.abs(np.bincount(off, minlength=4) - expected).max() <= 1
    assert ((split < 0) | (split == client_of)).all()
