"""Whatever a client answers, the server goes on: the answer is used or missing, with a reason that holds none of it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import feddag
from feddag.answers import LARGEST_WEIGHT
from feddag.client.evaluate import Choose, Evaluate, Monitor
from feddag.client.step import Result, Step
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.federation import Federation, Job, Replies, Reply
from feddag.models import ModelSpec
from feddag.testing import FakeEngine
from feddag.weights import only

SPEC = ModelSpec("mlp", (4,), 3)
HUGE = 10**400
SHAPE, FINITE = "a wrong name, shape or type", "not finite"


class Liar(FakeEngine):
    """Client 0 is honest; client 1 sends what it is told to send."""

    def __init__(self, lie: Any, samples: Any = 10) -> None:
        super().__init__({0: 10, 1: 10})
        self.lie, self.claim = lie, samples
        self.answers |= {MakeSignature: lambda *_: Result(**signed()), Monitor: lambda *_: Result(**looked())}

    def perform(self, jobs: Any, round: int, exchange: int) -> Any:
        replies, missing = super().perform(jobs, round, exchange)
        results = self.lie if isinstance(self.lie, list) else [self.lie]
        return [reply if reply.client == 0 else Reply(1, results, self.claim) for reply in replies], missing


def first() -> dict[str, torch.Tensor]:
    return SPEC.initial_weights(0, "model")


def looked() -> dict[str, Any]:
    counts = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    return {"arrays": {"counts": counts, "loss": torch.ones(1, dtype=torch.float64)}}


def signed() -> dict[str, Any]:
    made = feddag.signature(np.eye(3, 4), np.arange(3), 3, vectors=1, update=np.zeros(5, np.float32))
    arrays = {name: torch.from_numpy(np.atleast_1d(array)) for name, array in vars(made).items()}
    return {"weights": only(first(), ("encoder",)), "arrays": arrays}


def asked(lie: Any, step: Any = None, samples: Any = 10, measuring: bool = False) -> Replies:
    engine = Liar(lie, samples)
    federation = Federation(engine, SPEC, seed=0, participation=1.0)
    ref = federation.put(first())
    made: Step = Train(ref) if step is None else step(ref)
    if measuring:
        with federation.uncounted():
            return federation.ask(Job(client, made) for client in (0, 1))
    replies = federation.ask(Job(client, made) for client in (0, 1))
    assert federation.missing == replies.missing
    return replies


def sign(ref: Any) -> MakeSignature:
    size = sum(value.numel() for value in first().values())
    return MakeSignature(ref, steps=1, sparsity=5 / size, vectors=1, style=True)


GOOD = {"numbers": {"loss": 1.0}}


@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        (Result(None, **GOOD), "without weights"),
        (Result(first(), numbers={"loss": HUGE}), "a number that is not one"),
        (Result(first(), numbers={"loss": "0.5"}), "a number that is not one"),
        (Result(first(), numbers={"loss": True}), "a number that is not one"),
        (Result(first(), numbers={"loss": torch.ones(2)}), "a number that is not one"),
        (Result(first(), numbers={"loss": float("nan")}), FINITE),
        (Result(first(), samples=2**62, **GOOD), "samples that cannot be"),
        (Result(first(), samples=-1, **GOOD), "samples that cannot be"),
        (Result(first(), scored=1.5, **GOOD), "samples that cannot be"),
        (Result(first(), flops=-1, **GOOD), "samples that cannot be"),
        (Result(first() | {"head.bias": torch.full((3,), 3e38)}, **GOOD), "weights beyond 1e"),
        (Result(first() | {"head.bias": torch.full((3,), -2 * LARGEST_WEIGHT)}, **GOOD), "weights beyond 1e"),
        (Result(first() | {"head.bias": torch.full((3,), torch.inf)}, **GOOD), FINITE),
        (Result(first() | {"head.bias": torch.zeros(4)}, **GOOD), SHAPE),
        (Result(first() | {"head.bias": torch.zeros(3, dtype=torch.float64)}, **GOOD), SHAPE),
        (Result(first() | {"head.bias": np.zeros(3)}, **GOOD), SHAPE),
        (Result(first() | {"more": torch.zeros(1)}, **GOOD), SHAPE),
        (Result({}, **GOOD), SHAPE),
        (Result(first(), arrays={"more": torch.zeros(1)}, **GOOD), SHAPE),
        (Result(first(), arrays={"more": 3}, **GOOD), SHAPE),
        (Result(first(), numbers={"loss": 1.0, "other": 1.0}), SHAPE),
        (Result(first(), more={"x": {"head.bias": torch.zeros(3)}}, **GOOD), SHAPE),
        ([], "another number of results"),
        ([Result(first(), **GOOD)] * 2, "another number of results"),
    ],
)
def test_one_wrong_answer_is_missing_and_the_others_are_used(lie: Any, reason: str) -> None:
    replies = asked(lie)
    assert [reply.client for reply in replies] == [0]
    assert reason in replies.missing[1] and "3e38" not in replies.missing[1]


@pytest.mark.parametrize("samples", [0, -1, 2**62, 1.5, None, True, "10", torch.ones(1)])
def test_claims_that_cannot_be(samples: Any) -> None:
    assert "samples that cannot be" in asked(Result(first(), **GOOD), samples=samples).missing[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counts", torch.tensor([-1, 1, 1])),
        ("counts", torch.tensor([1.0, 1.0, 1.0])),
        ("reliability", torch.tensor([2.0, 0.0, 0.0])),
        ("update_reliability", torch.tensor([-0.5])),
        ("vectors", torch.zeros(3, 1, 4, dtype=torch.float64)),
    ],
)
def test_something_that_is_no_signature_leaves_its_client_out(name: str, value: torch.Tensor) -> None:
    good = signed()
    assert 1 not in asked(Result(**good), sign).missing
    bad = good | {"arrays": good["arrays"] | {name: value}}
    assert "not a signature" in asked(Result(**bad), sign).missing[1]


@pytest.mark.parametrize("chosen", [torch.tensor([2]), torch.tensor([-1]), torch.tensor([0.0])])
def test_a_choice_among_what_was_given(chosen: torch.Tensor) -> None:
    arrays = {"losses": torch.zeros(2, dtype=torch.float64), "chosen": chosen}
    replies = asked(Result(arrays=arrays), lambda ref: Choose((ref, ref)))
    assert "chose a model that it was not given" in replies.missing[1]


@pytest.mark.parametrize("row", [[5.0, 3.0, 0.1], [-1.0, 3.0, 0.1], [float("nan"), 3.0, 0.1], [1.0, float("inf"), 0.1]])
def test_nobody_gets_more_right_than_there_is(row: list[float]) -> None:
    counts = torch.zeros(3, 3, dtype=torch.float64)
    counts[0] = torch.tensor(row, dtype=torch.float64)
    replies = asked(Result(arrays={"counts": counts}), Evaluate, measuring=True)
    assert "a score that cannot be" in replies.missing[1]
    counts[0] = torch.tensor([1.0, 3.0, float("nan")], dtype=torch.float64)  # a model that has diverged may say so
    assert not asked(Result(arrays={"counts": counts}), Evaluate, measuring=True).missing


def test_class_counts_that_cannot_be() -> None:
    bad = looked()
    bad["arrays"]["counts"] = -bad["arrays"]["counts"]
    assert "class counts that cannot be" in asked(Result(**bad), Monitor).missing[1]


ANYTHING = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.just(HUGE), st.just(-HUGE)),
    st.sampled_from([torch.zeros(3), torch.zeros(0), torch.full((3,), torch.nan), torch.ones(3, dtype=torch.int64)]),
)
TABLES = st.dictionaries(st.sampled_from(["head.bias", "head.weight", "loss", "x", ""]), ANYTHING, max_size=3)


@given(
    weights=st.none() | TABLES | st.just("honest"),
    numbers=TABLES,
    arrays=TABLES,
    more=st.dictionaries(st.text(max_size=2), TABLES, max_size=2),
    counts=st.tuples(ANYTHING, ANYTHING, ANYTHING),
    step=st.sampled_from(
        [None, Evaluate, Monitor, sign, lambda ref: Choose((ref,)), lambda ref: Train(ref, send=False)]
    ),
)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_nothing_that_is_made_up_stops_the_server(weights, numbers, arrays, more, counts, step) -> None:
    given_weights = first() if weights == "honest" else weights
    lie = Result(given_weights, numbers, arrays, counts[0], counts[1], more)
    replies = asked(lie, step, counts[2])
    assert {reply.client for reply in replies} | set(replies.missing) == {0, 1}
