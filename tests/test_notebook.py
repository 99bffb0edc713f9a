"""The notebook: it runs from its first cell to its last, and what is kept in it is small and tells no place."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PATH = Path(__file__).parent.parent / "docs/notebook.ipynb"


@pytest.mark.filterwarnings("ignore")  # of Jupyter's own making
def test_the_notebook_runs_and_says_what_it_said(tmp_path: Path) -> None:
    kept = nbformat.read(PATH, as_version=4)
    fresh = nbformat.read(PATH, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(fresh, timeout=300, kernel_name="python3", resources=where).execute()
    assert (tmp_path / "report.html").exists()
    kinds = [[output.output_type for output in cell.get("outputs", ())] for cell in (*kept.cells, *fresh.cells)]
    assert kinds[: len(kept.cells)] == kinds[len(kept.cells) :] and any(kinds)
    first = next(cell.outputs[0].data["text/html"] for cell in fresh.cells if cell.cell_type == "code")
    assert "3 groups found, exactly the true ones" in first and "feddag.compare(run.experiment)" in first


def test_what_is_kept_is_small_and_names_no_place() -> None:
    text = PATH.read_text()
    assert len(text) < 200_000
    assert not [place for place in ("/home/", "/tmp/", "/root/", "/Users/", "site-packages") if place in text]
