"""Fills the tables of the documentation from the kept results: `make tables` (seconds).

A table stands under a line `<!-- table: its name -->`. Its rows are looked up by the key of their experiments, so a row
can only show what that experiment, with this code, has produced.
"""

import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from kept import ROOT, Row, read
from listed import (
    AT_EQUAL_WORK,
    FULL_ROWS,
    FULL_SIZE,
    INGREDIENT_ROWS,
    RATE_ROWS,
    SMALL_ROWS,
    TABLES,
    Table,
)
from listed import all_rows as all_rows
from measured import (
    drawn_across,
    drawn_alike,
    drawn_clustering,
    drawn_groups,
    drawn_personal,
    drawn_prices,
    drawn_rates,
    drawn_released,
    drawn_rows,
    paired,
)

from experiments.ingredients import RATES, TAKEN_APART
from feddag.bench import attacks as bench_attacks
from feddag.bench import landmarks as bench_landmarks
from feddag.bench import mixed as bench_mixed
from feddag.bench import power as bench_power
from feddag.bench import scale as bench_scale
from feddag.runner.level import span

PAGES = [ROOT / "docs" / name for name in ("results.md", "fidelity.md", "security.md", "grouping.md", "performance.md")]
MARKED = re.compile(r"(?<=^<!-- table: )(?P<name>[^\n]+) -->\n\n(?:\|[^\n]*\n)*", re.MULTILINE)

Results = Sequence[Mapping[str, Any]]


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean ± standard deviation.

    >>> spread([0.5, 0.7]), spread([0.5]), spread([None])
    ('0.600 ± 0.141', '0.500', '')
    """
    given = [value for value in values if value is not None]
    if not given:
        return ""
    more = f" ± {statistics.stdev(given):.{digits}f}" if len(given) > 1 else ""
    return f"{statistics.mean(given):.{digits}f}{more}"


def megabytes(results: Results, name: str) -> str:
    return f"{statistics.mean(one[name] / one['clients'] for one in results) / 1e6:.2f}"


def groups(results: Results) -> str:
    found = [str(len(set(one["clusters"]) - {None})) for one in results if one.get("clusters")]
    return found[0] if len(set(found)) == 1 else ", ".join(found)


def drift(results: Results, whose: str, when: str) -> str:
    return spread([one["drift"][f"accuracy_{whose}"][when] for one in results])


def of(name: str, part: str = "mean") -> Callable[[Results], str]:
    return lambda results: spread([one[name][part] if one.get(name) else None for one in results])


COLUMNS: dict[str, Callable[[Results], str]] = {
    "accuracy": of("accuracy"),
    "worst decile": of("accuracy", "worst_decile"),
    "after local epochs": of("accuracy_finetuned"),
    "best over rounds": of("accuracy_best"),
    "volatility": lambda results: spread([one["volatility"] for one in results]),
    "sample passes": lambda results: f"{statistics.mean(one['sample_passes'] for one in results) / 1e6:.1f} M",
    "TFLOP": lambda results: f"{statistics.mean(one['training_flops'] for one in results) / 1e12:.3g}",
    "rounds": lambda results: span(one["rounds"] for one in results),
    "MB up / down per client": lambda rs: f"{megabytes(rs, 'bytes_up')} / {megabytes(rs, 'bytes_down')}",
    "groups found": groups,
    "newcomers": of("accuracy_unseen"),
    "of those who joined": of("accuracy_joined"),
    "newcomers after local epochs": of("accuracy_unseen_finetuned"),
    "placed right": lambda results: spread([one.get("unseen_placed_right") for one in results]),
    "noticed": lambda rs: (
        f"{sum(one['drift']['noticed'] for one in rs)} of {sum(one['drift']['clients'] for one in rs)}"
    ),
    "false alarms": lambda results: str(sum(one["drift"]["false_alarms"] for one in results)),
    "drifting: before": lambda results: drift(results, "drifting", "before"),
    "at": lambda results: drift(results, "drifting", "at"),
    "after": lambda results: drift(results, "drifting", "after"),
    "others: after": lambda results: drift(results, "others", "after"),
}


def named_seeds(seeds: Sequence[int]) -> str:
    """Which seeds a row was run with.

    >>> named_seeds([0]), named_seeds([0, 1, 2]), named_seeds([0, 2])
    ('seed 0', 'seeds 0-2', 'seeds 0, 2')
    """
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"seeds {seeds[0]}-{seeds[-1]}" if whole else f"seeds {', '.join(map(str, seeds))}"


def files_of(row: Row) -> list[Path]:
    return list(row.files.values())


def against(table: Table, row: Row, method: str) -> str:
    """How far a row is from the row of another method, seed by seed, with the 95 % interval of the mean."""
    [other] = [one for one in table.rows if (one.method, one.file, one.costliest) == (method, row.file, row.costliest)]
    return "" if other is row else paired(row, other)


def line(table: Table, row: Row) -> str | None:
    """One row of a table, or nothing where it was not run."""
    found = row.files
    if not found:
        return None
    label = row.label or f"`{row.method}`"
    label += f" (revision {row.revision})" if row.revision else ""
    if len(found) < len(row.seeds):
        label += f", {named_seeds(sorted(found))}"
    results = list(map(read, found.values()))
    cells = []
    for name in table.columns:
        if name.startswith("vs "):
            cells.append(against(table, row, name.removeprefix("vs ")))
        else:
            cells.append(row.paper if name == "paper" else COLUMNS[name](results))
    return f"| {' | '.join([label, *cells])} |\n"


def drawn(table: Table) -> str:
    """The table as Markdown."""
    rows = [text for row in table.rows if (text := line(table, row)) is not None]
    head = f"| {' | '.join([table.head, *table.columns])} |\n"
    return head + f"|{' --- |' * (len(table.columns) + 1)}\n" + "".join(rows)


def filled(text: str) -> str:
    """A page with its tables filled anew."""

    def anew(found: re.Match[str]) -> str:
        name = found["name"]
        measured = {
            "groups": partial(drawn_groups, "bench-groups.json"),
            "groups as published": partial(drawn_groups, "bench-groups-published.json"),
            "ingredients": partial(drawn_across, INGREDIENT_ROWS, {file: AT_EQUAL_WORK[file] for file in TAKEN_APART}),
            "learning rates": partial(drawn_rates, RATE_ROWS, RATES),
            "equal work": partial(drawn_across, SMALL_ROWS, AT_EQUAL_WORK),
            "equal work, worst decile": partial(drawn_across, SMALL_ROWS, AT_EQUAL_WORK, "worst_decile"),
            "equal work, prices": partial(drawn_prices, SMALL_ROWS, AT_EQUAL_WORK),
            "equal work, full size": partial(drawn_across, FULL_ROWS, FULL_SIZE),
            "equal work, full size, worst decile": partial(drawn_across, FULL_ROWS, FULL_SIZE, "worst_decile"),
            "equal work, full size, prices": partial(drawn_prices, FULL_ROWS, FULL_SIZE),
            "alike": drawn_alike,
            "mixed": partial(drawn_rows, bench_mixed, "bench-mixed.json"),
            "power": partial(drawn_rows, bench_power, "bench-power.json"),
            "attacks": partial(drawn_rows, bench_attacks, "bench-attacks.json"),
            "landmarks": partial(drawn_rows, bench_landmarks, "bench-landmarks.json"),
            "clustering": drawn_clustering,
            "many clients": partial(drawn_rows, bench_scale, "bench-scale.json"),
            "personal": partial(drawn_personal, "accuracy"),
            "personal, client by client": partial(drawn_personal, "gain"),
        }
        measured |= {f"released-{part}": partial(drawn_released, part) for part in ("likeness", "groups")}
        return f"{name} -->\n\n{measured[name]() if name in measured else drawn(TABLES[name])}"

    return MARKED.sub(anew, text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"{page.name} has new figures\n")
