"""The `feddag` program: every command is a thin layer over the Python functions.

A command imports what it needs when it is called: help and a mistake in typing must not wait for PyTorch.
"""

import gc
import signal
import sys
from typing import Annotated, Any

import typer

from feddag._version import __version__
from feddag.cli import bench, data, flower
from feddag.cli.common import console
from feddag.cli.grouping import group, sign
from feddag.cli.help import Command, new_app
from feddag.cli.reports import report, show, watch
from feddag.cli.runs import compare, fields, run
from feddag.console import print_line
from feddag.errors import FeddagError

app = new_app("Clustered federated learning for clients whose data differ.")
for command in (run, compare, report, show, watch, fields, sign, group):
    app.command(cls=Command)(command)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(flower.app, name="flower")
UsageError: Any = typer.BadParameter.__base__  # typer brings its own click, or uses the installed one


def show_version(wanted: bool) -> None:
    """Print the version and end."""
    if wanted:
        print_line(console, f"feddag {__version__}")
        raise typer.Exit


@app.callback()
def start(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Clustered federated learning for clients whose data differ."""


def main() -> None:
    """The `feddag` program: a mistake of the user's is one sentence and exit code 2."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # being told to stop is as clean as Ctrl-C
    try:
        code = app(prog_name="feddag", standalone_mode=False)
    except (FeddagError, UsageError) as error:
        said = error.format_message() if isinstance(error, UsageError) else str(error)
        if said.startswith("Usage:"):  # a group without a command shows its help, which is not a mistake
            print(said)
            sys.exit(0)
        print(f"feddag: {said}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"feddag: '{error.filename}' cannot be used: {error.strerror}", file=sys.stderr)
        sys.exit(2)
    finally:
        gc.freeze()  # nothing of what was imported is garbage: without this, leaving takes a second
    sys.exit(code)
