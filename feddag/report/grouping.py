"""Why the clusters are what they are: distances, the tree, the threshold, the weights, and who learns from whom."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from feddag.errors import counted
from feddag.report.diagnostics import FUSED, ComparedClients, compared_clients, graph_edges
from feddag.report.document import Section, drawn, section
from feddag.report.figures import distances as figures
from feddag.report.figures.graph import complementarity_graph
from feddag.report.figures.parts import MOST_ROWS
from feddag.report.figures.rounds import curves_by_round
from feddag.report.recorded import RecordedRun
from feddag.server.complement import demand_and_supply
from feddag.weights import ClientId

VIEW_TITLES = {FUSED: "fused", "data": "data", "gradient": "gradient", "classes": "classes held", "style": "looks"}


def grouping_sections(run: RecordedRun) -> list[Section]:
    """Who is near whom, why that many clusters, and what was weighed: of each what the method told."""
    told = compared_clients(run.diagnostics, run.clusters())
    names = [run.client_name(client) for client in told.clients]
    leaves = [] if told.merges is None else figures.tree_lines(told.merges, len(names))[0]
    order = figures.in_cluster_order(told.clients, told.labels, leaves)
    made = [_nearness(told, names, order), _number_of_clusters(told, names), _fusion(told, names, order)]
    return [part for part in [*made, _by_round(run)] if part]


def _nearness(told: ComparedClients, names: Sequence[str], order: Sequence[int]) -> Section | None:
    if not told.distances:
        return None
    usual = list(VIEW_TITLES)
    known = sorted(told.distances, key=lambda name: usual.index(name) if name in usual else len(usual))
    views = {VIEW_TITLES.get(name, name): figures.distances_of(told.distances[name], order) for name in known}
    choices = [{"label": view, "visible": [view == other for other in views]} for view in views]
    matrix = figures.proximity(views, [told.labels[n] for n in order], [names[n] for n in order])
    clustered = " A square block on the diagonal is a cluster whose members are alike." if told.clusters else ""
    gaps = any(np.isnan(values).any() for values in told.distances.values())
    text = (
        f"Each row and each column is a client; dark is near.{clustered}"
        + (" Gaps are pairs for which a view has no distance." if gaps else "")
        + (" Distances are counted beyond chance: similar clients scatter around 0." if _beyond_chance(told) else "")
        + (" Neighbouring clients are drawn as one cell with their mean." if len(names) > MOST_ROWS else "")
    )
    options = {"choices": {"label": "distance by", "of": choices}} if len(choices) > 1 else {}
    figure = drawn("proximity", "distances between clients", matrix, square=True, **options)
    return section("proximity-matrix", "Who is near whom", text, figures=[figure])


def _beyond_chance(told: ComparedClients) -> bool:
    """Whether distances are what exceeds chance: only such can be below 0."""
    fused = told.distances.get(FUSED)
    return fused is not None and bool((fused < 0).any())


def _number_of_clusters(told: ComparedClients, names: Sequence[str]) -> Section | None:
    """The tree of merges with the cut, and how many clusters other cuts would have left."""
    drawings = []
    if told.merges is not None:
        tree = figures.dendrogram(told.merges, told.labels, told.threshold, names)
        drawings.append(drawn("dendrogram", "tree of merges with the cut", tree))
    if told.candidates is not None:
        chart = figures.thresholds(told, loss=_by_loss(told))
        drawings.append(drawn("alpha", "number of clusters against the cut", chart))
    if not drawings:
        return None
    return section("number", "Why that many clusters", " ".join(_why_that_many(told)), figures=drawings)


def _by_loss(told: ComparedClients) -> bool:
    """Whether the loss had a say in where the tree was cut."""
    return told.rule in ("plateau", "lowest") or (not told.rule and not _beyond_chance(told))


def _why_that_many(told: ComparedClients) -> list[str]:
    said = []
    if told.merges is not None:
        said.append("The most similar clients merge first.")
        if told.threshold is not None:
            said.append(f"The tree is cut at {told.threshold:.3f}: what has merged below the dashed line is a cluster.")
    if same := told.same_clusters():
        low, high, left = same
        said.append(
            f"Every cut between {low:z.3f} and {high:z.3f} leaves the same {counted(left, 'cluster')}: the wider that "
            "range (shaded below), the clearer the clusters."
        )
        if told.clusters and told.clusters < left:
            said.append(f"Those that differ by no more than chance were joined: {told.clusters} remain.")
    scatter = "" if told.noise is None else f", which scatter by {told.noise:.3f} around 0,"
    why = {
        "noise": f"The cut divides distances that chance explains, as between like clients{scatter} from those that it "
        "does not; means over many clients scatter less.",
        "plateau": "The cut has the lowest loss (tight clusters, none of them tiny) of all whose number of clusters "
        "stays the same over three steps.",
        "lowest": "The cut has the lowest loss: tight clusters, none of them tiny.",
        "given": "The experiment says where to cut.",
    }
    return [*said, *([why[told.rule]] if told.rule in why else [])]


def _fusion(told: ComparedClients, names: Sequence[str], order: Sequence[int]) -> Section | None:
    if not told.weights:
        return None
    weights = {VIEW_TITLES.get(name, name): values[order] for name, values in told.weights.items()}
    if alone := [view for view, values in weights.items() if values.min() > 0.995]:
        rest = " and ".join(view for view in weights if view not in alone)
        text = f"Only one view counts, for every client: {alone[0]}, which tells clients apart most clearly."
        return section("fusion", "What the distance is made of", text + (f" Nothing by {rest}." if rest else ""))
    bars = figures.fusion_weights(weights, [told.labels[n] for n in order], [names[n] for n in order])
    text = "How much each view counts in the fused distance: the more clearly it tells clients apart, the more."
    figure = drawn("weights", "weights of the views", bars)
    return section("fusion", "What the distance is made of", text, figures=[figure])


def _by_round(run: RecordedRun) -> Section | None:
    """What else the method followed."""
    told = {title: curves for title, curves in (run.diagnostics.get("by_round") or {}).items() if curves}
    if not told:
        return None
    figures = [
        drawn(f"by-round-{number}", f"{title} by round", curves_by_round(title, curves))
        for number, (title, curves) in enumerate(told.items())
    ]
    return section("by-round", "What was followed round by round", f"By round: {'; '.join(told)}.", figures=figures)


def graph_section(run: RecordedRun) -> Section | None:
    """The complementarity graph, with what flows along each edge."""
    groups, counts = run.clusters(), run.counts()
    sizes = {group: list(groups.values()).count(group) for group in sorted(set(groups.values()))}
    edges = [(p, q) for p, q in graph_edges(run.diagnostics) if p in sizes and q in sizes]
    if not edges:
        return None
    said = {(p, q): supplied(p, q, groups, counts, run.class_names()) for p, q in edges}
    scores = run.diagnostics.get("scores")
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
    figure = drawn("graph", "which cluster learns from which", complementarity_graph(weighed, sizes))
    table = {"id": "edges", "label": "edges of the graph", "columns": columns, "rows": rows, "cards": True}
    return section("teaching", "Who learns from whom", text, figures=[figure], table=table)


def _score(scores: Any, learner: int, source: int) -> float | None:
    """The weight of an edge; None of a cluster that came later than the scores."""
    known = np.asarray(() if scores is None else scores, float)
    if known.ndim != 2 or learner >= known.shape[0] or source >= known.shape[1]:
        return None
    return float(known[learner, source]) if np.isfinite(known[learner, source]) else None


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
    'dog: 5 samples, cat: 1 sample'
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
    return ", ".join(f"{classes[c]}: {counted(int(held[c]), 'sample')}" for c in best)
