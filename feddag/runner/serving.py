"""A model that serves: it takes samples as they lie in the user's files, and answers scores and class names.

What it needs beside weights (how samples look, how they are normalised, what the classes are called) is serving.json in
the run directory.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import TypedDict

from feddag.client.trainer import EVALUATION_BATCH
from feddag.data.datasets import Dataset
from feddag.encoders import Shape, channels_first
from feddag.errors import FeddagError, short
from feddag.files import read_plain, write_atomically
from feddag.models import ModelSpec
from feddag.records import Between, Size
from feddag.runner.checked import check, damaged, from_json

FORMAT = 1  # of serving.json: raised when an older version could not read it
LARGEST_FORMAT = 2**26  # bytes; a hundred thousand classes take some megabytes
MOST_AXES = 8

Statistic = Annotated[float, Between(-3.5e38, 3.5e38)]
Spread = Annotated[float, Between(1e-45, 3.5e38)]


class ServingRecord(TypedDict):
    """What stands in serving.json."""

    format: int
    sample_shape: list[Size]
    classes: list[str]
    mean: list[Statistic]
    std: list[Spread]


@dataclass(frozen=True)
class SampleFormat:
    """What samples look like, how they are normalised, and which classes there are."""

    sample_shape: Shape
    """As stored in files: for images, height x width x channels."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Of the last axis, in the units of the file."""
    std: tuple[float, ...]

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """The samples of a dataset."""
        classes = dataset.classes or tuple(map(str, range(dataset.num_classes)))
        return cls(dataset.x_train.shape[1:], classes, dataset.mean, dataset.std)

    def as_record(self) -> dict[str, Any]:
        """As it stands in serving.json."""
        return {"format": FORMAT, **asdict(self)}

    def save(self, path: Path) -> None:
        """Write it down, whole or not at all."""
        write_atomically(path, json.dumps(self.as_record(), indent=1, ensure_ascii=False) + "\n")


def read_format(path: Path, network: ModelSpec) -> SampleFormat | None:
    """What a serving.json says about the samples that this network was trained on; None if there is none."""
    try:
        content = read_plain(path, LARGEST_FORMAT)
    except FileNotFoundError:
        return None
    form = checked_format(from_json(content, path, "it is not JSON"), path)
    if channels_first(form.sample_shape) != network.shape or len(form.classes) != network.num_classes:
        raise damaged(path, "it tells of other samples or classes than the run's checkpoints")
    return form


def checked_format(found: Any, path: Path) -> SampleFormat:
    """What was read from a file, if it tells how samples look."""
    if isinstance(found, dict) and found.get("format", FORMAT) != FORMAT:
        raise FeddagError(f"'{path}' was written by another version of feddag, and cannot be read by this one")
    record: ServingRecord = check(ServingRecord, found, path)
    shape, channels = tuple(record["sample_shape"]), len(record["mean"])
    if not 0 < len(shape) <= MOST_AXES or channels != len(record["std"]) or channels != shape[-1]:
        raise damaged(path, "there is not one mean and one std for each channel")
    return SampleFormat(shape, tuple(record["classes"]), tuple(record["mean"]), tuple(record["std"]))


class ServedModel(nn.Module):
    """A network that takes samples as they lie in files, and gives a score for each of `classes`.

    >>> form = SampleFormat((2,), ("cat", "dog"), (10.0, 0.0), (2.0, 1.0))
    >>> model = ServedModel(nn.Identity(), form)
    >>> model.scores([[14, 1], [6, 1]]).tolist()
    [[2.0, 1.0], [-2.0, 1.0]]
    >>> model.predict([[14, 1], [6, 1]])
    ['cat', 'dog']
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, form: SampleFormat) -> None:
        super().__init__()
        self.network = network
        self.form = form
        self.classes = form.classes
        self.register_buffer("mean", torch.tensor(form.mean, dtype=torch.float32))
        self.register_buffer("std", torch.tensor(form.std, dtype=torch.float32))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The scores of samples, samples x classes."""
        values = (x.reshape(-1, *self.form.sample_shape).to(torch.float32) - self.mean) / self.std
        scores: Tensor = self.network(values.permute(0, 3, 1, 2) if values.ndim == 4 else values)
        return scores

    def scores(self, samples: Any) -> NDArray[np.float32]:
        """The scores of samples in a NumPy array or anything like one: samples x classes, the largest is the answer."""
        x = as_samples(samples, self.form.sample_shape)
        with torch.inference_mode():
            found = [self(torch.from_numpy(part)) for part in np.array_split(x, max(1, -(-len(x) // EVALUATION_BATCH)))]
        answers: NDArray[np.float32] = torch.cat(found).numpy()
        return answers

    def predict(self, samples: Any) -> list[str]:
        """The name of the class of each sample."""
        return [self.classes[number] for number in self.scores(samples).argmax(axis=1)]

    def probabilities(self, scores: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores as shares that sum to 1 for each sample."""
        shares: NDArray[np.float32] = torch.from_numpy(scores).softmax(dim=1).numpy()
        return shares


def as_samples(samples: Any, shape: Shape) -> NDArray[np.float32]:
    """Samples of this shape as float32; a grey image may lack its single channel, as it does in many files.

    >>> as_samples([[[0, 255]]], (1, 2, 1)).shape
    (1, 1, 2, 1)
    """
    x = np.asarray(samples)
    grey = len(shape) == 3 and shape[-1] == 1
    if x.ndim < 1 or not (x.shape[1:] == shape or (grey and x.shape[1:] == shape[:-1])):
        wanted = " x ".join(map(str, ("N", *shape)))
        raise FeddagError(f"the model takes samples of shape {wanted}, and was given an array of shape {x.shape}")
    if x.dtype.kind not in "buif":
        raise FeddagError(f"the model takes samples that are numbers, and was given {x.dtype}")
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(x, np.float32)
    if not np.isfinite(values).all():
        raise FeddagError("the model was given a sample with a value that is not a finite 32-bit number")
    return values.reshape(len(x), *shape)


def class_numbers(labels: Any, classes: tuple[str, ...]) -> NDArray[np.int64]:
    """Labels as a file holds them, names or numbers, as positions in the run's classes.

    >>> class_numbers(["dog", "cat"], ("cat", "dog")), class_numbers([7, 3], ("3", "7"))
    (array([1, 0]), array([1, 0]))
    """
    given = np.asarray(labels)
    if given.ndim != 1:
        raise FeddagError(f"there must be one label for each sample, and the labels have the shape {given.shape}")
    words, positions = np.unique(given, return_inverse=True)
    number = {name: place for place, name in enumerate(classes)}
    for word in map(str, words):
        if word not in number:
            raise FeddagError(f"'{short(word)}' is not one of the run's {len(classes)} classes")
    return np.array([number[str(word)] for word in words], np.int64)[positions]
