"""A client's signature: what it sends once to be grouped. A few principal vectors per class, counts, an update."""

import math
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy.linalg import eigh
from scipy.sparse.linalg import eigsh

from feddag.client.sketch import USUAL_SKETCH, sketched_update, sketched_vectors
from feddag.client.style import Channels, style_features, style_of_classes
from feddag.errors import FeddagError, counted
from feddag.files import write_atomically
from feddag.rng import rng

if TYPE_CHECKING:  # whoever only groups clients need not load PyTorch
    from torch import Tensor

Inputs = Literal["standardised", "raw"]
USUAL_VECTORS = 3
USUAL_PER_CLASS = 1000  # samples of a class that are looked at
HALVINGS = 4  # random divisions in two that a reliability is averaged over
LARGE = 200  # rows of a Gram matrix from which its leading vectors are found one by one
HALVED = 200  # samples of a class that are enough to measure its noise
LARGEST = 2**32  # bytes of a signature that is not a mistake
DTYPES = {"vectors": "float32", "counts": "int64", "reliability": "float32", "update": "float32"}
DTYPES |= {"update_reliability": "float32", "style": "float32", "style_spread": "float32"}
OPTIONAL = ("style", "style_spread")  # a signature may not have them: files of before do not
STORED_DTYPES = {"float32": "F32", "int64": "I64", "float16": "F16"}  # as safetensors calls them
SKETCHED = ("vectors", "update")  # may be float16
LENGTH_TOLERANCE = 0.1  # rounding takes much less; vectors made up for a test, with noise, take more
MOST_SAMPLES = 2**40  # of one class; larger counts would not add up any more


@dataclass(frozen=True, eq=False)
class Signature:
    """What one client tells about its data: arrays and numbers only, small enough to send once."""

    vectors: NDArray[np.float32] | NDArray[np.float16]
    """classes x p x features: principal vectors of each class, longest first, each as long as the root of its
    eigenvalue, scaled so that the second moment they make up has norm 1; rows of zeros where there are fewer."""
    counts: NDArray[np.int64]
    """How many samples of each class the client has."""
    reliability: NDArray[np.float32]
    """Per class: how much of the second moment another sample of this size would repeat, 0 to 1; 0 where unknown."""
    update: NDArray[np.float32] | NDArray[np.float16]
    """The warm-up's change of the model at the shared coordinates; empty if there was no warm-up."""
    update_reliability: NDArray[np.float32]
    """The same for the update, one number; 0 where unknown."""
    style: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))
    """classes x statistics: how samples look in each class, on average (`client.style`); empty where it is not told."""
    style_spread: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """The covariance of these statistics inside classes: its upper triangle."""

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Refuse what is not a signature: it may come from elsewhere."""
        _check_shapes({name: array.shape for name, array in vars(self).items()})
        for name, array in vars(self).items():
            if array.dtype not in _dtypes(name):
                raise FeddagError(f"the signature's {name} must be {DTYPES[name]} and not {array.dtype}")
            if not np.isfinite(array).all():
                raise FeddagError(f"the signature's {name} holds a value that is not a finite number")
        if (self.counts < 0).any() or (self.counts > MOST_SAMPLES).any():
            raise FeddagError(f"the signature's counts hold a number below 0 or above {MOST_SAMPLES}")
        with np.errstate(over="ignore"):  # infinite lengths are refused as well
            squares = np.square(self.vectors, dtype=np.float32).sum(2)
        norms = np.sqrt((squares**2).sum(axis=1))  # 1 for each class but for rounding; 0 where there is nothing
        if (squares > 1 + LENGTH_TOLERANCE).any() or ((norms > 0) & (norms < 1 - LENGTH_TOLERANCE)).any():
            raise FeddagError("the signature's vectors are not as long as principal vectors are")
        for name in ("reliability", "update_reliability"):
            if not ((getattr(self, name) >= 0) & (getattr(self, name) <= 1)).all():
                raise FeddagError(f"the signature's {name} holds a value that is not from 0 to 1")

    def __repr__(self) -> str:
        """What it is of, without its thousands of numbers.

        >>> signature(np.eye(3), np.arange(3))
        <Signature of 3 samples, 3 of 3 classes: 3 vectors a class of 3 features, no update, 208 bytes>
        """
        held, (classes, vectors, features) = int((self.counts > 0).sum()), self.vectors.shape
        samples = f"{counted(int(self.counts.sum()), 'sample')}, {held} of {classes} classes"
        update = f"an update of {len(self.update)} numbers" if len(self.update) else "no update"
        shape = f"{counted(vectors, 'vector')} a class of {counted(features, 'feature')}"
        return f"<Signature of {samples}: {shape}, {update}, {self.nbytes} bytes>"

    @property
    def nbytes(self) -> int:
        """Bytes it takes on the wire."""
        return sum(array.nbytes for array in vars(self).values())

    def sketched(self, size: int = USUAL_SKETCH) -> "Signature":
        """The same in fewer bytes: vectors and update projected onto so many dimensions, as 16-bit numbers.

        Only signatures of one size compare. Where there are no more features than `size`, vectors stay as long.

        >>> made = signature(np.random.default_rng(0).normal(size=(30, 784)), np.arange(30) % 10)
        >>> made.nbytes, made.sketched(64).nbytes
        (96364, 6124)
        """
        if size < self.vectors.shape[1]:
            raise FeddagError(f"sketch = {size} is not allowed: it should be at least {self.vectors.shape[1]}")
        size = min(size, self.vectors.shape[2])
        return replace(self, vectors=sketched_vectors(self.vectors, size), update=sketched_update(self.update, size))

    def save(self, path: str | Path) -> None:
        """Write it as one safetensors file, whole or not at all."""
        write_atomically(Path(path), save(vars(self)))

    @classmethod
    def from_tensors(cls, arrays: "Mapping[str, Tensor]") -> "Signature":
        """A signature as it travels: the same arrays as tensors, a single number as an array of one.

        >>> import torch
        >>> made = signature(np.eye(3), np.arange(3))
        >>> sent = {name: torch.from_numpy(np.atleast_1d(array)) for name, array in vars(made).items()}
        >>> Signature.from_tensors(sent).counts.tolist()
        [1, 1, 1]
        """
        given = {name: tensor.numpy() for name, tensor in arrays.items()}
        return cls(**{**given, "update_reliability": given["update_reliability"].reshape(())})

    @classmethod
    def load(cls, path: str | Path) -> "Signature":
        """Read what `save` wrote. Of a file whose header is that of something else, nothing more is read."""
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):
                raise FeddagError("it is not a regular file")
            with safe_open(path, framework="numpy") as file:
                if not set(DTYPES) - set(OPTIONAL) <= set(file.keys()) <= set(DTYPES):
                    raise FeddagError(f"it should hold the arrays {', '.join(DTYPES)} and no others")
                held = {name: file.get_slice(name) for name in DTYPES if name in file.keys()}  # noqa: SIM118
                for name, array in held.items():
                    if array.get_dtype() not in [STORED_DTYPES[dtype] for dtype in _dtypes(name)]:
                        raise FeddagError(f"the signature's {name} must be {DTYPES[name]} and not {array.get_dtype()}")
                _check_shapes({name: tuple(array.get_shape()) for name, array in held.items()})
                return cls(**{name: file.get_tensor(name) for name in held})
        except (OSError, SafetensorError, FeddagError) as error:
            reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200]
            raise FeddagError(f"'{path}' is not a signature: {reason}") from None


def _dtypes(name: str) -> list[str]:
    """The types that an array of a signature may have."""
    return [DTYPES[name], "float16"] if name in SKETCHED else [DTYPES[name]]


def _check_shapes(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse arrays that cannot be those of a signature, by their shapes alone."""
    classes, vectors, features = shapes["vectors"] if len(shapes["vectors"]) == 3 else (-1, -1, -1)
    if not shapes["counts"] == shapes["reliability"] == (classes,) or len(shapes["update"]) != 1:
        raise FeddagError("a signature needs classes x p x features vectors, and a count and reliability per class")
    if shapes["update_reliability"] != ():
        raise FeddagError("the signature's update_reliability must be one number")
    told, spread = shapes.get("style", (0, 0)), shapes.get("style_spread", (0,))
    statistics = told[1] if len(told) == 2 and told[0] == classes else 0
    if (told, spread) not in (((classes, statistics), (statistics * (statistics + 1) // 2,)), ((0, 0), (0,))):
        raise FeddagError("the signature's style must be classes x statistics, and its style_spread their covariances")
    check_vectors(vectors, features)
    if (size := 4 * sum(math.prod(shape) for shape in shapes.values())) > LARGEST:
        raise FeddagError(f"the signature's arrays would take {size} bytes, allowed are {LARGEST}")


def check_vectors(vectors: int, features: int) -> None:
    """Refuse more principal vectors than samples can have; those of few features get the usual number all the same."""
    if vectors > (most := max(features, USUAL_VECTORS)):
        raise FeddagError(f"vectors = {vectors} is more than samples of {features} features have: at most {most}")


def signature(
    x: NDArray[Any],
    y: NDArray[Any],
    num_classes: int | None = None,
    *,
    vectors: int = USUAL_VECTORS,
    vector_share: float = 0.0,
    inputs: Inputs = "standardised",
    per_class: int | None = USUAL_PER_CLASS,
    update: NDArray[np.float32] | None = None,
    update_reliability: float = 0.0,
    style: bool = True,
    channels: Channels = "last",
    sketch: int = 0,
    seed: int = 0,
) -> Signature:
    """The signature of samples `x` (any shape) with labels `y` in 0 .. num_classes - 1 (by default those in `y`).

    Inputs are standardised sample by sample unless "raw": brightness would otherwise drown what the samples show. Give
    an encoder's features as `x` to compare those instead. A class has `vectors` principal vectors, or with a
    `vector_share` as many as that share of its samples, at least one and at most `vectors`. At most `per_class` samples
    of a class are looked at (A.6.2). `update` is the change of a common model in a short training (see `sparsified`).
    With `style` it also tells how samples look, whatever they show; `channels` are their last axis, or the first.
    `sketch` projects vectors and update onto so many dimensions (0: sent as they are).

    >>> sig = signature(np.eye(4), np.array([0, 0, 0, 2]), num_classes=3, vectors=2, inputs="raw")
    >>> sig.counts.tolist(), sig.vectors.shape, np.abs(sig.vectors[2]).tolist()
    ([3, 0, 1], (3, 2, 4), [[0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    """
    labels = np.asarray(y)
    _check(np.asarray(x), labels, num_classes, inputs, vectors, per_class)
    if not 0 <= vector_share <= 1:
        raise FeddagError(f"vector_share = {vector_share} is not allowed: it should be from 0 to 1")
    flat = np.asarray(x).reshape(len(x), int(np.prod(np.shape(x)[1:])))
    if num_classes is None:
        num_classes = 1 + int(labels.max())
    if (size := 4 * num_classes * vectors * flat.shape[1]) > LARGEST:
        raise FeddagError(f"{num_classes} classes x {vectors} vectors would take {size} bytes, allowed are {LARGEST}")
    table = np.zeros((num_classes, vectors, flat.shape[1]), np.float32)
    reliability = np.zeros(num_classes, np.float32)
    for label in np.unique(labels):
        generator = rng(seed, "signature", int(label))
        chosen = np.flatnonzero(labels == label)
        if per_class is not None and len(chosen) > per_class:
            chosen = np.sort(generator.permutation(chosen)[:per_class])
        samples = standardised(flat[chosen]) if inputs == "standardised" else flat[chosen].astype(np.float64)
        count = min(vectors, max(1, round(vector_share * len(chosen)))) if vector_share else vectors
        lengths, found = principal_vectors(samples, count)
        norm = np.sqrt(np.sum(lengths**4)) or 1.0  # of the second moment that the vectors make up
        table[label, : len(found)] = found * (lengths / np.sqrt(norm))[:, None]
        reliability[label] = split_half_reliability(samples, count, generator)
    made = Signature(
        vectors=table,
        counts=np.bincount(labels, minlength=num_classes).astype(np.int64),
        reliability=reliability,
        update=np.zeros(0, np.float32) if update is None else np.asarray(update, np.float32),
        update_reliability=np.asarray(update_reliability, np.float32),
    )
    made = made.sketched(sketch) if sketch else made
    return with_style(made, np.asarray(x), labels, channels) if style else made


def with_style(made: Signature, x: NDArray[Any], y: NDArray[np.int64], channels: Channels) -> Signature:
    """The same signature, and how these samples look. Where numbers are too large for that, it is not told."""
    with np.errstate(all="ignore"):
        means, spread = style_of_classes(style_features(x, channels), y, len(made.counts))
    if not (np.isfinite(means).all() and np.isfinite(spread).all()):
        return made
    return replace(made, style=means, style_spread=spread)


def standardised(flat: NDArray[Any]) -> NDArray[np.float64]:
    """Every sample with mean 0 and standard deviation 1; a constant one becomes zeros.

    >>> standardised(np.array([[1, 3], [5, 5]])).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    centred = flat - flat.mean(axis=1, keepdims=True, dtype=np.float64)
    spread = centred.std(axis=1, keepdims=True)
    unit: NDArray[np.float64] = centred / np.where(spread > 0, spread, 1)
    return unit


def principal_vectors(samples: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The leading singular values and right singular vectors of samples x features, uncentred, by the Gram matrix.

    >>> values, vectors = principal_vectors(np.array([[3.0, 4.0], [6.0, 8.0]]), 2)
    >>> (values**2).round(6).tolist(), np.abs(vectors).round(6).tolist()
    ([125.0], [[0.6, 0.8]])
    """
    wide = samples.shape[0] < samples.shape[1]
    values, inner = _leading(samples @ samples.T if wide else samples.T @ samples, count)
    return values, (inner.T @ samples / values[:, None]) if wide else inner.T


def split_half_reliability(samples: NDArray[np.float64], count: int, generator: np.random.Generator) -> float:
    """How alike the second moments of two halves are, carried over to the whole (Spearman-Brown): 2 r / (1 + r).

    Sampling noise falls with 1 / n, so a half has twice the noise: its cosine r = 1 / (1 + 2 noise) gives the noise of
    any size. At most `HALVED` samples are divided. Fewer than two samples tell nothing: 0.
    """
    size = len(samples)
    if size < 2:
        return 0.0
    looked_at = samples[np.sort(generator.permutation(size)[:HALVED])]
    gram = looked_at @ looked_at.T
    cosines = []
    for _ in range(HALVINGS):
        order = generator.permutation(len(gram))
        one, other = order[: len(gram) // 2], order[len(gram) // 2 :]
        (length, inner), (other_length, other_inner) = (_leading(gram[np.ix_(h, h)], count) for h in (one, other))
        across = inner.T @ gram[np.ix_(one, other)] @ other_inner
        norms = np.sqrt(np.sum(length**4) * np.sum(other_length**4))
        cosines.append(np.sum(across**2) / norms if norms > 0 else 0.0)
    alike = float(np.clip(np.mean(cosines), 0, 1))
    if alike == 0:
        return 0.0
    noise_of_one_sample = len(gram) / 2 * (1 - alike) / alike
    return size / (size + noise_of_one_sample)


def _leading(gram: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest singular values and their vectors (in columns) from a Gram matrix, none that are nothing."""
    size = len(gram)
    if size > LARGE and count < size // 4 and gram.any():
        squares, inner = eigsh(gram, count, v0=np.ones(size))  # Lanczos: exact to rounding, and much quicker
        squares, inner = squares[order := np.argsort(squares)], inner[:, order]
    else:
        squares, inner = eigh(gram, subset_by_index=(max(size - count, 0), size - 1))
    spanned = squares > 1e-12 * max(float(squares[-1]), np.finfo(float).tiny)
    values: NDArray[np.float64] = np.sqrt(squares[spanned][::-1])
    return values, inner[:, spanned][:, ::-1]


def _check(
    x: NDArray[Any], y: NDArray[Any], num_classes: int | None, inputs: str, vectors: int, per_class: int | None
) -> None:
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise FeddagError(f"y must be one whole number per sample, and is {y.dtype} of shape {y.shape}")
    if x.ndim < 2 or x.dtype.kind not in "biuf":
        raise FeddagError(f"x must be numbers, samples first and then features, and is {x.dtype} of shape {x.shape}")
    if len(x) != len(y):
        raise FeddagError(f"x has {len(x)} samples and y {len(y)} labels")
    if not np.isfinite(x).all():
        raise FeddagError("x holds a value that is not a finite number")
    if num_classes is None and not len(y):
        raise FeddagError("there is no sample, and num_classes is not given")
    if num_classes is not None and num_classes < 1:
        raise FeddagError(f"num_classes = {num_classes} must be at least 1")
    if len(y) and (y.min() < 0 or (num_classes is not None and y.max() >= num_classes)):
        allowed = "0 and more" if num_classes is None else f"0 to {num_classes - 1}"
        raise FeddagError(f"y holds labels from {y.min()} to {y.max()}, allowed are {allowed}")
    if inputs not in get_args(Inputs):
        raise FeddagError(f"inputs = '{inputs}' is not allowed; allowed are {', '.join(get_args(Inputs))}")
    if vectors < 1 or (per_class is not None and per_class < 1):
        raise FeddagError(f"vectors = {vectors} and per_class = {per_class} must be at least 1")


def sparsified(
    before: Mapping[str, NDArray[np.float32]], after: Mapping[str, NDArray[np.float32]], sparsity: float, seed: int
) -> NDArray[np.float32]:
    """The change between two sets of weights at one random set of coordinates that all clients of a seed share.

    >>> before, after = {"w": np.zeros(4, np.float32)}, {"w": np.ones(4, np.float32)}
    >>> sparsified(before, after, sparsity=0.5, seed=0).tolist()
    [1.0, 1.0]
    """
    change = np.concatenate([(after[name] - before[name]).ravel() for name in sorted(before)])
    kept = max(1, round(sparsity * len(change)))
    coordinates = np.sort(rng(seed, "coordinates").choice(len(change), kept, replace=False))
    sparse: NDArray[np.float32] = change[coordinates].astype(np.float32)
    return sparse
