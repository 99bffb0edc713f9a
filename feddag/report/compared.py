"""Several methods compared, from Python: `feddag.compare`."""

import contextlib
import html
import io
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from feddag.errors import FeddagError
from feddag.experiment import Experiment, read_experiments
from feddag.records import ResultRecord
from feddag.report import find_run, write_comparison
from feddag.report.best import say_best, shown_names
from feddag.report.presented import extra
from feddag.report.terminal import RESULT_COLUMNS, result_row, show_results
from feddag.runner.compare import Compared, compare_methods
from feddag.runner.loop import Observer
from feddag.runner.verdict import BASELINES

if TYPE_CHECKING:
    from pandas import DataFrame


class Comparison:
    """Results of several methods on identical partitions."""

    def __init__(self, compared: Sequence[Compared], runs: Path, keep_alive: object = None) -> None:
        self._compared, self._runs = compared, runs
        self._keep_alive = keep_alive  # a temporary directory lives as long as what is in it

    @property
    def results(self) -> list[ResultRecord]:
        """What came out of each run, as in result.json: method by method, seed by seed."""
        return [each.result for each in self._compared]

    def __str__(self) -> str:
        """As `feddag compare` shows it: which is best, and a table."""
        screen = io.StringIO()
        show_results(Console(file=screen, width=200), self.results, self._compared[0].experiment)
        return screen.getvalue().rstrip()

    def __repr__(self) -> str:
        return f"<Comparison: {say_best(self._by_method())}>"

    def _repr_html_(self) -> str:
        lines = [RESULT_COLUMNS, *(result_row(results, name) for name, results in self._by_method().items())]
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
        return f"<p><b>{html.escape(say_best(self._by_method()))}</b></p><table>{rows}</table>"

    def _by_method(self) -> dict[str, list[ResultRecord]]:
        names = shown_names(self.results)
        by_method: dict[str, list[ResultRecord]] = {}
        for result in self.results:
            by_method.setdefault(names[result["method"]], []).append(result)
        return by_method

    def to_frame(self) -> "DataFrame":
        """A row for each method, as in the table of `feddag compare`: text, with mean ± std over seeds."""
        pandas = extra("pandas", "comparison.to_frame()")
        rows = [result_row(results, name) for name, results in self._by_method().items()]
        made: DataFrame = pandas.DataFrame(rows, columns=list(RESULT_COLUMNS)).set_index("method")
        return made

    def report(self, out: str | Path) -> Path:
        """Write the page that lays the runs side by side, and say where it is."""
        found = [find_run(each.experiment, each.result, self._runs) for each in self._compared]
        return write_comparison(found, Path(out))


def compare(
    experiment: Experiment,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    runs: str | Path | None = None,
) -> Comparison:
    """Run several methods on the same partitions: without named ones the baselines and the experiment's own.

    Seeds are the experiment's own, unless others are named: from two on, differences come with how sure they are.
    Run directories go to `runs` (a temporary directory if none is given); what has finished there is not run again, and
    what was stopped goes on.

    >>> found = compare(Experiment(clients=4, groups=2, rounds=1, epochs=1, workers=1), ["local", "fedavg"])
    >>> [result["method"] for result in found.results]
    ['local', 'fedavg']
    >>> found.to_frame().loc["fedavg", "true"]
    '2'
    """
    if isinstance(methods, str):
        raise FeddagError(f"methods = '{methods}' is text; give a list of methods, such as ['{methods}']")
    names = list(methods or [*BASELINES, experiment.method])
    fields = experiment.model_dump(exclude_unset=True)
    experiments = read_experiments(
        None, fields, list(dict.fromkeys(names)), list(dict.fromkeys(seeds or [experiment.seed]))
    )
    if methods is None and experiments[0].divide(experiments[0].load_dataset()).truth is None:
        experiments = [item for item in experiments if not item.method_class.needs_truth]
    keep_alive = tempfile.TemporaryDirectory(prefix="feddag-runs-") if runs is None else None
    folder = Path(runs or keep_alive.name)  # type: ignore[union-attr]
    return Comparison(list(compare_methods(experiments, folder, folder, _nobody_watches)), folder, keep_alive)


@contextlib.contextmanager
def _nobody_watches(experiment: Experiment) -> Iterator[Observer]:
    yield lambda record: None
