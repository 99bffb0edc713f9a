"""What the native trainer needs to know about a network: its layers as plain data, and how to read them off PyTorch."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from feddag import encoders


@dataclass(frozen=True)
class Conv:
    """Convolution of a square, or over time: its weights are `name.weight` and `name.bias`.

    The former are of shape (outputs, inputs, kernel, kernel), over a series (outputs, inputs, kernel).
    """

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    padding: int = 0
    bias: bool = True
    series: bool = False


@dataclass(frozen=True)
class Linear:
    """Fully connected layer; its weights are `name.weight` (outputs, inputs) and `name.bias`."""

    name: str
    inputs: int
    outputs: int
    bias: bool = True


@dataclass(frozen=True)
class GroupNorm:
    """Group normalisation with a learned scale `name.weight` and shift `name.bias` per channel."""

    name: str
    groups: int
    channels: int
    eps: float = 1e-5


@dataclass(frozen=True)
class MaxPool:
    """The largest value of every square window, or stretch of a series."""

    kernel: int
    stride: int
    series: bool = False


@dataclass(frozen=True)
class AvgPool:
    """The mean of every square window, or stretch of a series."""

    kernel: int
    stride: int
    series: bool = False


@dataclass(frozen=True)
class Dropout:
    """Zeroes values with probability p while training, with the masks of `feddag.rng.dropout_mask`."""

    p: float


@dataclass(frozen=True)
class ReLU:
    """max(x, 0)."""


@dataclass(frozen=True)
class Flatten:
    """An image becomes a vector in the order channel, row, column."""


@dataclass(frozen=True)
class TimeLast:
    """First of a part: samples are series, time x channels, and not vectors of as many values."""


Layer = Conv | Linear | GroupNorm | MaxPool | AvgPool | Dropout | ReLU | Flatten | TimeLast


@dataclass(frozen=True)
class Network:
    """An encoder and a head, or two encoders whose features lie side by side before one head."""

    encoder: tuple[Layer, ...]
    head: tuple[Layer, ...]
    secondary: tuple[Layer, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts that exist.

        >>> Network((Flatten(),), (Linear("head", 4, 2),)).parts
        ('encoder', 'head')
        """
        return ("encoder", "secondary", "head") if self.secondary is not None else ("encoder", "head")


class Unsupported(Exception):
    """A part of the network that only PyTorch can run; the text names it."""


def translate(module: nn.Module) -> Network:
    """Read the layers off a PyTorch network.

    A network with two encoders calls them `primary` (or `encoder`) and `secondary`; a network without parts is
    all encoder.

    >>> translate(nn.Sequential(nn.Linear(4, 2), nn.ReLU())).encoder
    (Linear(name='0', inputs=4, outputs=2, bias=True), ReLU())
    """
    named = list(module.named_parameters(remove_duplicate=False))
    if len({id(parameter) for _, parameter in named}) < len(named):
        raise Unsupported(f"{type(module).__name__} uses some of its weights twice")
    parts = dict(module.named_children())
    first = "primary" if "primary" in parts else "encoder"
    if first not in parts or "head" not in parts:
        return Network(tuple(_layers(module, "")), ())
    if extra := parts.keys() - {first, "secondary", "head"}:
        raise Unsupported(f"{type(module).__name__} has the part '{min(extra)}' beside its encoder and head")
    secondary = tuple(_layers(parts["secondary"], "secondary")) if "secondary" in parts else None
    return Network(tuple(_layers(parts[first], first)), tuple(_layers(parts["head"], "head")), secondary)


def _layers(module: nn.Module, name: str) -> Iterator[Layer]:
    if type(module) is nn.Sequential:
        # Not named_children(), which leaves out a layer that stands there a second time.
        children = [(n, child) for n, child in module.named_modules(remove_duplicate=False) if n and "." not in n]
        for child_name, child in children:
            yield from _layers(child, f"{name}.{child_name}" if name else child_name)
    elif not isinstance(module, nn.Identity):
        yield _layer(module, name)


def _layer(module: nn.Module, name: str) -> Layer:
    match module:
        case nn.Conv2d() | nn.Conv1d() if _plain(module):
            kernel, stride, padding = (
                _square(module, size) for size in (module.kernel_size, module.stride, module.padding)
            )
            channels = module.in_channels, module.out_channels
            return Conv(name, *channels, kernel, stride, padding, module.bias is not None, _over_time(module))
        case nn.Linear():
            return Linear(name, module.in_features, module.out_features, module.bias is not None)
        case nn.GroupNorm() if module.affine:
            return GroupNorm(name, module.num_groups, module.num_channels, module.eps)
        case nn.MaxPool2d() | nn.MaxPool1d() if (
            not module.ceil_mode and _all(module.dilation, 1) and _all(module.padding, 0)
        ):
            return MaxPool(_square(module, module.kernel_size), _square(module, module.stride), _over_time(module))
        case nn.AvgPool2d() | nn.AvgPool1d() if (
            not module.ceil_mode and _all(module.padding, 0) and getattr(module, "divisor_override", None) is None
        ):
            return AvgPool(_square(module, module.kernel_size), _square(module, module.stride), _over_time(module))
        case nn.ReLU():
            return ReLU()
        case nn.Flatten() if module.start_dim == 1 and module.end_dim == -1:
            return Flatten()
        case encoders.TimeLast():
            return TimeLast()
    if type(module).__name__ == "Dropout" and isinstance(getattr(module, "p", None), float | int):
        return Dropout(float(module.p))  # type: ignore[arg-type]
    raise Unsupported(
        f"{name or 'the network'} is {' '.join(str(module).split())}, which the native trainer does not know"
    )


def _plain(conv: nn.Conv1d | nn.Conv2d) -> bool:
    return conv.groups == 1 and _all(conv.dilation, 1) and conv.padding_mode == "zeros"


def _over_time(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv1d | nn.MaxPool1d | nn.AvgPool1d)


def _all(size: int | tuple[int, ...], value: int) -> bool:
    return size == value or (isinstance(size, tuple) and set(size) == {value})


def _square(module: nn.Module, size: int | str | tuple[int, ...]) -> int:
    if isinstance(size, int):
        return size
    if isinstance(size, str) or len(set(size)) != 1:
        raise Unsupported(f"{module} is not square")
    return size[0]
