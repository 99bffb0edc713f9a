"""feddag methods | tune."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from feddag.cli.common import (
    ClientsOption,
    ColumnsOption,
    DatasetOption,
    ExperimentFile,
    PartitionOption,
    RoundsOption,
    Settings,
    console,
    experiment_of,
    stopping,
    whole_numbers,
)
from feddag.console import print_line, progress, show_table

if TYPE_CHECKING:
    from feddag.experiment import Experiment
    from feddag.records import ResultRecord

COLUMNS = ("method", "family", "must be known", "clients send", "paper", "cost")


def methods() -> None:
    """List every method: what it needs, sends and costs.

    Cost is the training FLOPs of a round as a multiple of FedAvg's, with LeNet-5, batches of 32 and the method's own
    fields at their defaults.
    """
    from feddag.methods import all_methods

    order = ("baseline", "one model", "clustered", "personalised")
    known = sorted(all_methods().values(), key=lambda kind: (order.index(kind.family), kind.name))
    rows = [(m.name, m.family, m.needs, m.sends, m.paper, f"{m.cost:.1f}") for m in known]
    show_table(console, "", COLUMNS, rows, texts=5)


def tune(
    method: Annotated[str, typer.Argument(help="the method whose fields are searched for")],
    over: Annotated[str, typer.Option(help="fields, comma-separated; lr=0.01/0.1 gives the values to try")],
    experiment: ExperimentFile = None,
    budget: Annotated[int, typer.Option(help="how many candidates are run, the defaults among them")] = 10,
    seeds: Annotated[str, typer.Option(help="comma-separated, from 100 on")] = "100,101",
    dataset: DatasetOption = None,
    columns: ColumnsOption = None,
    partition: PartitionOption = None,
    clients: ClientsOption = None,
    rounds: RoundsOption = None,
    settings: Settings = None,
    runs: Annotated[Path, typer.Option(metavar="DIR", help="folder of run directories")] = Path("runs"),
    folder: Annotated[Path, typer.Option("--out", metavar="DIR", help="where what was found is kept")] = Path("tuned"),
) -> None:
    """Search for the best values of a method's fields.

    They are what `feddag compare --tuned` then uses. Candidates are judged on validation samples, with seeds that no
    result is told for. Runs that are done are not done again, so that a search can be stopped and continued.
    """
    flags = {"dataset": dataset, "columns": columns, "partition": partition, "clients": clients, "rounds": rounds}
    chosen = experiment_of(experiment, settings, method=method, **flags)
    from feddag.runner.compare import compare_methods
    from feddag.runner.tuning import save, search, tuned_file

    def result_of(one: "Experiment") -> "ResultRecord":
        [done] = compare_methods(
            [one], runs, runs, lambda each: progress(console, f"{each.method} seed {each.seed}", each.rounds)
        )
        return done.result

    with stopping(lambda: "stopped; the same command goes on where it was", "the disk is full; make room and go on"):
        found = search(
            chosen, [item.strip() for item in over.split(",")], budget, whole_numbers("--seeds", seeds), result_of
        )
    rows = [
        (*(str(one.fields[name]) for name in found.over), f"{sum(one.accuracy) / len(one.accuracy):.4f}")
        for one in found.tried
    ]
    show_table(console, "accuracy on validation samples", (*found.over, "accuracy"), rows, texts=len(found.over))
    path = tuned_file(chosen, folder)
    save(found, path)
    print_line(console, f"kept in {path}, for `feddag compare --tuned`")
