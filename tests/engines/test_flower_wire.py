"""The codec: what goes in comes out, and a forged message is refused without anything being imported or run."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import feddag
from feddag.client.evaluate import Evaluate
from feddag.client.step import Result, Step
from feddag.client.train import Train
from feddag.deploy.node import known_steps
from feddag.engines.flower.grid import from_record, size_of, to_record
from feddag.engines.flower.wire import (
    DTYPES,
    PROTOCOL,
    Hello,
    JobId,
    Message,
    WireError,
    raw_array,
    read_hello,
    read_job,
    read_reply,
    spoken,
    write_greeting,
    write_hello,
    write_job,
    write_refusal,
    write_reply,
)
from feddag.federation import Job, Reply
from feddag.packing import pack
from feddag.weights import Own, Ref, Weights, digest, nbytes

HERE = JobId("abc123", 2, 3, 1)


@dataclass(frozen=True)
class Anything(Step):
    """A step of a method's own, with fields of every plain kind."""

    content: Any

    def run(self, client: Any) -> Result:
        raise AssertionError("reading a message must not run anything")


STEPS = known_steps("fedavg") | {f"{__name__}:Anything": Anything}
TENSORS = arrays.arrays(
    st.sampled_from(sorted(DTYPES)).map(np.dtype), arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
).map(lambda array: torch.from_numpy(array.copy()))
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
CONTENT = st.recursive(
    PLAIN | TENSORS | st.text(min_size=1, max_size=5).map(Own),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def sent(message: Message) -> Message:
    """As it arrives: arrays as bytes, types and shapes."""
    carried = {
        name: raw_array(array.tobytes(), str(array.dtype), array.shape) for name, array in message.arrays.items()
    }
    return Message(str(message.text), carried)


@settings(max_examples=150, deadline=None)
@given(CONTENT)
def test_a_step_comes_out_as_it_went_in(content: Any) -> None:
    job = read_job(sent(write_job(HERE, Job(2, Anything(content)), lambda ref: {})), STEPS)
    assert job.id == HERE
    [step] = job.steps
    assert type(step) is Anything and same(step.content, content)


@settings(max_examples=100, deadline=None)
@given(
    st.none() | st.dictionaries(st.text(max_size=5), TENSORS, max_size=3),
    st.dictionaries(st.text(max_size=5), st.floats() | st.integers(-(2**60), 2**60), max_size=3),
    st.dictionaries(st.text(max_size=5), TENSORS, max_size=3),
    st.integers(0, 2**50),
)
def test_a_reply_comes_out_as_it_went_in(weights, numbers, tensors, samples) -> None:
    reply = Reply(2, [Result(weights, numbers, tensors, samples)], samples)
    read = read_reply(sent(write_reply(HERE, reply)), HERE, steps=1)
    assert (read.client, read.samples, read.results[0].samples) == (2, samples, samples)
    assert same(read.results[0].weights, weights) and same(read.results[0].arrays, tensors)
    assert list(map(repr, read.results[0].numbers.values())) == list(map(repr, numbers.values()))


def test_weights_travel_once_however_often_a_job_refers_to_them() -> None:
    weights: Weights = {"w": torch.arange(1000.0)}
    ref = Ref(digest(weights), nbytes(weights))
    message = write_job(HERE, Job(2, [Train(ref), Train(ref, keep="mine"), Evaluate(Own("mine"))]), lambda _: weights)
    assert sum(array.nbytes for array in message.arrays.values()) == 4000
    job = read_job(sent(message), STEPS)
    assert job.steps == (Train(ref), Train(ref, keep="mine"), Evaluate(Own("mine")))
    assert torch.equal(job.weights[ref.digest]["w"], weights["w"])


def test_only_steps_of_the_package_and_of_the_method_are_known() -> None:
    assert "feddag.client.train:Train" in STEPS
    assert f"{__name__}:Anything" not in known_steps("fedavg")


def header(**more: Any) -> dict[str, Any]:
    return {"protocol": PROTOCOL, **vars(HERE), **more}


def job_with_step(path: Any, fields: Any) -> Message:
    text, _ = pack(header(steps=["here"], weights={}))
    step = {"$step": {"$tuple": [path, {"$dict": fields}]}}
    return Message(text.replace('"here"', json.dumps(step)))


@pytest.mark.parametrize(
    "message",
    [
        job_with_step("os:system", [["command", "touch hacked"]]),
        job_with_step("this:d", []),
        job_with_step("feddag.client.train:Step", []),
        job_with_step("feddag.client.train:draw_batches", []),
        job_with_step("feddag.client.train:Train", [["nonsense", 1]]),
        job_with_step(["a list"], []),
        Message(""),
        Message("[" * 100_000),
        Message('{"$dict": [[{"$list": []}, 1]]}'),
        Message('{"$dict": [["protocol", 3]]}'),
        Message('{"$dict": [["protocol", 2], ["x", {"$pickle": "gASVAA=="}]]}'),
        Message('{"$dict": [["protocol", 2], ["x", {"$tensor": "absent"}]]}'),
        Message('{"a": 1, "b": 2}'),
        Message(*pack(header(steps="Train", weights={}))),
        Message(*pack(header(steps=[], weights={"digest": {"w": torch.zeros(1)}}))),
        Message(*pack(header(steps=[], weights={"digest": {"w": 1}}))),
        Message(*pack(header(steps=[], weights=[]))),
        Message(*pack(header(steps=[], weights={}, run="../../etc"))),
        Message(*pack(header(steps=[], weights={}, run="a" * 65))),
        Message(*pack(header(steps=[], weights={}, client=-1))),
        Message(*pack(header(steps=[], weights={}, round=True))),
        Message(*pack(header(steps=[], weights={}, exchange=1.5))),
    ],
)
def test_a_forged_job_is_refused_and_nothing_is_imported(message: Message, in_tmp) -> None:
    before = set(sys.modules)
    with pytest.raises(WireError):
        read_job(message, STEPS)
    assert set(sys.modules) == before
    assert not list(in_tmp.iterdir())


RESULT = {"weights": None, "numbers": {}, "arrays": {}, "samples": 0, "scored": 0, "flops": 0, "more": {}}


def test_the_reply_that_forgeries_depart_from_is_read() -> None:
    [result] = read_reply(Message(*pack(header(samples=1, results=[RESULT]))), HERE, steps=1).results
    assert vars(result) == RESULT


@pytest.mark.parametrize(
    "content",
    [
        header(samples=1, results=[]),
        header(samples=-1, results=[RESULT]),
        header(samples=10**400, results=[RESULT]),
        header(samples=1, results=[RESULT, RESULT]),
        header(samples=1, results=[RESULT | {"more": 1}]),
        header(samples=1, results=[RESULT | {"more": {"x": 1}}]),
        header(samples=1, results=[RESULT | {"other": {}}]),
        header(samples=1, results=[RESULT | {"scored": 2**62}]),
        header(samples=1, results=[RESULT | {"flops": 2**64}]),
        header(samples=1, results=[RESULT | {"flops": 1.5}]),
        header(samples=1, results=[RESULT | {"samples": torch.zeros(2)}]),
        header(samples=torch.zeros(2), results=[RESULT]),
        header(samples=1, results=[RESULT]) | {"protocol": torch.ones(2)},
        header(samples=1, results=[RESULT]) | {"run": torch.ones(2)},
        header(samples=1, results=torch.ones(1)),
        header(refused=torch.ones(3)),
        header(samples=1, results=[{"weights": None}]),
        header(samples=1, results=[RESULT | {"weights": {"w": [1.0]}}]),
        header(samples=1, results=[RESULT | {"weights": {1: torch.zeros(1)}}]),
        header(samples=1, results=[RESULT | {"numbers": {"loss": "low"}}]),
        header(samples=1, results=[RESULT | {"numbers": {"loss": torch.zeros(1)}}]),
        header(samples=1, results=[RESULT | {"arrays": None}]),
        header(samples=1, results=[RESULT]) | {"round": 2},
        header(samples=1, results=[RESULT]) | {"exchange": 2},
        header(samples=1, results=[RESULT]) | {"client": 1},
        header(samples=1, results=[RESULT]) | {"run": "another"},
    ],
)
def test_a_forged_reply_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        read_reply(Message(*pack(content)), HERE, steps=1)


@pytest.mark.parametrize(
    ("data", "dtype", "shape"),
    [
        (b"\0" * 8, "object", (1,)),
        (b"\0" * 8, "V8", (1,)),
        (b"\0" * 8, "datetime64[s]", (1,)),
        (b"\0" * 8, "float32", (3,)),
        (b"\0" * 8, "float32", (-1, -2)),
        (b"\0" * 8, "float32", (2**40, 2**40)),
        (b"\0" * 4, "float32", (1,) * 65),
        (b"", "float32", (0, 2**62, 2**62)),
        (b"\0" * 4, "float32", (None,)),
        (b"\0" * 4, "float32", (1.0,)),
        (b"\2", "bool", (1,)),
    ],
)
def test_a_forged_array_is_refused(data: bytes, dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(WireError):
        raw_array(data, dtype, shape)


def test_a_refusal_brings_its_reason_in_one_plain_line() -> None:
    with pytest.raises(WireError, match=r"^said: no\?data$"):
        read_reply(write_refusal(HERE, "no\ndata"), HERE, steps=1)
    with pytest.raises(WireError) as refused:
        read_hello(write_refusal(None, "\x1b[31m" + "x" * 1000))
    assert len(str(refused.value)) < 250 and "\x1b" not in str(refused.value)


def test_hello() -> None:
    assert read_hello(write_hello(7)) == Hello(7, PROTOCOL, feddag.__version__)
    for client in ("7", -1, 2**62, 1.0, True, None, torch.ones(1), np.ones(3), [7], {"a": 7}):
        with pytest.raises(WireError):
            read_hello(Message(*pack({"protocol": PROTOCOL, "client": client})))
    for protocol in (torch.ones(1), np.ones(3), "1", [1], None):
        with pytest.raises(WireError):
            read_hello(Message(*pack({"protocol": protocol, "client": 7})))


def test_a_version_before_this_one_is_understood_and_answered_in_its_own_protocol() -> None:
    older = Message(*pack({"protocol": 2, "client": 7}))  # as feddag wrote it before it said its version
    assert read_hello(older) == Hello(7, 2, "")
    weights: Weights = {"w": torch.arange(3.0)}
    ref = Ref(digest(weights), nbytes(weights))
    message = write_job(HERE, Job(2, Train(ref)), lambda _: weights, protocol=2)
    assert message.protocol == 2 and message.text.startswith('{"$dict": [["protocol", 2], ')
    job = read_job(sent(message), STEPS)
    assert job.protocol == 2 and spoken(message) == 2
    answer = write_reply(HERE, Reply(2, [Result(weights)], 3), spoken(message))
    assert answer.protocol == 2 and read_reply(sent(answer), HERE, steps=1).samples == 3


def test_greetings_say_the_protocol_and_those_before_were_empty() -> None:
    assert spoken(write_greeting()) == PROTOCOL and spoken(Message("")) == 2
    newer = Message(*pack({"protocol": PROTOCOL + 1}))
    assert spoken(newer) == PROTOCOL  # a newer server understands this one
    assert spoken(write_job(HERE, Job(2, Train(Own("mine"))), lambda _: {})) == PROTOCOL
    assert spoken(Message(*pack({"protocol": True}))) == spoken(Message("[")) == 2


@pytest.mark.parametrize(("protocol", "which"), [(1, "older"), (PROTOCOL + 1, "newer"), (10**30, "newer")])
def test_what_is_further_apart_is_refused_with_a_sentence(protocol: int, which: str) -> None:
    with pytest.raises(
        WireError, match=f"comes from a feddag much {which} than .* install the same version"
    ) as refused:
        read_hello(Message(*pack({"protocol": protocol, "client": 7})))
    assert len(str(refused.value)) < 200


@dataclass
class FlowerArray:
    data: Any
    dtype: Any = "float32"
    shape: Any = (1,)


class FlowerRecord:
    """What of a Flower RecordDict is looked at, with anything in it."""

    def __init__(self, texts: Any, arrays: Any) -> None:
        self.config_records, self.array_records = texts, arrays


HELLO = write_hello(7).text


def test_arrays_travel_in_one_piece() -> None:
    layout = json.dumps([["a", "float32", [2]], ["b", "int8", [1, 3]], ["c", "float64", []]])
    content = np.array([1, 2], np.float32).tobytes() + bytes([1, 2, 3]) + np.float64(0.5).tobytes()
    beside = FlowerRecord({"text": {"feddag": HELLO, "layout": layout, "content": content}}, {})
    apart = FlowerRecord(
        {"text": {"feddag": HELLO, "layout": layout}}, {"arrays": {"content": FlowerArray(content, "uint8", (19,))}}
    )
    for record in (beside, apart):
        message = from_record(record)
        assert read_hello(message).client == 7 and size_of(record) == len(HELLO) + len(layout) + 19
        found = {name: array.tolist() for name, array in message.arrays.items()}
        assert found == {"a": [1.0, 2.0], "b": [[1, 2, 3]], "c": 0.5}


@pytest.mark.parametrize("size", [3, 2**19])
@pytest.mark.parametrize("protocol", [2, PROTOCOL])
def test_a_record_of_flower_comes_out_as_it_went_in(size: int, protocol: int) -> None:
    pytest.importorskip("flwr")
    weights = {"w": torch.arange(float(size)), "b": torch.ones(2, 2, dtype=torch.int8)}
    record = to_record(write_reply(HERE, Reply(2, [Result(weights)], 3), protocol))
    assert sum(map(len, record.array_records.values())) == (2 if protocol == 2 else int(size > 3))
    [result] = read_reply(from_record(record), HERE, steps=1).results
    assert same(result.weights, weights)


@pytest.mark.parametrize(
    "record",
    [
        FlowerRecord({}, {}),
        FlowerRecord({"text": {"feddag": 7}}, {"arrays": {}}),
        FlowerRecord({"text": {"feddag": "{}"}}, {"arrays": {"a": FlowerArray(b"\0" * 4, "float32", None)}}),
        FlowerRecord({"text": {"feddag": "{}"}}, {"arrays": {"a": FlowerArray(None)}}),
        FlowerRecord({"text": {"feddag": "{}"}}, {"arrays": {"a": FlowerArray(b"\0" * 4, "float32", (1,) * 65)}}),
        FlowerRecord(None, None),
        None,
        FlowerRecord({"text": {"feddag": HELLO, "layout": '[["a", "float32", [1]]]', "content": b"123"}}, {}),
        FlowerRecord({"text": {"feddag": HELLO, "layout": '[["a", "float32", [1]]]', "content": b"12345"}}, {}),
        FlowerRecord({"text": {"feddag": HELLO, "layout": '[["a", "object", [1]]]', "content": b"12345678"}}, {}),
        FlowerRecord({"text": {"feddag": HELLO, "layout": '[["a", "int8", [-1, -4]]]', "content": b"1234"}}, {}),
        FlowerRecord({"text": {"feddag": HELLO, "layout": '[["a", "int8"]]', "content": b"1234"}}, {}),
        FlowerRecord({"text": {"feddag": HELLO, "layout": "[]", "content": b"1"}}, {}),
        FlowerRecord({"text": {"feddag": HELLO, "layout": "[]"}}, {}),
    ],
)
def test_a_record_that_holds_anything_is_read_as_malformed(record: Any) -> None:
    with pytest.raises(WireError):
        read_hello(from_record(record))
    assert size_of(record) >= 0


def test_the_size_of_a_record_is_known_before_it_is_decoded() -> None:
    record = FlowerRecord(
        {"text": {"feddag": "abc"}}, {"arrays": {"a": FlowerArray(b"\0" * 8), "b": FlowerArray(b"1")}}
    )
    assert size_of(record) == 12


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["$dict", "$list", "$tuple", "$tensor", "$step", "$ref", "$own", "a"]), inner)
    ),
    max_leaves=12,
)


@given(content=JSON, text=st.text(max_size=30))
@settings(max_examples=300, deadline=None)
def test_whatever_is_made_up_is_refused_with_a_wire_error(content: Any, text: str) -> None:
    for message in (Message(text), Message(json.dumps(content)), Message('{"$dict": [["protocol", 2]]}' + text)):
        for read in (read_hello, lambda m: read_reply(m, HERE, 1), lambda m: read_job(m, STEPS)):
            with pytest.raises(WireError):
                read(message)
