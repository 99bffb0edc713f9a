"""What a run writes down, as types: events, a record for each round, and the result."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict, get_args

EventKind = Literal["join", "leave", "drift", "regroup", "split", "merge", "move", "fault", "other"]


@dataclass(frozen=True)
class Event:
    """Something that happened to clients in a round: of which kind, to whom, and in words for a person."""

    kind: EventKind
    clients: tuple[int, ...]
    text: str

    def as_record(self) -> "EventRecord":
        """As it stands in history.jsonl.

        >>> Event("join", (3,), "client 3 joined cluster 0").as_record()["kind"]
        'join'
        """
        return {"kind": self.kind, "clients": list(self.clients), "text": self.text}


class EventRecord(TypedDict):
    """An event in history.jsonl."""

    kind: EventKind
    clients: list[int]
    text: str


def read_events(items: Iterable[Any]) -> list[Event]:
    """The events of a round; one written as a bare sentence, or of an unknown kind, is of kind "other".

    >>> [event.kind for event in read_events([{"kind": "drift", "clients": [1], "text": "..."}, "a sentence"])]
    ['drift', 'other']
    """
    found = []
    for item in items:
        record = item if isinstance(item, dict) else {"text": str(item)}
        kind = record.get("kind")
        clients = tuple(client for client in record.get("clients", ()) if isinstance(client, int))
        known = kind if kind in get_args(EventKind) else "other"
        found.append(Event(known, clients, str(record.get("text", ""))))  # type: ignore[arg-type]
    return found


class AccuracySummary(TypedDict):
    """Balanced accuracy over clients."""

    mean: float
    std: float
    worst_decile: float


class AccuracyRecord(AccuracySummary):
    """The same with every client's own; None for a client without test samples."""

    per_client: list[float | None]


class RoundRecord(TypedDict):
    """A line of history.jsonl."""

    round: int
    accuracy: AccuracySummary
    loss: float | None
    clients: list[int]
    per_client: list[float | None]
    clusters: list[int | None] | None
    bytes_up: int
    bytes_down: int
    sample_passes: int
    missing: dict[str, str]
    events: list[EventRecord]
    seconds: NotRequired[float]


class Diagnostics(TypedDict, total=False):
    """What a method may tell about its clusters, for a report. Every part is optional, and shown where it is there.

    Arrays are NumPy's. `distances` and `views` are condensed: the pairs (0, 1), (0, 2), ... of `clients`.
    """

    clients: list[int]
    """Who was compared with whom; the order of all that follows."""
    labels: Any
    """The cluster of each of them."""
    distances: Any
    views: dict[str, Any]
    """Distances by each signal alone, which `distances` was made of."""
    weights: dict[str, Any]
    """How much each view counted for each client."""
    merges: Any
    """The tree of merges as SciPy's linkage has it: two nodes, height, size."""
    threshold: float
    """The height at which it was cut."""
    noise: float
    """The scatter of distances between like clients."""
    candidates: Any
    """Other thresholds: alpha, clusters, loss."""
    scores: Any
    """Learners x sources: how much a cluster has to give to another."""
    edges: Any
    graph: list[tuple[int, int]]
    """(learner, source) pairs of clusters that learn from each other now."""
    counts: dict[int, Any]
    """How many samples of each class each client says it holds."""
    class_counts: Any
    """The same from the data, where they were divided here: clients x classes."""
    classes: tuple[str, ...] | None
    """What the classes are called."""


class ClusteringScores(TypedDict):
    """How good clusters are, beside the true ones and by the classes that their clients hold."""

    found: int
    true: int | None
    ari: float | None
    rand: float | None
    silhouette_classes: float | None
    was: float | None
    wadb: float | None


class DriftReport(TypedDict):
    """Who noticed the drift, and what it cost: mean accuracy before, at and after it."""

    clients: int
    noticed: int
    missed: int
    false_alarms: int
    accuracy_drifting: dict[str, float]
    accuracy_others: dict[str, float]


class ResultRecord(TypedDict):
    """result.json. What is not required was not written by every version."""

    schema: int
    key: str
    method: str
    dataset: str
    partition: str
    seed: int
    rounds: int
    model: str
    clients: int
    participants: list[int]
    held_out: list[int]
    accuracy: AccuracyRecord
    accuracy_last: AccuracyRecord
    accuracy_finetuned: AccuracyRecord | None
    accuracy_best: AccuracyRecord
    accuracy_unseen: NotRequired[AccuracyRecord | None]
    accuracy_unseen_finetuned: NotRequired[AccuracyRecord | None]
    accuracy_by_round: NotRequired[list[float]]
    volatility: NotRequired[float | None]
    clusters: list[int | None] | None
    truth: list[int] | None
    ari: float | None
    clustering: NotRequired[ClusteringScores | None]
    unseen_placed_right: NotRequired[float | None]
    drift: NotRequired[DriftReport | None]
    bytes_up: int
    bytes_down: int
    bytes_by_phase: dict[str, dict[str, int]]
    sample_passes: int
    sample_passes_by_phase: NotRequired[dict[str, int]]
    samples_scored: NotRequired[int]
    by_client: NotRequired[dict[str, list[int]]]
    answers_missing: int
    partition_checksum: str | None
    seconds: float
    versions: dict[str, str]
