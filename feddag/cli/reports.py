"""feddag report | show | watch: a run, finished or under way, as a page or in the terminal."""

from pathlib import Path
from typing import Annotated

import typer

from feddag.cli.common import console
from feddag.cli.signals import Stopped, stop
from feddag.console import print_line

RunDirectory = Annotated[Path, typer.Argument(metavar="RUN_DIR", help="what `feddag run` made")]


def report(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN_DIR...", help="one run, or several to compare")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="default: RUN_DIR/report.html, or comparison.html")
    ] = None,
) -> None:
    """Write one page to look at: of a run, or of several."""
    from feddag.report import read_run, write_comparison, write_report

    if len(directories) == 1:
        written = write_report(directories[0], out)
    else:
        written = write_comparison([read_run(each) for each in directories], out or Path("comparison.html"))
    print_line(console, f"report: {written}")


def show(directory: RunDirectory) -> None:
    """Print the essentials of a run, finished or under way."""
    from feddag.report import read_run
    from feddag.report.terminal import show_run

    show_run(console, read_run(directory))


def watch(
    directory: RunDirectory,
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0: any free one")] = 0,
) -> None:
    """Serve a live page of a run under way, until it ends.

    Only a browser on this machine can open it.
    """
    from feddag.report.live import LivePage

    watched = LivePage(directory, port)
    print_line(console, f"watching {directory}: {watched.address} (Ctrl-C stops watching, not the run)")
    try:
        print_line(console, f"the run has {watched.serve_to_end().text}")
    except Stopped as stopped:
        stop("no longer watching", stopped.code)
