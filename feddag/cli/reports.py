"""feddag report | show | watch: a run, finished or under way, as a page or in the terminal."""

from pathlib import Path
from typing import Annotated

import typer

from feddag.cli.common import console, stop
from feddag.screen import say

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="what `feddag run` made")]


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="one run, or several to compare")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="default: RUN_DIR/report.html, or comparison.html")
    ] = None,
) -> None:
    """Write one page to look at: of a run, or of several side by side."""
    from feddag.report import read_left, write_comparison, write_report

    if len(directories) == 1:
        written = write_report(directories[0], out)
    else:
        written = write_comparison([read_left(each) for each in directories], out or Path("comparison.html"))
    say(console, f"report: {written}")


def show(directory: RunDirectory) -> None:
    """Print the essentials of a run, finished or under way."""
    from feddag.report import read_left
    from feddag.report.terminal import show_run

    show_run(console, read_left(directory))


def watch(
    directory: RunDirectory,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0: any free one")] = 0,
) -> None:
    """Serve a live page of a run under way, until it ends.

    Only a browser on this machine can open it.
    """
    from feddag.report.watch import Watch

    watched = Watch(directory, port)
    say(console, f"watching {directory}: {watched.address} (Ctrl-C ends it, not the run)")
    try:
        say(console, f"the run has {watched.serve_to_end().said}")
    except KeyboardInterrupt:
        stop("no longer watching", 130)
