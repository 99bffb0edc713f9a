"""Networks: a model is always encoder -> head. Every built-in network fits any input shape it can serve at all."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feddag.errors import FeddagError, nearest, one_line, short
from feddag.own_code import resolve, takes
from feddag.rng import dropout_mask, stream_key

Shape = tuple[int, ...]
SHORTEST_SERIES = 8  # steps in time, for convolutions over it
_BUILDING = threading.Lock()  # new layers draw from torch's global generator, which all threads share


class Model(nn.Module):
    """An encoder that turns samples into features and a head that turns features into class scores."""

    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.encoder(x))
        return scores


class DualEncoder(nn.Module):
    """Two encoders whose features lie side by side before one head (FedDAG, Eq. 2)."""

    def __init__(self, encoder: nn.Module, secondary: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.secondary = secondary
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(torch.cat(self.features(x), dim=1))
        return scores

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


class Dropout(nn.Module):
    """Dropout whose masks are a pure function of (key, layer, step), so that any trainer draws the same ones."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.key, self.layer, self.step = 0, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        mask = dropout_mask(self.key, self.layer, self.step, tuple(x.shape), self.p)
        self.step += 1
        return x * torch.from_numpy(mask).to(x)


def seed_dropout(model: nn.Module, key: int) -> None:
    """Start the masks of every Dropout in the model afresh."""
    for layer, module in enumerate(module for module in model.modules() if isinstance(module, Dropout)):
        module.key, module.layer, module.step = key, layer, 0


class TimeLast(nn.Module):
    """Series as they lie in files, time x channels, with their channels first, as convolutions over time take them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def mlp(shape: Shape, hidden: int = 128) -> nn.Module:
    """Flatten and one hidden layer of 128: for small images and samples of any shape."""
    size = int(torch.Size(shape).numel())
    return nn.Sequential(nn.Flatten(), nn.Linear(size, hidden), nn.ReLU())


def mlp256(shape: Shape) -> nn.Module:
    """The same with 256: for vectors, where width helped and a second hidden layer did harm."""
    return mlp(shape, 256)


def cnn1d(shape: Shape) -> nn.Module:
    """Three convolutions over time and the mean over it: for series (time x channels) of any length from 8 on.

    The length is halved after each of the first two, as long as it is worth it.
    """
    length, channels = shape
    if length < SHORTEST_SERIES:
        raise IndexError("too short")
    layers: list[nn.Module] = [TimeLast()]
    for outputs, kernel in ((64, 5), (128, 5), (128, 3)):
        layers += [nn.Conv1d(channels, outputs, kernel, padding=kernel // 2), nn.ReLU()]
        if kernel == 5 and length >= SHORTEST_SERIES:
            layers.append(nn.MaxPool1d(2))
            length //= 2
        channels = outputs
    return nn.Sequential(*layers, nn.AvgPool1d(length), nn.Flatten())


def lenet5(shape: Shape) -> nn.Module:
    """LeNet-5: two 5x5 convolutions, two hidden dense layers (FedDAG's network for Fashion-MNIST)."""
    return _with_dense(
        [
            *(nn.Conv2d(shape[0], 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        ],
        shape,
        lambda features: [nn.Linear(features, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()],
    )


def cnn(shape: Shape) -> nn.Module:
    """Three 3x3 convolutions and two dense layers with dropout (FedDAG's network for CIFAR-10 and SVHN)."""
    return _with_dense(
        [
            *(nn.Conv2d(shape[0], 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 128, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(128, 256, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), Dropout(0.5)),
        ],
        shape,
        lambda features: [nn.Linear(features, 128), nn.ReLU(), Dropout(0.5), nn.Linear(128, 256), nn.ReLU()],
    )


def fedac_cnn(shape: Shape) -> nn.Module:
    """Two 5x5 convolutions and two hidden dense layers, 4.8 million weights on CIFAR-10.

    FedAC tells the kinds of its layers and that there are over 4.7 million weights; the widths are ours.
    """
    return _with_dense(
        [
            *(nn.Conv2d(shape[0], 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        ],
        shape,
        lambda features: [nn.Linear(features, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU()],
    )


def fedgwc_cnn(shape: Shape) -> nn.Module:
    """Two 5x5 convolutions and two dense layers (FedGWC's network for CIFAR-10 and CIFAR-100)."""
    return _with_dense(
        [
            *(nn.Conv2d(shape[0], 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        ],
        shape,
        lambda features: [nn.Linear(features, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()],
    )


class _Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*_normed_conv(channels, channels), *_normed_conv(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.body(x)
        return x + branch


def resnet9(shape: Shape) -> nn.Module:
    """ResNet-9 with group normalisation, which keeps no statistics that federated averaging could spoil."""
    return nn.Sequential(
        *_normed_conv(shape[0], 64),
        *(*_normed_conv(64, 128), nn.MaxPool2d(2), _Residual(128)),
        *(*_normed_conv(128, 256), nn.MaxPool2d(2)),
        *(*_normed_conv(256, 256), nn.MaxPool2d(2), _Residual(256)),
        *(nn.AdaptiveMaxPool2d(1), nn.Flatten()),
    )


def _normed_conv(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.GroupNorm(32, outputs), nn.ReLU()]


def _with_dense(convolutions: list[nn.Module], shape: Shape, dense: Callable[[int], list[nn.Module]]) -> nn.Module:
    return nn.Sequential(*convolutions, *dense(_features(nn.Sequential(*convolutions), shape)))


def _features(encoder: nn.Module, shape: Shape) -> int:
    """How many features the encoder gives for one sample of this shape."""
    return _encoded(encoder, shape).shape[1]


ENCODERS: dict[str, Callable[[Shape], nn.Module]] = {
    **{"mlp": mlp, "mlp256": mlp256, "cnn1d": cnn1d, "lenet5": lenet5, "cnn": cnn},
    **{"fedac-cnn": fedac_cnn, "fedgwc-cnn": fedgwc_cnn, "resnet9": resnet9},
}
DEFAULTS = 2
"""Raised when `default_model` changes, so that results of the old one are not taken for the new; 1: "mlp" for all that
are no images."""


def default_model(shape: Shape) -> str:
    """The network a dataset gets when none is named, by the shape of its samples (channels first).

    >>> default_model((1, 28, 28)), default_model((3, 32, 32)), default_model((1, 8, 8))
    ('lenet5', 'cnn', 'mlp')
    >>> default_model((128, 6)), default_model((13,)), default_model((4, 6)), default_model((2, 2, 2, 2))
    ('cnn1d', 'mlp256', 'mlp', 'mlp')
    """
    if len(shape) == 1:
        return "mlp256"
    if len(shape) == 2 and shape[0] >= SHORTEST_SERIES:
        return "cnn1d"
    if len(shape) != 3 or min(shape[1:]) < 24:
        return "mlp"
    return "lenet5" if shape[0] == 1 else "cnn"


def channels_first(sample_shape: Shape) -> Shape:
    """The shape in which samples reach a network: images with their channels first, everything else as it lies.

    >>> channels_first((8, 9, 3)), channels_first((128, 6))
    ((3, 8, 9), (128, 6))
    """
    if len(sample_shape) != 3:
        return sample_shape
    height, width, channels = sample_shape
    return channels, height, width


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
        return _features(self.build().encoder, self.shape)

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
            return Model(encoder, nn.Linear(_features(encoder, self.shape), self.num_classes))
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
        scores = tuple(head(_encoded(encoder, shape)).shape)
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


def _encoded(encoder: nn.Module, shape: Shape) -> Tensor:
    """What the encoder makes of one sample of zeros."""
    encoder.eval()
    with torch.no_grad():
        features: Tensor = encoder(torch.zeros(1, *shape))
    encoder.train()
    return features
