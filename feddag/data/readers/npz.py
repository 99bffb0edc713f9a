"""The npz file: the user's own, and the one that datasets are kept in."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.readers.samples import Parts, Samples, reading
from feddag.errors import FeddagError, nearest

NPZ_FIELDS = {"x": "x", "y": "y", "client": "owner", "domain": "domain"}  # name in the file -> field of Samples


def read_npz(path: Path) -> Parts:
    """`x`, `y`, optional `client` and `domain`, without a train/test split or each with `_train` and `_test`.

    If the file holds `classes` or `domains`, `y` or `domain` are indices into them.
    """
    with reading(path, "a complete .npz archive of plain arrays"), path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError("it is not a complete zip archive")
        with np.load(file, allow_pickle=False) as archive:
            held = {name: archive[name] for name in archive.files}
    endings = ("_train", "_test") if "x_train" in held else ("",)
    needed = [f"{name}{ending}" for ending in endings for name in ("x", "y")]
    allowed = [f"{name}{ending}" for ending in endings for name in NPZ_FIELDS] + ["classes", "domains"]
    needed += [f"{name}_train" for name in NPZ_FIELDS if f"{name}_test" in held]
    for name in needed:
        if name not in held:
            raise FeddagError(f"{path} holds no array '{name}'; it needs {', '.join(needed)}")
    for name in held:
        if name not in allowed:
            hint = nearest(name, allowed)
            raise FeddagError(f"{path} holds an array {name!r}; allowed are {', '.join(allowed)}{hint}")

    def part(ending: str) -> Samples:
        found = {field: held[f"{name}{ending}"] for name, field in NPZ_FIELDS.items() if f"{name}{ending}" in held}
        for field, names in (("y", "classes"), ("domain", "domains")):
            if field in found and names in held:
                found[field] = _named(path, found[field], names, held[names])
        return Samples(**found)

    return part(endings[0]), part(endings[1]) if len(endings) == 2 else None


def _named(path: Path, index: NDArray[Any], names_key: str, names: NDArray[Any]) -> NDArray[Any]:
    if names.ndim != 1 or index.dtype.kind not in "iu" or (index < 0).any() or (index >= len(names)).any():
        raise FeddagError(f"{path} holds '{names_key}', so its indices must be integers 0 .. {names.size - 1}")
    named: NDArray[Any] = names[index]
    return named
