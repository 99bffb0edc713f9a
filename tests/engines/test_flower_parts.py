"""Parts of messages are looked for soon, and not for ever."""

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from feddag.deploy.supernode import check_config
from feddag.engines.flower import parts
from feddag.errors import FeddagError

flower = pytest.importorskip("flwr.supercore.inflatable.inflatable_utils")


def one_by_one(object_ids: Sequence[str], *, pull_object_fn: Callable[[str], bytes], **how: Any) -> dict[str, bytes]:
    """As Flower's own, without threads and without waiting; it looks for a part soon, and for as long as it is told."""
    assert how == {"initial_backoff": 0.05, "backoff_cap": 1.0, "max_tries_per_object": None}
    found: dict[str, bytes] = {}
    for part in object_ids:
        while part not in found:
            with contextlib.suppress(flower.ObjectUnavailableError):
                found[part] = pull_object_fn(part)
    return found


class Sender:
    """Parts that are there after so many looks, ten seconds apart."""

    def __init__(self, looks: int) -> None:
        self.looks, self.now, self.asked = looks, 0.0, 0

    def pull(self, part: str) -> bytes:
        self.now, self.asked = self.now + 10, self.asked + 1
        if self.asked % (self.looks + 1):
            raise flower.ObjectUnavailableError(part)
        return part.encode()


def test_a_message_of_which_nothing_more_comes_is_lost_and_one_that_trickles_in_is_not() -> None:
    slow = Sender(looks=4)
    found = parts.fetch(one_by_one, ["a", "b", "c"], slow.pull, clock=lambda: slow.now)
    assert found == {"a": b"a", "b": b"b", "c": b"c"} and slow.now == 150
    stuck = Sender(looks=10**9)
    with pytest.raises(flower.ObjectPullError, match="no part of its message"):
        parts.fetch(one_by_one, ["a"], stuck.pull, clock=lambda: stuck.now)
    assert stuck.now == 70


def test_flowers_own_function_takes_what_it_is_told() -> None:
    made: Any = SimpleNamespace(pull_objects=flower.pull_objects)
    assert parts.sooner(made)
    assert made.pull_objects(["a", "b"], str.encode) == {"a": b"a", "b": b"b"}


def test_a_version_of_flower_without_that_function_is_left_alone() -> None:
    assert not parts.sooner(SimpleNamespace())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('client-id=0 data="a.npz" step="Evaluate"', "node config step is not known; did you mean 'steps'"),
        ('client-id=0 dat="a.npz"', "node config dat is not known"),
        ("client-id=0", "node config data is missing"),
        ('client-id=-1 data="a.npz"', "client-id = -1 is not allowed"),
        ("client-id=0 data=a.npz", "--node-config cannot be read"),
    ],
)
def test_a_node_that_cannot_work_is_refused_when_it_starts(config: str, reason: str) -> None:
    with pytest.raises(FeddagError) as refused:
        check_config(["--insecure", "--node-config", config, "--superlink", "127.0.0.1:9"])
    assert reason in str(refused.value)


def test_a_node_that_can_work_is_not() -> None:
    check_config(["--insecure", '--node-config=client-id=0 data="a.npz" least-per-class=3'])
