"""A client's signature: what it sends once to be grouped. A few principal vectors per class, counts, an update."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from scipy.linalg import eigh
from scipy.sparse.linalg import svds

from feddag.errors import FeddagError
from feddag.rng import rng

FEW_SAMPLES = 100  # up to here the Gram matrix is the faster way to the leading vectors


@dataclass(frozen=True, eq=False)
class Signature:
    """What one client tells about its data: arrays and numbers only, small enough to send once."""

    vectors: NDArray[np.float32]
    """classes x p x features: unit vectors that span most of a class's samples; rows of zeros where there are fewer."""
    counts: NDArray[np.int64]
    """How many samples of each class the client has."""
    update: NDArray[np.float32]
    """The warm-up's change of the model at the shared coordinates; empty if there was no warm-up."""

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the wire."""
        return self.vectors.nbytes + self.counts.nbytes + self.update.nbytes

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file, whole or not at all."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.tmp")
        temporary.write_bytes(save(vars(self)))
        temporary.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> "Signature":
        """Read what `save` wrote."""
        try:
            arrays = load_file(path)
            return cls(**{name: arrays[name] for name in ("vectors", "counts", "update")})
        except (OSError, SafetensorError, KeyError) as error:
            raise FeddagError(f"'{path}' is not a signature: {error}") from None


def signature(
    x: NDArray[Any],
    y: NDArray[Any],
    num_classes: int,
    *,
    vectors: int = 3,
    inputs: Literal["standardised", "raw"] = "standardised",
    per_class: int | None = None,
    update: NDArray[np.float32] | None = None,
    seed: int = 0,
) -> Signature:
    """The signature of samples `x` (any shape) with labels `y` in 0 .. num_classes - 1.

    Inputs are standardised sample by sample unless "raw": brightness would otherwise drown what the samples show.
    `per_class` bounds how many samples of a class are looked at (A.6.2).

    >>> sig = signature(np.eye(4), np.array([0, 0, 0, 2]), num_classes=3, vectors=2, inputs="raw")
    >>> sig.counts.tolist(), sig.vectors.shape, np.abs(sig.vectors[2]).tolist()
    ([3, 0, 1], (3, 2, 4), [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    """
    flat = np.asarray(x, np.float64).reshape(len(x), int(np.prod(np.shape(x)[1:])))
    labels = np.asarray(y)
    if len(flat) != len(labels):
        raise FeddagError(f"x has {len(flat)} samples and y {len(labels)} labels")
    if not np.isfinite(flat).all():
        raise FeddagError("x holds a value that is not a finite number")
    if len(labels) and not (labels.min() >= 0 and labels.max() < num_classes):
        raise FeddagError(f"y holds labels from {labels.min()} to {labels.max()}, allowed are 0 to {num_classes - 1}")
    if inputs == "standardised":
        spread = flat.std(axis=1, keepdims=True)
        flat = (flat - flat.mean(axis=1, keepdims=True)) / np.where(spread > 0, spread, 1)
    table = np.zeros((num_classes, vectors, flat.shape[1]), np.float32)
    for label in np.unique(labels):
        samples = flat[labels == label]
        if per_class is not None and len(samples) > per_class:
            samples = samples[np.sort(rng(seed, "signature", int(label)).permutation(len(samples))[:per_class])]
        found = principal_vectors(samples, vectors)
        table[label, : len(found)] = found
    counts = np.bincount(labels, minlength=num_classes).astype(np.int64)
    return Signature(table, counts, np.zeros(0, np.float32) if update is None else np.asarray(update, np.float32))


def principal_vectors(samples: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """The leading right singular vectors of samples x features, uncentred; fewer where the samples span less.

    >>> np.abs(principal_vectors(np.array([[3.0, 4.0], [6.0, 8.0]]), 2)).round(6).tolist()
    [[0.6, 0.8]]
    """
    rows, features = samples.shape
    count = min(count, rows, features)
    if min(rows, features) > max(FEW_SAMPLES, count):
        start = np.random.default_rng(0).standard_normal(min(rows, features))  # always the same: no randomness
        _, values, vectors = svds(samples, k=count, v0=start)
    else:
        wide = rows < features
        gram = samples @ samples.T if wide else samples.T @ samples
        squares, inner = eigh(gram, subset_by_index=(len(gram) - count, len(gram) - 1))
        values = np.sqrt(np.clip(squares, 0, None))
        vectors = (inner.T @ samples / np.where(values > 0, values, 1)[:, None]) if wide else inner.T
    order = np.argsort(-values)
    spanned = values[order] > 1e-6 * max(values.max(initial=0), np.finfo(float).tiny)
    found: NDArray[np.float64] = vectors[order][spanned]
    return found


def sparsified(
    before: Mapping[str, NDArray[np.float32]], after: Mapping[str, NDArray[np.float32]], sparsity: float, seed: int
) -> NDArray[np.float32]:
    """The change between two sets of weights at one random set of coordinates that all clients of a seed share."""
    change = np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)])
    kept = max(1, round(sparsity * len(change)))
    coordinates = np.sort(rng(seed, "coordinates").choice(len(change), kept, replace=False))
    sparse: NDArray[np.float32] = change[coordinates].astype(np.float32)
    return sparse
