"""feddag reproduce: published tables and figures, run again."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddag.cli.common import console, stopping, whole_numbers
from feddag.console import print_line, progress, show_table
from feddag.errors import FeddagError, nearest
from feddag.files import write_atomically

if TYPE_CHECKING:
    from feddag.experiment import Experiment
    from feddag.reproduce.plan import Plan
    from feddag.reproduce.published import Published
    from feddag.runner.loop import Observer

SCALES = ("small", "paper")


def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="as --list has it, or a TOML file")] = None,
    scale: Annotated[str, typer.Option(metavar="small|paper", help="small: fewer samples and rounds")] = "small",
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0",
    list_all: Annotated[bool, typer.Option("--list", help="show what there is, and which data are here")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="say how long it would take, show what is known")] = False,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="folder of run directories")] = Path("runs"),
    results: Annotated[Path, typer.Option(metavar="DIR", help="folder of kept results")] = Path("results"),
    keep: Annotated[bool, typer.Option("--keep", help="also keep each result in --results")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="run again what already has a result")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="also write every number here")
    ] = None,
) -> None:
    """Run a published table again: ours beside the paper's.

    It says first how long that will take. Finished results are taken from --runs and --results, and unfinished runs go
    on where they stopped, as in `feddag compare`.
    """
    if list_all:
        _list()
        return
    if name is None:
        raise FeddagError("name a table or figure, see `feddag reproduce --list`")
    if scale not in SCALES:
        raise FeddagError(f"--scale '{scale}' is not one of {', '.join(SCALES)}{nearest(scale, SCALES)}")
    numbers = list(dict.fromkeys(whole_numbers("--seeds", seeds)))
    from feddag.reproduce.published import find_published

    published = find_published(name)
    from feddag.reproduce.plan import Plan

    _introduce(published, scale)
    made = Plan(published, scale, numbers, runs, results, fresh=fresh)  # type: ignore[arg-type]
    print_line(console, made.sentence())
    if not plan:
        _carry_out(made, keep)
    _show(made)
    if json_file:
        said = {"title": published.title, "paper": published.paper, "scale": scale, "seeds": numbers}
        write_atomically(json_file, json.dumps({**said, "cells": _numbers(made)}, indent=1) + "\n")


def _list() -> None:
    """What comes with feddag."""
    from feddag.reproduce.cells import absent
    from feddag.reproduce.published import all_published

    rows = []
    for name, published in all_published().items():
        missing = [dataset for dataset in published.datasets if absent(dataset)]
        here = [dataset for dataset in published.datasets if dataset not in missing]
        cells = f"{len(published.row)} x {len(published.column)}"
        rows.append([name, published.title, ", ".join(here) or "-", ", ".join(missing) or "-", cells])
    header = ("name", "what it is", "data here", "data absent", "rows x columns")
    show_table(console, "published tables and figures", header, rows, texts=4)
    print_line(console, "`feddag data list` says how to get what is absent")


def _introduce(published: "Published", scale: str) -> None:
    """What it is, at which scale, and what to know about it."""
    print_line(console, f"{published.paper}: {published.title}")
    if scale == "small":
        changed = ", ".join(f"{field} = {value}" for field, value in published.small.items())
        print_line(console, f"small scale, which the paper's is not: {changed or 'nothing is changed'}")
    if published.note:
        print_line(console, f"note: {published.note}")


def _carry_out(plan: "Plan", keep: bool) -> None:
    """Run what is left, with a bar on a terminal and a line for each run that is done."""

    def watching(chosen: "Experiment") -> "AbstractContextManager[Observer]":
        if not console.is_terminal:
            return nullcontext(lambda record: None)
        return progress(console, places[chosen.key()], chosen.rounds)

    places = {
        experiment.key(): f"{cell.row.name} on {cell.column.name}, seed {experiment.seed}"
        for cell in reversed(plan.cells)
        for experiment in cell.experiments
    }
    again = "the same command goes on where it was"
    with stopping(lambda: f"stopped; {again}", f"the disk is full; make room, and {again}"):
        for experiment, seconds in plan.carry_out(watching, keep=keep):
            left = f"; {len(plan.left)} left, about {plan.time_left()}" if plan.left else ""
            print_line(console, f"{places[experiment.key()]}: done in {seconds:.0f} s{left}")


def _show(plan: "Plan") -> None:
    """Ours beside theirs, and why some cells are empty."""
    from feddag.reproduce.cells import NOT_YET
    from feddag.reproduce.shown import LEGENDS, blocks_of

    for block in blocks_of(plan.published, plan.cells, plan.results, plan.searches):
        print_line(console)
        show_table(console, block.title, block.header, block.lines)
        if block.below:
            print_line(console, block.below)
    print_line(console)
    print_line(console, LEGENDS[plan.published.shows])
    if later := dict.fromkeys(cell.row.name for cell in plan.cells if cell.why_not == NOT_YET):
        print_line(console, f"{NOT_YET}: {', '.join(later)}")
    for reason in dict.fromkeys(cell.why_not for cell in plan.cells if cell.why_not not in ("", NOT_YET)):
        columns = dict.fromkeys(cell.column.name for cell in plan.cells if cell.why_not == reason)
        print_line(console, f"{'; '.join(columns)}: {reason}")


def _numbers(plan: "Plan") -> list[dict[str, Any]]:
    """Every cell as plain data."""
    from feddag.reproduce.shown import clustering_of, per_seed

    cells = []
    for cell in plan.cells:
        keys = [experiment.key() for experiment in cell.experiments]
        found: dict[str, Any] = {"searches": [plan.searches[key] for key in keys if key in plan.searches]}
        if plan.published.shows != "thresholds":
            names = dict.fromkeys(("accuracy", "accuracy_best", plan.published.shows))
            others = ("accuracy_by_round", "clusters")
            found = {name: per_seed(cell, plan.results, name) for name in names if name not in others}
            found["clustering"] = clustering_of(cell, plan.results)
        place = {"row": cell.row.name, "column": cell.column.name, "method": cell.row.method, "paper": cell.printed}
        cells.append(place | {"keys": keys, "why_not": cell.why_not} | found)
    return cells
