"""feddag flower init | node | status | up: a thin layer over `feddag.deploy`."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from feddag.cli.common import (
    ExperimentFile,
    OutOption,
    ResumeOption,
    Settings,
    TrustOption,
    console,
    experiment_of,
    how_to_resume,
    resumed_experiment,
)
from feddag.cli.help import Command, new_app
from feddag.cli.signals import Stopped, never_at_once, stop
from feddag.console import print_line, progress, show_table
from feddag.errors import FeddagError
from feddag.files import free_directory

app = new_app("The same methods on a real federation of machines.")


@app.command(cls=Command)
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="where the app is written")],
    experiment: Annotated[
        Path, typer.Option(metavar="E.toml", help="what is run; its dataset shows what samples look like")
    ],
) -> None:
    """Write a small Flower app for an experiment.

    It is run with `flwr run`.
    """
    from feddag.deploy.app import write_app

    write_app(folder, experiment_of(experiment, None))
    print_line(
        console, f"Flower app: {folder}; its settings are in {folder / 'pyproject.toml'}; see docs/deployment.md"
    )


@app.command(
    cls=Command,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False},
)
def node(context: typer.Context) -> None:
    """Be a node: flower-supernode, with quicker answers.

    The options are those of flower-supernode. It keeps Flower, PyTorch and feddag
    loaded and forks for each message.
    """
    from feddag.deploy.supernode import run

    run(context.args)


@app.command(cls=Command)
def status(
    directory: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="the app's `out`, on the server")],
    health: Annotated[
        bool, typer.Option("--health", help="one line for a monitor; exit code 0, 1 or 2 as Nagios has them")
    ] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="print what Prometheus reads")] = False,
    port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="serve /metrics and /health on loopback; 0: any free port"),
    ] = None,
) -> None:
    """Who is here, which round it is, and when the last answers came."""
    from feddag.deploy import status as told

    if port is not None:
        with told.StatusServer(directory, port) as server:
            print_line(console, f"serving http://{told.HOST}:{server.server_port}/metrics (Ctrl-C stops)")
            try:
                server.serve_forever()
            except Stopped as stopped:
                stop("no longer serving", stopped.code)
    found = told.read_status(directory)
    level, line = told.health(found)
    if metrics:
        print(told.metrics(found), end="")
    elif health:
        print_line(console, line)
        raise typer.Exit(told.LEVELS[level])
    else:
        print_line(console, line)
        columns = ("client", "", "feddag", "last answer", "missing because")
        if rows := told.table(found):
            show_table(console, "", columns, rows, texts=len(columns))


@app.command(cls=Command)
def up(
    experiment: ExperimentFile = None,
    nodes: Annotated[int | None, typer.Option(metavar="N", min=1, help="number of nodes; each is a client")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="encrypt, and let in only nodes with a registered key")] = False,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="the same app on Flower's simulation engine (Ray), without nodes")
    ] = False,
    settings: Settings = None,
    deadline: Annotated[
        float, typer.Option(metavar="SECONDS", min=1, help="how long an exchange waits for a client")
    ] = 600,
    out: OutOption = None,
    resume: ResumeOption = None,
    trust: TrustOption = False,
) -> None:
    """Run an experiment on Flower's programs, all on this machine.

    It starts a SuperLink and nodes, and takes everything down again.
    """
    from feddag.deploy.launch import up as run_up
    from feddag.report.terminal import show_results

    if resume is not None:
        if experiment or settings or out or nodes:
            raise FeddagError(
                "--resume goes on with the run's own experiment and takes only --trust, --tls and --deadline"
            )
        chosen, directory = resumed_experiment(resume, trust), resume
    else:
        told = [*(settings or []), *([f"clients={nodes}"] if nodes else [])]
        chosen = experiment_of(experiment, told)
        directory = out or free_directory(Path("runs") / f"{chosen.title()}-flower")
    what = "Flower's simulation of" if simulation else "a SuperLink and"
    print_line(console, f"starting {what} {chosen.clients} nodes on this machine")
    try:
        with never_at_once(), progress(console, chosen.method, chosen.rounds, chosen.training_flops) as observer:
            finished = run_up(chosen, directory, tls, simulation, resume is not None, observer, deadline=deadline)
    except Stopped as stopped:
        with contextlib.suppress(OSError):
            print_line(console, f"stopped; go on with: {how_to_resume('feddag flower up', directory, chosen)}")
        raise typer.Exit(stopped.code) from None
    show_results(console, [finished.result], chosen)
    print_line(console, f"run directory: {directory}")
