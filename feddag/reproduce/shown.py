"""Ours beside the paper's, as tables of text: one for each column of the published table."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddag.records import AccuracyRecord, ClusteringScores, ResultRecord
from feddag.reproduce.cells import Cell
from feddag.reproduce.published import Published, Scores
from feddag.reproduce.thresholds import Search

SCORES = {"clusters": "clusters", "accuracy": "accuracy", "rand": "Rand", "was": "WAS", "wadb": "WADB"}
LEGENDS = {
    "accuracy": "paper and ours in per cent; ours is balanced accuracy over the last tenth of the rounds, mean ± "
    "standard deviation over seeds; best over rounds: each client's best round, as FedDAG's released code counts",
    "accuracy_unseen": "paper and ours in per cent; balanced accuracy of the clients that joined after the last round",
    "accuracy_unseen_finetuned": "paper and ours in per cent; balanced accuracy of the clients that joined after the "
    "last round, after local epochs of their own",
    "accuracy_by_round": "balanced accuracy in per cent after these rounds, mean over seeds",
    "clusters": "with several seeds all numbers of clusters that were found, and mean ± standard deviation of scores; "
    "accuracy in per cent over the last tenth of the rounds; Rand: Rand index with the true groups",
    "thresholds": "alpha: threshold of the clustering; loss: Eq. 10; with several seeds all numbers of clusters that "
    "were found, and the mean loss",
}


@dataclass(frozen=True)
class Block:
    """One table to print: its title, its header, its lines, and a line below it."""

    title: str
    header: tuple[str, ...]
    lines: list[list[str]]
    below: str = ""


def blocks_of(
    published: Published, cells: Sequence[Cell], results: Mapping[str, ResultRecord], searches: Mapping[str, Search]
) -> list[Block]:
    """What is known of the table so far; cells that were not run show the paper's figure alone."""
    blocks = []
    for column in published.column:
        here = [cell for cell in cells if cell.column == column]
        if published.shows == "thresholds":
            found = [_curve(published, cell, searches) for cell in here]
            blocks += [block for block in found if any(set(line[1:]) != {"-"} for line in block.lines)]
        elif published.shows == "clusters":
            blocks.append(_clusters(published, here, results))
        elif published.shows == "accuracy_by_round":
            blocks.append(_by_round(published, here, results))
        else:
            blocks.append(_beside(published, here, results))
    return blocks


def per_seed(cell: Cell, results: Mapping[str, ResultRecord], name: str) -> list[float]:
    """An accuracy of the cell in per cent, for each seed that has one."""
    known = [results[key] for experiment in cell.experiments if (key := experiment.key()) in results]
    blocks: list[AccuracyRecord | None] = [result.get(name) for result in known]  # type: ignore[misc]
    return [100 * block["mean"] for block in blocks if block is not None]


def figure(values: Sequence[float]) -> str:
    """Mean ± standard deviation over seeds, as the paper prints it.

    >>> figure([90.0, 92.0]), figure([90.0]), figure([])
    ('91.00 ± 1.41', '90.00', '-')
    """
    if not values:
        return "-"
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread}"


def difference(ours: Sequence[float], printed: Sequence[float]) -> str:
    """Ours minus the paper's, in points.

    >>> difference([90.0, 92.0], [90.76, 0.12]), difference([], [90.76])
    ('+0.24', '-')
    """
    return f"{statistics.fmean(ours) - printed[0]:+.2f}" if ours and printed else "-"


def _printed(values: Sequence[float]) -> str:
    return " ± ".join(f"{value:.2f}" for value in values) or "-"


def _beside(published: Published, cells: Sequence[Cell], results: Mapping[str, ResultRecord]) -> Block:
    with_best = published.shows == "accuracy"  # of clients that join last there is only one score
    lines = []
    for cell in cells:
        line = [cell.row.name, _printed(cell.printed)]
        for name in (published.shows, *(["accuracy_best"] if with_best else [])):
            ours = per_seed(cell, results, name)
            line += [figure(ours), difference(ours, cell.printed)]
        lines.append(line)
    header = ("row", "paper", "ours", "difference", *(("best over rounds", "difference") if with_best else ()))
    return Block(cells[0].column.name, header, lines)


def _by_round(published: Published, cells: Sequence[Cell], results: Mapping[str, ResultRecord]) -> Block:
    lines = []
    for cell in cells:
        curves = [
            results[key]["accuracy_by_round"] for experiment in cell.experiments if (key := experiment.key()) in results
        ]
        values = [[100 * curve[round - 1] for curve in curves if round <= len(curve)] for round in published.at]
        lines.append([cell.row.name, *(f"{statistics.fmean(some):.2f}" if some else "-" for some in values)])
    return Block(cells[0].column.name, ("row", *(f"round {round}" for round in published.at)), lines)


def _clusters(published: Published, cells: Sequence[Cell], results: Mapping[str, ResultRecord]) -> Block:
    """Numbers of clusters and scores: those that the paper prints in some row; all where it prints none."""
    number = published.column.index(cells[0].column)
    every = [scores for row in published.row for scores in row.scores]
    names = [name for name in SCORES if any(getattr(scores, name) for scores in every)] or [
        "clusters",
        "rand",
        "was",
        "wadb",
    ]
    lines = []
    for cell in cells:
        printed = cell.row.scores[number] if cell.row.scores else Scores()
        line, found = [cell.row.name], clustering_of(cell, results)
        for name in names:
            theirs = getattr(printed, name)
            values = theirs if isinstance(theirs, list) else [theirs] if theirs else []
            ours = figure(per_seed(cell, results, name)) if name == "accuracy" else _ours(found, name)
            line += [" ± ".join(f"{value:g}" for value in values) or "-", ours]
        lines.append(line)
    header = ("row", *(title for name in names for title in (f"{SCORES[name]}, paper", "ours")))
    return Block(cells[0].column.name, header, lines)


def clustering_of(cell: Cell, results: Mapping[str, ResultRecord]) -> list[ClusteringScores]:
    """The scores of the cell's clusters, for each seed that has some."""
    known = [results[key].get("clustering") for experiment in cell.experiments if (key := experiment.key()) in results]
    return [scores for scores in known if scores]


def _ours(found: Sequence[ClusteringScores], name: str) -> str:
    """Numbers of clusters that were found, or a score's mean and deviation.

    >>> _ours([{"found": 3}, {"found": 1}, {"found": 3}], "clusters"), _ours([{"was": None}], "was")
    ('1/3', '-')
    """
    if name == "clusters":
        return "/".join(map(str, sorted({scores["found"] for scores in found}))) or "-"
    return figure([scores[name] for scores in found if scores[name] is not None])  # type: ignore[literal-required]


def _curve(published: Published, cell: Cell, searches: Mapping[str, Search]) -> Block:
    number = published.column.index(cell.column)
    printed = cell.row.curve[number] if cell.row.curve else None
    found = [searches[key] for experiment in cell.experiments if (key := experiment.key()) in searches]
    ours: dict[float, list[Any]] = {}
    for search in found:
        for candidate in search["candidates"]:
            ours.setdefault(round(candidate["alpha"], 3), []).append(candidate)
    lines = []
    for place, alpha in enumerate(published.alphas):
        here = ours.get(round(alpha, 3), [])
        counts = "/".join(map(str, sorted({candidate["clusters"] for candidate in here}))) or "-"
        loss = f"{statistics.fmean(candidate['loss'] for candidate in here):.3f}" if here else "-"
        theirs = (str(printed.clusters[place]), f"{printed.loss[place]:.3f}") if printed else ("-", "-")
        lines.append([f"{alpha:.2f}", theirs[0], counts, theirs[1], loss])
    header = ("alpha", "clusters, paper", "ours", "loss, paper", "ours")
    chosen = [f"seed {e.seed}: {_chosen(searches[e.key()])}" for e in cell.experiments if e.key() in searches]
    return Block(f"{cell.column.name}: {cell.row.name}", header, lines, "; ".join(chosen))


def _chosen(search: Search) -> str:
    true = "" if search["true"] is None else f", true are {search['true']} (ARI {search['ari']:.3f})"
    return f"{search['clusters']} clusters chosen{true}"
