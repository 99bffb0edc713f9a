"""What happened on the way, by round and kind."""

from collections.abc import Sequence

from feddag.records import Event, EventKind, read_events
from feddag.report.document import Section, drawn, section
from feddag.report.figures.rounds import timeline
from feddag.report.left import Left
from feddag.weights import ClientId

KINDS = ("newcomers", "drift", "regrouping", "departures", "faults", "other")
KIND_OF: dict[EventKind, str] = {
    "join": "newcomers",
    "drift": "drift",
    "regroup": "regrouping",
    "split": "regrouping",
    "merge": "regrouping",
    "move": "regrouping",
    "leave": "departures",
    "fault": "faults",
    "other": "other",
}


def happenings(left: Left) -> dict[int, dict[str, list[str]]]:
    """What happened in each round, by kind: told events, missing answers, and clients that changed cluster."""
    found: dict[int, dict[str, list[str]]] = {}
    drifting = left.experiment.get("drift_round", 0)
    before: dict[ClientId, int | None] = {}
    for record in left.history:
        now: dict[str, list[str]] = {}
        if record["round"] == drifting:
            now.setdefault("drift", []).append("some clients hold other data from here on")
        events = read_events(record["events"])
        for event in _said_once(events):
            now.setdefault(KIND_OF[event.kind], []).append(event.text)
        for client, reason in record["missing"].items():
            now.setdefault("faults", []).append(f"client {client} gave no answer: {reason}")
        after = dict(zip(record["clients"], record["clusters"] or (), strict=False))
        told = {client for event in events for client in event.clients if event.kind in ("drift", "move")}
        moved = [client for client, group in before.items() if group is not None and after.get(client, group) != group]
        if silent := [client for client in moved if client not in told]:
            changed = [f"client {client} changed cluster from {before[client]} to {after[client]}" for client in silent]
            now.setdefault("regrouping", []).extend(changed)
        before = after
        if now:
            found[record["round"]] = now
    return found


def _said_once(events: Sequence[Event]) -> list[Event]:
    """Events without those that another says better: a node that joined, where the method says into which cluster."""
    last = {client: number for number, event in enumerate(events) if event.kind == "join" for client in event.clients}
    return [
        event
        for number, event in enumerate(events)
        if event.kind != "join" or not event.clients or any(last[client] == number for client in event.clients)
    ]


def timeline_section(left: Left) -> Section | None:
    marks = [(number, kind, said) for number, by_kind in happenings(left).items() for kind, said in by_kind.items()]
    if left.result and left.result["held_out"]:
        late = [f"client {client} joined after the last round" for client in left.result["held_out"]]
        marks.append((left.rounds, "newcomers", late))
    if not marks:
        return None
    kinds = [kind for kind in KINDS if any(kind == mark[1] for mark in marks)]
    rounds = max(int(left.experiment.get("rounds", 0)), left.rounds)
    figure = drawn("timeline", "events by round", timeline(marks, kinds, rounds))
    text = "Newcomers, drift, regrouping and faults, by round. The larger the mark, the more clients."
    return section("events", "What happened on the way", text, figures=[figure])
