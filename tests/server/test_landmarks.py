"""Many clients by landmarks: the same groups as by all pairs, rare ones too; newcomers meet groups, not clients."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from feddag import FeddagError
from feddag.client.signature import Signature
from feddag.server import similarity
from feddag.server.cutting import CutSettings
from feddag.server.grouping import group
from feddag.server.landmarks import Frame, LandmarkGrouping
from feddag.server.membership import Membership
from feddag.server.profiles import Profiles, distances_to, profiles_of
from tests.server.made import direction, made, same_partition
from tests.server.test_style import clients as looking

CLASSES, VECTORS, FEATURES = 4, 2, 24
NOISE = 0.05


@cache
def looks(groups: int) -> np.ndarray:
    drawn = np.random.default_rng(11).normal(size=(groups, CLASSES, VECTORS, FEATURES))
    return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)


def clients(truth: Sequence[int], seed: int = 0) -> list[Signature]:
    """Clients whose classes look as those of their group do, up to noise of known size."""
    draw = np.random.default_rng(seed)
    found = []
    for look in truth:
        vectors = looks(8)[look] + draw.normal(size=looks(8)[look].shape) * np.sqrt(NOISE / FEATURES)
        vectors /= (np.einsum("cpf,cpf->cp", vectors, vectors) ** 2).sum(1)[:, None, None] ** 0.25
        counts = draw.integers(20, 60, CLASSES)
        trust = np.full(CLASSES, 1 / (1 + NOISE) ** 2, np.float32)
        nothing = np.zeros(0, np.float32), np.zeros((), np.float32)
        found.append(Signature(vectors.astype(np.float32), counts, trust, *nothing))
    return found


TRUTH = np.array([client % 4 for client in range(237)] + [4] * 3)  # the last three are a group of their own


@cache
def large() -> LandmarkGrouping:
    found = group(clients(TRUTH.tolist()), landmarks=40, seed=0)
    assert isinstance(found, LandmarkGrouping)
    return found


def test_groups_are_those_of_all_pairs_and_a_rare_one_without_landmarks_is_found() -> None:
    found = large()
    assert not set(found.landmarks_) & {237, 238, 239}  # seed 0 draws none of them
    assert same_partition(found.labels_, TRUTH)
    assert same_partition(found.labels_, group(clients(TRUTH.tolist()), landmarks=0).labels_)


def test_no_more_pairs_are_compared_than_landmarks_have(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    pairs = similarity._pairs
    monkeypatch.setattr(similarity, "_pairs", lambda count, block: compared.append(count) or pairs(count, block))
    found = group(clients(TRUTH.tolist()), landmarks=40, seed=0)
    assert max(compared) == 40
    assert len(found.distances_) == len(found.views_["data"]) == 40 * 39 // 2
    assert len(found.labels_) == len(found.weights_["data"]) == 240


def test_clients_of_one_distribution_stay_together() -> None:
    for seed in range(3):
        assert group(clients([0] * 150, seed), landmarks=30, seed=seed).clusters_ == 1


def test_a_newcomer_is_compared_with_groups_only_and_may_found_one() -> None:
    found = large()
    known, stranger, fellow = clients([2, 6, 6], seed=5)
    assert found.assign(known) == found.labels_[2]
    assert found.placed(known)[1] > 0.5
    assert found.assign(stranger) is None
    joined = found.joined_by(stranger, found.clusters_)
    assert joined.assign(fellow) == found.clusters_ == joined.labels_[-1]
    assert joined.assign(known) == found.labels_[2]
    assert len(joined.profiles_.sizes) == found.clusters_ + 1
    assert found.joined_by(known, 2).profiles_.sizes[2] == found.profiles_.sizes[2] + 1


def test_a_fixed_number_of_groups_is_kept() -> None:
    found = group(clients(TRUTH.tolist()), landmarks=40, seed=0, cut=CutSettings(clusters=2))
    assert found.clusters_ == 2
    coarser = large().cut(clusters=2)
    assert same_partition(coarser.labels_, found.labels_)
    with pytest.raises(FeddagError, match="clients have joined"):
        large().joined_by(clients([0])[0], 0).cut(clusters=2)


def test_how_sure_it_is_is_told_of_every_client() -> None:
    found = large()
    assert len(found.sureness_) == 240 and found.sureness_.min() > 0.5
    assert found.verdict_ == "5 groups, clear"
    assert group(clients([0] * 60), landmarks=20).sureness_.tolist() == [0] * 60


def test_few_samples_are_no_group() -> None:
    strange = clients([4], seed=3)[0]
    few = replace(strange, counts=np.full(CLASSES, 2))
    found = group([*clients([0, 1] * 60), strange], landmarks=30, seed=0)
    assert found.clusters_ == 3
    assert group([*clients([0, 1] * 60), few], landmarks=30, seed=0).clusters_ == 2


def test_looks_are_told_apart_and_a_look_that_no_landmark_has_is_one_of_its_own() -> None:
    truth = [("plain", "noisy")[number % 2] for number in range(100)] + ["loud"] * 4
    found = group(looking(truth), landmarks=40, seed=0)
    assert isinstance(found, LandmarkGrouping)
    assert found.style_ is not None and len(found.style_.labels) == 104
    assert not set(found.landmarks_) & set(range(100, 104))  # seed 0 draws none of them
    assert adjusted_rand_score(truth, found.labels_) == 1
    plain, noisy = looking(["plain", "noisy"], seed=9)
    assert (found.assign(plain), found.assign(noisy)) == (0, 1)
    assert found.joined_by(noisy, 1).style_.labels[-1] == found.style_.labels[1]


def test_a_client_is_as_far_from_a_cluster_as_its_view_says() -> None:
    """One class, noise-free: 30 degrees are 1/3 of a right angle, twice the vectors' angle for moments... by hand."""
    at = {angle: made([10], {0: direction(angle)}, reliability=1.0) for angle in (0, 60)}
    weights = {"data": np.ones(1)}
    profile = profiles_of([at[0]], np.zeros(1, int), np.array([1e-6]), weights, None, np.random.default_rng(0))
    # the cosine of two moments vv' and ww' is (v.w)² = 1/4; arccos 1/4 = 75.52 degrees
    np.testing.assert_allclose(distances_to([at[60]], profile, np.array([1e-6]), {}), 75.522 / 90, atol=2e-3)
    assert np.isinf(distances_to([made([0])], profile, np.array([1.0]), {}))


def test_looks_of_members_are_averaged_where_they_are_known() -> None:
    pooled = made([4], {0: [1, 0]}, reliability=1.0)
    looks = np.array([[0.5, 0.5], [1.0, 0.0]])
    listed = np.full((2, 1), 4), np.arange(2)
    profiles = Profiles((pooled, pooled), np.ones(2), {"style": np.ones(2)}, looks, *listed)
    style = np.array([[0.2, 0.6], [np.nan, 0.6]], np.float32)
    found = distances_to([pooled, pooled], profiles, np.ones(1), {}, style)
    np.testing.assert_allclose(found, [[0.4, 0.2], [0.6, np.inf]], rtol=1e-6)


def test_of_clusters_in_reach_the_nearest_is_taken_but_for_the_error_of_small_ones() -> None:
    frame = Frame({}, np.ones(1), {}, 0.02, 0.1, 100, closed=False, middle=0.0, spread=0.01)
    sizes = np.array([200.0, 2.0])  # errors: 0.02 x sqrt(1 / 400) = 0.001 and 0.02 x sqrt(1 / 4) = 0.01
    best, found = frame.nearest(np.array([[0.08, 0.072], [0.08, 0.07], [0.5, 0.6]], np.float32), sizes)
    assert best.tolist() == [0, 1, 0]
    assert found.tolist() == [True, True, False]  # beyond the threshold of 0.1


def test_a_report_is_told_about_the_landmarks() -> None:
    membership = Membership(landmarks=40, seed=0)
    signatures = clients(TRUTH.tolist())
    import torch

    membership.signatures = {
        7 + client: {name: torch.from_numpy(np.atleast_1d(array)) for name, array in vars(one).items()}
        for client, one in enumerate(signatures)
    }
    membership.found(*membership.search())
    told = membership.diagnostics()
    assert told["clients"] == [7 + client for client in large().landmarks_]
    assert len(told["labels"]) == len(told["weights"]["data"]) == 40
    assert len(told["merges"]) == 39


@pytest.mark.parametrize("landmarks", [-1, 1])
def test_a_number_of_landmarks_that_is_none_is_refused(landmarks: int) -> None:
    with pytest.raises(FeddagError, match=f"landmarks = {landmarks} is not allowed"):
        group(clients([0, 1, 2]), landmarks=landmarks)


def test_a_rare_group_is_found_where_all_landmarks_are_alike() -> None:
    truth = [0] * 150 + [1] * 4
    found = group(clients(truth), landmarks=40, seed=6)
    assert isinstance(found, LandmarkGrouping) and found.exact_.clusters_ == 1
    assert not set(found.landmarks_) & set(range(150, 154))  # seed 6 draws none of them
    assert same_partition(found.labels_, np.array(truth))


def test_classes_are_compared_with_members_because_together_they_hold_all() -> None:
    """Members of the first cluster hold class 0 or 1, of the second 2 or 3; by their sums nobody misses a class."""
    many = 1000  # so many samples that nothing is missed by chance
    held = [made([many, 0, 0, 0]), made([0, many, 0, 0]), made([0, 0, many, 0]), made([0, 0, 0, many])]
    labels = np.array([0, 0, 1, 1])
    profiles = profiles_of(held, labels, np.ones(4), {"classes": np.ones(2)}, None, np.random.default_rng(0))
    found = distances_to([made([many, many, 0, 0]), held[2]], profiles, np.ones(4), {})
    # both classes, of which each member of the first has one: 1 of 2; nothing in common with the second: 1
    # class 2 alone: nothing in common with the first; the same as one of the second, nothing as the other
    np.testing.assert_allclose(found, [[0.5, 1.0], [1.0, 0.5]], atol=1e-5)
