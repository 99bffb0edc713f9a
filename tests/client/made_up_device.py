"""Trains and scores on a device that does not exist, on fake tensors: those know shape, type and device, and no values.

One that meets another on a different device raises, so that whatever was left behind is found. Run by test_device.py in
a process of its own: a device that was made up cannot be taken back.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from feddag.client.loss import Pull
from feddag.client.trainer import LocalSettings, TorchTrainer
from feddag.models import DualEncoder, Model, ModelSpec

COUNT, CARD = 6, "card"


class Movable(ModelSpec):
    """Builds networks with a way of their own to move, as PyTorch's refuses to move fake ones."""

    def build(self) -> Model | DualEncoder:
        built = super().build()

        def to(device: str = "cpu", **how: object) -> nn.Module:
            for module in built.modules():
                for name, weights in module._parameters.items():
                    if weights is not None:
                        module._parameters[name] = nn.Parameter(weights.detach().to(device))
            return built

        built.to = to  # type: ignore[assignment, method-assign]
        return built


SPECS = {
    "dropout and convolutions": Movable("cnn", (3, 24, 24), 3),
    "two encoders": Movable("lenet5", (1, 28, 28), 3, encoders=2),
    "series": Movable("cnn1d", (16, 2), 3),
    "residual": Movable("resnet9", (3, 16, 16), 3),
}
HEAVY = ("convolution", "mm", "relu", "nll_loss", "_foreach", "pool", "softmax")


class Watched(TorchDispatchMode):
    """Notes what is computed where: (operation, device, dtype) of every result."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[tuple[str, str, torch.dtype]] = set()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        tensors = [one for one in (*tree_leaves(made), *tree_leaves(args)) if isinstance(one, Tensor)]
        self.seen |= {(str(function), tensor.device.type, tensor.dtype) for tensor in tensors}
        return made

    def check(self, *names: str) -> None:
        """All that takes time was done on the card, and nothing there in float64, which Apple's have not."""
        heavy = {(name, device) for name, device, _ in self.seen if any(part in name for part in names)}
        assert {device for _, device in heavy} == {CARD}, heavy
        assert torch.float64 not in {dtype for _, device, dtype in self.seen if device == CARD}


def on_the_processor(*tensors: Tensor) -> bool:
    return {tensor.device.type for tensor in tensors} == {"cpu"}


def check_fit(spec: ModelSpec, parts: tuple[str, ...] = ()) -> None:
    start, x, y = spec.initial_weights(0, "m"), torch.zeros(COUNT, *spec.shape), torch.zeros(COUNT, dtype=torch.int64)
    trainer = TorchTrainer(spec, CARD)
    met: list[set[str]] = []

    def penalty(model: nn.Module, batch: Tensor) -> Tensor:
        met.append({batch.device.type, next(model.parameters()).device.type})
        return 0.1 * model(batch).square().mean()

    with Watched() as watched:
        trained, losses = trainer.fit(
            *(start, x, y, [np.arange(4), np.arange(2, 6)], LocalSettings()),
            parts=parts,
            pulls=[Pull(start, 0.1), Pull(start, 0.2, ("head",))],
            sample_weights=torch.ones(COUNT, dtype=torch.float64),
            penalty=penalty,
        )
    assert on_the_processor(losses, *trained.values()) and len(losses) == 2
    assert met == [{CARD}] * 2
    watched.check(*HEAVY)
    assert trainer.flops(x, [np.arange(4)], penalty=penalty) > 0


def check_scoring(spec: ModelSpec) -> None:
    start, x, y = spec.initial_weights(0, "m"), torch.zeros(COUNT, *spec.shape), torch.zeros(COUNT, dtype=torch.int64)
    trainer = TorchTrainer(spec, CARD)
    with Watched() as watched:
        found = trainer.score(start, x, y), trainer.losses(start, x, y), trainer.logits(start, x)
        features = trainer.features(start, x)
    assert on_the_processor(*found, features)
    assert [tuple(one.shape) for one in found] == [(3, 3), (COUNT,), (COUNT, 3)] and len(features) == COUNT
    watched.check("convolution", "mm", "relu", "pool")


def main() -> None:
    """Say the name of everything that went well."""
    _setup_privateuseone_for_python_backend(CARD)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for name, spec in SPECS.items():
            check_fit(spec)
            check_scoring(spec)
            print(name)
        for part in ("encoder", "head"):
            check_fit(SPECS["series"], (part,))
            print(part)


if __name__ == "__main__":
    main()
