"""What a run was worth: from its history to the numbers of result.json."""

import math
import platform
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from feddag.client.flops import forward_flops
from feddag.errors import FeddagError
from feddag.federation import Traffic
from feddag.models import ModelSpec
from feddag.records import AccuracyRecord, ClusteringScores, Diagnostics, DriftReport, RoundRecord, read_events
from feddag.weights import ClientId

DECIMALS = 6
MOST_COMPARED = 3000  # clients whose distances fit into memory twice without a thought


@dataclass(frozen=True)
class Accuracy:
    """Balanced accuracy over clients, in [0, 1]. `worst_decile` is the mean of the worst tenth of the clients.

    A client without any sample to be scored on has None, and does not count.
    """

    mean: float
    std: float
    worst_decile: float
    per_client: tuple[float | None, ...]

    @classmethod
    def over(cls, per_client: Sequence[float] | NDArray[np.float64]) -> "Accuracy":
        """Summarise one number per client; nan for a client that has none.

        >>> Accuracy.over([0.5, 1.0, math.nan])
        Accuracy(mean=0.75, std=0.25, worst_decile=0.5, per_client=(0.5, 1.0, None))
        """
        # Many clients share a score.
        values, place, counts = np.unique(np.asarray(per_client, float), return_inverse=True, return_counts=True)
        known = np.repeat(values, np.where(np.isnan(values), 0, counts))
        if not len(known):
            raise FeddagError("no client has any sample to be scored on")
        worst = known[: math.ceil(len(known) / 10)]
        mean, std, worst_decile = (round(float(v), DECIMALS) for v in (known.mean(), known.std(), worst.mean()))
        rounded = [None if math.isnan(value) else round(value, DECIMALS) for value in values.tolist()]
        return cls(mean, std, worst_decile, tuple(np.array(rounded, object)[place].tolist()))

    def as_record(self) -> AccuracyRecord:
        """As it stands in result.json."""
        return {
            "mean": self.mean,
            "std": self.std,
            "worst_decile": self.worst_decile,
            "per_client": list(self.per_client),
        }


def block(scores: Sequence[float] | NDArray[np.float64]) -> Accuracy | None:
    """The summary of scores; None where nobody could be scored."""
    return None if all(map(math.isnan, scores)) else Accuracy.over(scores)


def _scores(record: RoundRecord, clients: Sequence[ClientId]) -> list[float]:
    """A round's accuracies of these clients; nan for one that was not there, or had nothing to be scored on."""
    by_client = dict(zip(record["clients"], record["per_client"], strict=True))
    scores = map(by_client.get, clients)
    return [math.nan if score is None else score for score in scores]


def tail(history: Sequence[RoundRecord]) -> Sequence[RoundRecord]:
    """The last tenth of the rounds: what the headline is about."""
    return history[-max(1, len(history) // 10) :]


def over_rounds(
    summary: Callable[..., Any], records: Sequence[RoundRecord], clients: Sequence[ClientId]
) -> Accuracy | None:
    """Each client's scores over some rounds in one number, then over clients; None where nobody could be scored."""
    by_client = np.ascontiguousarray(np.array([_scores(record, clients) for record in records]).T)
    always = ~np.isnan(by_client).any(1)
    found = np.full(len(clients), math.nan)
    found[always] = summary(by_client[always], axis=1)
    for client in np.flatnonzero(~always):
        if len(known := by_client[client][~np.isnan(by_client[client])]):
            found[client] = summary(known)
    return block(found)


def volatility(history: Sequence[RoundRecord], clients: Sequence[ClientId]) -> float | None:
    """How far a client's accuracy moves from one round to the next, up or down, in the second half of a run."""
    late = np.array([_scores(record, clients) for record in history[len(history) // 2 :]])
    moves = np.abs(np.diff(late, axis=0))
    known = moves[~np.isnan(moves)]
    return round(float(known.mean()), DECIMALS) if known.size else None


def placed_right(
    clusters: Mapping[ClientId, int], truth: Sequence[int], trained: Sequence[ClientId], unseen: Sequence[ClientId]
) -> float:
    """The share of held-out clients whose group is, among those that trained, mostly of their own true group.

    >>> placed_right({0: 0, 1: 1, 2: 0, 3: 0}, truth=[5, 6, 5, 6], trained=[0, 1], unseen=[2, 3])
    0.5
    """
    kinds: dict[int, Counter[int]] = {}
    for client in trained:
        if client in clusters:
            kinds.setdefault(clusters[client], Counter())[truth[client]] += 1
    mostly = {group: held.most_common(1)[0][0] for group, held in kinds.items()}
    right = sum(mostly.get(clusters[client]) == truth[client] for client in unseen if client in clusters)
    return round(right / len(unseen), DECIMALS)


def drift_report(
    history: Sequence[RoundRecord],
    since: int,
    drifting: Collection[ClientId],
    others: Sequence[ClientId],
) -> DriftReport:
    """Who noticed what, and what it cost: accuracy before the drift in round `since`, in that round, and at the end."""
    raised = [
        (client, record["round"])
        for record in history
        for event in read_events(record["events"])
        if event.kind == "drift"
        for client in event.clients
    ]
    noticed = {client for client, round in raised if client in drifting and round >= since}
    before = [record for record in history if record["round"] < since]
    stages = {
        "before": before[-1:],
        "at": history[len(before) : len(before) + 1],
        "after": tail(history),
    }

    def curve(clients: Sequence[ClientId]) -> dict[str, float]:
        found = {name: over_rounds(np.mean, part, clients) for name, part in stages.items()}
        return {name: accuracy.mean for name, accuracy in found.items() if accuracy is not None}

    return {
        "clients": len(drifting),
        "noticed": len(noticed),
        "missed": len(drifting) - len(noticed),
        "false_alarms": sum(client not in drifting or round < since for client, round in raised),
        "accuracy_drifting": curve(list(drifting)),
        "accuracy_others": curve(others),
    }


def score_groups(
    clusters: Mapping[ClientId, int],
    truth: Sequence[int] | None,
    class_counts: NDArray[np.int64] | None,
    told: Diagnostics,
) -> ClusteringScores:
    """What the groups are worth: beside the true ones, by classes, and by the distances that the method told."""
    from feddag.server.metrics import score_clustering  # slow to import, and only needed at the end

    clients = sorted(clusters)
    scores = score_clustering(
        [clusters[client] for client in clients],
        None if truth is None else [truth[client] for client in clients],
        None if class_counts is None else class_counts[clients],
    )
    scores["silhouette"] = _apart(clusters, told)
    scores["true"] = None if truth is None else len(set(truth))  # those of clients without a group as well
    rounded = {name: value if value is None else round(value, DECIMALS) for name, value in scores.items()}
    return cast("ClusteringScores", rounded)


def _apart(clusters: Mapping[ClientId, int], told: Diagnostics) -> float | None:
    """How clearly the groups are apart by the distances that made them; None where none, or too many, were told."""
    from feddag.server.clustering import clients_of, fill_unknown
    from feddag.server.metrics import silhouette
    from feddag.server.similarity import square

    try:  # a method of the user's own may tell anything
        distances = np.asarray(told["distances"], np.float32)
        clients = [int(client) for client in told.get("clients", range(clients_of(distances)))]
    except (KeyError, TypeError, ValueError):
        return None
    if len(clients) > MOST_COMPARED or distances.shape != (len(clients) * (len(clients) - 1) // 2,):
        return None
    known = [place for place, client in enumerate(clients) if client in clusters]
    matrix = np.maximum(square(fill_unknown(distances)), 0.0)  # what exceeds chance can be below 0
    return silhouette(matrix[np.ix_(known, known)], [clusters[clients[place]] for place in known])


def versions() -> dict[str, str]:
    """What a result was made with."""
    found = {}
    for name in ("feddag", "torch", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
    return found | {"python": platform.python_version(), "cpu": torch.backends.cpu.get_cpu_capability()}


def traffic_block(traffic: Traffic, model: ModelSpec, clients: int) -> dict[str, object]:
    """What travelled and what was computed, as it stands in result.json."""
    by_client = {
        "bytes_up": traffic.up_by_client,
        "bytes_down": traffic.down_by_client,
        "sample_passes": traffic.samples_by_client,
        "training_flops": traffic.flops_by_client,
    }
    return {
        "bytes_up": traffic.up.total(),
        "bytes_down": traffic.down.total(),
        "bytes_by_phase": {"up": dict(traffic.up), "down": dict(traffic.down)},
        "sample_passes": traffic.samples.total(),
        "sample_passes_by_phase": dict(traffic.samples),
        "samples_scored": traffic.scored.total(),
        "training_flops": traffic.flops.total(),
        "training_flops_by_phase": dict(traffic.flops),
        "scoring_flops": traffic.scored.total() * forward_flops(model),
        "by_client": {name: [counted[client] for client in range(clients)] for name, counted in by_client.items()},
    }
