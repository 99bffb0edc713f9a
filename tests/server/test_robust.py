"""Robust means by hand, and what one liar can do to each."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.server.aggregate import mean_of
from feddag.server.robust import robust_mean
from feddag.weights import Weights

RULES = ("clip", "trimmed-mean", "median", "krum", "geometric-median")
START = {"w": torch.zeros(2), "count": torch.tensor(3)}


def model(*values: float) -> Weights:
    return {"w": torch.tensor(values, dtype=torch.float32), "count": torch.tensor(7)}


def found(rule: str, *models: Weights, shares: list[float] | None = None) -> list[float]:
    mean = robust_mean(models, shares or [1.0] * len(models), START, rule)
    assert mean["count"].dtype == torch.int64 and int(mean["count"]) == 7
    return [round(float(v), 4) for v in mean["w"]]


def test_each_rule_by_hand() -> None:
    five = [model(v, 0.0) for v in (1, 2, 3, 4, 100)]
    assert found("none", *five) == [22.0, 0.0]
    assert found("trimmed-mean", *five) == [3.0, 0.0]  # without 1 and 100
    assert found("median", *five) == [3.0, 0.0]
    assert found("median", *five[:4]) == [2.5, 0.0]
    # The median length is 3: the longest is cut to 6.
    assert found("clip", *five) == [(1 + 2 + 3 + 4 + 6) / 5, 0.0]
    # One may lie: each is judged by its 5 - 1 - 2 = 2 nearest. 2 and 3 have squared distances 1 and 1; the first wins.
    assert found("krum", *five) == [2.0, 0.0]
    triangle = [model(1, 0), model(-0.5, 3**0.5 / 2), model(-0.5, -(3**0.5) / 2)]
    assert found("geometric-median", *triangle) == pytest.approx([0.0, 0.0], abs=1e-3)


def test_clipping_weighs_by_samples_and_bounds_claims() -> None:
    sent = [model(1, 0), model(1, 0), model(1, 0), model(-1, 0)]
    assert found("clip", *sent, shares=[10, 10, 10, 1e12]) == [round((30 - 100) / 130, 4), 0.0]
    assert found("none", *sent, shares=[10, 10, 10, 1e12])[0] == pytest.approx(-1)


@pytest.mark.parametrize("rule", RULES)
def test_two_answers_are_too_few_to_tell_who_lies(rule: str) -> None:
    assert found(rule, model(1, 0), model(5, 2)) == [3.0, 1.0]
    assert found(rule, model(1, 0)) == [1.0, 0.0]


@pytest.mark.parametrize("rule", RULES)
def test_equal_answers_give_that_answer(rule: str) -> None:
    assert found(rule, *[model(1.5, -2)] * 5) == pytest.approx([1.5, -2], abs=1e-4)
    assert found(rule, *[model(0, 0)] * 5) == pytest.approx([0, 0], abs=1e-4)


honest = st.lists(st.tuples(*[st.floats(-1, 1, width=32)] * 2), min_size=6, max_size=12)
far = st.floats(-1e6, 1e6, width=32)


@given(others=honest, lie=st.tuples(far, far), rule=st.sampled_from(RULES))
@settings(max_examples=200, deadline=None)
def test_one_liar_cannot_pull_the_result_out_of_the_others_reach(others, lie, rule) -> None:
    sent = [model(*values) for values in others]
    got = robust_mean([*sent, model(*lie)], [1.0] * (len(sent) + 1), START, rule)["w"]
    assert float(got.norm()) <= 2 * max(1e-6, max(float(m["w"].norm()) for m in sent)) + 1e-4


@given(others=honest, seed=st.integers(0, 100), rule=st.sampled_from(("clip", "trimmed-mean", "median")))
@settings(max_examples=100, deadline=None)
def test_the_order_of_clients_does_not_matter(others, seed, rule) -> None:
    sent = [model(*values) for values in others]
    order = np.random.default_rng(seed).permutation(len(sent))
    one = robust_mean(sent, [1.0] * len(sent), START, rule)["w"]
    other = robust_mean([sent[i] for i in order], [1.0] * len(sent), START, rule)["w"]
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@given(values=st.lists(st.floats(0.75, 1.25, width=32), min_size=3, max_size=9))
@settings(max_examples=100, deadline=None)
def test_where_nothing_is_clipped_it_is_the_plain_mean_to_the_last_bit(values) -> None:
    sent, shares = [model(v, v) for v in values], [float(i + 5) for i in range(len(values))]
    assert torch.equal(robust_mean(sent, shares, START, "clip")["w"], mean_of(sent, shares)["w"])
