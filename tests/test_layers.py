"""Packages import only what stands left of them in the picture; methods and the server reach no sample."""

import ast
from pathlib import Path

import pytest

import feddag
from feddag.engines.local import LocalEngine
from feddag.federation import Federation

PACKAGE = Path(feddag.__file__).parent
ORDER = [  # the picture of docs/design.md from left to right; each imports only what stands before it
    *("_version", "errors", "files", "system", "rng", "own_code", "packing", "stateful", "records"),
    *("weights", "heads", "encoders", "native", "models", "data", "client", "answers", "federation"),
    *("engines", "server", "estimator", "methods", "testing"),
    *(
        "fields",
        "experiment",
        "runner",
        "console",
        "report",
        "deploy",
        "bench",
        "reproduce",
        "cli",
        "__main__",
        "__init__",
    ),
]
CLOSED = {  # what holds the samples of all clients, or leads to them, and who may not import it
    "data": ("client", "federation", "server", "methods", "testing"),
    "engines": ("server", "methods", "testing"),
}
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    """The packages and modules that a file imports from, also inside functions and for types only."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "feddag":
            names += [f"feddag.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    found = {name.split(".")[1] for name in names if name.startswith("feddag.")}
    return {"__init__" if name == "__version__" else name for name in found} - {layer(path)}


def test_every_package_is_in_the_picture() -> None:
    assert {layer(path) for path in FILES} == set(ORDER)
    design = (PACKAGE.parent / "docs/design.md").read_text()
    for name in ORDER:
        assert f"`{name}/`" in design or f"`{name}.py`" in design or name.startswith("_"), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_imports_what_stands_to_its_right_or_is_closed_to_it(path: Path) -> None:
    place = ORDER.index(layer(path))
    for other in imported_layers(path):
        assert ORDER.index(other) < place, f"{layer(path)} imports {other}"
        assert layer(path) not in CLOSED.get(other, ()), f"{layer(path)} imports {other}"


def test_nothing_a_method_is_given_leads_to_samples(small_data, worker_config) -> None:
    engine = LocalEngine(small_data, worker_config, workers=1)
    federation = Federation(engine, worker_config.model, seed=0, participation=1.0)
    public = {
        name: value for name in dir(federation) if not name.startswith("_") for value in [getattr(federation, name)]
    }
    engine.close()
    assert not any(value is engine or value is small_data for value in public.values())
    # Private names are kept private by the linter (SLF001), which `make test` runs.
    assert "SLF" in (PACKAGE.parent / "pyproject.toml").read_text()
