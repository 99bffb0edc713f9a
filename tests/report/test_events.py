"""What happened on the way is told once, and by kind."""

from dataclasses import replace
from typing import Any

import pytest

from feddag.records import Event
from feddag.report.events import ROW_OF_KIND, events_by_round
from feddag.report.recorded import RecordedRun
from feddag.report.run import run_document
from tests.report.conftest import made_by_hand
from tests.report.test_run import drawn


def with_round(events: list[Event], clusters: list[int | None], clients: list[int] | None = None) -> RecordedRun:
    """Four clients, in clusters 0, 1, 0, 1 after round 1; then a round with these events and clusters."""
    run = made_by_hand(4)
    first = run.history[0] | {"clients": [0, 1, 2, 3], "clusters": [0, 1, 0, 1]}
    now = {"round": 2, "clients": clients or [0, 1, 2, 3], "clusters": clusters, "missing": {}}
    now["per_client"] = [0.5] * len(clusters)
    second = run.history[1] | now | {"events": [event.as_record() for event in events]}
    return replace(run, history=[first, second])


def marks(run: RecordedRun) -> dict[str, tuple[str, float]]:
    """Of the timeline's marks in round 2, by kind: the text, and the size."""
    [trace] = drawn(run_document(run))["timeline"]["data"]
    shown: Any = zip(trace["x"], trace["y"], trace["text"], trace["marker"]["size"], strict=True)
    return {kind: (text, size) for number, kind, text, size in shown if number == 2}


def test_events_and_missing_answers_are_told_by_round() -> None:
    assert events_by_round(made_by_hand(8)) == {
        2: [Event("fault", (3,), "client 3 gave no answer: died of digits")],
        3: [Event("join", (1,), "client 1 joined cluster digits")],
    }


def test_a_newcomer_on_flower_is_counted_once() -> None:
    """The engine says who joined, then the method says into which cluster."""
    events = [
        *(Event("join", (4,), "client 4 joined"), Event("join", (5,), "client 5 joined")),
        *(Event("fault", (), "a node was refused"), Event("join", (4,), "client 4 joined cluster 1")),
    ]
    run = with_round(events, [0, 1, 0, 1, 1, None], [0, 1, 2, 3, 4, 5])
    told = events_by_round(run)[2]
    assert [event.text for event in told] == ["client 5 joined", "a node was refused", "client 4 joined cluster 1"]
    text, size = marks(run)["newcomers"]
    assert text.count("client 4") == text.count("client 5") == 1 and size == 12  # 8 and 4 more for twice as many


def test_one_event_may_place_several_newcomers() -> None:
    events = [Event("join", (4,), "client 4 joined"), Event("join", (4, 5), "clients 4 and 5 joined cluster 1")]
    told = events_by_round(with_round(events, [0, 1, 0, 1, 1, 1], [0, 1, 2, 3, 4, 5]))[2]
    assert [event.text for event in told] == ["clients 4 and 5 joined cluster 1"]


@pytest.mark.parametrize("kind", ["regroup", "split", "merge", "move"])
def test_clusters_that_change_are_regrouping_and_told_once(kind: Any) -> None:
    event = Event(kind, (0, 2), "cluster 0 is now cluster 7")
    run = with_round([event], [7, 1, 7, 1])
    assert events_by_round(run)[2] == [event]
    assert marks(run) == {"regrouping": ("\u2068cluster 0 is now cluster 7\u2069", 12.0)}


def test_a_change_that_nobody_tells_is_seen() -> None:
    told = events_by_round(with_round([Event("drift", (0,), "client 0 drifted and moved")], [1, 0, 0, None]))[2]
    assert [event.text for event in told] == [
        "client 0 drifted and moved",
        "client 1 changed cluster from 1 to 0",
        "client 3 left cluster 1",
    ]
    assert {event.kind for event in told} == {"drift", "move"}


def test_every_kind_has_its_place() -> None:
    run = with_round([Event(kind, (0,), kind) for kind in ROW_OF_KIND], [0, 1, 0, 1])
    assert set(marks(run)) == set(ROW_OF_KIND.values())
