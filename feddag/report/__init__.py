"""From a run directory to one page that opens from disk: `write_report` for a run, `write_comparison` for several."""

from collections.abc import Sequence
from pathlib import Path

from feddag.files import write_atomically
from feddag.report.comparison import comparison_document
from feddag.report.page import page
from feddag.report.recorded import RecordedRun, find_run, read_run
from feddag.report.run import run_document

__all__ = ["RecordedRun", "find_run", "read_run", "write_comparison", "write_report"]


def write_report(directory: Path, out: Path | None = None) -> Path:
    """Write a run's page, `RUN_DIR/report.html` unless told otherwise; an unfinished run's shows what there is."""
    target = out or directory / "report.html"
    write_atomically(target, page(run_document(read_run(directory))))
    return target


def write_comparison(runs: Sequence[RecordedRun], out: Path) -> Path:
    """Write the page that lays several finished runs side by side."""
    write_atomically(out, page(comparison_document(runs)))
    return out
