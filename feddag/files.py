"""Files that are written whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: a reader never sees half of it, a full disk leaves the old one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "new" / "a.txt", "text")
    ...     (Path(folder) / "new" / "a.txt").read_text()
    'text'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def free_directory(wanted: Path) -> Path:
    """The wanted directory, or the first of `-2`, `-3`, ... that is free.

    >>> free_directory(Path("does-not-exist")).name
    'does-not-exist'
    """
    number, path = 1, wanted
    while path.exists():
        number += 1
        path = wanted.with_name(f"{wanted.name}-{number}")
    return path
