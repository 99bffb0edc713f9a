"""Every partition on small made-up data: its own promise, the promises common to all, and its refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.data.datasets import Dataset
from feddag.data.partitions import PARTITIONS, Partition, _numbered, _split_off, make_partition, settings_of
from feddag.data.shifts import Shift
from feddag.data.tables import apportion
from feddag.errors import FeddagError
from feddag.rng import rng


def toy(per_class=60, classes=10, *, tests=4, images=True, owners=0, domains=0):
    """So many samples of each class, shuffled; owners and domains dealt around, so that owner = n mod owners."""

    def labels(count, name):
        return rng(0, "toy", name).permutation(np.repeat(np.arange(classes), count))

    def contents(count):
        return np.zeros((count, 1, 1, 1), np.uint8) if images else np.zeros((count, 3), np.float32)

    def columns(y):
        return {
            "owner": np.arange(len(y)) % owners if owners else None,
            "domain": np.arange(len(y)) % domains if domains else None,
        }

    train, test = labels(per_class, "train"), labels(tests, "test")
    return Dataset(
        "toy",
        contents(len(train)),
        train,
        contents(len(test)),
        test,
        classes,
        (0.0,),
        (1.0,),
        owners=tuple(f"writer {n}" for n in range(owners)),
        domains=tuple(f"style {n}" for n in range(domains)),
        **{f"{name}_train": column for name, column in columns(train).items()},
        **{f"{name}_test": column for name, column in columns(test).items()},
    )


def part(dataset, name, clients, seed=0, **options):
    return make_partition(dataset, partition=name, clients=clients, seed=seed, settings=options)


def label_sets(dataset, partition):
    return [frozenset(dataset.y_train[indices].tolist()) for indices in partition.train]


def table(dataset, partition):
    """Counts, clients x classes."""
    return np.array([np.bincount(dataset.y_train[i], minlength=dataset.num_classes) for i in partition.train])


def groups(partition):
    """The clients of each true group."""
    return [np.flatnonzero(np.array(partition.truth) == group) for group in range(max(partition.truth) + 1)]


def refused(*words):
    """A refusal of one line that holds all these words."""
    lookahead = "".join(f"(?=.*{word})" for word in words)
    return pytest.raises(FeddagError, match=rf"^{lookahead}[^\n]*$")


# What is common to all ----------------------------------------------------------------------------------------------

ENOUGH = {
    "sized": {"samples_min": 3, "samples_max": 8},
    "dirichlet": {"quantity": 1.0},
    "feature-skew": {"quantity": 1},
}


@given(
    name=st.sampled_from(sorted(PARTITIONS)),
    clients=st.integers(5, 14),
    seed=st.integers(0, 10**6),
    classes=st.integers(4, 10),
    validation=st.sampled_from([0.0, 0.1, 0.5]),
    test=st.sampled_from(["classes", "own"]),
    fraction=st.sampled_from([0.5, 1.0]),
)
@settings(max_examples=120, deadline=None)
def test_promises_of_every_partition(name, clients, seed, classes, validation, test, fraction):
    data = toy(per_class=60, classes=classes, owners=16)
    labels = {"labels": 0.5} if "labels" in settings_of(name) else {}
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
        assert _numbered(made.truth) == made.truth

    test_labels = data.y_train if test == "own" else data.y_test
    for trained, validated, tested in zip(made.train, made.validation, made.test, strict=True):
        held = np.concatenate([trained, validated, tested]) if test == "own" else np.concatenate([trained, validated])
        if test == "classes" and name != "natural":
            assert set(test_labels[tested]) == set(data.y_train[held])
            assert len(tested) == 4 * len(set(data.y_train[held]))  # all test samples of these classes
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


def test_split_off_by_hand():
    client_of = np.array([0] * 10 + [1] * 3 + [2] + [-1])
    y = np.array([0] * 5 + [1] * 5 + [0, 1, 2] + [0] + [0])
    split = _split_off(client_of, y, 0.2, rng(0, "split"))
    assert split[:5].tolist().count(0) == 1  # two of ten, one of each class
    assert split[5:10].tolist().count(0) == 1
    assert split[10:13].tolist().count(1) == 1  # three classes of one sample: one sample all the same
    assert split[13] == -1  # the only one stays
    assert split[14] == -1  # nobody's


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


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=30), st.integers(0, 500))
def test_apportion_adds_up_and_stays_close(weights, total):
    parts = apportion(np.array(weights), total)
    assert parts.sum() == total
    assert (parts >= 0).all()
    assert np.abs(parts - np.array(weights) / sum(weights) * total).max() <= 1 + 1e-6


# What each one promises ---------------------------------------------------------------------------------------------


def test_iid_is_even():
    data = toy(per_class=60)
    made = part(data, "iid", 7)
    counts = table(data, made)
    assert sorted(counts.sum(axis=1)) == [85, 85, 86, 86, 86, 86, 86]
    assert counts.max() - counts.min() <= 2
    assert made.truth == (0,) * 7


@given(
    clients=st.integers(1, 40),
    labels=st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0]),
    quantity=st.sampled_from([0.01, 0.25, 1.0, 100.0]),
    count=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_label_skew(clients, labels, quantity, count, seed):
    data = toy(per_class=50)
    count = min(count, clients)
    made = part(data, "label-skew", clients, seed, labels=labels, quantity=quantity, groups=count)
    sets = label_sets(data, made)
    size = round(10 * labels)
    assert all(len(held) == size for held in sets)
    assert _numbered(sets) == made.truth  # the same truth exactly where the same label set
    assert len(set(sets)) <= count
    held = set().union(*sets)
    assert len(held) == min(10, size * count) or count * size > 10  # fresh labels first
    if size * count <= 10:
        assert len(set(sets)) == count  # disjoint, and every group has a client
    assert (table(data, made).sum(axis=0)[sorted(held)] == 50).all()  # all samples of held classes are used


def test_label_skew_of_a_fifth_makes_five_disjoint_pairs():
    data = toy()
    sets = set(label_sets(data, part(data, "label-skew", 50)))
    assert len(sets) == 5
    assert sorted(label for held in sets for label in held) == list(range(10))


def test_label_skew_quantities_follow_the_dirichlet_factor():
    data = toy(per_class=2000, classes=4)
    spread = [table(data, part(data, "label-skew", 20, labels=1.0, quantity=q)).std() for q in (0.1, 1.0, 1000.0)]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 10  # of 100 on average


def test_groups_that_draw_the_same_labels_are_one_true_group():
    data = toy(classes=3)
    made = part(data, "label-skew", 12, labels=1.0, groups=4)
    assert made.truth == (0,) * 12


@given(clients=st.integers(11, 40), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_pairs(clients, seed):
    data = toy()
    made = part(data, "pairs", clients, seed)
    sets = label_sets(data, made)
    assert all(len(held) == 2 for held in sets)
    assert len(set(sets)) == 11
    assert made.truth == _numbered(sets)


def test_pairs_by_number_and_all_of_them():
    data = toy(classes=4)
    assert len(set(label_sets(data, part(data, "pairs", 20, groups=3)))) == 3
    assert len(set(label_sets(data, part(data, "pairs", 20)))) == 6  # four classes make no more


@given(clients=st.integers(1, 50), seed=st.integers(0, 10**6), labels=st.sampled_from([0.1, 0.2, 0.5]))
@settings(max_examples=30, deadline=None)
def test_pacfl(clients, seed, labels):
    data = toy()
    counts = table(data, made := part(data, "pacfl", clients, seed, labels=labels))
    assert (counts[np.arange(clients), np.arange(clients) % 10] > 0).all()
    assert ((counts > 0).sum(axis=1) == 10 * labels).all()
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T if column.any())
    assert made.truth is None


@given(clients=st.integers(1, 50), seed=st.integers(0, 10**6), count=st.integers(1, 10))
@settings(max_examples=40, deadline=None)
def test_pathological(clients, seed, count):
    data = toy()
    counts = table(data, part(data, "pathological", clients, seed, classes_per_client=count))
    assert ((counts > 0).sum(axis=1) == count).all()
    holders = (counts > 0).sum(axis=0)
    assert np.ptp(holders) <= 1
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T if column.any())
    assert counts.sum() == 60 * min(10, clients * count)


@given(clients=st.integers(5, 40), seed=st.integers(0, 10**6), concepts=st.integers(1, 5), skewed=st.booleans())
@settings(max_examples=40, deadline=None)
def test_concept_shift(clients, seed, concepts, skewed):
    data = toy()
    made = part(data, "concept-shift", clients, seed, concepts=concepts, skewed=skewed)
    names = [shift.concept for shift in made.shifts]
    assert set(names) == set(["identity", "reverse", "next", "rotate-2", "rotate-3"][:concepts])
    assert np.ptp([names.count(name) for name in set(names)]) <= 1
    expected = list(zip(names, label_sets(data, made), strict=True)) if skewed else names
    assert made.truth == _numbered(expected)
    assert sum(map(len, made.train)) == 600


@given(clients=st.integers(1, 20), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_dirichlet_uses_everything_and_leaves_nobody_poor(clients, seed):
    data = toy(per_class=100)
    made = part(data, "dirichlet", clients, seed, quantity=0.5)
    sizes = table(data, made).sum(axis=1)
    assert sizes.min() >= 10
    assert sizes.sum() == 1000
    assert made.truth is None
    counts = table(data, made)
    held_before = counts.cumsum(axis=1) - counts
    assert (held_before[counts > 0] < 1000 / clients).all()  # who has a fair share gets no more classes


def test_dirichlet_skew_follows_its_factor():
    data = toy(per_class=500)
    assert table(data, part(data, "dirichlet", 10, quantity=0.2)).std() > 60
    assert table(data, part(data, "dirichlet", 10, quantity=1000.0)).std() < 10


@given(clients=st.integers(4, 30), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_feature_skew_by_corruption(clients, seed):
    data = toy()
    made = part(data, "feature-skew", clients, seed, quantity=1.0, severity=5)
    names = [shift.corruption for shift in made.shifts]
    assert set(names) == {"gaussian_noise", "gaussian_blur", "fog", "invert"}
    assert made.truth == _numbered(names)
    assert {shift.severity for shift in made.shifts} == {5}
    assert sum(map(len, made.train)) == 600


def test_feature_skew_with_named_corruptions():
    made = part(toy(), "feature-skew", 6, corruptions="fog, pixelate", quantity=1.0)
    assert {shift.corruption for shift in made.shifts} == {"fog", "pixelate"}
    assert len(set(part(toy(), "feature-skew", 13, corruptions="13", quantity=1.0).shifts)) == 13


@given(clients=st.integers(3, 24), seed=st.integers(0, 10**6), test=st.sampled_from(["classes", "own"]))
@settings(max_examples=20, deadline=None)
def test_feature_skew_by_domain_trains_and_tests_inside_it(clients, seed, test):
    data = toy(domains=3, images=False)
    made = part(data, "feature-skew", clients, seed, quantity=1.0, test=test)
    domains = [set(data.domain_train[indices]) for indices in made.train]
    assert all(len(domain) == 1 for domain in domains)
    assert made.truth == _numbered([min(domain) for domain in domains])
    assert set().union(*domains) == {0, 1, 2}
    column = data.domain_test if test == "classes" else data.domain_train
    for indices, domain in zip(made.test, domains, strict=True):
        assert set(column[indices]) <= domain
    if test == "classes":
        assert sum(map(len, made.train)) == 600
    assert set(made.shifts) == {Shift()}


@given(clients=st.integers(1, 20), seed=st.integers(0, 10**6), base=st.sampled_from(["dirichlet", "pathological"]))
@settings(max_examples=40, deadline=None)
def test_sized(clients, seed, base):
    data = toy(per_class=100)
    made = part(data, "sized", clients, seed, base=base, samples_min=5, samples_max=30, classes_per_client=3)
    counts = table(data, made)
    assert (counts.sum(axis=1) >= 5).all()
    assert (counts.sum(axis=1) <= 30).all()
    if base == "pathological":
        assert ((counts > 0).sum(axis=1) == 3).all()
        assert all(np.ptp(row[row > 0]) <= 1 for row in counts)


def test_sized_can_use_the_very_last_sample():
    data = toy(per_class=10)
    counts = table(data, part(data, "sized", 10, samples_min=10, samples_max=10, quantity=0.01))
    assert (counts.sum(axis=1) == 10).all()
    assert (counts.sum(axis=0) == 10).all()


@pytest.mark.parametrize("seed", range(5))
def test_heterogeneity_mix_by_labels(seed):
    data = toy(per_class=600)
    made = part(data, "heterogeneity-mix", 20, seed, mix="50,20,30")
    counts = table(data, made)
    assert (counts.sum(axis=1) == counts.sum(axis=1)[0]).all()
    assert sorted(map(len, groups(made))) == [4, 6, 10]
    by_size = {len(members): counts[members] for members in groups(made)}
    assert ((by_size[6] > 0).sum(axis=1) == 1).all()
    assert ((by_size[10] > 0).sum(axis=1) == 10).all()
    assert by_size[10].std() < by_size[4].std() / 2


def test_heterogeneity_mix_can_be_all_of_one_class():
    data = toy(per_class=60)
    counts = table(data, part(data, "heterogeneity-mix", 10, mix="0,0,100"))
    assert (np.sort(counts, axis=1)[:, -1] == 60).all()  # ten clients, ten classes
    assert counts.sum() == 600


def test_heterogeneity_mix_by_domains():
    data = toy()
    made = part(data, "heterogeneity-mix", 10, mix_kind="domains", severity=2)
    names = [shift.corruption for shift in made.shifts]
    assert [names.count(name) for name in (None, "gaussian_noise", "gaussian_blur")] == [4, 3, 3]
    assert made.truth == _numbered(names)
    assert (table(data, made).sum(axis=1) == 60).all()


def test_natural_follows_the_owners():
    data = toy(owners=6)
    made = part(data, "natural", None)
    assert made.names == tuple(f"writer {n}" for n in range(6))
    for owner in range(6):
        assert made.train[owner].tolist() == list(range(owner, 600, 6))
        assert made.test[owner].tolist() == list(range(owner, 40, 6))
    assert made.truth is None


def test_natural_takes_as_many_owners_as_wanted_by_the_seed():
    data = toy(owners=6, domains=3)  # owner n lives in domain n mod 3
    chosen = {part(data, "natural", 3, seed).names for seed in range(8)}
    assert len(chosen) > 1
    for seed in range(8):
        made = part(data, "natural", 3, seed)
        owners = [int(name.removeprefix("writer ")) for name in made.names]
        assert made.train[1].tolist() == list(range(owners[1], 600, 6))
        assert made.truth == _numbered([owner % 3 for owner in owners])


def test_natural_owners_in_several_domains_have_no_truth():
    assert part(toy(owners=5, domains=3), "natural", None).truth is None


def test_natural_splits_its_own_data_where_an_owner_has_no_test_samples():
    data = toy(owners=45)  # 40 test samples
    made = part(data, "natural", None, test_share=0.25)
    assert made.test_from == "train"
    assert all(len(tested) >= 1 for tested in made.test)
    assert all(set(tested) <= set(range(n, 600, 45)) for n, tested in enumerate(made.test))
    assert sum(map(len, made.train)) + sum(map(len, made.test)) == 600
    assert {part(data, "natural", 3, seed).test_from for seed in range(8)} == {"train"}  # whoever is drawn


def test_natural_by_domain_where_there_are_no_owners():
    data = toy(domains=3)
    made = part(data, "natural", None)
    assert made.names == ("style 0", "style 1", "style 2")
    assert made.test[1].tolist() == list(range(1, 40, 3))
    assert made.truth == (0, 1, 2)
    assert part(toy(domains=3, tests=0), "natural", None).test_from == "train"


def test_ten_thousand_clients():
    data = toy(per_class=6000, tests=100)
    for name in ("label-skew", "iid", "pathological", "heterogeneity-mix"):
        made = part(data, name, 10_000, validation=0.1)
        assert min(map(len, made.train)) >= 1


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "clients", "options", "words"),
    [
        ("label-skw", 5, {}, ["partition = 'label-skw'", "did you mean 'label-skew'"]),
        ("iid", 5, {"labels": 0.2}, ["'iid'", "no setting 'labels'", "fraction"]),
        ("label-skew", 5, {"label": 0.2}, ["no setting 'label'", "did you mean 'labels'"]),
        ("iid", None, {}, ["clients is missing", "1 to 600"]),
        ("iid", 601, {}, ["clients = 601", "1 to 600"]),
        ("iid", 0, {}, ["clients = 0", "1 to 600"]),
        ("iid", 5, {"fraction": 0.0}, ["fraction = 0.0", "to 1"]),
        ("iid", 31, {"fraction": 0.05}, ["clients = 31", "1 to 30"]),
        ("iid", 5, {"test": "mine"}, ["test = 'mine'", "classes, own"]),
        ("iid", 5, {"test_share": 1}, ["test_share = 1", "0.001 to 0.99"]),
        ("iid", 5, {"validation": 1.0}, ["validation = 1.0", "0 to 0.99"]),
        ("iid", 5, {"holdout": 0.05}, ["holdout = 0.05", "of 5 clients this is 0", "1 to 4"]),
        ("iid", 5, {"holdout": 0.95}, ["holdout = 0.95", "this is 5", "1 to 4"]),
        ("label-skew", 5, {"groups": 6}, ["groups = 6", "1 to 5"]),
        ("label-skew", 5, {"groups": "two"}, ["groups = 'two'", "1 to 5"]),
        ("label-skew", 5, {"labels": 0.04}, ["labels = 0.04", "0 of them", "1 to 10"]),
        ("label-skew", 5, {"labels": 1.2}, ["labels = 1.2", "0 to 1"]),
        ("label-skew", 5, {"quantity": 0}, ["quantity = 0", "0.001"]),
        ("label-skew", 400, {"labels": 1.0}, ["clients = 400", "60 training samples", "400 clients"]),
        ("pacfl", 600, {"labels": 0.5}, ["clients = 600", "60 training samples"]),
        ("pairs", 20, {"groups": 46}, ["groups = 46", "1 to 20"]),
        ("pairs", 60, {"groups": 46}, ["groups = 46", "1 to 45"]),
        ("pairs", 600, {}, ["clients = 600", "60 training samples"]),
        ("pathological", 5, {"classes_per_client": 11}, ["classes_per_client = 11", "1 to 10"]),
        ("concept-shift", 20, {"concepts": 12}, ["concepts = 12", "1 to 11"]),
        ("concept-shift", 2, {"concepts": 3}, ["concepts = 3", "1 to 2"]),
        ("dirichlet", 100, {"quantity": 0.001}, ["quantity = 0.001", "100 clients", "larger quantity"]),
        ("feature-skew", 5, {"corruptions": "fog,snoww,fog"}, ["'snoww'", "allowed are", "fog"]),
        ("feature-skew", 5, {"corruptions": "contrats"}, ["'contrats'", "did you mean 'contrast'"]),
        ("feature-skew", 5, {"corruptions": "²"}, ["'²'", "allowed are"]),
        ("feature-skew", 5, {"corruptions": "fog,fog"}, ["corruptions = 'fog,fog'", "once"]),
        ("feature-skew", 5, {"corruptions": "saturate"}, ["saturate", "grey"]),
        ("feature-skew", 20, {"corruptions": 14}, ["corruptions = 14", "1 to 13"]),
        ("feature-skew", 3, {}, ["corruptions = 4", "1 to 3"]),
        ("feature-skew", 5, {"severity": 0}, ["severity = 0", "1 to 5"]),
        ("sized", 5, {"base": "iid"}, ["base = 'iid'", "dirichlet, pathological"]),
        ("sized", 5, {"samples_min": 9, "samples_max": 8}, ["samples_max = 8", "9 to 600"]),
        ("sized", 5, {"samples_max": 10**30}, ["samples_max = 1000", "50 to 600"]),
        ("sized", 100, {}, ["samples_max = 350", "'toy' has 600"]),
        ("sized", 1, {"base": "pathological", "samples_min": 130, "samples_max": 130}, ["samples_max = 130", "60"]),
        ("heterogeneity-mix", 10, {"mix": "40,30"}, ["mix = '40,30'", "add up to 100"]),
        ("heterogeneity-mix", 10, {"mix": "a,b,c"}, ["mix = 'a,b,c'", "add up to 100"]),
        ("heterogeneity-mix", 2, {}, ["mix = '40,30,30'", "2 clients"]),
        ("heterogeneity-mix", 10, {"mix_kind": "label"}, ["mix_kind = 'label'", "did you mean 'labels'"]),
        ("natural", None, {}, ["natural", "'toy'"]),
    ],
)
def test_refusals_name_the_key_the_value_and_what_is_allowed(name, clients, options, words):
    with refused(*words):
        part(toy(), name, clients, **options)


def test_refusals_that_depend_on_the_data():
    series = toy(images=False)
    with refused("feature-skew", "images", "'toy'"):
        part(series, "feature-skew", 5)
    with refused("mix_kind = 'domains'", "images", "'toy'"):
        part(series, "heterogeneity-mix", 5, mix_kind="domains")
    with refused("clients = 7", "1 to 6"):
        part(toy(owners=6), "natural", 7)
    with refused("clients = 2", "at least 3", "domain"):
        part(toy(domains=3), "feature-skew", 2)
    with refused("concepts = 3", "1 to 2"):
        part(toy(classes=2), "concept-shift", 9)
    with refused("test = 'classes'", "no test samples", "'own'"):
        part(toy(tests=0), "iid", 5)
    assert part(toy(tests=0), "iid", 5, test="own").test_from == "train"


def test_settings_of_a_partition():
    assert settings_of("pairs") == {
        "quantity": 0.25,
        "groups": None,
        "holdout": 0.0,
        "validation": 0.0,
        "test": "classes",
        "test_share": 0.2,
        "fraction": 1.0,
    }


# What is kept on disk -----------------------------------------------------------------------------------------------


@given(name=st.sampled_from(sorted(PARTITIONS)), test=st.sampled_from(["classes", "own"]), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_what_is_loaded_is_what_was_saved(tmp_path_factory, name, test, seed):
    path = tmp_path_factory.mktemp("partition") / "partition.npz"
    made = part(toy(owners=17), name, 8, seed, test=test, validation=0.1, holdout=0.25, **ENOUGH.get(name, {}))
    made.save(path)
    loaded = Partition.load(path)
    for field in ("train", "test", "validation"):
        pairs_of_arrays = zip(getattr(made, field), getattr(loaded, field), strict=True)
        assert all(a.tolist() == b.tolist() and a.dtype == b.dtype for a, b in pairs_of_arrays)
    for field in ("shifts", "truth", "held_out", "names", "test_from"):
        assert getattr(loaded, field) == getattr(made, field)
    assert loaded.checksum() == made.checksum()
    assert [p.name for p in path.parent.iterdir()] == ["partition.npz"]
    first = path.read_bytes()
    loaded.save(path)
    assert path.read_bytes() == first


def test_checksum_sees_content_not_sharing():
    made = part(toy(), "label-skew", 6)
    copied = Partition(
        train=made.train,
        test=tuple(indices.copy() for indices in made.test),
        validation=made.validation,
        shifts=made.shifts,
        truth=made.truth,
        held_out=made.held_out,
        names=made.names,
    )
    assert copied.checksum() == made.checksum()
    assert len({id(indices) for indices in copied.test}) == len({id(indices) for indices in made.test})


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "partition.npz"
    made = part(toy(), "iid", 5)
    made.save(path)
    whole_file = path.read_bytes()
    for damaged in (whole_file[:-30], whole_file[: len(whole_file) // 2], b"", b"PK\x03\x04", b"text"):
        path.write_bytes(damaged)
        with refused("partition.npz", "damaged"):
            Partition.load(path)

    content = dict(np.load(tmp_path / path, allow_pickle=False)) if path.write_bytes(whole_file) else {}
    content["train"] = content["train"][::-1]
    np.savez(path, **content)
    with refused("partition.npz", "damaged"):
        Partition.load(path)
    np.savez(path, other=np.arange(3))
    with refused("partition.npz", "damaged"):
        Partition.load(path)
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    with refused("partition.npz", "damaged"):
        Partition.load(path)
    with refused("missing.npz", "does not exist"):
        Partition.load(tmp_path / "missing.npz")
    with refused("partition.npz", "cannot be written"):
        made.save(path / "below" / "a" / "file" / "partition.npz")


@given(at=st.floats(0, 1), bit=st.integers(0, 7))
@settings(max_examples=60, deadline=None)
def test_a_flipped_bit_is_refused_or_harmless(tmp_path_factory, at, bit):
    path = tmp_path_factory.mktemp("partition") / "partition.npz"
    made = part(toy(), "iid", 5)
    made.save(path)
    content = bytearray(path.read_bytes())
    content[int(at * (len(content) - 1))] ^= 1 << bit
    path.write_bytes(content)
    try:
        loaded = Partition.load(path)
    except FeddagError:
        return
    assert loaded.checksum() == made.checksum()  # a bit that means nothing, such as a file's date


@pytest.mark.parametrize("seed", range(30))
def test_clients_that_drift_are_those_whose_true_group_changes(seed: int) -> None:
    partition = make_partition(toy(), partition="concept-shift", clients=10, seed=seed, settings={})
    drifting, after = partition.drifting(0.3, seed), partition.drifted(0.3, seed)
    assert drifting  # drawn until two groups are among them
    assert set(drifting) == {client for client in range(10) if partition.truth[client] != after.truth[client]}
    assert sorted(np.concatenate(after.train)) == sorted(np.concatenate(partition.train))


def test_where_all_are_alike_none_can_drift() -> None:
    with pytest.raises(FeddagError, match="drift_round is set, but all clients are of one true group"):
        make_partition(toy(), partition="iid", clients=10, seed=0, settings={}).drifted(0.3, 0)
