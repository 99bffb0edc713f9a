"""What happened on the way, by round and kind."""

from collections.abc import Mapping, Sequence

from feddag.records import Event, EventKind, RoundRecord, read_events
from feddag.report.document import Section, drawn, section
from feddag.report.figures.rounds import timeline
from feddag.report.recorded import RecordedRun
from feddag.weights import ClientId

TIMELINE_ROWS = ("newcomers", "drift", "regrouping", "departures", "faults", "other")
ROW_OF_KIND: dict[EventKind, str] = {
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
ClusterOf = Mapping[ClientId, int | None]


def events_by_round(run: RecordedRun) -> dict[int, list[Event]]:
    """What happened in each round: told events, missing answers, and changes of cluster that nobody told."""
    found: dict[int, list[Event]] = {}
    drifting = run.experiment.get("drift_round", 0)
    before: ClusterOf = {}
    for record in run.history:
        now = [Event("drift", (), "some clients hold other data from here on")] if record["round"] == drifting else []
        told = read_events(record["events"])
        after = dict(zip(record["clients"], record["clusters"] or (), strict=False))
        now += [*_said_once(told), *_faults(record), *_untold_moves(before, after, told)]
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


def _faults(record: RoundRecord) -> list[Event]:
    return [
        Event("fault", (int(client),), f"client {client} gave no answer: {reason}")
        for client, reason in record["missing"].items()
    ]


def _untold_moves(before: ClusterOf, after: ClusterOf, told: Sequence[Event]) -> list[Event]:
    """Clients that are in another cluster than a round ago, but for those whom an event of the round names."""
    named = {client for event in told if event.kind not in ("fault", "other") for client in event.clients}
    moves = []
    for client, group in before.items():
        now = after.get(client, group)
        if group is not None and now != group and client not in named:
            text = f"left cluster {group}" if now is None else f"changed cluster from {group} to {now}"
            moves.append(Event("move", (client,), f"client {client} {text}"))
    return moves


def timeline_section(run: RecordedRun) -> Section | None:
    """All events, by round and kind."""
    by_round = events_by_round(run)
    if run.result and run.result["held_out"]:
        late = [Event("join", (c,), f"client {c} joined after the last round") for c in run.result["held_out"]]
        by_round[run.rounds] = [*by_round.get(run.rounds, []), *late]
    marks: dict[tuple[int, str], list[Event]] = {}
    for number, events in by_round.items():
        for event in events:
            marks.setdefault((number, ROW_OF_KIND[event.kind]), []).append(event)
    if not marks:
        return None
    kinds = [kind for kind in TIMELINE_ROWS if any(kind == shown for _, shown in marks)]
    rounds = max(int(run.experiment.get("rounds", 0)), run.rounds)
    figure = drawn("timeline", "events by round", timeline(marks, kinds, rounds))
    text = "Newcomers, drift, regrouping and faults, by round. The larger the mark, the more clients."
    return section("events", "What happened on the way", text, figures=[figure])
