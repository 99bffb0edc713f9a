"""What a run writes down, as types: events, a record for each round, and the result.

The same types say what may stand in the files: `feddag.runner.checked` holds what it reads against them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, get_args

from typing_extensions import TypedDict  # pydantic cannot read that of Python 3.11


@dataclass(frozen=True)
class Between:
    """The least and the largest value that a number in a file may have. Asked by pydantic, which is not loaded here."""

    least: float
    largest: float

    def __get_pydantic_core_schema__(self, kind: Any, of_kind: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        return {**of_kind(kind), "ge": self.least, "le": self.largest}


LARGEST = 2**53  # beyond, JSON and floating point do not tell whole numbers apart
Count = Annotated[int, Between(0, LARGEST)]
Flops = Annotated[int, Between(0, 2**90)]
Size = Annotated[int, Between(1, 2**31)]
Seed = Annotated[int, Between(0, 2**256)]
Number = Annotated[float, Between(-1e15, 1e15)]
Amount = Annotated[float, Between(0, 1e15)]
Share = Annotated[float, Between(0, 1)]
Cluster = Annotated[int, Between(-(2**31), 2**31)]
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

    kind: str
    clients: list[Count]
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

    mean: Share
    std: Share
    worst_decile: Share


class AccuracyRecord(AccuracySummary):
    """The same with every client's own; None for a client without test samples."""

    per_client: list[Share | None]


class RoundRecord(TypedDict):
    """A line of history.jsonl."""

    round: Count
    accuracy: AccuracySummary
    loss: Number | None
    clients: list[Count]
    per_client: list[Share | None]
    clusters: list[Cluster | None] | None
    bytes_up: Count
    bytes_down: Count
    sample_passes: Count
    training_flops: NotRequired[Flops]
    missing: dict[str, str]
    events: list[EventRecord | str]
    seconds: NotRequired[Amount]


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
    rule: str
    """What chose that height: noise, plateau, lowest (of the loss), or given."""
    noise: float
    """The scatter of distances between like clients."""
    candidates: Any
    """Other thresholds: alpha, clusters, loss."""
    unit: Any
    """The distances that an alpha of 0 and of 1 stand for; the least and the largest one, if that is not told."""
    scores: Any
    """Learners x sources: how much a cluster has to give to another."""
    edges: Any
    graph: list[tuple[int, int]]
    """(learner, source) pairs of clusters that learn from each other now."""
    families: list[int]
    """For each cluster, the first of those that train one model with it, each under its own names."""
    names: list[list[int]]
    """For each cluster, what the first cluster calls each of its classes."""
    by_round: dict[str, dict[str, Any]]
    """Curves: for each figure, by name, rows of round and value."""
    counts: dict[int, Any]
    """How many samples of each class each client says it holds."""
    class_counts: Any
    """The same from the data, where they were divided here: clients x classes."""
    classes: tuple[str, ...] | None
    """What the classes are called."""


class ClusteringScores(TypedDict):
    """How good clusters are, beside the true ones and by the classes that their clients hold."""

    found: Count
    true: Count | None
    ari: Number | None
    rand: Number | None
    silhouette: NotRequired[Number | None]
    silhouette_classes: Number | None
    was: Number | None
    wadb: Number | None


class DriftReport(TypedDict):
    """Who noticed the drift, and what it cost: mean accuracy before, at and after it."""

    clients: Count
    noticed: Count
    missed: Count
    false_alarms: Count
    accuracy_drifting: dict[str, Share]
    accuracy_others: dict[str, Share]


class PersonalRecord(TypedDict):
    """What clients chose to use after the last round, and how good each of the candidates is."""

    clients: list[Count]
    """Who was asked; the order of all that follows."""
    accuracy: dict[str, AccuracyRecord]
    """By candidate (group, head, full, alone, common), and of what was chosen."""
    choice: list[str | None]
    """What each client chose; None for one that did not answer and keeps the group's model."""
    chose: dict[str, Count]
    """How many chose what."""


class ResultRecord(TypedDict):
    """result.json. What is not required was not written by every version."""

    schema: Count
    key: str
    method: str
    method_name: NotRequired[str]
    """What a method of the user's own calls itself."""
    dataset: str
    partition: str
    seed: Seed
    rounds: Count
    model: str
    clients: Count
    participants: list[Count]
    held_out: list[Count]
    accuracy: AccuracyRecord
    accuracy_last: AccuracyRecord
    accuracy_finetuned: AccuracyRecord | None
    accuracy_best: AccuracyRecord
    accuracy_honest: NotRequired[AccuracyRecord | None]
    attackers: NotRequired[list[int]]
    joined: NotRequired[list[Count]]
    accuracy_joined: NotRequired[AccuracyRecord | None]
    accuracy_unseen: NotRequired[AccuracyRecord | None]
    accuracy_unseen_finetuned: NotRequired[AccuracyRecord | None]
    personal: NotRequired[PersonalRecord]
    accuracy_by_round: NotRequired[list[Share]]
    volatility: NotRequired[Share | None]
    clusters: list[Cluster | None] | None
    truth: list[Cluster] | None
    ari: Number | None
    clustering: NotRequired[ClusteringScores | None]
    unseen_placed_right: NotRequired[Share | None]
    drift: NotRequired[DriftReport | None]
    bytes_up: Count
    bytes_down: Count
    bytes_by_phase: dict[str, dict[str, Count]]
    sample_passes: Count
    sample_passes_by_phase: NotRequired[dict[str, Count]]
    samples_scored: NotRequired[Count]
    training_flops: NotRequired[Flops]
    training_flops_by_phase: NotRequired[dict[str, Flops]]
    training_flops_by_round: NotRequired[list[Flops]]
    scoring_flops: NotRequired[Flops]
    by_client: NotRequired[dict[str, list[Flops]]]
    answers_missing: Count
    partition_checksum: str | None
    history_sha256: NotRequired[str]
    """Of history.jsonl as it was when the result was made."""
    seconds: Amount
    versions: dict[str, str]
