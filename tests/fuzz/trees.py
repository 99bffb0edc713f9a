"""Nested dicts and lists with something else in one place: what no honest sender puts there."""

import math
import random
from typing import Any

import numpy as np
import torch

JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**53 + 1, 2**63, 10**30, 10**400, 0.5, -0.5, 1e308, -1e308, 1e-320),
    *(math.nan, math.inf, -math.inf, "", "x", "3", "\x1b]0;taken\x07\n", "\ud800", "subprocess:call", "a" * 3000),
    *([], {}, [[]], [None], [1, "2"], {"a": {}}, {"mean": 1}, [0] * 50),
)


def changed(chance: random.Random, tree: Any) -> Any:
    """The tree with something else in one place."""
    inside = list(tree) if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list | tuple) else []
    if inside and chance.random() < 0.85:
        key = chance.choice(list(inside))
        if chance.random() < 0.15:
            return _without(tree, key)
        return _with(tree, key, changed(chance, tree[key]))
    if isinstance(tree, torch.Tensor | np.ndarray):
        return _other_array(chance, tree)
    if isinstance(tree, list) and chance.random() < 0.3:
        return chance.choice((tree + tree, tree[:-1], tree[::-1], [*tree, *tree[:1]]))
    if isinstance(tree, int | float) and not isinstance(tree, bool) and abs(tree) < 2**64 and chance.random() < 0.3:
        return chance.choice((str(tree), -tree, tree + 1, float(tree), [tree]))
    return chance.choice(JUNK)


def _with(tree: Any, key: Any, value: Any) -> Any:
    if isinstance(tree, dict):
        return tree | {key: value}
    return type(tree)([*tree[:key], value, *tree[key + 1 :]])


def _without(tree: Any, key: Any) -> Any:
    if isinstance(tree, dict):
        return {name: value for name, value in tree.items() if name != key}
    return type(tree)([*tree[:key], *tree[key + 1 :]])


def _other_array(chance: random.Random, array: Any) -> Any:
    """An array of other numbers, of another shape or of another kind; or none at all."""
    numbers = array.numpy() if isinstance(array, torch.Tensor) else array
    made = [numbers.ravel(), numbers[None], numbers[:0], numbers[:-1] if numbers.ndim else numbers, numbers * -1.0]
    made += [np.full_like(numbers, value) for value in (0, 1, 99)]
    made += [np.full(numbers.shape, value) for value in (math.nan, math.inf, 1e300, -1e300, 0.5)]
    made += [np.zeros((2, 3, 4)), numbers.astype(bool)]
    chosen = chance.choice([*made, chance.choice(JUNK)])
    is_tensor = isinstance(array, torch.Tensor) and isinstance(chosen, np.ndarray)
    return torch.from_numpy(chosen.copy()) if is_tensor else chosen
