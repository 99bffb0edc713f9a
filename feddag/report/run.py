"""What stands on a run's page, section by section."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.records import Event, EventKind, read_events
from feddag.report import figures
from feddag.report.left import Left
from feddag.report.look import PALETTE, Figure
from feddag.server.complement import demand_and_supply
from feddag.weights import ClientId

Document = dict[str, Any]
Section = dict[str, Any]

VIEWS = {"fused": "fused", "data": "data", "gradient": "gradient", "classes": "classes held"}
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


def run_document(left: Left) -> Document:
    """Everything on the page of one run, as plain data."""
    made = [
        _learning(left),
        *_grouping(left),
        _holdings(left),
        _teaching(left),
        _clients(left),
        _traffic(left),
        _timeline(left),
        _experiment(left),
    ]
    experiment = left.experiment
    title = f"{experiment.get('method')} on {Path(str(experiment.get('dataset'))).name}"
    return {
        **{"title": title, "subtitle": _subtitle(left), "tiles": _tiles(left), "palette": PALETTE},
        "sections": [section for section in made if section],
    }


def section(name: str, title: str, text: str, **content: Any) -> Section:
    """One part of a page: a sentence on what is seen, then figures, a table, or text as typed."""
    return {"id": name, "title": title, "text": text, **content}


def drawn(name: str, label: str, figure: Figure, **more: Any) -> dict[str, Any]:
    """A figure under a name, with a label for those who do not see it."""
    return {"id": name, "label": label, **figure, **more}


def _subtitle(left: Left) -> str:
    said = left.experiment
    state = "" if left.result else f", {left.rounds} done"
    how = f"{said.get('partition')}, {said.get('clients', 'all')} clients, {said.get('rounds')} rounds{state}"
    return f"{left.name}: {how}, seed {said.get('seed')}"


def _tiles(left: Left) -> list[dict[str, str]]:
    result, last = left.result, left.history[-1] if left.history else None
    tiles: list[tuple[str, str, str]] = []
    if result:
        block, tuned = result["accuracy"], result["accuracy_finetuned"]
        note = f"± {block['std']:.3f} over clients; last tenth of the rounds"
        tiles.append(("balanced accuracy", f"{block['mean']:.3f}", note))
        tiles.append(("worst tenth of clients", f"{block['worst_decile']:.3f}", "mean of their accuracy"))
        if tuned:
            tiles.append(("fine-tuned", f"{tuned['mean']:.3f}", "after each client's own local epochs"))
    elif last:
        note = f"± {last['accuracy']['std']:.3f} over clients; after round {last['round']}"
        tiles.append(("balanced accuracy", f"{last['accuracy']['mean']:.3f}", note))
    clusters = left.clusters()
    if clusters:
        true = len(set(result["truth"])) if result and result["truth"] else None
        note = "true number unknown" if true is None else f"{true} true groups"
        tiles.append(("clusters", str(len(set(clusters.values()))), note))
    if result and result["ari"] is not None:
        tiles.append(("adjusted Rand index", f"{result['ari']:.3f}", "1: the true groups, 0: chance"))
    seconds = result["seconds"] if result else sum(record["seconds"] for record in left.history)
    tiles.append(("time", f"{seconds:.1f} s", f"{left.rounds} rounds"))
    sent = result or last
    if sent:
        up, down = sent["bytes_up"] / 1e6, sent["bytes_down"] / 1e6
        tiles.append(("traffic", f"{up + down:.1f} MB", f"{up:.1f} from and {down:.1f} to all clients"))
    return [{"label": label, "value": value, "note": note} for label, value, note in tiles]


def _learning(left: Left) -> Section | None:
    if not left.history or all(score is None for record in left.history for score in record["per_client"]):
        return None
    notable = {
        number: [said for kind in KINDS if kind != "faults" for said in by_kind.get(kind, [])]
        for number, by_kind in happenings(left).items()
    }
    figure = figures.learning(left.history, {number: said for number, said in notable.items() if said})
    text = "Each client is scored on its own test samples. The area holds all but the best and the worst tenth of them."
    return section("learning", "Learning", text, figures=[drawn("accuracy", "accuracy and loss by round", figure)])


def _grouping(left: Left) -> list[Section]:
    """Who is with whom and why that many: only for a method that compares clients."""
    known = left.evidence
    if "distances" not in known or len(known["clients"]) < 2:
        return []
    labels, merges = [int(label) for label in known["labels"]], np.asarray(known["merges"], float)
    names = [left.client_name(client) for client in known["clients"]]
    leaves, _ = figures.tree_lines(merges, len(labels))
    order = figures.in_cluster_order(known["clients"], labels, leaves)
    condensed = {"fused": known["distances"], **known["views"]}
    views = {VIEWS[name]: figures.distances_of(condensed[name], order) for name in VIEWS if name in condensed}
    ordered = [labels[number] for number in order], [names[number] for number in order]
    choices = [{"label": view, "visible": [view == other for other in views]} for view in views]
    matrix = figures.proximity(views, *ordered)
    many, beyond_chance = len(labels) > figures.MOST_ROWS, float(np.nanmin(known["distances"])) < 0
    text = (
        "Each row and each column is a client; dark is near. A square block on the diagonal is a cluster whose members"
        " are alike. Gaps are pairs that a view can say nothing about."
        + (" Distances are counted beyond chance: like clients scatter around 0." if beyond_chance else "")
        + (" Neighbouring clients are drawn as one cell with their mean." if many else "")
    )
    figure = drawn(
        "proximity", "distances between clients", matrix, square=True, choices={"label": "distance by", "of": choices}
    )
    made = [section("proximity-matrix", "Who is near whom", text, figures=[figure])]
    chosen, count = float(known["threshold"]), len(set(labels))
    finite = np.asarray(known["distances"], float)
    low, high = float(np.nanmin(finite)), float(np.nanmax(finite))
    scaled = min(1.0, max(0.0, (chosen - low) / max(high - low, 1e-30)))
    curve = np.asarray(known["candidates"], float).reshape(-1, 3)
    tree = drawn("dendrogram", "tree of merges with the cut", figures.dendrogram(merges, labels, chosen, names))
    alpha = drawn("alpha", "loss and clusters against alpha", figures.thresholds(curve, scaled, count))
    text = (
        "The most alike merge first. Whatever has merged below the dashed line is one cluster. The second figure"
        " shows what other thresholds would have given: their loss is low where clusters are tight and few. The chosen"
        " α* lies amid a range in which the number of clusters stays the same"
        + (", above the scatter of like clients." if beyond_chance else ".")
    )
    made.append(section("number", "Why that many clusters", text, figures=[tree, alpha]))
    if known["weights"]:
        weights = {VIEWS[name]: np.asarray(values)[order] for name, values in known["weights"].items()}
        text = "How much each view had to say in the fused distance: the clearer it tells clients apart, the more."
        figure = drawn("weights", "weights of the views", figures.fusion_weights(weights, *ordered))
        made.append(section("fusion", "What the distance is made of", text, figures=[figure]))
    return made


def _holdings(left: Left) -> Section | None:
    counts, groups = left.counts(), left.clusters()
    if not counts:
        return None
    order = sorted(counts, key=lambda client: (groups.get(client, -1), client))
    table = np.array([counts[client] for client in order], np.int64)
    names = [left.client_name(client) for client in order]
    figure = figures.holdings(table, [groups.get(client, -1) for client in order], names, left.class_names())
    where = "cluster by cluster; " if groups else ""
    text = f"Training samples of each class at each client, {where}the brighter the more."
    return section("holdings", "Who holds what", text, figures=[drawn("classes", "clients by classes", figure)])


def _teaching(left: Left) -> Section | None:
    """The complementarity graph, with what flows along each edge."""
    edges, groups, counts = left.evidence.get("graph"), left.clusters(), left.counts()
    if not edges or not groups:
        return None
    sizes = {group: list(groups.values()).count(group) for group in sorted(set(groups.values()))}
    edges = [(int(p), int(q)) for p, q in edges if p in sizes and q in sizes]
    said = {(p, q): supplied(p, q, groups, counts, left.class_names()) for p, q in edges}
    scores = left.evidence.get("scores")
    weighed = [(p, q, _score(scores, p, q), said[p, q]) for p, q in edges]
    text = (
        "An arrow leads from a cluster to one that learns from it, the wider the more the source holds of what the"
        " learner is short of. Numbers are the edges' weights."
    )
    rows = [[p, q, weight, what] for p, q, weight, what in weighed]
    columns = [
        {"name": "learner", "cluster": True},
        {"name": "source", "cluster": True},
        {"name": "weight", "digits": 3},
        {"name": "supplied above all"},
    ]
    figure = drawn("graph", "which cluster learns from which", figures.teaching(weighed, sizes))
    table = {"id": "edges", "label": "edges of the graph", "columns": columns, "rows": rows}
    return section("teaching", "Who learns from whom", text, figures=[figure], table=table)


def _score(scores: NDArray[Any] | None, learner: int, source: int) -> float | None:
    if scores is None or max(learner, source) >= len(scores):
        return None  # a cluster that came later
    return float(scores[learner, source])


def supplied(
    learner: int,
    source: int,
    groups: Mapping[ClientId, int],
    counts: Mapping[ClientId, Sequence[int]],
    classes: Sequence[str],
    most: int = 3,
) -> str:
    """The classes that the source gives the learner above all, with the samples that the source holds of them.

    >>> supplied(0, 1, {0: 0, 1: 1}, {0: [9, 0], 1: [1, 5]}, ["cat", "dog"])
    'dog: 5 samples, cat: 1 samples'
    """
    clients = [client for client in groups if client in counts]
    if not {learner, source} <= {groups[client] for client in clients}:
        return ""
    table = np.array([counts[client] for client in clients], np.int64)
    labels = np.array([groups[client] for client in clients], np.int64)
    present, numbers = np.unique(labels, return_inverse=True)
    demand, supply = demand_and_supply(table, numbers)
    p, q = (int(np.flatnonzero(present == group)[0]) for group in (learner, source))
    held = table[labels == source].sum(0)
    best = [int(c) for c in np.argsort(-demand[p] * supply[q], kind="stable")[:most] if held[c]]
    return ", ".join(f"{classes[c]}: {held[c]} samples" for c in best)


def _clients(left: Left) -> Section | None:
    """Every client's scores, to be sorted and searched."""
    if not left.history:
        return None
    blocks = client_blocks(left)
    first = next(iter(blocks.values()))
    groups, counts = left.clusters(), left.counts()
    truth = left.result["truth"] if left.result else None
    columns: list[dict[str, Any]] = [{"name": "client", "digits": 0}]
    if any(name != str(number) for number, name in enumerate(left.names)):
        columns.append({"name": "name"})
    columns += [{"name": "cluster", "cluster": True}] if groups else []
    columns += [{"name": "true group", "digits": 0}] if truth else []
    columns += [{"name": "samples", "digits": 0}] if counts else []
    columns += [{"name": name, "digits": 3} for name in blocks]

    def row(client: ClientId) -> list[Any]:
        cells: dict[str, Any] = {
            "client": client,
            "name": left.names[client] if client < len(left.names) else "",
            "cluster": groups.get(client),
            "true group": truth[client] if truth else None,
            "samples": sum(counts.get(client, [])),
            **{name: block.get(client) for name, block in blocks.items()},
        }
        return [cells[column["name"]] for column in columns]

    clients = sorted({client for block in blocks.values() for client in block})
    scores = {client: score for client, score in first.items() if score is not None}
    names = {client: left.client_name(client) for client in clients}
    figure = drawn("scores", "accuracy of each client", figures.client_scores(scores, groups, names))
    table = {
        **{"id": "clients-table", "label": "accuracy by client", "search": "find a client"},
        **{"columns": columns, "rows": [row(client) for client in clients]},
    }
    text = "Balanced accuracy of each client. Click a heading to sort; type a number or a name to find a client."
    return section("clients", "Client by client", text, figures=[figure], table=table)


def client_blocks(left: Left) -> dict[str, dict[ClientId, float | None]]:
    """Scores of each client under a name; while a run is under way those of its last round."""
    if not left.result:
        record = left.history[-1]
        return {"accuracy": dict(zip(record["clients"], record["per_client"], strict=True))}
    result = left.result
    blocks = {
        "accuracy": result["accuracy"],
        "last round": result["accuracy_last"],
        "fine-tuned": result["accuracy_finetuned"],
        "best round": result["accuracy_best"],
    }
    who = result.get("participants", range(result["clients"]))
    found = {title: dict(zip(who, block["per_client"], strict=True)) for title, block in blocks.items() if block}
    if unseen := result.get("accuracy_unseen"):
        found["joined last"] = dict(zip(result["held_out"], unseen["per_client"], strict=True))
    return found


def _traffic(left: Left) -> Section | None:
    if not left.result:
        return None
    figure = drawn("traffic", "megabytes by phase", figures.traffic(left.result["bytes_by_phase"]))
    text = "Payload of all messages. Measuring (evaluation, fine-tuning) is not counted."
    return section("communication", "Communication", text, figures=[figure])


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


def _timeline(left: Left) -> Section | None:
    marks = [(number, kind, said) for number, by_kind in happenings(left).items() for kind, said in by_kind.items()]
    if left.result and left.result["held_out"]:
        late = [f"client {client} joined after the last round" for client in left.result["held_out"]]
        marks.append((left.rounds, "newcomers", late))
    if not marks:
        return None
    kinds = [kind for kind in KINDS if any(kind == mark[1] for mark in marks)]
    rounds = max(int(left.experiment.get("rounds", 0)), left.rounds)
    figure = drawn("timeline", "events by round", figures.timeline(marks, kinds, rounds))
    text = "Newcomers, drift, regrouping and faults, by round. The larger the mark, the more clients."
    return section("events", "What happened on the way", text, figures=[figure])


def _experiment(left: Left) -> Section:
    lines = []
    if left.result:
        lines = [f"# {name} {value}" for name, value in left.result["versions"].items()]
        if left.result["partition_checksum"]:
            lines.append(f"# partition {left.result['partition_checksum']}")
    command = f"feddag run {shlex.quote(f'{left.name}/experiment.toml')}"
    text = "This command, beside the run directory, repeats the run bit for bit on the same kind of machine."
    return section("experiment", "The experiment", text, command=command, code="\n".join([left.toml.rstrip(), *lines]))
