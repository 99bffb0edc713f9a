"""Code that a user brings: found by `module:name`, and told apart from any other version of it by its content."""

import ast
import hashlib
import importlib.util
import inspect
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from feddag.errors import FeddagError, one_line, short

PACKAGE = Path(__file__).parent


def resolve(field: str, name: str) -> Any:
    """What `module:name` names; modules in the current folder are found, too. `field` is what a message calls it.

    >>> resolve("method", "collections:Counter").__name__
    'Counter'
    """
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # a module can raise anything while it is imported
        said = str(error) if isinstance(error, ImportError | AttributeError | ValueError) else repr(error)
        raise FeddagError(
            f"{field} = '{short(one_line(name))}' could not be imported: {short(one_line(said), 300)}"
        ) from error


def takes(found: object, *arguments: object) -> bool:
    """Whether something can be called with these arguments.

    >>> takes(len, "text"), takes(len, 1, 2), takes("len")
    (True, False, False)
    """
    try:
        inspect.signature(found).bind(*arguments)  # type: ignore[arg-type]
    except TypeError:
        return False
    except ValueError:  # some functions of C do not tell
        return callable(found)
    return True


def source_files(module: str) -> dict[str, Path]:
    """The files that a module's behaviour hangs on: its own, and those of every module of the user's that it imports.

    Left out is what is installed (Python itself, other people's packages) and this package: they have versions.
    """
    found: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        spec = _spec(name)
        if name in found or spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            continue
        path = Path(spec.origin).resolve()
        if name != module and _is_installed(path, beside=module, name=name):
            continue
        found[name] = path
        package = name if spec.submodule_search_locations else name.rpartition(".")[0]
        waiting += [*_imported(path, package), *_parents(name)]
    return found


def source_fingerprint(name: str) -> str:
    """The content of every file that what a `module:name` names may hang on."""
    files = source_files(name.partition(":")[0])
    return hashlib.sha256(
        "".join(f"{module} {fingerprint(files[module])}\n" for module in sorted(files)).encode()
    ).hexdigest()


def fingerprint(path: Path) -> str:
    """The content of a file, or of every file in a folder."""
    hasher = hashlib.sha256()
    for file in [path] if path.is_file() else sorted(item for item in path.rglob("*") if item.is_file()):
        hasher.update(b"" if file == path else str(file.relative_to(path)).encode())
        with file.open("rb") as content:
            hasher.update(hashlib.file_digest(content, "sha256").digest())
    return hasher.hexdigest()


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # a name inside a module, or something that is not there
        return None


def _parents(name: str) -> Iterator[str]:
    while name := name.rpartition(".")[0]:
        yield name


def _imported(path: Path, package: str) -> Iterator[str]:
    """The modules that a file imports anywhere, also inside functions; a name taken from one may be one as well."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _is_installed(path: Path, beside: str, name: str) -> bool:
    if path.is_relative_to(PACKAGE):
        return True
    if name.partition(".")[0] == beside.partition(".")[0]:
        return False  # the same package as the module that was named: its version may well stay the same
    places = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    return any(path.is_relative_to(Path(place).resolve()) for place in places)
