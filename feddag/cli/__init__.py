"""The `feddag` program. What it needs is loaded after it has learnt how to be stopped."""

import gc
import sys
from typing import Any

from feddag.cli.signals import Stopped, complain, leave, listen


def main() -> None:
    """The `feddag` program."""
    listen()
    try:
        from feddag.cli.program import call

        code = call()
    except Stopped as stopped:
        complain("stopped")
        code = stopped.code
    finally:
        leave()
        gc.freeze()  # nothing of what was imported is garbage: without this, leaving takes a second
    sys.exit(code)


def __getattr__(name: str) -> Any:
    """The commands as Typer knows them, loaded when they are asked for."""
    if name == "app":
        from feddag.cli.program import app

        return app
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
