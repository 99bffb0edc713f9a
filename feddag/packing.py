"""Nested dicts and lists of tensors, arrays, numbers and text as one text and named arrays. Nothing is unpickled."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = dict[str, NDArray[Any]]
PLAIN = frozenset((type(None), bool, int, float, str))
Special = Callable[[Any], tuple[str, Any] | None]


def pack(tree: Any, special: Special = lambda item: None) -> tuple[str, Arrays]:
    """The tree as JSON text and the arrays it names. `special` may give other items a kind and plain content.

    >>> pack({"w": torch.zeros(2, dtype=torch.float64)})
    ('{"$dict": [["w", {"$tensor": "000000"}]]}', {'000000': array([0., 0.])})
    """
    arrays: Arrays = {}
    names: dict[int, str] = {}

    def encode(item: Any) -> Any:
        if isinstance(item, Tensor | np.ndarray):
            if id(item) not in names:  # one tensor in two places is stored once
                names[id(item)] = f"{len(names):06d}"
                arrays[names[id(item)]] = np.asarray(item.numpy() if isinstance(item, Tensor) else item, order="C")
            return {"$tensor" if isinstance(item, Tensor) else "$array": names[id(item)]}
        if isinstance(item, dict):
            if _are_plain(item) and _are_plain(item.values()):
                return {"$dict": [*map(list, item.items())]}
            return {"$dict": [[encode(key), encode(value)] for key, value in item.items()]}
        if isinstance(item, list | tuple):
            values = list(item) if _are_plain(item) else [encode(value) for value in item]
            return {"$list" if isinstance(item, list) else "$tuple": values}
        if isinstance(item, np.generic):
            return item.item()
        if item is None or isinstance(item, bool | int | float | str):
            return item
        if (known := special(item)) is not None:
            kind, content = known
            return {f"${kind}": encode(content)}
        raise TypeError(f"a {type(item).__name__} cannot be saved: use tensors, arrays, numbers, text, lists and dicts")

    return json.dumps(encode(tree)), arrays


def _are_plain(items: Iterable[Any]) -> bool:
    """Whether all are as JSON has them: a number for each of many clients is then not looked at one by one."""
    return PLAIN.issuperset(map(type, items))


def unpack(
    text: str, arrays: Mapping[str, NDArray[Any]], special: Mapping[str, Callable[[Any], Any]] | None = None
) -> Any:
    """What `pack` packed; `special` says how to build the items of each further kind from their content."""
    tensors: dict[str, Tensor] = {}

    def decode(item: Any) -> Any:
        if not isinstance(item, dict):
            return item
        [(kind, content)] = item.items()
        if kind == "$tensor":
            if content not in tensors:
                tensors[content] = torch.from_numpy(arrays[content])
            return tensors[content]
        if kind == "$array":
            return arrays[content]
        if kind == "$dict":
            return {decode(key): decode(value) for key, value in content}
        if kind in ("$list", "$tuple"):
            values = [decode(value) for value in content]
            return tuple(values) if kind == "$tuple" else values
        return (special or {})[kind.removeprefix("$")](decode(content))

    return decode(json.loads(text))
