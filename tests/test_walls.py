"""The walls of the house: a method and the server's mathematics cannot reach a sample."""

import ast
from pathlib import Path

import pytest

import feddag
from feddag.engines.local import LocalEngine
from feddag.federation import Federation

PACKAGE = Path(feddag.__file__).parent
FORBIDDEN = ("feddag.data", "feddag.engines", "feddag.run", "feddag.cli")


def forbidden_imports(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return {name for name in names if any(name == room or name.startswith(room + ".") for room in FORBIDDEN)}


@pytest.mark.parametrize("room", ["methods", "server", "client"])
def test_rooms_do_not_reach_the_samples_of_all_clients(room: str) -> None:
    for path in (PACKAGE / room).glob("*.py"):
        assert not forbidden_imports(path), path.name


def test_the_contract_itself_knows_no_samples() -> None:
    assert not forbidden_imports(PACKAGE / "federation.py")


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
