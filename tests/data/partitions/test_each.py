"""What each partition promises."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.data.partitions.partition import numbered
from feddag.data.shifts import Shift
from tests.data.partitions import groups, label_sets, part, table, toy


def test_iid_is_even():
    data = toy(per_class=60)
    made = part(data, "iid", 7)
    counts = table(data, made)
    assert sorted(counts.sum(axis=1)) == [85, 85, 86, 86, 86, 86, 86]
    assert counts.max() - counts.min() <= 2
    assert made.truth == (0,) * 7


@given(
    clients=st.integers(1, 40),
    label_fraction=st.sampled_from([0.1, 0.2, 0.3, 0.7, 1.0]),
    concentration=st.sampled_from([0.01, 0.25, 1.0, 100.0]),
    count=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=80, deadline=None)
def test_label_skew(clients, label_fraction, concentration, count, seed):
    data = toy(per_class=50)
    count = min(count, clients)
    made = part(
        data, "label-skew", clients, seed, label_fraction=label_fraction, concentration=concentration, groups=count
    )
    sets = label_sets(data, made)
    size = round(10 * label_fraction)
    assert all(len(held) == size for held in sets)
    assert numbered(sets) == made.truth  # the same truth exactly where the same label set
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
    spread = [
        table(data, part(data, "label-skew", 20, label_fraction=1.0, concentration=q)).std() for q in (0.1, 1.0, 1000.0)
    ]
    assert spread[0] > spread[1] > spread[2]
    assert spread[2] < 10  # of 100 on average


def test_groups_that_draw_the_same_labels_are_one_true_group():
    data = toy(classes=3)
    made = part(data, "label-skew", 12, label_fraction=1.0, groups=4)
    assert made.truth == (0,) * 12


@given(clients=st.integers(11, 40), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_pairs(clients, seed):
    data = toy()
    made = part(data, "pairs", clients, seed)
    sets = label_sets(data, made)
    assert all(len(held) == 2 for held in sets)
    assert len(set(sets)) == 11
    assert made.truth == numbered(sets)


def test_pairs_by_number_and_all_of_them():
    data = toy(classes=4)
    assert len(set(label_sets(data, part(data, "pairs", 20, groups=3)))) == 3
    assert len(set(label_sets(data, part(data, "pairs", 20)))) == 6  # four classes make no more


@given(clients=st.integers(1, 50), seed=st.integers(0, 10**6), label_fraction=st.sampled_from([0.1, 0.2, 0.5]))
@settings(max_examples=30, deadline=None)
def test_pacfl(clients, seed, label_fraction):
    data = toy()
    counts = table(data, made := part(data, "pacfl", clients, seed, label_fraction=label_fraction))
    assert (counts[np.arange(clients), np.arange(clients) % 10] > 0).all()
    assert ((counts > 0).sum(axis=1) == 10 * label_fraction).all()
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
    assert made.truth == numbered(expected)
    assert sum(map(len, made.train)) == 600


@given(clients=st.integers(1, 20), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_dirichlet_uses_everything_and_leaves_no_client_with_few_samples(clients, seed):
    data = toy(per_class=100)
    made = part(data, "dirichlet", clients, seed, concentration=0.5)
    sizes = table(data, made).sum(axis=1)
    assert sizes.min() >= 10
    assert sizes.sum() == 1000
    assert made.truth is None
    counts = table(data, made)
    held_before = counts.cumsum(axis=1) - counts
    assert (held_before[counts > 0] < 1000 / clients).all()  # who has a fair share gets no more classes


def test_dirichlet_skew_follows_its_factor():
    data = toy(per_class=500)
    assert table(data, part(data, "dirichlet", 10, concentration=0.2)).std() > 60
    assert table(data, part(data, "dirichlet", 10, concentration=1000.0)).std() < 10


@given(clients=st.integers(4, 30), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_feature_skew_by_corruption(clients, seed):
    data = toy()
    made = part(data, "feature-skew", clients, seed, concentration=1.0, severity=5)
    names = [shift.corruption for shift in made.shifts]
    assert set(names) == {"gaussian_noise", "gaussian_blur", "fog", "invert"}
    assert made.truth == numbered(names)
    assert {shift.severity for shift in made.shifts} == {5}
    assert sum(map(len, made.train)) == 600


def test_feature_skew_with_named_corruptions():
    made = part(toy(), "feature-skew", 6, corruptions="fog, pixelate", concentration=1.0)
    assert {shift.corruption for shift in made.shifts} == {"fog", "pixelate"}
    assert len(set(part(toy(), "feature-skew", 13, corruptions="13", concentration=1.0).shifts)) == 13


@given(clients=st.integers(3, 24), seed=st.integers(0, 10**6), test=st.sampled_from(["classes", "own"]))
@settings(max_examples=20, deadline=None)
def test_feature_skew_by_domain_trains_and_tests_inside_it(clients, seed, test):
    data = toy(domains=3, images=False)
    made = part(data, "feature-skew", clients, seed, concentration=1.0, test=test)
    domains = [set(data.domain_train[indices]) for indices in made.train]
    assert all(len(domain) == 1 for domain in domains)
    assert made.truth == numbered([min(domain) for domain in domains])
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
    counts = table(data, part(data, "sized", 10, samples_min=10, samples_max=10, concentration=0.01))
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


def test_concentrations_of_a_mix_are_settings():
    data = toy(per_class=600)

    def spread(**options):
        made = part(data, "heterogeneity-mix", 20, 3, mix="50,50,0", **options)
        return [table(data, made)[members].std(axis=1).mean() for members in groups(made)]

    usual, other = spread(), spread(homogeneous=0.5, heterogeneous=1000.0)
    assert min(usual) == spread(heterogeneous=0.05)[usual.index(min(usual))] < max(usual)
    assert max(spread(heterogeneous=0.05)) > 1.5 * max(usual)
    assert usual.index(min(usual)) != other.index(min(other))


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
    assert made.truth == numbered(names)
    assert (table(data, made).sum(axis=1) == 60).all()


def test_natural_follows_the_owners():
    data = toy(owners=6)
    made = part(data, "natural", None)
    assert made.names == tuple(f"writer {n}" for n in range(6))
    for owner in range(6):
        assert made.train[owner].tolist() == list(range(owner, 600, 6))
        assert made.test[owner].tolist() == list(range(owner, 40, 6))
    assert made.truth is None


def test_natural_takes_a_number_of_owners_chosen_by_the_seed():
    data = toy(owners=6, domains=3)  # owner n has domain n mod 3
    chosen = {part(data, "natural", 3, seed).names for seed in range(8)}
    assert len(chosen) > 1
    for seed in range(8):
        made = part(data, "natural", 3, seed)
        owners = [int(name.removeprefix("writer ")) for name in made.names]
        assert made.train[1].tolist() == list(range(owners[1], 600, 6))
        assert made.truth == numbered([owner % 3 for owner in owners])


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
