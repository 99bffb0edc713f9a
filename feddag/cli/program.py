"""Every command of `feddag`, each a thin layer over the Python functions.

A command imports what it needs when it is called: help and a mistake in typing must not wait for PyTorch.
"""

import sys
import traceback
from typing import Annotated, Any

import typer

from feddag._version import __version__
from feddag.cli import bench, data, flower
from feddag.cli.common import console
from feddag.cli.grouping import group, sign
from feddag.cli.help import Command, new_app
from feddag.cli.methods import methods, tune
from feddag.cli.reports import report, show, watch
from feddag.cli.reproduce import reproduce
from feddag.cli.runs import compare, fields, run
from feddag.cli.serving import export, predict
from feddag.cli.signals import complain
from feddag.console import print_line
from feddag.errors import FeddagError, harmless

app = new_app("Clustered federated learning for clients whose data differ.")
for command in (run, compare, reproduce, report, show, watch, predict, export, methods, tune, fields, sign, group):
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


def call() -> int:
    """Do what the command line says; returns the exit code. A mistake of the user's is one sentence and code 2."""
    try:
        return app(prog_name="feddag", standalone_mode=False) or 0
    except (FeddagError, UsageError) as error:
        said = error.format_message() if isinstance(error, UsageError) else str(error)
        if said.startswith("Usage:"):  # a group without a command shows its help, which is not a mistake
            print(said)
            return 0
        complain(said)
    except OSError as error:
        complain(f"'{error.filename}' cannot be used: {error.strerror}" if error.filename else str(error))
    except Exception:  # a mistake of ours, or of the user's own code: both need to see where
        print(harmless(traceback.format_exc()), end="", file=sys.stderr)
        return 1
    return 2
