"""Networks: a model is always encoder -> head."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feddag.encoders import (
    ENCODERS,
    Shape,
    encoded,
    features_of,
)
from feddag.errors import FeddagError, nearest, one_line, short
from feddag.own_code import resolve, takes
from feddag.rng import stream_key

_BUILDING = threading.Lock()  # new layers draw from torch's global generator, which all threads share


class Model(nn.Module):
    """An encoder that turns samples into features and a head that turns features into class scores."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.before_head(x))
        return scores

    def before_head(self, x: Tensor) -> Tensor:
        """What the head sees."""
        features: Tensor = self.encoder(x)
        return features


class DualEncoder(nn.Module):
    """Two encoders whose features lie side by side before one head (FedDAG, Eq. 2)."""

    def __init__(self, encoder: nn.Module, secondary: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.secondary = secondary
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.before_head(x))
        return scores

    def before_head(self, x: Tensor) -> Tensor:
        """What the head sees."""
        return torch.cat(self.features(x), dim=1)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What each encoder sees."""
        return self.encoder(x), self.secondary(x)


class MixtureOfModels(nn.Module):
    """The mean of several models' class probabilities, weighted by shares; gives their logarithms.

    >>> two = [nn.Linear(1, 2), nn.Linear(1, 2)]
    >>> MixtureOfModels(two, (0.5, 0.5))(torch.ones(3, 1)).exp().sum(1).detach().round(decimals=4)
    tensor([1., 1., 1.])
    """

    def __init__(self, models: Sequence[nn.Module], shares: Sequence[float]) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.shares = tuple(shares)

    def forward(self, x: Tensor) -> Tensor:
        mixed = [share * torch.softmax(model(x), dim=1) for model, share in zip(self.models, self.shares, strict=True)]
        return torch.stack(mixed).sum(0).clamp(min=1e-12).log()


@dataclass(frozen=True)
class ModelSpec:
    """Which network, for which samples (channels first) and how many classes; enough to build it anywhere.

    `name` is a built-in network or `module:function`, where the function takes (shape, num_classes) and returns an
    (encoder, head) pair of modules, or one module that has these two parts or is a sequence with a linear end.

    >>> sum(w.numel() for w in ModelSpec("cnn", (3, 32, 32), 10).build().state_dict().values())
    537610
    """

    name: str
    shape: Shape
    num_classes: int
    encoders: int = 1
    """Two: the network's encoder twice, before one linear head on the features of both."""

    def build(self) -> Model | DualEncoder:
        """The network, to load weights into."""
        with _BUILDING, torch.random.fork_rng(devices=[]):
            return self._build()

    def features(self) -> int:
        """How many features an encoder gives.

        >>> ModelSpec("lenet5", (1, 28, 28), 10, encoders=2).features()
        84
        """
        return features_of(self.build().encoder, self.shape)

    def initial_weights(self, seed: int, name: str) -> dict[str, Tensor]:
        """Random weights that belong to this seed and name."""
        with _BUILDING, torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_key(seed, "initial weights", name) % 2**63)
            return {key: value.detach().clone() for key, value in self._build().state_dict().items()}

    def _build(self) -> Model | DualEncoder:
        single = self._single()
        if self.encoders == 1:
            return single
        if not isinstance(single.head, nn.Linear):
            raise FeddagError(
                f"model = '{self.name}' has a head that is not linear, and two encoders need a linear one"
            )
        head = nn.Linear(2 * single.head.in_features, self.num_classes)
        return DualEncoder(single.encoder, self._single().encoder, head)

    def _single(self) -> Model:
        if ":" in self.name:
            return Model(*_user_parts(self.name, self.shape, self.num_classes))
        if self.name not in ENCODERS:
            raise FeddagError(
                f"model = '{self.name}' is not a model; allowed are {', '.join(ENCODERS)} or module:function"
                f"{nearest(self.name, ENCODERS)}"
            )
        try:
            encoder = ENCODERS[self.name](self.shape)
            return Model(encoder, nn.Linear(features_of(encoder, self.shape), self.num_classes))
        except (RuntimeError, IndexError, ValueError) as error:
            size = "x".join(map(str, self.shape))
            raise FeddagError(
                f"model = '{self.name}' cannot take samples of shape {size}; allowed is 'mlp' for any shape"
            ) from error


def _user_parts(name: str, shape: Shape, num_classes: int) -> tuple[nn.Module, nn.Module]:
    """The encoder and the head that a function of the user's own returns."""
    found = resolve("model", name)
    if not takes(found, shape, num_classes):
        raise FeddagError(f"model = '{short(name)}' cannot be used: it has to be a function of (shape, num_classes)")
    parts = _in_two(found(shape, num_classes))
    if not isinstance(parts, tuple) or [isinstance(part, nn.Module) for part in parts] != [True, True]:
        told = "a single module" if isinstance(parts, nn.Module) else f"a {type(parts).__name__}"
        raise FeddagError(
            f"model = '{short(name)}' cannot be used: it has to return two modules, an encoder and a head (or one "
            f"nn.Sequential that ends in nn.Linear), and returned {told}"
        )
    encoder, head = parts
    try:
        scores = tuple(head(encoded(encoder, shape)).shape)
    except Exception as error:  # code of the user's own
        size = "x".join(map(str, shape))
        raise FeddagError(
            f"model = '{short(name)}' cannot take samples of shape {size}: {short(one_line(str(error)), 200)}"
        ) from error
    if scores != (1, num_classes):
        raise FeddagError(f"model = '{short(name)}' gives scores of shape {scores} for a sample, and not {num_classes}")
    return encoder, head


def _in_two(made: object) -> object:
    """An encoder and a head, where what a user's function returned can be taken apart.

    >>> encoder, head = _in_two(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    >>> len(encoder), head
    (3, Linear(in_features=3, out_features=2, bias=True))
    """
    if isinstance(made, nn.Module) and dict(made.named_children()).keys() == {"encoder", "head"}:
        return made.encoder, made.head
    if isinstance(made, nn.Sequential) and len(made) > 1 and isinstance(made[-1], nn.Linear):
        return made[:-1], made[-1]
    return made
