"""Trees of arrays, numbers and text as one file with a checksum: checkpoints, and what clients remember."""

import hashlib
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.numpy import save

from feddag.errors import FeddagError
from feddag.files import check_plain, write_atomically
from feddag.packing import Arrays, pack, unpack

LARGEST_TREE = 2**34  # bytes of a checkpoint, a client's state, or what led to the groups


class DamagedError(Exception):
    """A file whose content is not what was written."""


def save_tree(path: Path, tree: Any, *, durable: bool = True) -> None:
    """Save nested dicts and lists of tensors, arrays, numbers and text as one safetensors file with a checksum."""
    text, arrays = pack(tree)
    content = save(arrays, metadata={"tree": text, "sha256": _checksum(text, arrays)})
    write_atomically(path, content, durable=durable)


def load_tree(path: Path) -> Any:
    """What `save_tree` saved; raises DamagedError if the file is not whole."""
    try:
        check_plain(path, LARGEST_TREE)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        if _checksum(metadata.get("tree", ""), arrays) != metadata.get("sha256"):
            raise DamagedError(f"{path.name}: the checksum does not match")
        return unpack(metadata["tree"], arrays)
    except (FeddagError, DamagedError):
        raise
    except Exception as error:  # damage can make the readers of arrays and of text raise nearly anything
        raise DamagedError(f"{path.name}: {error}") from None


def _checksum(text: str, arrays: Arrays) -> str:
    hasher = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        hasher.update(f"{name}{arrays[name].shape}{arrays[name].dtype}".encode())
        hasher.update(arrays[name].tobytes())
    return hasher.hexdigest()
