"""From samples to groups and back: what `feddag.group` finds in data whose groups are known, and what it refuses."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag import FeddagError, Grouping, Signature, group, signature
from feddag.client.warmup import agreement
from feddag.server.checks import check_distances
from feddag.server.clustering import Cut
from feddag.server.grouping import FUSIONS, _sure
from feddag.server.noise import Held
from tests.server.made import made, on_a_line, same_partition

FEATURES, CLASSES = 60, 6
MEANS = np.random.default_rng(7).normal(size=(CLASSES, FEATURES))


def linear_update(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The first step of a linear model from zero, with every class in equal parts: minus the gradient of its loss."""
    share = (1 / np.bincount(y, minlength=CLASSES).clip(1))[y]
    return (x.T @ ((np.eye(CLASSES)[y] - 1 / CLASSES) * share[:, None])).ravel().astype(np.float32)


def signed(x: np.ndarray, y: np.ndarray, update: bool = True) -> Signature:
    """A signature as a client would make it: the update is the mean of two halves, which tell its noise."""
    if not update:
        return signature(x, y, CLASSES)
    order = np.argsort(y, kind="stable")
    halves = [linear_update(x[order[part::2]], y[order[part::2]]) for part in (0, 1)]
    return signature(x, y, CLASSES, update=np.mean(halves, axis=0), update_reliability=agreement(*halves))


def client(draw: np.random.Generator, labels: list[int], samples: int = 80, update: bool = True) -> Signature:
    """Samples of these classes, each class around its own mean."""
    y = draw.choice(labels, samples)
    return signed(MEANS[y] + draw.normal(size=(samples, FEATURES)), y, update)


def client_of_concept(draw: np.random.Generator, shift: int, samples: int = 80) -> Signature:
    """All classes, but what looks like class c is called c + shift."""
    y = draw.integers(0, CLASSES, samples)
    return signed(MEANS[y] + draw.normal(size=(samples, FEATURES)), (y + shift) % CLASSES)


LABELS = ([0, 1], [2, 3], [4, 5], [1, 2])


# What is found -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [True, False])
def test_groups_of_labels(update) -> None:
    draw, truth = np.random.default_rng(0), np.arange(24) % 4
    found = group([client(draw, LABELS[kind], int(draw.integers(20, 150)), update) for kind in truth])
    assert found.labels_.tolist() == truth.tolist()
    assert found.clusters_ == 4
    assert set(found.views_) == ({"classes", "data", "gradient"} if update else {"classes", "data"})


def test_groups_of_concepts() -> None:
    draw, truth = np.random.default_rng(1), np.arange(24) % 3
    found = group([client_of_concept(draw, int(kind), int(draw.integers(60, 200))) for kind in truth])
    assert found.labels_.tolist() == truth.tolist()
    assert not found.weights_["classes"].any()  # everyone holds every class: that view tells nobody apart


@pytest.mark.parametrize("clients", [5, 40])
def test_clients_of_one_kind_are_one_group(clients) -> None:
    draw = np.random.default_rng(2)
    found = group([client_of_concept(draw, 0, int(draw.integers(80, 200))) for _ in range(clients)])
    assert found.labels_.tolist() == [0] * clients
    assert found.graph_ is not None and found.graph_.sources_of(0) == []


def test_what_one_view_hides_the_other_shows() -> None:
    """Turning x into -x leaves second moments as they are, and turns a linear model's update round; spreading samples
    along other directions changes second moments, and leaves the update, which is made of class means, as it is."""
    draw = np.random.default_rng(3)
    directions = np.linalg.qr(draw.normal(size=(FEATURES, FEATURES)))[0]
    turned, spread = np.arange(32) % 2, np.arange(32) // 2 % 2
    clients = []
    for sign, way in zip(1 - 2 * turned, spread, strict=True):
        y = draw.integers(0, CLASSES, 240)
        wide = draw.normal(size=(240, 2)) * [20, 12] @ directions[2 * way : 2 * way + 2]
        clients.append(signed(sign * (MEANS[y] + wide + draw.normal(size=(240, FEATURES))), y))
    truth = turned + 2 * spread
    by_gradient, by_data, by_both = (
        group(clients, views=views).labels_ for views in (["gradient"], ["classes", "data"], ["data", "gradient"])
    )
    assert same_partition(by_gradient, turned)
    assert same_partition(by_data, spread)
    assert same_partition(by_both, truth)
    assert same_partition(group(clients).labels_, truth)


def test_a_newcomer_joins_its_group_or_none() -> None:
    draw = np.random.default_rng(4)
    found = group([client(draw, LABELS[kind]) for kind in np.arange(24) % 3])
    before = found.labels_.copy()
    assert [found.assign(client(draw, labels, 40)) for labels in LABELS[:3]] == [0, 1, 2]
    assert found.assign(client(draw, [1, 4], 80)) is None
    np.testing.assert_array_equal(found.labels_, before)  # nobody is moved


@pytest.mark.parametrize("views", [("classes", "data"), ("data",)])
def test_a_newcomer_that_shares_no_class_with_anybody_joins_none(views) -> None:
    """The groups are two domains of the same four classes, so the class view does not count for any of them."""
    draw = np.random.default_rng(6)
    elsewhere = np.random.default_rng(8).normal(size=MEANS.shape)

    def seen(means: np.ndarray, labels: list[int]) -> Signature:
        y = draw.choice(labels, 100)
        return signature(means[y] + draw.normal(size=(100, FEATURES)), y, CLASSES)

    found = group([seen((MEANS, elsewhere)[kind], [0, 1, 2, 3]) for kind in np.arange(16) % 2], views=views)
    assert found.clusters_ == 2 and not found.weights_.get("classes", np.zeros(1)).any()
    assert [found.assign(seen(means, [0, 1, 2])) for means in (MEANS, elsewhere)] == [0, 1]
    stranger = seen(MEANS, [4, 5])
    assert found.assign(stranger) is None
    later = found.joined_by(stranger, 2)
    assert [later.assign(seen(MEANS, labels)) for labels in ([4, 5], [0, 1, 2])] == [2, 0]


def test_a_newcomer_with_another_concept_joins_none() -> None:
    draw = np.random.default_rng(5)
    found = group([client_of_concept(draw, int(kind), 150) for kind in np.arange(18) % 2])
    assert [found.assign(client_of_concept(draw, shift, 150)) for shift in (0, 1, 3)] == [0, 1, None]


def test_who_learns_from_whom() -> None:
    draw = np.random.default_rng(6)
    found = group([client(draw, LABELS[kind]) for kind in np.arange(20) % 4], sources=1)
    assert found.graph_ is not None
    assert found.graph_.edges.sum(1).tolist() == [1, 1, 1, 1] and not found.graph_.edges.diagonal().any()


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_finds_clear_groups(fusion) -> None:
    draw, truth = np.random.default_rng(8), np.arange(16) % 2
    clients = [client(draw, LABELS[kind]) for kind in truth]
    found = group(clients, fusion=fusion)
    assert found.labels_.tolist() == truth.tolist()
    assert found.distances_.shape == (120,) and found.proximity_.shape == (16, 16)
    assert len(found.candidates_) == 20
    assert np.array_equal(found.labels_, found.tree_.cut(found.threshold_))


def test_a_matrix_of_distances() -> None:
    matrix = np.array([[0, 1, 9, 9], [1, 0, 9, 9], [9, 9, 0, 2], [9, 9, 2, 0]])
    found = group(matrix)
    assert found.labels_.tolist() == [0, 0, 1, 1] and found.graph_ is None
    assert 2 <= found.threshold_ < 9
    with pytest.raises(FeddagError, match="precomputed distances cannot place a newcomer"):
        found.assign(made([1]))


def test_a_report_is_plain() -> None:
    found = group([made([5, 0], {0: [1, 0]}), made([0, 5], {1: [1, 0]})])
    arrays = found.to_arrays()
    assert arrays["labels"].tolist() == [0, 1] and arrays["edges"].tolist() == [[False, True], [True, False]]
    assert arrays["candidates"].shape == (20, 3)
    json.dumps({key: value for key, value in arrays.items() if isinstance(value, float)})


# Little to go by -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fusion", FUSIONS)
def test_one_client_is_one_group(fusion) -> None:
    found = group([client(np.random.default_rng(0), [0, 1])], fusion=fusion)
    assert found.labels_.tolist() == [0] and found.clusters_ == 1
    assert found.proximity_.tolist() == [[0]]


def test_two_clients() -> None:
    draw = np.random.default_rng(0)
    alike, unlike = ([client(draw, LABELS[0]), client(draw, LABELS[kind])] for kind in (0, 1))
    assert group(alike).labels_.tolist() == [0, 0]
    assert group(unlike).labels_.tolist() == [0, 1]
    assert group([*unlike, unlike[0]]).labels_.tolist() == [0, 1, 0]


@pytest.mark.parametrize("fusion", FUSIONS)
def test_identical_clients_are_one_group(fusion) -> None:
    found = group([client(np.random.default_rng(0), [0, 1, 2])] * 6, fusion=fusion)
    assert found.labels_.tolist() == [0] * 6
    assert np.isfinite(found.distances_).all()


def test_one_class_and_one_sample_each() -> None:
    draw = np.random.default_rng(0)
    scales = 2.0 ** -np.arange(20)
    one_class = [signature(draw.normal(size=(30, 20)) * scales, np.zeros(30, int), 1) for _ in range(6)]
    assert group(one_class).labels_.tolist() == [0] * 6
    one_sample = [signature(draw.normal(size=(1, 20)), np.array([0]), 2) for _ in range(6)]
    assert len(group(one_sample).labels_) == 6  # too little to tell, and no reason to fail


def test_a_class_nobody_has_and_clients_without_samples() -> None:
    draw = np.random.default_rng(0)
    people = [client(draw, LABELS[kind], update=False) for kind in (0, 1) * 4]
    wider = [
        dataclasses.replace(
            person,
            vectors=np.pad(person.vectors, ((0, 1), (0, 0), (0, 0))),
            counts=np.append(person.counts, 0),
            reliability=np.append(person.reliability, np.float32(0)),
            style=np.pad(person.style, ((0, 1), (0, 0))),
        )
        for person in people
    ]
    assert group(wider).labels_.tolist() == group(people).labels_.tolist() == [0, 1] * 4
    nothing = signature(np.zeros((0, FEATURES)), np.zeros(0, int), CLASSES)
    assert np.isfinite(group([*people, nothing, nothing]).distances_).all()


def test_updates_of_zeros_do_not_hide_the_data() -> None:
    draw = np.random.default_rng(0)
    still = [
        dataclasses.replace(item, update=np.zeros(4, np.float32), update_reliability=np.float32(0).reshape(()))
        for item in (client(draw, LABELS[kind], update=False) for kind in (0, 1) * 5)
    ]
    assert group(still).labels_.tolist() == [0, 1] * 5


# What is refused -----------------------------------------------------------------------------------------------------


def spoilt(name: str) -> Signature:
    """A signature whose array was changed after it was made."""
    person = client(np.random.default_rng(0), [0, 1])
    getattr(person, name)[...] = np.nan
    return person


@pytest.mark.parametrize("name", ["vectors", "reliability", "update", "update_reliability"])
def test_not_a_number_is_refused_naming_the_client(name) -> None:
    people = [client(np.random.default_rng(seed), [0, 1]) for seed in range(2)]
    with pytest.raises(FeddagError, match=f"client bob: the signature's {name} holds a value that is not a finite"):
        group([people[0], spoilt(name), people[1]], names=["alice", "bob", "carol"])
    with pytest.raises(FeddagError, match="client newcomer: "):
        group(people).assign(spoilt(name))


def test_a_matrix_with_a_hole_is_refused_naming_the_client() -> None:
    matrix = np.ones((3, 3))
    matrix[1] = np.inf
    with pytest.raises(FeddagError, match="client 1: its distances are not finite numbers"):
        group(matrix)


def distances(**changes: float) -> np.ndarray:
    """Three clients; `_01=9` sets the distance of client 0 to client 1."""
    matrix = np.array([[0, 1, 2], [1, 0, 2], [2, 2, 0]], float)
    for place, value in changes.items():
        matrix[int(place[1]), int(place[2])] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        (np.array(3.0), r"must be square, and this one has shape \(\)"),
        (np.zeros(3), r"must be square, and this one has shape \(3,\)"),
        (np.zeros((0, 0)), r"must be square, and this one has shape \(0, 0\)"),
        (np.zeros((10**6, 1)), r"must be square, and this one has shape \(1000000, 1\)"),
        (np.zeros((2, 2, 2)), r"must be square, and this one has shape \(2, 2, 2\)"),
        (np.full((2, 2), "a"), "must hold numbers, and this one holds <U1"),
        (np.zeros((2, 2), object), "must hold numbers, and this one holds object"),
        (np.zeros((2, 2), bool), "must hold numbers, and this one holds bool"),
        (np.zeros((2, 2), complex), "must hold numbers, and this one holds complex128"),
        (np.zeros((2, 2), "M8[s]"), "must hold numbers, and this one holds datetime64"),
        (distances(_01=2), "client 0 is not as far from another as that one is from it"),
        (distances(_12=-1, _21=-1), "client 1 has a distance that is below 0"),
        (distances(_22=1), "client 2 has a distance to itself that is not 0"),
        (distances(_11=np.nan), "client 1 has a distance to itself that is not 0"),
        (distances(_01=np.nan, _21=np.nan), "client 1: its distances are not finite numbers"),
        (distances(_01=np.inf, _10=np.inf, _12=np.inf), "client 1: its distances are not finite numbers"),
        (distances(_02=1e300, _20=1e300, _12=1e300), "client 2: its distances are not finite numbers"),
        (np.full((1, 1), 5.0), "client 0 has a distance to itself that is not 0"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_matrix_that_is_not_one_of_distances_is_refused(matrix, sentence) -> None:
    with pytest.raises(FeddagError, match=sentence) as caught:
        group(matrix)
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("error")
def test_matrices_at_the_edge_of_what_is_allowed() -> None:
    assert group(np.zeros((1, 1))).labels_.tolist() == [0]
    assert group(np.zeros((4, 4))).labels_.tolist() == [0] * 4
    apart = 100 * np.array([[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0], [1, 1, 0, 0]])
    for matrix in (apart, apart.astype(np.int8), apart * 3e36, apart * 1e-30, apart + 1e-5 * np.tri(4)):
        assert group(matrix).labels_.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("given", [[[0, 1], [1, 0]], [None], "ab", [np.zeros((2, 2))], ({},)])
def test_what_is_neither_signatures_nor_a_matrix(given) -> None:
    with pytest.raises(FeddagError, match=r"client 0: a .* is no signature; give signatures, or distances as"):
        group(given)


def test_a_bad_distance_names_the_client() -> None:
    distances = on_a_line(0, 1, 2, 3)
    distances[[1, 3, 5]] = np.nan  # all pairs of the third client
    with pytest.raises(FeddagError, match="client carol: its distances are not finite numbers"):
        check_distances(distances, ["alice", "bob", "carol", "dave"])
    check_distances(on_a_line(0, 1), ["alice", "bob"])


PAIR = [made([3], {0: [1, 0]}), made([3], {0: [0, 1]})]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"signatures": []}, "there is no signature to group"),
        ({"signatures": [PAIR[0], made([3, 3])]}, r"client 1: its signature has vectors \(2, 1, 2\)"),
        ({"signatures": [PAIR[0], made([3], update=[1])]}, "client 1: .* an update of 1"),
        ({"signatures": np.ones((2, 3))}, r"must be square, and this one has shape \(2, 3\)"),
        ({"fusion": "clarty"}, "fusion = 'clarty' is not allowed; .* did you mean 'clarity'"),
        ({"linkage": "ward"}, "linkage = 'ward' is not allowed"),
        ({"alignment": "papers"}, "did you mean 'paper'"),
        ({"views": ["pixels"]}, "views = 'pixels' is not allowed; allowed are classes, data, gradient"),
        ({"views": []}, "views is empty"),
        ({"views": ["gradient"]}, "views = 'gradient' needs signatures with an update"),
        ({"fusion": "gradient"}, "fusion = 'gradient' needs signatures with an update"),
        ({"fusion": "mlp"}, "fusion = 'mlp' needs signatures with an update"),
        ({"names": ["alice"]}, "there are 1 names for 2 clients"),
        ({"sources": -1}, "sources = -1 is not allowed: it should be at least 0"),
        ({"delta": 1.5}, "delta = 1.5 is not allowed: it should be from 0 to 1"),
        ({"least_silhouette_ratio": 90}, "least_silhouette_ratio = 90 is not allowed: it should be from 0 to 1"),
    ],
)
def test_what_cannot_be_grouped_is_refused(arguments, sentence) -> None:
    with pytest.raises(FeddagError, match=sentence):
        group(**{"signatures": PAIR, **arguments})


# Properties ----------------------------------------------------------------------------------------------------------


def some_grouping(draw: np.random.Generator, clients: list[Signature]) -> Grouping:
    return group(clients, fusion=str(draw.choice(["clarity", "data", "gradient"])))


@given(kinds=st.lists(st.integers(0, 3), min_size=1, max_size=14), seed=st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_permuting_the_clients_permutes_the_labels(kinds, seed) -> None:
    draw = np.random.default_rng(seed)
    clients = [client(draw, LABELS[kind], int(draw.integers(30, 90))) for kind in kinds]
    order = draw.permutation(len(clients))
    found, moved = group(clients), group([clients[place] for place in order])
    assert same_partition(found.labels_[order], moved.labels_)
    assert found.threshold_ == pytest.approx(moved.threshold_, abs=1e-3)
    for labels in (found.labels_, moved.labels_):
        assert list(dict.fromkeys(labels.tolist())) == list(range(labels.max() + 1))  # numbered by first member
    np.testing.assert_allclose(sum(found.weights_.values()), np.ones(len(kinds)))


def test_groups_that_no_view_sees_by_itself_are_none() -> None:
    distances = np.ones((6, 6), np.float32) - np.eye(6, dtype=np.float32)
    distances[:3, :3] = distances[3:, 3:] = 0
    found = group(distances)
    assert found.clusters_ == 2
    one, two = Cut(np.zeros(6, np.int64), 1.0), Cut(found.labels_, 0.5)
    known = Held(np.full(6, 100))
    assert _sure(found, [one, two], known).clusters_ == 2
    together = _sure(found, [one, one], known)
    assert together.clusters_ == 1 and together.threshold_ == 1.0


def test_updates_of_a_few_samples_make_no_groups_that_nothing_else_sees() -> None:
    draw = np.random.default_rng(0)
    ways = draw.normal(size=(2, 40)).astype(np.float32)

    def two_ways(samples: int) -> list[Signature]:
        y = np.arange(samples) % 2
        samples_of = [MEANS[y] + draw.normal(size=(samples, FEATURES)) for _ in range(20)]
        return [
            signature(x, y, CLASSES, update=ways[n % 2] + draw.normal(0, 0.1, 40), update_reliability=0.99)
            for n, x in enumerate(samples_of)
        ]

    assert group(two_ways(60)).clusters_ > 1
    few = two_ways(8)
    assert group(few).clusters_ == 1
    assert group(few, views=("gradient",)).clusters_ > 1
