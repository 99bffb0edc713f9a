"""Signatures against a full singular value decomposition, and in the cases where there is little to sign."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.client.signature import Signature, principal_vectors, signature, sparsified
from feddag.errors import FeddagError


@given(
    rows=st.sampled_from([1, 2, 5, 40, 130, 260]), features=st.sampled_from([2, 7, 150, 300]), seed=st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_the_vectors_are_those_of_a_full_decomposition(rows: int, features: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    scales = 2.0 ** -np.minimum(np.arange(features), 9)  # separated: every vector is determined
    samples = generator.standard_normal((rows, features)) * scales
    lengths, found = principal_vectors(samples, 3)
    _, values, vectors = np.linalg.svd(samples, full_matrices=False)
    expected = vectors[: len(found)]
    np.testing.assert_allclose(lengths, values[: len(found)], rtol=1e-5)
    assert len(found) == min(3, rows, features)
    np.testing.assert_allclose(np.abs((found * expected).sum(axis=1)), 1, atol=1e-6)


def test_samples_that_span_less_give_fewer_vectors() -> None:
    assert principal_vectors(np.ones((5, 4)), 3)[1].shape == (1, 4)
    assert principal_vectors(np.zeros((5, 4)), 3)[1].shape == (0, 4)


def test_standardised_inputs_do_not_see_brightness_or_contrast() -> None:
    x = np.random.default_rng(0).random((20, 4, 4))
    y = np.zeros(20, int)
    plain, bright = signature(x, y, 1), signature(x * 3 + 7, y, 1)
    np.testing.assert_allclose(np.abs(plain.vectors), np.abs(bright.vectors), atol=1e-5)
    raw = signature(x * 3 + 7, y, 1, inputs="raw")
    assert abs(float((plain.vectors[0, 0] * raw.vectors[0, 0]).sum())) < 0.5


def test_little_data() -> None:
    constant = signature(np.full((2, 9), 5.0), np.array([0, 1]), 3)  # nothing left when standardised
    assert not constant.vectors.any() and constant.counts.tolist() == [1, 1, 0]
    nothing = signature(np.zeros((0, 9)), np.zeros(0, int), 3)
    assert nothing.vectors.shape == (3, 3, 9) and nothing.counts.tolist() == [0, 0, 0]


def test_a_subsample_is_drawn_by_the_seed_and_counts_stay_whole() -> None:
    x, y = np.random.default_rng(0).random((50, 6)), np.zeros(50, int)
    one, same, other = (signature(x, y, 1, per_class=10, seed=seed) for seed in (0, 0, 1))
    assert np.array_equal(one.vectors, same.vectors) and not np.array_equal(one.vectors, other.vectors)
    assert one.counts.tolist() == [50]


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (np.ones((3, 2)), [0, 1], "x has 3 samples and y 2 labels"),
        (np.full((1, 2), np.nan), [0], "not a finite number"),
        (np.ones((1, 2)), [5], "labels from 5 to 5, allowed are 0 to 2"),
        (np.ones((1, 2)), [-1], "labels from -1 to -1, allowed are 0 to 2"),
        (np.ones((1, 2)), [0.5], "y must be one whole number per sample, and is float64"),
        (np.ones((1, 2)), [[0]], r"y must be one whole number per sample, .* of shape \(1, 1\)"),
        (np.array([["a"]]), [0], "x must be numbers"),
        (np.ones(1), [0], "x must be numbers, samples first"),
    ],
)
def test_what_cannot_be_signed_is_refused(x, y, sentence) -> None:
    with pytest.raises(FeddagError, match=sentence):
        signature(x, np.array(y), 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"vectors": 0}, "vectors = 0"),
        ({"inputs": "standardized"}, "inputs = 'standardized' is not allowed; allowed are standardised, raw"),
        ({"num_classes": 0}, "num_classes = 0 must be at least 1"),
        ({"num_classes": 10**12}, "would take .* bytes, allowed are 4294967296"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(options, sentence) -> None:
    with pytest.raises(FeddagError, match=sentence):
        signature(np.ones((2, 4)), np.array([0, 1]), **options)


def test_classes_are_counted_where_they_are_not_given() -> None:
    assert signature(np.ones((2, 4)), np.array([0, 4])).counts.tolist() == [1, 0, 0, 0, 1]
    with pytest.raises(FeddagError, match="there is no sample, and num_classes is not given"):
        signature(np.ones((0, 4)), np.zeros(0, int))


def test_what_is_no_signature_is_refused() -> None:
    good = vars(signature(np.random.default_rng(0).random((9, 5)), np.arange(9) % 2))
    for change, sentence in (
        ({"counts": np.array([-1, 3])}, "counts hold a number below 0"),
        ({"counts": np.array([1, 3, 4])}, "a count and reliability per class"),
        ({"reliability": np.array([0, 1.5], np.float32)}, "reliability holds a value that is not from 0 to 1"),
        ({"vectors": good["vectors"].astype(float)}, "vectors must be float32 and not float64"),
        ({"update_reliability": np.zeros(2, np.float32)}, "update_reliability must be one number"),
        ({"update": np.full(2, np.inf, np.float32)}, "update holds a value that is not a finite number"),
    ):
        with pytest.raises(FeddagError, match=sentence):
            Signature(**{**good, **change})


def test_a_signature_is_one_safe_file(tmp_path: Path) -> None:
    made = signature(np.random.default_rng(0).random((9, 5)), np.arange(9) % 2, 2, update=np.arange(4))
    made.save(tmp_path / "a.sig")
    back = Signature.load(tmp_path / "a.sig")
    for name, array in vars(made).items():
        np.testing.assert_array_equal(getattr(back, name), array)
    style = 4 * 2 * 5 + 4 * 15
    assert back.nbytes == 4 * 2 * 3 * 5 + 8 * 2 + 4 * 2 + 4 * 4 + 4 + style
    assert [path.name for path in tmp_path.iterdir()] == ["a.sig"]
    (tmp_path / "b.sig").write_bytes((tmp_path / "a.sig").read_bytes()[:-1])
    for name in ("b.sig", "none.sig"):
        with pytest.raises(FeddagError, match="is not a signature"):
            Signature.load(tmp_path / name)


def test_all_clients_keep_the_same_coordinates() -> None:
    before = {"b": np.zeros(60, np.float32), "a": np.zeros((5, 8), np.float32)}
    after = {"a": np.arange(40, dtype=np.float32).reshape(5, 8), "b": 100 + np.arange(60, dtype=np.float32)}
    kept = sparsified(before, after, 0.1, seed=3)
    assert len(kept) == 10
    numbers = [int(value) if value < 40 else int(value) - 60 for value in kept]  # place in a, then in b
    assert numbers == sorted(set(numbers))
    twice = {name: 2 * value for name, value in after.items()}
    np.testing.assert_array_equal(sparsified(before, twice, 0.1, seed=3), 2 * kept)


def test_a_share_of_the_class_decides_how_many_vectors_there_are() -> None:
    x, y = np.random.default_rng(0).normal(size=(260, 6)), np.repeat([0, 1, 2], [200, 50, 10])
    made = signature(x, y, 3, vectors=4, vector_share=0.02)
    # 2 % of 200 are 4 vectors, of 50 one, of 10 none, and so one
    assert [(np.abs(made.vectors[c]).sum(1) > 0).sum() for c in range(3)] == [4, 1, 1]
    with pytest.raises(FeddagError, match="vector_share = 2 is not allowed: it should be from 0 to 1"):
        signature(x, y, 3, vector_share=2)
