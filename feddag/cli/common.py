"""What several commands share: options, how the command line becomes an experiment, how the program stops."""

import contextlib
import errno
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from feddag.cli.signals import Stopped, stop, stopping_says
from feddag.errors import FeddagError
from feddag.files import read_toml

if TYPE_CHECKING:
    from feddag.experiment import Experiment

console = Console(highlight=False)
FULL_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

ExperimentFile = Annotated[
    Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="a file of fields; options override it")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any field, see `feddag fields`; repeatable")
]
DatasetOption = Annotated[
    str | None, typer.Option(help="a name, an .npz, .csv or .parquet file, or a folder of images")
]
ColumnsOption = Annotated[
    str | None, typer.Option(metavar="ROLES", help="columns of a .csv or .parquet: label=activity,client=subject")
]
PartitionOption = Annotated[str | None, typer.Option(help="how clients get their samples")]
ClientsOption = Annotated[int | None, typer.Option(help="number of clients")]
RoundsOption = Annotated[int | None, typer.Option(help="communication rounds")]
SeedOption = Annotated[int | None, typer.Option(help="everything random follows from it")]
OutOption = Annotated[Path | None, typer.Option(metavar="DIR", help="run directory to make")]
ResumeOption = Annotated[Path | None, typer.Option(metavar="RUN_DIR", help="continue an unfinished run")]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="with --resume: import the run's own method or model (module:name)")
]
NoReport = Annotated[bool, typer.Option("--no-report", help="do not write the page")]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="also write every number here")]


def overrides(settings: list[str] | None, **flags: Any) -> dict[str, Any]:
    """What the command line sets: options that were given, then every `--set`."""
    from feddag.fields import parse_setting

    given = {name: value for name, value in flags.items() if value is not None}
    return given | dict(map(parse_setting, settings or []))


def experiment_of(file: Path | None, settings: list[str] | None, **flags: Any) -> "Experiment":
    """The experiment that a command line means: its options, then the file, then defaults."""
    if file is not None:
        read_toml(file)  # what is none is refused at once, and not after PyTorch was loaded
    from feddag.experiment import read_experiment

    return read_experiment(file, overrides(settings, **flags))


def resumed_experiment(directory: Path, trust: bool) -> "Experiment":
    """The experiment of an unfinished run; what it would import has to be trusted."""
    from feddag.runner.directory import RunDirectory
    from feddag.runner.run import recorded_experiment

    return recorded_experiment(RunDirectory(directory), trust)


def how_to_resume(command: str, directory: Path, experiment: "Experiment") -> str:
    """What to type to go on with a run that was stopped."""
    from feddag.runner.checked import own_code

    trusted = " --trust" if own_code(experiment.resolved()) else ""
    return f"{command} --resume {shlex.quote(str(directory))}{trusted}"


def whole_numbers(option: str, text: str) -> list[int]:
    """A comma-separated list of whole numbers.

    >>> whole_numbers("--seeds", "0,1")
    [0, 1]
    """
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise FeddagError(f"{option} '{text}' is not a comma-separated list of whole numbers") from None


@contextlib.contextmanager
def stopping(when_stopped: Callable[[], str], when_disk_is_full: str) -> Iterator[None]:
    """Turn Ctrl-C and a full disk into one sentence that says how to go on."""
    try:
        with stopping_says(when_stopped):
            yield
    except Stopped as stopped:
        stop(when_stopped(), stopped.code)
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        stop(when_disk_is_full, 1)
