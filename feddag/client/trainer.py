"""What trains and scores a model: in C++ where that is possible, else in PyTorch. Both give the same up to rounding.

Nothing else in the package asks which of the two it is.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.sgd import sgd  # the step alone: an optimiser object loads PyTorch's compiler, which takes seconds

from feddag import native
from feddag.client.device import DeviceKind, exactly
from feddag.client.flops import costs_of, flops_of, layer_costs, training_flops
from feddag.client.loss import Batches, Objective, Penalty, Pull, merged_pulls
from feddag.encoders import pool_first, seed_dropout
from feddag.errors import FeddagError
from feddag.heads import HEAD
from feddag.models import DualEncoder, Model, ModelSpec
from feddag.weights import Weights, part_of

EVALUATION_BATCH = 512

TrainerKind = Literal["auto", "native", "torch"]


@dataclass(frozen=True)
class LocalSettings:
    """How every client trains, unless a step says otherwise; the experiment's fields of the same names."""

    epochs: int = 10
    steps: int | None = None
    batch_size: int = 32
    lr: float = 0.01
    momentum: float = 0.5
    weight_decay: float = 1e-4
    balanced: bool = False
    held: bool = False
    """The softmax runs over the classes that the client, or what a step names, holds."""


class Trainer(Protocol):
    """Trains and scores one network, whatever weights it is given. Tensors come and go in the processor's memory."""

    def fit(
        self,
        start: Weights,
        x: Tensor,
        y: Tensor,
        batches: Batches,
        settings: LocalSettings,
        *,
        dropout_key: int = 0,
        parts: tuple[str, ...] = (),
        pulls: Sequence[Pull] = (),
        sample_weights: Tensor | None = None,
        penalty: Penalty | None = None,
        objective: Objective | None = None,
    ) -> tuple[Weights, Tensor]:
        """SGD with momentum and weight decay on mean cross-entropy: the new weights, and the loss of every step.

        Only `parts` (all if none is named) are trained; the others stand still: no gradient, no weight decay, dropout
        off. `sample_weights` weigh the samples of a batch in its mean loss. An `objective` takes its place.
        """

    def flops(
        self,
        x: Tensor,
        batches: Batches,
        parts: tuple[str, ...] = (),
        penalty: Penalty | None = None,
        objective: Objective | None = None,
    ) -> int:
        """What `fit` computes: see `feddag.client.flops`."""

    def score(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        """A classes x 3 table in float64: correct, samples, summed cross-entropy of each class."""

    def score_each(
        self, weights: Weights, heads: Sequence[Weights], x: Tensor, y: Tensor, sizes: Sequence[int]
    ) -> Tensor:
        """heads x runs of so many samples x (correct, samples, summed cross-entropy): the bytes of `score`.

        Each head, or that of a whole model, takes the place of the model's own; encoders see each sample once for all.
        """

    def losses(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        """The cross-entropy of each sample."""

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        """The class scores of each sample."""

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        """What the first encoder makes of each sample."""


class TorchTrainer:
    """PyTorch: the reference that every faster trainer must agree with. It can train any network, on any device."""

    def __init__(self, model: ModelSpec, device: str = "cpu") -> None:
        self._spec, self._classes, self._device = model, model.num_classes, device
        built = model.build()
        self._model: Model | DualEncoder = built.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def fit(
        self,
        start: Weights,
        x: Tensor,
        y: Tensor,
        batches: Batches,
        settings: LocalSettings,
        *,
        dropout_key: int = 0,
        parts: tuple[str, ...] = (),
        pulls: Sequence[Pull] = (),
        sample_weights: Tensor | None = None,
        penalty: Penalty | None = None,
        objective: Objective | None = None,
    ) -> tuple[Weights, Tensor]:
        model = self._model
        pool_first(model)
        load_weights(model, start)
        seed_dropout(model, dropout_key)
        model.train()
        for name, part in model.named_children():
            part.train(not parts or name in parts)
        named = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and (not parts or part_of(name) in parts)
        }
        parameters: list[Tensor] = list(named.values())
        strengths, centre = merged_pulls(pulls, [name for name, _ in model.named_children()])
        centre = {name: value.to(self._device) for name, value in centre.items()}
        x, y = x.to(self._device), y.to(self._device)
        shares = None if sample_weights is None else sample_weights.to(self._device, torch.float32)
        momenta: list[Tensor | None] = [None] * len(parameters)
        how: dict[str, Any] = {"lr": settings.lr, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
        how["fused"] = self._device in ("cpu", "cuda")  # PyTorch has it for these since 2.4
        losses = torch.empty(len(batches), device=self._device)
        # A user's own random layers draw from torch's global generator.
        with exactly(self._device), torch.random.fork_rng(devices=[]):
            torch.manual_seed(dropout_key % 2**63)
            for step, batch in enumerate(batches):
                index = torch.from_numpy(batch).to(self._device)
                if objective is not None:
                    loss = objective(model, x[index], y[index], step)
                else:
                    loss = _mean_loss(model(x[index]), y[index], None if shares is None else shares[index])
                total = loss if penalty is None else loss + penalty(model, x[index])
                gradients = list(torch.autograd.grad(total, parameters))
                with torch.no_grad():
                    for (name, parameter), gradient in zip(named.items(), gradients, strict=True):
                        strength = strengths.get(part_of(name), 0.0)
                        if strength:
                            gradient.add_(parameter - centre[name], alpha=strength)
                    sgd(parameters, gradients, momenta, dampening=0, nesterov=False, maximize=False, **how)
                losses[step] = loss.detach()
        # Contiguous, as the native trainer and files want them: this network's own weights lie channels last.
        trained = {
            name: value.detach().clone(memory_format=torch.contiguous_format).cpu()
            for name, value in model.state_dict().items()
        }
        return trained, losses.cpu()

    def flops(
        self,
        x: Tensor,
        batches: Batches,
        parts: tuple[str, ...] = (),
        penalty: Penalty | None = None,
        objective: Objective | None = None,
    ) -> int:
        if objective is not None:
            return objective.flops(costs_of(self._spec), batches)
        samples = sum(map(len, batches))
        passed = [costs_of(self._spec)]
        if penalty is not None:
            copy = deepcopy(self._model).eval()
            passed.append(layer_costs(copy, lambda model: penalty(model, x[:1].to(self._device))))
        return sum(training_flops(layers, parts, samples, samples) for layers in passed)

    def score(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return self._tables(weights, [weights], x, y)[0]

    def score_each(
        self, weights: Weights, heads: Sequence[Weights], x: Tensor, y: Tensor, sizes: Sequence[int]
    ) -> Tensor:
        runs = zip(torch.split(x, list(sizes)), torch.split(y, list(sizes)), strict=True)
        return torch.stack([self._tables(weights, heads, inputs, labels).sum(1) for inputs, labels in runs], dim=1)

    def losses(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        found = [
            functional.cross_entropy(scores, labels, reduction="none")
            for scores, labels in self._evaluated(weights, x, y)
        ]
        return torch.cat(found).double() if found else torch.zeros(0, dtype=torch.float64)

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        found = [scores for scores, _ in self._evaluated(weights, x, torch.zeros(len(x), dtype=torch.int64))]
        return torch.cat(found) if found else torch.zeros(0, self._classes)

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        load_weights(self._model, weights)
        self._model.eval()
        with exactly(self._device), torch.inference_mode():
            parts = torch.split(x, EVALUATION_BATCH)
            found = [self._model.encoder(inputs.to(self._device)).flatten(1).cpu() for inputs in parts]
        return torch.cat(found)

    def _tables(self, weights: Weights, heads: Sequence[Weights], x: Tensor, y: Tensor) -> Tensor:
        """The table of `score` with each of these heads."""
        load_weights(self._model, weights)
        self._model.eval()
        tables = torch.zeros(len(heads), self._classes, 3, dtype=torch.float64)
        with exactly(self._device), torch.inference_mode():
            for inputs, labels in zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True):
                features = self._model.before_head(inputs.to(self._device))
                for table, head in zip(tables, heads, strict=True):
                    load_weights(self._model.head, head, f"{HEAD}.")
                    scores = self._model.head(features).cpu()
                    losses = functional.cross_entropy(scores, labels, reduction="none")
                    hits = scores.argmax(dim=1) == labels
                    table.index_add_(0, labels, torch.stack([hits, torch.ones_like(hits), losses], dim=1).double())
        return tables

    def _evaluated(self, weights: Weights, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
        load_weights(self._model, weights)
        self._model.eval()
        with exactly(self._device), torch.inference_mode():
            pairs = zip(torch.split(x, EVALUATION_BATCH), torch.split(y, EVALUATION_BATCH), strict=True)
            return [(self._model(inputs.to(self._device)).cpu(), labels) for inputs, labels in pairs]


class NativeTrainer:
    """C++: several times as fast, and free of Python's lock. What it cannot do it hands to PyTorch."""

    def __init__(self, model: ModelSpec, network: native.Network) -> None:
        self._spec, self._network = model, network

    @cached_property
    def _torch(self) -> TorchTrainer:
        return TorchTrainer(self._spec)

    def fit(
        self,
        start: Weights,
        x: Tensor,
        y: Tensor,
        batches: Batches,
        settings: LocalSettings,
        *,
        dropout_key: int = 0,
        parts: tuple[str, ...] = (),
        pulls: Sequence[Pull] = (),
        sample_weights: Tensor | None = None,
        penalty: Penalty | None = None,
        objective: Objective | None = None,
    ) -> tuple[Weights, Tensor]:
        if penalty is not None or objective is not None:  # only PyTorch can differentiate a method's own
            return self._torch.fit(
                start,
                x,
                y,
                batches,
                settings,
                dropout_key=dropout_key,
                parts=parts,
                pulls=pulls,
                sample_weights=sample_weights,
                penalty=penalty,
                objective=objective,
            )
        strengths, centre = merged_pulls(pulls, self._network.parts)
        job = native.Job(
            network=self._network,
            weights=_arrays(start),
            x=native.samples(x),
            y=y.numpy(),
            order=np.concatenate(batches),
            batch_sizes=np.array([len(batch) for batch in batches]),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            proximal=strengths,
            anchor=_arrays(centre) or None,
            sample_weights=None if sample_weights is None else sample_weights.numpy().astype(np.float32),
            trainable=parts or None,
            dropout_key=dropout_key,
        )
        weights, losses = native.train(job)
        return {name: torch.from_numpy(value) for name, value in weights.items()}, torch.from_numpy(losses)

    def flops(
        self,
        x: Tensor,
        batches: Batches,
        parts: tuple[str, ...] = (),
        penalty: Penalty | None = None,
        objective: Objective | None = None,
    ) -> int:
        if penalty is not None or objective is not None:
            return self._torch.flops(x, batches, parts, penalty, objective)
        samples = sum(map(len, batches))
        frozen = len(np.unique(np.concatenate(batches))) if parts else 0  # their features are computed once for each
        return flops_of(self._spec, parts, samples, frozen)

    def score(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        classes = self._spec.num_classes
        columns = native.evaluate(self._network, _arrays(weights), native.samples(x), y.numpy(), classes)
        return torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))

    def score_each(
        self, weights: Weights, heads: Sequence[Weights], x: Tensor, y: Tensor, sizes: Sequence[int]
    ) -> Tensor:
        # What a sample is worth does not depend on those beside it, so that many short runs are one call.
        columns = native.evaluate_heads(
            self._network, _arrays(weights), [_arrays(head) for head in heads], native.samples(x), y.numpy(), sizes
        )
        return torch.from_numpy(np.stack(np.broadcast_arrays(*columns), axis=2).astype(np.float64))

    def losses(self, weights: Weights, x: Tensor, y: Tensor) -> Tensor:
        return torch.from_numpy(native.losses(self._network, _arrays(weights), native.samples(x), y.numpy()))

    def logits(self, weights: Weights, x: Tensor) -> Tensor:
        return torch.from_numpy(native.scores(self._network, _arrays(weights), native.samples(x)))

    def features(self, weights: Weights, x: Tensor) -> Tensor:
        return self._torch.features(weights, x)


def native_network(
    model: ModelSpec, wanted: TrainerKind = "auto", device: DeviceKind = "auto"
) -> native.Network | None:
    """The model as the native trainer takes it; None where PyTorch is to train it. Refuses what cannot be done.

    >>> native_network(ModelSpec("mlp", (4,), 2), "torch") is None
    True
    """
    built = model.build()
    on_card = device in ("cuda", "mps")
    if on_card and wanted == "native":
        raise FeddagError(
            f"trainer = 'native' trains on the processor alone, and device = '{device}'; allowed is trainer = 'torch'"
        )
    if on_card or wanted == "torch":
        return None
    why_not = native.reason() or native.obstacle(built, model.shape)
    if why_not and wanted == "native":
        raise FeddagError(f"trainer = 'native' cannot train model = '{model.name}': {why_not}; allowed is 'torch'")
    return None if why_not else native.describe(built, model.shape)


def make_trainer(model: ModelSpec, network: native.Network | None, device: str = "cpu") -> Trainer:
    """A trainer of one's own: one that uses PyTorch cannot be shared between threads."""
    return TorchTrainer(model, device) if network is None else NativeTrainer(model, network)


def load_weights(model: nn.Module, weights: Weights, prefix: str = "") -> None:
    """Copy weights into a network that is used again and again, or into a part whose names begin so."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(weights[prefix + name])


def _mean_loss(scores: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return functional.cross_entropy(scores, labels)
    losses, shares = functional.cross_entropy(scores, labels, reduction="none"), weights.to(scores)
    return (shares * losses).sum() / shares.sum()


def _arrays(weights: Weights) -> dict[str, NDArray[np.float32]]:
    return {name: np.ascontiguousarray(value.numpy()) for name, value in weights.items()}
