"""A finished run as an object to look at: in a notebook, as a table, as a chart, as a page."""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddag.errors import FeddagError, counted
from feddag.experiment import Experiment
from feddag.report.clients import accuracies_by_client
from feddag.report.recorded import read_run
from feddag.runner import finished
from feddag.runner import run as running
from feddag.runner.loop import Observer
from feddag.runner.verdict import Verdict, method_name, verdict, verdict_of

if TYPE_CHECKING:  # extras: loaded where they are asked for
    from matplotlib.axes import Axes
    from pandas import DataFrame


class Run(finished.Run):
    """A finished run: what was asked, what came out, and the models."""

    @property
    def verdict(self) -> Verdict:
        """What the result means, beside the baselines that lie in the same folder."""
        if self._keep_alive is not None:  # what lies beside a temporary directory is nobody's business
            return verdict(self.result, how_to_compare="feddag.compare(run.experiment)")
        return verdict_of(self.directory, self.experiment.resolved(), self.result)

    def __repr__(self) -> str:
        return f"<Run of {self._title()}: {self.verdict.headline}>"

    def _repr_html_(self) -> str:
        """For a notebook: what came out, in words and in four numbers."""
        block, tuned, groups = self.result["accuracy"], self.result["accuracy_finetuned"], self.clusters
        numbers = {"accuracy": f"{block['mean']:.3f}", "worst tenth of clients": f"{block['worst_decile']:.3f}"}
        numbers |= {"after local epochs": f"{tuned['mean']:.3f}"} if tuned else {}
        numbers |= {"groups": str(len(set(groups) - {None}))} if groups else {}
        cells = "".join(f"<td><small>{name}</small><br><b>{value}</b></td>" for name, value in numbers.items())
        meant = self.verdict
        return (
            f"<p><b>{html.escape(meant.headline)}</b><br>Next: {html.escape(meant.next)}<br>"
            f"<small>{html.escape(self._title())}</small></p><table><tr>{cells}</tr></table>"
        )

    def _title(self) -> str:
        result = self.result
        what = f"{method_name(result)} on {Path(result['dataset']).name}, {result['partition']}"
        return f"{what}, {counted(result['clients'], 'client')}, {counted(result['rounds'], 'round')}"

    def to_frame(self) -> "DataFrame":
        """A row for each client: its cluster, its true group where that is known, and its accuracies."""
        pandas = extra("pandas", "run.to_frame()")
        recorded = read_run(self.directory)
        groups, truth = recorded.clusters(), self.truth
        blocks = accuracies_by_client(recorded)
        columns: dict[str, dict[int, Any]] = {"cluster": dict(groups)} if groups else {}
        columns |= {"true group": dict(enumerate(truth))} if truth else {}
        columns |= {name: dict(block) for name, block in blocks.items()}
        clients = sorted({client for block in blocks.values() for client in block})
        rows = {name: [known.get(client) for client in clients] for name, known in columns.items()}
        made: DataFrame = pandas.DataFrame(rows, index=pandas.Index(clients, name="client"))
        return made

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Accuracy by round: the mean over clients and the worst tenth of them. Draws on `ax` if one is given."""
        pyplot = extra("matplotlib.pyplot", "run.plot()")
        ax = ax or pyplot.subplots()[1]
        history = self.history
        rounds = [record["round"] for record in history]
        ax.plot(rounds, [record["accuracy"]["mean"] for record in history], label="mean over clients")
        worst = [record["accuracy"]["worst_decile"] for record in history]
        ax.plot(rounds, worst, linestyle=":", label="worst tenth of clients")
        ax.set(xlabel="round", ylabel="balanced accuracy", title=self._title())
        ax.legend()
        return ax

    def report(self, out: str | Path | None = None) -> Path:
        """Write the run's page, `RUN_DIR/report.html` unless told otherwise, and say where it is."""
        from feddag.report import write_report

        if out is None and self._keep_alive is not None:
            raise FeddagError("the run lies in a temporary directory; say where its page goes: run.report('page.html')")
        return write_report(self.directory, None if out is None else Path(out))


def run(
    experiment: Experiment, out: str | Path | None = None, resume: bool = False, observer: Observer | None = None
) -> Run:
    return _presented(running.run(experiment, out, resume, observer))


def load(directory: str | Path, trust: bool = False) -> Run:
    return _presented(running.load(directory, trust))


run.__doc__, load.__doc__ = running.run.__doc__, running.load.__doc__  # the same, but for what they return


def _presented(found: finished.Run) -> Run:
    return Run(found.directory, found.experiment, found.result, found._keep_alive)  # noqa: SLF001 - what it is made of


def extra(module: str, what: str) -> Any:
    """A package that not everybody needs; one sentence where it is missing."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise FeddagError(f"{what} needs {module.partition('.')[0]}: pip install 'feddag[notebook]'") from None
