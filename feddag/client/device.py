"""Where PyTorch trains: on the processor, or on a graphics card. The native trainer knows the processor alone."""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch

from feddag.errors import FeddagError

DeviceKind = Literal["auto", "cpu", "cuda", "mps"]


def find_device(wanted: DeviceKind) -> str:
    """The device that PyTorch is to train on; refuses one that is not there.

    `auto` is a CUDA card where there is one. It never is Apple's `mps`, which lacks some layers: that has to be asked
    for.

    >>> find_device("cpu")
    'cpu'
    """
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if wanted == "auto":
        return "cuda" if there["cuda"] else "cpu"
    if not there[wanted]:
        found = ", ".join(f"'{name}'" for name in ("auto", *there) if there.get(name, True))
        raise FeddagError(f"device = '{wanted}' is not there: PyTorch finds none on this machine; allowed are {found}")
    return wanted


def exactly(device: str) -> AbstractContextManager[None]:
    """On a card, convolutions in whole float32 and by the same algorithm every time, as on a processor."""
    if device == "cpu":
        return nullcontext()
    context: AbstractContextManager[None] = torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    )
    return context
