"""The npz file: the user's own, and the one that datasets are kept in."""

import math
import os
import struct
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from feddag.data.large import check_room
from feddag.data.readers.limits import Budget, most_bytes, open_regular, size_of
from feddag.data.readers.samples import Parts, Samples, reading
from feddag.errors import FeddagError, nearest

NPZ_FIELDS = {"x": "x", "y": "y", "client": "owner", "domain": "domain"}  # name in the file -> field of Samples
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what NumPy writes; LZMA may ask for gigabytes by itself
LONGEST_LIST = 2**16  # bytes of an archive's list of contents, which is read whole: ten arrays take some 700
ENDS = (98, 42, 22)  # bytes from its end to the records that end an archive; the first two are there beyond 4 GB


def read_npz(path: Path) -> Parts:
    """`x`, `y`, optional `client` and `domain`, without a train/test split or each with `_train` and `_test`.

    If the file holds `classes` or `domains`, `y` or `domain` are indices into them.
    """
    held = _arrays(path, _endings)
    endings = _endings(path, held)

    def part(ending: str) -> Samples:
        found = {field: held[f"{name}{ending}"] for name, field in NPZ_FIELDS.items() if f"{name}{ending}" in held}
        for field, names in (("y", "classes"), ("domain", "domains")):
            if field in found and names in held:
                found[field] = _named(path, found[field], names, held[names])
        return Samples(**found)

    return part(endings[0]), part(endings[1]) if len(endings) == 2 else None


def read_inputs(path: Path) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """`x`, and `y` where the file has it: for a model that is to say what the samples are."""
    held = _arrays(path, _check_inputs)
    y = held.get("y")
    return held["x"], y if y is None or "classes" not in held else _named(path, y, "classes", held["classes"])


def _check_inputs(path: Path, names: Collection[str]) -> None:
    allowed = [*NPZ_FIELDS, "classes", "domains"]
    if "x" not in names or not set(names) <= set(allowed):
        raise FeddagError(f"{path} must hold an array 'x' of samples; it may hold {', '.join(allowed[1:])} as well")


def _arrays(path: Path, check: Callable[[Path, Collection[str]], object]) -> dict[str, NDArray[Any]]:
    """All arrays of an archive, whose names are checked before anything is unpacked."""
    with reading(path, "a complete .npz archive of plain arrays"), open_regular(path) as file:
        _check_end(file)
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            if len(entries) != len(archive.infolist()):
                raise ValueError("it holds two arrays of one name")
            check(path, entries)
            for entry in entries.values():
                if entry.compress_type not in PACKINGS or not entry.filename.endswith(".npy"):
                    raise ValueError("it is not packed as NumPy does")
            mapped = _too_large(entries, size_of(file))
            check_room(sum(entry.file_size for entry in mapped.values()))
            others = {name: entry for name, entry in entries.items() if name not in mapped}
            Budget().take(path, sum(entry.file_size for entry in others.values()), size_of(file))
            held = {name: _unpacked(archive, entry) for name, entry in others.items()}
            return held | {name: _mapped(archive, file, entry) for name, entry in mapped.items()}


def _too_large(entries: Mapping[str, zipfile.ZipInfo], packed: int) -> dict[str, zipfile.ZipInfo]:
    """Samples that are mapped from the file, because all together would take more memory than is allowed."""
    if sum(entry.file_size for entry in entries.values()) <= most_bytes(packed):
        return {}
    return {
        name: entry
        for name, entry in entries.items()
        if name in ("x", "x_train", "x_test") and entry.compress_type == zipfile.ZIP_STORED
    }


def _mapped(archive: zipfile.ZipFile, file: BinaryIO, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """An array that was stored as it is, mapped and not read."""
    with archive.open(entry) as stream:  # checks that the file has such an entry at this place
        shape, by_columns, dtype = _header(stream)
        header = stream.tell()
    if (
        by_columns
        or entry.compress_size != entry.file_size
        or math.prod(shape) * dtype.itemsize + header != entry.file_size
    ):
        raise ValueError(f"{entry.filename} cannot be mapped from its archive")
    file.seek(entry.header_offset + 26)  # where the lengths of the entry's name and of what follows it stand
    start = file.tell() + 4 + sum(struct.unpack("<HH", file.read(4))) + header
    if start + math.prod(shape) * dtype.itemsize > size_of(file):
        raise ValueError("it is not a complete zip archive")
    return np.memmap(file, dtype, "r", start, shape)


def _check_end(file: BinaryIO) -> None:
    """Refuse an archive that is not complete, or whose list of contents would take more memory than its samples."""
    file.seek(-min(size_of(file), ENDS[0]), os.SEEK_END)
    tail = file.read().rjust(ENDS[0], b" ")
    large, locator, end = (tail[-start:][:length] for start, length in zip(ENDS, (56, 20, 22), strict=True))
    if not end.startswith(b"PK\5\6") or end[-2:] != b"\0\0":  # the last two: no comment follows
        raise ValueError("it is not a complete zip archive")
    (length,) = struct.unpack_from("<I", end, 12)
    if locator.startswith(b"PK\6\7"):
        (length,) = struct.unpack_from("<Q", large, 40) if large.startswith(b"PK\6\6") else (LONGEST_LIST + 1,)
    if length > LONGEST_LIST:
        raise ValueError("its list of contents is too long")


def _endings(path: Path, names: Collection[str]) -> tuple[str, ...]:
    """What the names of its arrays end in; refuses names that are missing or unknown."""
    endings = ("_train", "_test") if "x_train" in names else ("",)
    needed = [f"{name}{ending}" for ending in endings for name in ("x", "y")]
    allowed = [f"{name}{ending}" for ending in endings for name in NPZ_FIELDS] + ["classes", "domains"]
    needed += [f"{name}_train" for name in NPZ_FIELDS if f"{name}_test" in names]
    for name in needed:
        if name not in names:
            raise FeddagError(f"{path} holds no array '{name}'; it needs {', '.join(needed)}")
    for name in names:
        if name not in allowed:
            hint = nearest(name[:100], allowed)
            raise FeddagError(f"{path} holds an array {name[:100]!r}; allowed are {', '.join(allowed)}{hint}")
    return endings


def _unpacked(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    """One array. An archive gives out no more bytes than its list says, whatever they unpack to."""
    with archive.open(entry) as stream:
        size = array_size(stream)
        if stream.tell() + size != entry.file_size:
            raise ValueError(f"{entry.filename} announces {size} bytes, and its archive another number")
    with archive.open(entry) as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
        return array


def read_array(path: Path, stream: IO[bytes], budget: Budget, packed: int) -> NDArray[Any]:
    """The next array of a stream of several, which came of so many bytes of the file on disk."""
    start = stream.tell()
    budget.take(path, array_size(stream), packed)
    stream.seek(start)
    array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array


def array_size(stream: IO[bytes]) -> int:
    """How many bytes the array of an .npy stream announces; the stream then stands at the first of them."""
    shape, _, dtype = _header(stream)
    return math.prod(shape) * dtype.itemsize


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether columns come first, and type of the array of an .npy stream."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError("it holds an array that is not of plain numbers or text")
    shape, by_columns, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    if dtype.kind not in "biufU" or any(side < 0 for side in shape):
        raise ValueError(f"it holds an array of {dtype}, and only plain numbers and text are read")
    return shape, by_columns, dtype


def _named(path: Path, index: NDArray[Any], names_key: str, names: NDArray[Any]) -> NDArray[Any]:
    if names.ndim != 1 or index.dtype.kind not in "iu" or (index < 0).any() or (index >= len(names)).any():
        raise FeddagError(f"{path} holds '{names_key}', so its indices must be integers 0 .. {names.size - 1}")
    named: NDArray[Any] = names[index]
    return named
