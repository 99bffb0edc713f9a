"""What is done to a linear head: a start with wide margins, classes left out of the softmax, rows under other names."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from feddag.errors import FeddagError
from feddag.rng import rng
from feddag.weights import Weights

HEAD = "head"
WEIGHT, BIAS = f"{HEAD}.weight", f"{HEAD}.bias"
SHARPNESS = 4.0  # length of a class's direction
OUT_OF_REACH = -1e3  # a score whose exponential is 0 in any float, beside whatever other scores


def check_linear(weights: Weights) -> None:
    """Refuse a model whose head is not one linear layer."""
    if WEIGHT not in weights or BIAS not in weights or weights[WEIGHT].ndim != 2:
        raise FeddagError("head = 'sharp' and a softmax over some classes need a model with a linear head with a bias")


def directions(classes: int, features: int, seed: int) -> Tensor:
    """A direction in feature space for each class, at right angles where there is room; the same for everybody.

    >>> rows = directions(3, 8, seed=0)
    >>> (rows @ rows.T).round(decimals=3).abs()
    tensor([[16.,  0.,  0.],
            [ 0., 16.,  0.],
            [ 0.,  0., 16.]])
    """
    drawn = torch.from_numpy(rng(seed, "directions").standard_normal((features, classes)))
    if classes <= features:
        drawn = torch.linalg.qr(drawn)[0]
    return SHARPNESS * functional.normalize(drawn, dim=0).T.float().contiguous()


def sharpened(weights: Weights, seed: int) -> Weights:
    """A model whose head is at first a direction for each class, long enough that its scores soon tell classes apart.

    Beside two encoders, the head looks at first at the primary one only.
    """
    check_linear(weights)
    classes, width = weights[WEIGHT].shape
    features = width // 2 if any(name.startswith("secondary.") for name in weights) else width
    rows = directions(classes, features, seed)
    head = torch.cat([rows, torch.zeros(classes, width - features)], dim=1)
    return weights | {WEIGHT: head, BIAS: torch.zeros_like(weights[BIAS])}


def absent_classes(weights: Weights, held: Sequence[int]) -> Tensor:
    """A flag for each class that is not held.

    >>> absent_classes({"head.bias": torch.zeros(4)}, [0, 2])
    tensor([False,  True, False,  True])
    """
    absent = torch.ones(len(weights[BIAS]), dtype=torch.bool)
    absent[list(held)] = False
    return absent


def without(weights: Weights, absent: Tensor | None) -> Weights:
    """A model that never answers with one of these classes (None: there are none): their scores are out of reach.

    Gradients of their rows are exactly zero, so a softmax over all classes becomes one over the others.

    >>> model = {"head.weight": torch.ones(2, 1), "head.bias": torch.zeros(2)}
    >>> without(model, torch.tensor([False, True]))["head.bias"]
    tensor([    0., -1000.])
    """
    if absent is None or not absent.any() or BIAS not in weights:
        return weights
    bias = weights[BIAS].masked_fill(absent.to(weights[BIAS].device), OUT_OF_REACH)
    return weights | {BIAS: bias}


def out_of_reach(weights: Weights) -> Tensor:
    """A flag for each class whose score is out of reach: that the model's owner does not answer with.

    >>> out_of_reach({"head.bias": torch.tensor([0.5, -1000.0])})
    tensor([False,  True])
    """
    return weights[BIAS] <= OUT_OF_REACH / 2


def with_rows_of(weights: Weights, other: Weights, absent: Tensor | None) -> Weights:
    """The same model with another one's rows for some classes."""
    if absent is None or not absent.any() or BIAS not in weights:
        return weights
    rows = {name: weights[name].clone() for name in (WEIGHT, BIAS)}
    for name, values in rows.items():
        values[absent] = other[name][absent]
    return weights | rows


def under_names(weights: Weights, names: Sequence[int]) -> Weights:
    """The model for somebody who calls class `names[k]` k: the head's rows in that order.

    >>> under_names({"head.weight": torch.eye(3), "head.bias": torch.tensor([0.0, 1.0, 2.0])}, [2, 0, 1])["head.bias"]
    tensor([2., 0., 1.])
    """
    order = torch.as_tensor(np.asarray(names, np.int64))
    return weights | {name: weights[name][order] for name in (WEIGHT, BIAS)}
