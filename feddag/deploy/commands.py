"""feddag flower init | up: a thin layer over `app` and `launch`."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from feddag.deploy.app import write_app
from feddag.deploy.launch import up as run_up
from feddag.errors import FeddagError
from feddag.experiment import parse_setting, read_experiment
from feddag.files import free_directory
from feddag.runner.directory import RunDirectory
from feddag.screen import progress, say, show_results

app = typer.Typer(help="The same methods on a real federation of machines.", no_args_is_help=True)
console = Console(highlight=False)


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where the app is written")],
    experiment: Annotated[
        Path, typer.Option(metavar="E.toml", help="what is run; its dataset shows what samples look like")
    ],
) -> None:
    """Write a small Flower app for an experiment, to be run with `flwr run`."""
    write_app(folder, read_experiment(experiment, {}))
    say(console, f"Flower app: {folder}; its settings are in {folder / 'pyproject.toml'}; see docs/deployment.md")


@app.command()
def up(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="[EXPERIMENT.toml]", help="defaults for every field")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="number of nodes; each is a client")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="encrypt, and let in only nodes with a registered key")] = False,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="the same app on Flower's simulation engine (Ray), without nodes")
    ] = False,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="any field")] = None,
    deadline: Annotated[float, typer.Option(min=1, help="seconds that an exchange waits for a client")] = 600,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="run directory to make")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="RUN_DIR", help="go on with an unfinished run")] = None,
) -> None:
    """Start a SuperLink and nodes on this machine, run an experiment on them, and take everything down again."""
    if resume is not None:
        if experiment or settings or out or nodes:
            raise FeddagError("--resume goes on with the run's own experiment and takes only --tls and --deadline")
        if not RunDirectory(resume).experiment.exists():
            raise FeddagError(f"--resume '{resume}' is not a run directory: it has no experiment.toml")
        chosen, directory = read_experiment(RunDirectory(resume).experiment, {}), resume
    else:
        given = dict(map(parse_setting, settings or [])) | ({"clients": nodes} if nodes else {})
        chosen = read_experiment(experiment, given)
        directory = out or free_directory(Path("runs") / f"{chosen.title()}-flower")
    what = "Flower's simulation of" if simulation else "a SuperLink and"
    say(console, f"starting {what} {chosen.clients} nodes on this machine")
    try:
        with progress(console, chosen.method, chosen.rounds) as observer:
            finished = run_up(chosen, directory, tls, simulation, resume is not None, observer, deadline=deadline)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            say(console, f"stopped; go on with: feddag flower up --resume {directory}")
        raise typer.Exit(130) from None
    show_results(console, [finished.result], chosen)
    say(console, f"run directory: {directory}")
