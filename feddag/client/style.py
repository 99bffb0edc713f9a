"""How samples look, whatever they show: statistics of each sample that a camera, a sensor or a place changes.

Brightness, contrast, colour, sharpness, noise. A client tells their mean in each class and their spread inside classes;
the server finds out whether clients differ in them (`server.style`).
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from feddag.rng import rng

Channels = Literal["first", "last"]
EPSILON = 1e-4  # inside logarithms
FEW_CHANNELS = 4  # of more, correlations and shapes of distributions are not told one by one: they would be too many
MOST_CHANNELS = 16  # of a series; what has more is a grey image
MOST_VALUES = 24  # of a plain vector that are told as they are; of longer ones, so many random projections
CHUNK = 1000  # samples at a time

Floats = NDArray[np.float32]


def style_features(x: NDArray[Any], channels: Channels = "last") -> Floats:
    """Samples x statistics, of images (rows, columns, channels), grey images, series (times, channels) or vectors.

    Where samples have two axes they are a series if the second is short and the first more than twice as long, and else
    a grey image. For samples of three axes and more, `channels` says where their channels are.

    >>> style_features(np.zeros((2, 28, 28))).shape, style_features(np.zeros((2, 32, 32, 3))).shape
    ((2, 19), (2, 35))
    >>> style_features(np.zeros((2, 128, 6))).shape, style_features(np.array([[1.0, 2.0]])).tolist()
    ((2, 30), [[1.0, 2.0]])
    """
    if x.ndim == 2:
        return _of_vectors(x)
    parts = [_of_signals(_channels_first(x[start : start + CHUNK], channels)) for start in range(0, len(x), CHUNK)]
    return np.concatenate(parts or [_of_signals(_channels_first(np.zeros((1, *x.shape[1:])), channels))[:0]])


def style_of_classes(features: Floats, labels: NDArray[np.int64], num_classes: int) -> tuple[Floats, Floats]:
    """The mean of each class (zeros where there is none), and the covariance inside classes as its upper triangle.

    >>> means, spread = style_of_classes(np.array([[1.0], [3.0], [7.0]], np.float32), np.array([0, 0, 2]), 3)
    >>> means.tolist(), spread.tolist()
    ([[2.0], [0.0], [7.0]], [2.0])
    """
    size = features.shape[1]
    means, scatter, freedom = np.zeros((num_classes, size)), np.zeros((size, size)), 0
    for label in np.unique(labels):
        own = features[labels == label].astype(np.float64)
        means[label] = own.mean(0)
        scatter += (own - means[label]).T @ (own - means[label])
        freedom += len(own) - 1
    upper = scatter[np.triu_indices(size)] / max(freedom, 1)
    return means.astype(np.float32), upper.astype(np.float32)


def style_size(sample_shape: tuple[int, ...], channels: Channels = "last") -> int:
    """How many statistics samples of this shape have.

    >>> style_size((3, 32, 32), "first"), style_size((64,))
    (35, 24)
    """
    size: int = style_features(np.zeros((1, *sample_shape), np.float32), channels).shape[1]
    return size


def _channels_first(x: NDArray[Any], channels: Channels) -> Floats:
    """Samples x channels x axes."""
    values = x.astype(np.float32)
    if x.ndim == 3:
        series = x.shape[2] <= MOST_CHANNELS and x.shape[1] > 2 * x.shape[2]
        return np.moveaxis(values, 2, 1) if series else values[:, None]
    return np.moveaxis(values, -1, 1) if channels == "last" else values


def _of_vectors(x: NDArray[Any]) -> Floats:
    values = x.astype(np.float32)
    return values @ _projection(x.shape[1]) if x.shape[1] > MOST_VALUES else values


@cache
def _projection(size: int) -> Floats:
    """The same random directions for every client."""
    drawn = rng(0, "style of vectors", size).normal(size=(size, MOST_VALUES))
    return np.linalg.qr(drawn)[0].astype(np.float32)


def _of_signals(x: Floats) -> Floats:
    """Of samples x channels x axes."""
    grey = x.mean(1)
    return np.concatenate([*_of_channels(x.reshape(*x.shape[:2], -1)), *_of_differences(grey)], axis=1)


def _of_channels(flat: Floats) -> Iterator[Floats]:
    """Mean, variance, skewness and kurtosis of each channel; how far it is from the others, how they correlate."""
    count = flat.shape[1]
    mean = flat.mean(2)
    centred = flat - mean[:, :, None]
    squares = centred * centred
    variance = squares.mean(2)
    spread = np.sqrt(variance + EPSILON)
    skewness = (squares * centred).mean(2) / spread**3
    kurtosis = _log((squares * squares).mean(2) / spread**4)
    yield from (mean, _log(variance))
    few = count <= FEW_CHANNELS
    yield from (skewness, kurtosis) if few else (skewness.mean(1, keepdims=True), kurtosis.mean(1, keepdims=True))
    if count > 1:
        yield _log(np.square(flat - flat.mean(1, keepdims=True)).mean(2))
    if few and count > 1:
        one, other = np.triu_indices(count, 1)
        yield (centred[:, one] * centred[:, other]).mean(2) / (spread[:, one] * spread[:, other])


def _of_differences(grey: Floats) -> Iterator[Floats]:
    """Along each axis: how much neighbours at lags 1, 2, 4, ... differ, and whether a few of them do or all."""
    for axis in range(1, grey.ndim):
        size, lag = grey.shape[axis], 1
        while lag <= size // 4:
            change = _shifted(grey, axis, lag, size) - _shifted(grey, axis, 0, size - lag)
            yield from _strength(change, shape=lag <= 2)
            lag *= 2
        if size >= 3:
            ends = _shifted(grey, axis, 2, size) + _shifted(grey, axis, 0, size - 2)
            yield from _strength(ends - np.float32(2) * _shifted(grey, axis, 1, size - 1))
    if grey.ndim == 3 and min(grey.shape[1:]) > 1:
        along = grey[:, 1:] - grey[:, :-1]
        yield from _strength(along[:, :, 1:] - along[:, :, :-1], shape=False)


def _shifted(values: Floats, axis: int, start: int, end: int) -> Floats:
    index = [slice(None)] * values.ndim
    index[axis] = slice(start, end)
    return values[tuple(index)]


def _strength(change: Floats, shape: bool = True) -> Iterator[Floats]:
    flat = change.reshape(len(change), -1)
    square = _log(np.square(flat).mean(1, keepdims=True))
    yield square
    if shape:  # the same for all where changes are normal, less where a few are large
        yield _log(np.abs(flat).mean(1, keepdims=True)) - square / np.float32(2)


def _log(values: Floats) -> Floats:
    logs: Floats = np.log(values + np.float32(EPSILON))
    return logs
