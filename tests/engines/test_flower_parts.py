"""Parts of messages are looked for soon, and not for ever."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from feddag.deploy.supernode import check_config
from feddag.engines.flower import parts
from feddag.errors import FeddagError

flower = pytest.importorskip("flwr.supercore.inflatable.inflatable_utils")


def module() -> Any:
    made = SimpleNamespace(pull_objects=flower.pull_objects)
    assert parts.sooner(made)
    return made


def test_a_part_that_comes_late_is_found_within_a_tenth_of_a_second() -> None:
    came: list[float] = []
    began = time.monotonic()

    def pull(part: str) -> bytes:
        if time.monotonic() < began + 0.2:
            raise flower.ObjectUnavailableError(part)
        came.append(time.monotonic() - began)
        return part.encode()

    assert module().pull_objects(["a", "b"], pull) == {"a": b"a", "b": b"b"}
    assert max(came) < 0.9  # Flower looks again after a second


def test_a_message_of_which_nothing_more_comes_is_lost_and_one_that_trickles_in_is_not(monkeypatch) -> None:
    monkeypatch.setattr(parts, "STALLED_SECONDS", 0.3)
    began = time.monotonic()

    def trickling(part: str) -> bytes:
        if time.monotonic() < began + 0.2 * int(part):
            raise flower.ObjectUnavailableError(part)
        return b""

    assert len(module().pull_objects([str(number) for number in range(4)], trickling)) == 4

    def stuck(part: str) -> bytes:
        if part != "0":
            raise flower.ObjectUnavailableError(part)
        return b""

    with pytest.raises(flower.ObjectPullError, match="no part of its message"):
        module().pull_objects(["0", "1"], stuck)


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
