"""feddag run | compare | fields."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from feddag.cli.common import (
    ClientsOption,
    ColumnsOption,
    DatasetOption,
    ExperimentFile,
    NoReport,
    OutOption,
    PartitionOption,
    ResumeOption,
    RoundsOption,
    SeedOption,
    Settings,
    TrustOption,
    console,
    experiment_of,
    how_to_resume,
    overrides,
    resumed_experiment,
    stopping,
    whole_numbers,
)
from feddag.console import print_line, progress, show_table
from feddag.errors import FeddagError
from feddag.files import free_directory, write_atomically

if TYPE_CHECKING:
    from feddag.experiment import Experiment
    from feddag.records import RoundRecord
    from feddag.runner.compare import Compared
    from feddag.runner.loop import Observer

BASELINES = ("local", "fedavg", "oracle")


def run(
    experiment: ExperimentFile = None,
    dataset: DatasetOption = None,
    columns: ColumnsOption = None,
    partition: PartitionOption = None,
    method: Annotated[str | None, typer.Option(help="the algorithm")] = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    settings: Settings = None,
    out: OutOption = None,
    resume: ResumeOption = None,
    trust: TrustOption = False,
    no_report: NoReport = False,
    log: Annotated[str, typer.Option(metavar="NAMES", help="also write tensorboard, mlflow or both")] = "",
) -> None:
    """Run one experiment and leave everything in a run directory."""
    flags: dict[str, Any] = {"dataset": dataset, "columns": columns, "partition": partition, "method": method}
    flags |= {"clients": clients, "rounds": rounds, "seed": seed}
    if resume is not None:
        if experiment or settings or out or any(value is not None for value in flags.values()):
            raise FeddagError("--resume goes on with the run's own experiment and takes no other option")
        chosen, directory = resumed_experiment(resume, trust), resume
    else:
        chosen = experiment_of(experiment, settings, **flags)
        from feddag.runner.naming import directory_name

        directory = out or free_directory(Path("runs") / directory_name(chosen))
    _run(chosen, directory, resume is not None, log)
    print_line(console, f"run directory: {directory}")
    if not no_report:
        from feddag.report import write_report

        print_line(console, f"report: {write_report(directory)}")


def _run(chosen: "Experiment", directory: Path, resume: bool, log: str) -> None:
    """Run, with a bar on the way, and show what came out."""
    from feddag.methods import method_label
    from feddag.report.personal import show_personal
    from feddag.report.terminal import show_changes, show_clustering, show_results
    from feddag.runner.directory import RunDirectory
    from feddag.runner.run import run as run_experiment
    from feddag.runner.verdict import verdict_of

    _say_trainer(chosen)
    observers: list[Observer] = []
    if log:
        from feddag.report.loggers import loggers

        observers += loggers(log, directory, chosen)

    go_on = f"go on with: {how_to_resume('feddag run', directory, chosen)}"

    def interrupted() -> str:
        return f"stopped; {go_on}" if RunDirectory(directory).experiment.exists() else "stopped before it began"

    with (
        stopping(interrupted, f"the disk is full; make room and {go_on}"),
        progress(console, method_label(chosen.method), chosen.rounds, chosen.training_flops) as bar,
    ):
        finished = run_experiment(chosen, directory, resume=resume, observer=_Observers(bar, observers))
    print_line(console, str(verdict_of(directory, chosen.resolved(), finished.result)))
    show_results(console, [finished.result], chosen)
    show_clustering(console, finished.result)
    show_changes(console, finished.result)
    show_personal(console, finished.result)


def _say_trainer(experiment: "Experiment") -> None:
    """One line where the fast trainer is missing."""
    from feddag import native

    if experiment.trainer == "auto" and not native.available():
        print_line(console, f"training with PyTorch: {native.reason()}")


class _Observers:
    """The bar, and others that see each round."""

    def __init__(self, bar: "Observer", others: "Sequence[Observer]") -> None:
        self._all = [*others, bar]
        self.answered = getattr(bar, "answered", None)

    def __call__(self, record: "RoundRecord") -> None:
        for observer in self._all:
            observer(record)


def compare(
    experiment: ExperimentFile = None,
    methods: Annotated[str | None, typer.Option(help="comma-separated; default: feddag and the baselines")] = None,
    seeds: Annotated[str, typer.Option(help="comma-separated")] = "0",
    dataset: DatasetOption = None,
    columns: ColumnsOption = None,
    partition: PartitionOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    settings: Settings = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="folder of run directories")] = Path("runs"),
    results: Annotated[Path, typer.Option(metavar="DIR", help="folder of kept results")] = Path("results"),
    keep: Annotated[bool, typer.Option("--keep", help="also keep each result in --results")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="run again what already has a result")] = False,
    level: Annotated[
        bool, typer.Option("--level", help="equal stabilisers, and as much training for each as the costliest takes")
    ] = False,
    tuned: Annotated[bool, typer.Option("--tuned", help="with the values that `feddag tune` found, for all")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="also write all results here")
    ] = None,
    no_report: NoReport = False,
) -> None:
    """Run several methods on the same partitions, for one table.

    It shows mean ± standard deviation over seeds, and how far each is from the last method, seed by seed. Finished
    results are taken from --runs and --results, and unfinished runs go on where they stopped, so a long comparison can
    be stopped, continued, and extended by a method or a seed.
    """
    flags = {"dataset": dataset, "columns": columns, "partition": partition, "clients": clients, "rounds": rounds}
    given = overrides(settings, **flags)
    if level:
        given = _stabilised(experiment, given)
    experiments = _compared_experiments(experiment, given, methods, whole_numbers("--seeds", seeds))
    if tuned:
        from feddag.runner.tuning import with_tuned

        experiments = with_tuned(experiments)
    compared = _compare(experiments, runs, results, keep, fresh, level)
    found = [each.result for each in compared]
    if json_file:
        write_atomically(json_file, json.dumps(found, indent=1) + "\n")
    if not no_report:
        from feddag.report import find_run, write_comparison

        recorded = [find_run(each.experiment, each.result, runs) for each in compared]
        written = write_comparison(recorded, runs / "comparison.html")
        print_line(console, f"report: {written}")


def _stabilised(file: Path | None, given: dict[str, Any]) -> dict[str, Any]:
    """What the command line sets, and below what it and the file say the stabilisers of a level comparison."""
    from feddag.files import read_toml
    from feddag.runner.level import stabilisers

    told = read_toml(file) if file else {}
    return {name: value for name, value in stabilisers().items() if name not in told} | given


def _compared_experiments(
    file: Path | None, given: dict[str, Any], methods: str | None, seeds: Sequence[int]
) -> "list[Experiment]":
    """One experiment for each method and seed; without named methods, the default one and the baselines."""
    from feddag.experiment import DEFAULT_METHOD, read_experiments

    names = [name.strip() for name in methods.split(",")] if methods else [*BASELINES, DEFAULT_METHOD]
    experiments = read_experiments(file, given, list(dict.fromkeys(names)), list(dict.fromkeys(seeds)))
    first = experiments[0]
    if not methods and first.divide(first.load_dataset()).truth is None:
        print_line(console, f"without oracle: partition = '{first.partition}' has no true groups")
        experiments = [item for item in experiments if not item.method_class.needs_truth]
    return experiments


def _compare(
    experiments: "Sequence[Experiment]", runs: Path, results: Path, keep: bool, fresh: bool, level: bool
) -> "list[Compared]":
    """Run what has no result yet, each with a bar, and show the table."""
    from feddag.methods import method_label
    from feddag.report.terminal import show_results
    from feddag.runner.compare import compare_methods
    from feddag.runner.level import compare_level, level_note

    def watching(chosen: "Experiment") -> "AbstractContextManager[Observer]":
        title = f"{method_label(chosen.method)} seed {chosen.seed}"
        return progress(console, title, chosen.rounds, chosen.training_flops)

    def run_all(chosen: "Sequence[Experiment]", keep: bool = keep) -> "Iterator[Compared]":
        for each in compare_methods(chosen, runs, results, watching, keep=keep, fresh=fresh, counted=level):
            yield each
            if each.directory is None:
                known = each.experiment
                print_line(console, f"{known.method} seed {known.seed}: kept result {known.key()}")

    _say_trainer(experiments[0])
    with stopping(
        lambda: "stopped; the same command goes on where it was",
        "the disk is full; make room, and the same command goes on where it was",
    ):
        if level:
            print_line(console, "two rounds of each method tell which takes the most training")
            compared = compare_level(experiments, run_all, partial(run_all, keep=False))
        else:
            compared = list(run_all(experiments))
    show_results(console, [each.result for each in compared], experiments[0])
    if level:
        print_line(console, level_note([(each.experiment.resolved(), each.result) for each in compared]))
    for each in compared:
        if each.directory is not None:
            print_line(
                console, f"run directory of {each.experiment.method} seed {each.experiment.seed}: {each.directory}"
            )
    return compared


def fields() -> None:
    """List every field of an experiment.

    The same names stand in TOML files, after --set and in Python.
    """
    from feddag.experiment import Experiment
    from feddag.methods import all_methods

    rows = list(Experiment.model_fields.items())
    show_table(console, "every experiment", ("field", "default", "meaning"), [_field_row(*row) for row in rows], 3)
    methods = all_methods()
    for method in methods.values():
        own = method.Settings.model_fields
        # A method that only has other defaults than its base is told by those.
        bases = [each for each in methods.values() if each.Settings in method.Settings.__mro__[1:]]
        base = next((each for each in bases if set(each.Settings.model_fields) == set(own)), None)
        known = base.Settings.model_fields if base else {}
        shown = [_field_row(*row) for row in own.items() if not known or row[1].default != known[row[0]].default]
        title = f"method = {method.name}" + (f" (as {base.name}, but for these defaults)" if base else "")
        if shown:
            show_table(console, f"\n{title}", ("field", "default", "meaning"), shown, 3)


def _field_row(name: str, field: Any) -> tuple[str, str, str]:
    return name, "" if field.default is None else str(field.default), field.description or ""
