"""The essentials of a run in the terminal."""

from collections import Counter

import numpy as np
from rich.console import Console

from feddag.report.left import Left
from feddag.report.run import client_blocks, happenings
from feddag.screen import RESULT_COLUMNS, result_row, say, show_changes, show_clustering, show_table

BARS = "▁▂▃▄▅▆▇█"
LINES = 8


def sparkline(values: list[float], width: int = 60) -> str:
    """Numbers from 0 to 1 as a row of bars; neighbours are averaged where there are too many.

    >>> sparkline([0.0, 0.5, 1.0])
    '▁▅█'
    """
    parts = np.array_split(values, min(width, len(values)))
    return "".join(BARS[min(len(BARS) - 1, int(np.mean(part) * len(BARS)))] for part in parts)


def show_run(console: Console, left: Left) -> None:
    """Headline, curve, clusters, the clients that fare worst, and what happened."""
    said, result = left.experiment, left.result
    what = f"{said.get('method')} on {said.get('dataset')}, {said.get('partition')}, seed {said.get('seed')}"
    say(console, f"{left.name}: {what}; {left.rounds} of {said.get('rounds')} rounds")
    if result:
        show_table(console, "", RESULT_COLUMNS, [result_row([result])])
        show_clustering(console, result)
        show_changes(console, result)
    if not left.history:
        return
    means = [record["accuracy"]["mean"] for record in left.history]
    say(console, f"accuracy by round: {sparkline(means)} {means[-1]:.3f}")
    groups = left.clusters()
    scores = {c: score for c, score in next(iter(client_blocks(left).values())).items() if score is not None}
    if groups:
        rows = []
        for group, size in sorted(Counter(groups.values()).items()):
            own = [scores[client] for client in groups if groups[client] == group and client in scores]
            rows.append([str(group), str(size), f"{np.mean(own):.3f}" if own else "-"])
        show_table(console, "clusters", ("cluster", "clients", "accuracy"), rows)
    worst = sorted(scores, key=lambda client: scores[client])[:3]
    say(console, "worst served: " + ", ".join(f"{left.client_name(c)} {scores[c]:.3f}" for c in worst))
    told = [f"round {n}: {event}" for n, kinds in happenings(left).items() for said in kinds.values() for event in said]
    for line in told[-LINES:]:
        say(console, line)
    if len(told) > LINES:
        say(console, f"... and {len(told) - LINES} earlier events; history.jsonl has all")
