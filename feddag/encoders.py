"""Encoders: what turns samples of some shape into features. Each fits any shape it can serve at all."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from feddag.rng import dropout_mask

Shape = tuple[int, ...]
SHORTEST_SERIES = 8  # steps in time, for convolutions over it


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


def pool_first(model: nn.Module) -> None:
    """Put every max-pool before the ReLU that feeds it: the same values and gradients, and less work for ReLU.

    >>> layers = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2))
    >>> pool_first(layers)
    >>> [type(layer).__name__ for layer in layers]
    ['Conv2d', 'MaxPool2d', 'ReLU']
    """
    for part in model.modules():
        if type(part) is nn.Sequential:
            for i in range(len(part) - 1):
                if type(part[i]) is nn.ReLU and type(part[i + 1]) in (nn.MaxPool1d, nn.MaxPool2d):
                    part[i], part[i + 1] = part[i + 1], part[i]


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
    return nn.Sequential(*convolutions, *dense(features_of(nn.Sequential(*convolutions), shape)))


def features_of(encoder: nn.Module, shape: Shape) -> int:
    """How many features the encoder gives for one sample of this shape."""
    return encoded(encoder, shape).shape[1]


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


def encoded(encoder: nn.Module, shape: Shape) -> Tensor:
    """What the encoder makes of one sample of zeros."""
    encoder.eval()
    with torch.no_grad():
        features: Tensor = encoder(torch.zeros(1, *shape))
    encoder.train()
    return features
