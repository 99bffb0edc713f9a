"""The choice of a model by hand, and what holds whatever the candidates say."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feddag.client.evaluate import balanced_accuracy
from feddag.client.personal import (
    CANDIDATES,
    PRIOR,
    Personalise,
    choose,
    count_hits,
    mixed,
    mixing_shares,
    probabilities,
)
from feddag.client.step import Client, Result
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings, Trainer, make_trainer, native_network
from feddag.data.clients import FEWEST_ASIDE, of_one_client, set_aside
from feddag.models import ModelSpec
from feddag.weights import Own, Weights, kept

SPEC = ModelSpec("mlp", (1, 4, 4), 3)


def sure(*labels: int, of: int = 2) -> np.ndarray:
    """A model that says these labels with all its probability."""
    return np.eye(of)[list(labels)]


def test_the_shares_of_a_mixture_by_hand() -> None:
    # One sample of class 0 that only the second model knows, and nine of class 1 that only the first one knows. Both
    # classes count alike, as five samples each: 5 and 5 of 10, and of ten more 5 and 5.
    y = np.array([0] + [1] * 9)
    first, second = sure(*[1] * 10), sure(*[0] * 10)
    np.testing.assert_allclose(mixing_shares([first, second], y), [0.5, 0.5], atol=1e-9)
    # All ten for the second of three, and a third of ten more for each: (0 + 10/3, 10 + 10/3, 0 + 10/3) / 20.
    y = np.array([0] * 10)
    np.testing.assert_allclose(mixing_shares([first, second, first], y), [1 / 6, 2 / 3, 1 / 6], atol=1e-9)


def test_what_a_client_has_hardly_seen_speaks_for_the_trusted_model() -> None:
    # Two classes weigh five samples each. Of one there are ten samples, which speak with 10 / 10.5 of that, all for the
    # second model; the rest, and the class of which there is none, is the first one's: 5 + 5 - 5 * 10 / 10.5 + 10 / 2.
    y = np.array([0] * 10)
    first, second = sure(*[1] * 10), sure(*[0] * 10)
    theirs = 5 * 10 / 10.5
    expected = [(10 - theirs + 5) / 20, (theirs + 5) / 20]
    np.testing.assert_allclose(mixing_shares([first, second], y, rare=1, trusted=0), expected, atol=1e-9)
    assert choose({"group": second, "common": first}, y, rare=1) == pytest.approx(
        {"group": expected[1], "common": expected[0]}
    )
    assert choose({"group": second, "common": first}, y)["group"] > 0.7
    assert choose({"group": second, "alone": first}, y, rare=1) == choose({"group": second, "alone": first}, y)


def test_the_choice_by_hand() -> None:
    y = np.array([0] * 6 + [1] * 6)
    group, alone = sure(*[0] * 12), sure(*[0] * 6, *[1] * 6)  # the group's model never says 1
    # Where both are right, the shares stay; where only one is, it takes the sample: alone's share s solves
    # s = (6 s + 6 + 10 / 2) / 22, so s = 11 / 16.
    found = choose({"group": group, "alone": alone}, y)
    assert found == pytest.approx({"group": 5 / 16, "alone": 11 / 16})
    assert balanced_accuracy(mixed({"group": group, "alone": alone}, found).argmax(axis=1), y) == 1.0


def test_a_mixture_that_gets_fewer_right_is_not_taken() -> None:
    y = np.array([0] * 10)
    group = np.array([[0.51, 0.49]] * 9 + [[0.001, 0.999]])  # right by a hair nine times, and badly wrong once
    other = np.array([[0.45, 0.55]] * 9 + [[0.999, 0.001]])  # wrong by a hair nine times, and right once: less log loss
    shares = mixing_shares([group, other], y)
    assert (shares[0] * group + shares[1] * other)[0].argmax() == 1
    assert choose({"group": group, "alone": other}, y) == {"group": 1.0}


def test_a_mixture_below_the_model_tuned_as_a_whole_is_not_taken() -> None:
    y = np.array([0] * 10)
    group, full = np.array([[0.0, 1.0]] * 10), np.array([[0.51, 0.49]] * 10)  # in equal parts they say 1
    assert choose({"group": group, "full": full}, y)["full"] == 1.0
    assert choose({"group": full, "full": group}, y)["group"] > 0.5


def test_candidates_that_know_as_little_have_equal_parts() -> None:
    y = np.array([0, 1] * 10)
    same = np.full((20, 2), 0.5)
    found = choose({"group": same, "head": same, "full": same}, y)
    assert found == pytest.approx({"group": 1 / 3, "head": 1 / 3, "full": 1 / 3})


def test_what_has_diverged_has_no_share() -> None:
    y = np.array([0, 1] * 10)
    good, lost = sure(*y), np.full((20, 2), np.nan)
    assert choose({"group": sure(*[0] * 20), "full": good, "alone": lost}, y).keys() == {"group", "full"}
    assert choose({"group": lost, "full": good}, y) == {"full": 1.0}
    assert choose({"group": good, "full": lost}, y) == choose({"group": lost, "full": lost}, y) == {"group": 1.0}


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_the_chosen_is_never_below_the_tuned_model_where_every_class_can_tell(data: Any) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    samples, classes = data.draw(st.integers(1, 60)), data.draw(st.integers(1, 5))
    names = ["group", *data.draw(st.lists(st.sampled_from(CANDIDATES[1:]), min_size=1, unique=True))]
    sharp = data.draw(st.sampled_from([0.01, 1.0, 100.0]))  # from a single class to all alike
    found = {name: draw.dirichlet(np.full(classes, sharp), samples) for name in names}
    y = draw.integers(0, classes, samples)
    shares = choose(found, y)
    assert set(shares) <= set(names) and sum(shares.values()) == pytest.approx(1) and min(shares.values()) > 0
    usual = found["full" if "full" in names else "group"]
    before, after = (balanced_accuracy(table.argmax(axis=1), y) for table in (usual, mixed(found, shares)))
    if min(np.unique(y, return_counts=True)[1]) >= 2:
        assert after >= before
    if len(shares) > 1:  # no candidate is shut out by few samples
        assert min(shares.values()) >= PRIOR / len(names) / (samples + PRIOR) - 1e-9


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.lists(st.integers(0, 80), min_size=1, max_size=6))
def test_what_is_set_aside(seed: int, sizes: list[int]) -> None:
    y = np.repeat(np.arange(len(sizes)), sizes)
    x = np.arange(len(y), dtype=np.float32)[:, None]
    data = of_one_client(2, (x, x[:0]), (y, y[:0]), [0.0], [1.0], len(sizes))
    there = set_aside(data, seed)
    (kept_x, kept_y), (aside_x, aside_y) = there.samples(2), there.samples_aside(2)
    assert sorted([*kept_x[:, 0], *aside_x[:, 0]]) == x[:, 0].tolist()
    assert (y[kept_x[:, 0].astype(int)] == kept_y).all() and (y[aside_x[:, 0].astype(int)] == aside_y).all()
    given_up = np.bincount(aside_y, minlength=len(sizes))
    most = np.array(sizes) // 3
    assert (given_up <= most).all() and there.size(2) == len(kept_y)
    wanted = max(FEWEST_ASIDE, round(0.2 * len(y)))
    assert len(aside_y) == (min(wanted, most.sum()) if most.sum() >= FEWEST_ASIDE else 0)
    again = set_aside(data, seed)
    assert (again.x == there.x).all() and not len(there.samples_aside(0)[1])


def a_client(trainer: Trainer, start: Weights, aside: int = 12) -> Client:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(60, 1, 4, 4, generator=draw)
    x[torch.arange(60), 0, y] += 3
    return Client(
        **{"id": 1, "x": x[:30], "y": y[:30], "trainer": trainer, "num_classes": 3, "seed": 0, "moment": (1, 1)},
        settings=LocalSettings(epochs=2, batch_size=8, lr=0.05),
        fetch=lambda ref: start,
        score=lambda weights: trainer.score(weights, x[42:], y[42:]),
        test_samples=lambda: (x[42:], y[42:]),
        aside=lambda: (x[30 : 30 + aside], y[30 : 30 + aside]),
    )


def personalise(trainer: Trainer, tried: tuple[str, ...] = CANDIDATES[1:], aside: int = 12) -> tuple[Client, Result]:
    start = SPEC.initial_weights(0, "start")
    client = a_client(trainer, start, aside)
    client.state = {f"old/{name}": value for name, value in SPEC.initial_weights(0, "group").items()}
    old = Own("old")
    return client, Personalise(tried, group=(old,), common=old, start=old, times=3).run(client)


@pytest.mark.parametrize("native", [True, False])
def test_what_a_client_does_and_tells(native: bool) -> None:
    trainer = make_trainer(SPEC, native_network(SPEC, "native") if native else None)
    client, result = personalise(trainer)
    step = Personalise(CANDIDATES[1:])
    assert {name: tuple(array.shape) for name, array in result.arrays.items()} == step.shapes(SPEC)
    assert step.problem(result) is None and result.weights is None and not result.more
    assert result.samples == 30 * 2 * (1 + 1 + 3)  # head and all for two epochs, alone for three times as many
    assert result.scored == 12 * 5
    group = SPEC.initial_weights(0, "group")
    head = kept(client.state, "tuned head")
    assert set(head) == {"head.weight", "head.bias"} and not torch.equal(head["head.bias"], group["head.bias"])
    assert set(kept(client.state, "tuned full")) == set(group) == set(kept(client.state, "tuned alone"))
    assert torch.equal(kept(client.state, "tuned")["shares"], result.arrays["shares"])
    # Tuned as by hand, and only on what was not set aside.
    by_hand = a_client(trainer, group)
    by_hand.current = group
    Train(balanced=True, send=False).run(by_hand)
    assert by_hand.current is not None
    for name, value in kept(client.state, "tuned full").items():
        torch.testing.assert_close(value, by_hand.current[name])
    if not native:  # there the features of an encoder that stands still are computed once
        trained = ((("head",), 2), ((), 2), ((), 6))
        assert client.flops == sum(trainer.flops(client.x, [np.arange(30)] * n, parts) for parts, n in trained)


def test_both_trainers_choose_alike() -> None:
    results = [personalise(make_trainer(SPEC, native_network(SPEC, kind)))[1] for kind in ("native", "torch")]
    for name, array in results[0].arrays.items():
        torch.testing.assert_close(array, results[1].arrays[name], atol=1e-4, rtol=1e-4)


def test_fewer_than_ten_samples_choose_nothing_where_the_groups_model_fits() -> None:
    trainer = make_trainer(SPEC, None)
    group = SPEC.initial_weights(0, "group")
    client = a_client(trainer, group, aside=9)
    client.current = group
    Train(epochs=20, balanced=True, send=False).run(client)  # a model that is right about what it was trained on
    assert client.current is not None
    fitting = dict(client.current)
    client.state = {f"old/{name}": value for name, value in fitting.items()}
    result = Personalise(("full",), group=(Own("old"),)).run(client)
    assert result.arrays["shares"].tolist() == [1, 0, 0, 0, 0] and set(client.state) >= {"tuned/shares"}
    assert not kept(client.state, "tuned full") and result.scored == 30 * 2
    counts = result.arrays["counts"]
    assert torch.equal(counts[0], counts[5]) and not counts[[1, 3, 4]].any() and counts[2].any()


def test_fewer_than_ten_samples_and_a_groups_model_that_fails_mix_the_others() -> None:
    client, result = personalise(make_trainer(SPEC, None), ("full", "alone"), aside=9)  # the group's model is untrained
    assert result.arrays["shares"].tolist() == [0, 0, 0.5, 0.5, 0]
    assert kept(client.state, "tuned full") and kept(client.state, "tuned alone")


def test_a_mixture_of_the_group_is_taken_as_it_is() -> None:
    trainer = make_trainer(SPEC, None)
    one, other = (SPEC.initial_weights(0, name) for name in ("one", "other"))
    client = a_client(trainer, one)
    found = probabilities(client, {"group": [(one, 0.75), (other, 0.25)]}, client.x)["group"]
    parts = [torch.softmax(trainer.logits(weights, client.x).double(), 1).numpy() for weights in (one, other)]
    np.testing.assert_allclose(found, 0.75 * parts[0] + 0.25 * parts[1])


@pytest.mark.parametrize(
    ("shares", "right", "says"),
    [
        ([1.5, -0.5, 0, 0, 0], 1.0, "told shares that cannot be"),
        ([0.5, 0, 0, 0, 0], 1.0, "told shares that cannot be"),
        ([1, 0, 0, 0, 0], 3.0, "told a score that cannot be"),
    ],
)
def test_what_cannot_be_is_refused(shares: list[float], right: float, says: str) -> None:
    counts = torch.from_numpy(count_hits({"group": sure(0, 0)}, np.array([0, 0]), 3))
    counts[0, 0, 0] = right
    result = Result(arrays={"shares": torch.tensor(shares, dtype=torch.float64), "counts": counts})
    assert Personalise(("head",)).problem(result) == says
