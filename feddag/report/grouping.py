"""Why the clusters are what they are: distances, the tree, the threshold, the weights, and who learns from whom."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.report.document import Section, drawn, section
from feddag.report.figures import distances as figures
from feddag.report.figures.graph import teaching
from feddag.report.figures.parts import MOST_ROWS
from feddag.report.left import Left
from feddag.server.complement import demand_and_supply
from feddag.weights import ClientId

VIEWS = {"fused": "fused", "data": "data", "gradient": "gradient", "classes": "classes held"}


def grouping_sections(left: Left) -> list[Section]:
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
    many, beyond_chance = len(labels) > MOST_ROWS, float(np.nanmin(known["distances"])) < 0
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


def teaching_section(left: Left) -> Section | None:
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
    figure = drawn("graph", "which cluster learns from which", teaching(weighed, sizes))
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
