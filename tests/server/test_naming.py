"""Which cluster calls what by which name, and when that is not known."""

from collections.abc import Collection

import numpy as np
import pytest

from feddag.client.signature import Signature
from feddag.server.naming import LEAST_AFFINITY, matched_classes, matched_families
from tests.server.made import direction, made


def test_classes_are_matched_by_their_looks_where_names_differ() -> None:
    looks = {0: direction(0), 1: direction(45), 2: direction(90)}
    first = made([5, 5, 5], looks)
    turned = made([5, 5, 5], {2: direction(0), 0: direction(45), 1: direction(90)})
    fewer = made([5, 5, 0], {0: direction(45), 1: direction(0)})
    same, other = made([5, 5, 5], {0: direction(5), 1: direction(40), 2: direction(88)}), made([0, 0, 9], {2: looks[0]})
    found = matched_classes([first, turned, fewer, same, other], np.arange(5))
    assert found.tolist() == [[0, 1, 2], [1, 2, 0], [1, 0, 2], [0, 1, 2], [0, 1, 2]]


def cluster(looks: np.ndarray, names: list[int], held: Collection[int] | None = None, blur: float = 0.0) -> Signature:
    """Classes that look like these rows, under these names: class names[k] looks like row k."""
    draw = np.random.default_rng(7)
    vectors = np.zeros((len(looks), 1, looks.shape[1]), np.float32)
    for look, name in enumerate(names):
        row = looks[look] + blur * draw.normal(size=looks.shape[1]) / np.sqrt(looks.shape[1])
        vectors[name, 0] = row / np.linalg.norm(row)
    counts = np.array([50 if held is None or name in held else 0 for name in range(len(looks))])
    vectors[counts == 0] = 0
    none = np.zeros(0, np.float32)
    return Signature(vectors, counts, np.where(counts, 0.9, 0).astype(np.float32), none, np.float32(0))


LOOKS = np.linalg.qr(np.random.default_rng(0).normal(size=(120, 100)))[0].T
TEN, HUNDRED = LOOKS[:10], LOOKS
STRAIGHT, BACKWARDS, SWAPPED = list(range(10)), list(range(10))[::-1], [1, 0, *range(2, 10)]


def other_domain() -> np.ndarray:
    """Every class looks different, and nearer to another one of the ten than to itself, but not near enough."""
    draw = np.random.default_rng(3)
    domain = TEN[BACKWARDS] * 0.5 + np.linalg.qr(draw.normal(size=(120, 10)))[0].T
    domain /= np.linalg.norm(domain, axis=1, keepdims=True)
    alike = (TEN @ domain.T) ** 2
    assert alike[np.arange(10), BACKWARDS].mean() > 1.5 * np.trace(alike) / 10  # a ratio alone would rename it
    assert alike.max() < LEAST_AFFINITY
    return domain


@pytest.mark.parametrize("names", [BACKWARDS, SWAPPED, [*range(1, 10), 0]])
def test_renamings_are_found_and_make_a_family(names: list[int]) -> None:
    found, family = matched_families([cluster(TEN, list(range(10))), cluster(TEN, names, blur=0.2)], np.arange(2))
    assert found[1, names].tolist() == list(range(10)) and family == [0, 0]


def test_a_hundred_classes_are_matched() -> None:
    names = np.random.default_rng(1).permutation(100).tolist()
    found, family = matched_families([cluster(HUNDRED, list(range(100))), cluster(HUNDRED, names)], np.arange(2))
    assert found[1, names].tolist() == list(range(100)) and family == [0, 0]


def test_other_looks_under_the_same_names_are_no_renaming_and_no_family() -> None:
    """Of another domain; and blurred: alike, and apart for another reason."""
    three = [cluster(TEN, STRAIGHT), cluster(other_domain(), STRAIGHT), cluster(TEN, STRAIGHT, blur=0.3)]
    found, family = matched_families(three, np.arange(3))
    assert found.tolist() == [STRAIGHT] * 3 and family == [0, 1, 2]


def test_clusters_that_hold_other_things_are_no_family() -> None:
    found, family = matched_families(
        [cluster(TEN, list(range(10))), cluster(TEN, SWAPPED, held=range(6))], np.arange(2)
    )
    assert found[1, :2].tolist() == [1, 0] and family == [0, 1]


@pytest.mark.parametrize(
    ("one", "other", "family"),
    [
        (range(0, 6), range(1, 7), [0, 0]),  # five of seven
        (range(0, 5), range(1, 7), [0, 0]),  # four of seven: what looks alike is asked of these four
        (range(0, 6), range(0, 4), [0, 0]),  # four of six: one holds all that the other does
        (range(0, 6), range(2, 8), [0, 1]),  # four of eight: exactly half
        (range(0, 6), range(3, 9), [0, 1]),  # three of nine
        (range(0, 5), range(5, 10), [0, 1]),  # none
    ],
)
def test_clusters_apart_by_held_classes_alone_are_kin_if_they_share_most(
    one: range, other: range, family: list[int]
) -> None:
    two = [cluster(TEN, STRAIGHT, held=one), cluster(TEN, STRAIGHT, held=other, blur=0.2)]
    found = matched_families(two, np.arange(2), held_alone=True)
    assert found[0].tolist() == [STRAIGHT] * 2 and found[1] == family
    assert matched_families(two, np.arange(2))[1] == [0, 1]  # what else they differ in is not known


def test_clusters_of_other_looks_are_no_kin_whatever_they_hold() -> None:
    two = [cluster(TEN, STRAIGHT, held=range(0, 6)), cluster(other_domain(), STRAIGHT, held=range(1, 7))]
    assert matched_families(two, np.arange(2), held_alone=True)[1] == [0, 1]


def test_kin_of_kin_by_held_classes_are_one_family() -> None:
    """The first and the last share exactly half, and both share most with the one between."""
    three = [cluster(TEN, STRAIGHT, held=range(start, start + 6)) for start in range(3)]
    assert matched_families(three, np.arange(3), held_alone=True)[1] == [0, 0, 0]


def test_renamed_clusters_must_hold_the_same_things_even_where_others_need_not() -> None:
    for held, family in ((range(10), [0, 0]), (range(8), [0, 1])):
        two = [cluster(TEN, STRAIGHT), cluster(TEN, SWAPPED, held=held)]
        found = matched_families(two, np.arange(2), held_alone=True)
        assert found[0][1].tolist() == SWAPPED and found[1] == family


def test_what_fits_its_own_name_about_as_well_keeps_it() -> None:
    near = TEN.copy()
    near[1] = near[0] + 0.05 * near[1]
    near[1] /= np.linalg.norm(near[1])  # two classes that nobody could tell apart
    found = matched_classes([cluster(near, list(range(10))), cluster(near, SWAPPED, blur=0.5)], np.arange(2))
    assert found[1].tolist() == list(range(10))
