"""Local training: in PyTorch, the reference that every faster trainer must agree with, or natively."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from feddag import native
from feddag.client.work import Client, LocalSettings
from feddag.federation import ModelSource, Ref, Result, Step, Weights
from feddag.models import DualEncoder, seed_dropout


@dataclass(frozen=True)
class Train(Step):
    """Train a model on the client's samples by SGD.

    Only `parts` (all if none is named) are trained and sent; the others stand still: no gradient, no weight decay,
    dropout off. `secondary` takes that part from elsewhere. `balanced` draws every class equally often. `diversity`
    weighs FedDAG's Eq. 42. `proximal` pulls the weights towards where they started (FedProx's mu). `keep` remembers
    the result on the client under that name; `send = False` keeps it from travelling back.
    """

    model: ModelSource = None
    parts: tuple[str, ...] = ()
    secondary: Ref | None = None
    balanced: bool = False
    diversity: float = 0.0
    phase: str | None = None
    proximal: float = 0.0
    keep: str | None = None
    send: bool = True

    def run(self, client: Client) -> Result:
        start = client.weights(self.model)
        if self.secondary is not None:
            start = start | client.weights(self.secondary)
        batches = list(draw_batches(len(client.y), client.settings, client.rng("batches")))
        if self.balanced:
            everything = np.arange(len(client.y))
            batches = balanced_batches(client.y.numpy(), everything, list(map(len, batches)), client.rng("balance"))
        trained, losses = fit(
            client, start, batches, trainable=self.parts, proximal=self.proximal, diversity=self.diversity
        )
        client.current = trained
        if self.keep is not None:
            client.keep(self.keep, trained)
        return Result(
            weights=only(trained, self.parts) if self.send else None,
            numbers={"loss": float(losses.numpy().mean())},
            samples=sum(map(len, batches)),
        )


def fit(
    client: Client,
    start: Weights,
    batches: list[NDArray[np.int64]],
    *,
    trainable: tuple[str, ...] = (),
    proximal: float = 0.0,
    diversity: float = 0.0,
) -> tuple[Weights, Tensor]:
    """Train on the client's samples in the given batches, natively where that is possible."""
    work = (start, client.x, client.y, batches, client.settings, client.key("dropout"), proximal, trainable)
    if client.network is None or diversity:  # Eq. 42 has no native form
        return train(client.model, *work, diversity)
    return train_natively(client.network, *work)


def only(weights: Weights, parts: tuple[str, ...]) -> Weights:
    """The weights of some parts; of all, if none is named.

    >>> only({"encoder.w": torch.zeros(1), "head.w": torch.ones(1)}, ("head",))
    {'head.w': tensor([1.])}
    """
    return {name: value for name, value in weights.items() if not parts or name.partition(".")[0] in parts}


def balanced_batches(
    y: NDArray[np.int64], chosen: NDArray[np.int64], sizes: list[int], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Batches of these sizes that take the classes of the chosen samples in turn, so that each is there equally often.

    >>> y = np.array([0, 0, 0, 1])
    >>> [y[batch].tolist() for batch in balanced_batches(y, np.arange(4), [4, 2], np.random.default_rng(0))]
    [[0, 1, 0, 1], [0, 1]]
    """
    labels = np.unique(y[chosen])
    each = -(-sum(sizes) // len(labels))
    turns = []
    for label in labels:
        held = chosen[y[chosen] == label]
        turns.append(np.concatenate([rng.permutation(held) for _ in range(-(-each // len(held)))])[:each])
    order = np.stack(turns, axis=1).ravel()[: sum(sizes)]
    return np.split(order, np.cumsum(sizes)[:-1])


def draw_batches(samples: int, settings: LocalSettings, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """The sample numbers of each SGD step: whole shuffled epochs, the last batch of an epoch smaller.

    With `steps` set, epochs go on until that many steps are done.

    >>> [len(b) for b in draw_batches(5, LocalSettings(epochs=2, batch_size=2), np.random.default_rng(0))]
    [2, 2, 1, 2, 2, 1]
    >>> [len(b) for b in draw_batches(5, LocalSettings(steps=4, batch_size=2), np.random.default_rng(0))]
    [2, 2, 1, 2]
    """
    per_epoch = -(-samples // settings.batch_size)
    steps = settings.epochs * per_epoch if settings.steps is None else settings.steps
    for step in range(steps):
        if step % per_epoch == 0:
            order = rng.permutation(samples)
        start = step % per_epoch * settings.batch_size
        yield order[start : start + settings.batch_size]


def train(
    model: nn.Module,
    start: Weights,
    x: Tensor,
    y: Tensor,
    batches: list[NDArray[np.int64]],
    settings: LocalSettings,
    dropout_key: int = 0,
    proximal: float = 0.0,
    trainable: tuple[str, ...] = (),
    diversity: float = 0.0,
) -> tuple[Weights, Tensor]:
    """SGD with momentum and weight decay on mean cross-entropy; returns the new weights and the loss of every step."""
    pool_first(model)
    load_weights(model, start)
    seed_dropout(model, dropout_key)
    model.train()
    for name, part in model.named_children():
        part.train(not trainable or name in trainable)
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    parameters = [parameter for name, parameter in named if not trainable or name.partition(".")[0] in trainable]
    anchor = [parameter.detach().clone() for parameter in parameters] if proximal else []
    optimiser = torch.optim.SGD(
        parameters, settings.lr, settings.momentum, weight_decay=settings.weight_decay, fused=True
    )
    losses = torch.empty(len(batches))
    with torch.random.fork_rng(devices=[]):  # a user's own random layers draw from torch's global generator
        torch.manual_seed(dropout_key % 2**63)
        for step, batch in enumerate(batches):
            index = torch.from_numpy(batch)
            loss = functional.cross_entropy(model(x[index]), y[index])
            objective = loss + diversity * alignment(model, x[index]) if diversity else loss
            for parameter, slope in zip(parameters, torch.autograd.grad(objective, parameters), strict=True):
                parameter.grad = slope
            if proximal:
                with torch.no_grad():  # the gradient of mu / 2 * ||w - w_start||^2
                    for parameter, origin in zip(parameters, anchor, strict=True):
                        if parameter.grad is not None:
                            parameter.grad.add_(parameter - origin, alpha=proximal)
            optimiser.step()
            losses[step] = loss.detach()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}, losses


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
                if type(part[i]) is nn.ReLU and type(part[i + 1]) is nn.MaxPool2d:
                    part[i], part[i + 1] = part[i + 1], part[i]


def train_natively(
    network: native.Network,
    start: Weights,
    x: Tensor,
    y: Tensor,
    batches: list[NDArray[np.int64]],
    settings: LocalSettings,
    dropout_key: int = 0,
    proximal: float = 0.0,
    trainable: tuple[str, ...] = (),
) -> tuple[Weights, Tensor]:
    """The same as `train` up to rounding, in C++."""
    job = native.Job(
        network=network,
        weights={name: value.numpy() for name, value in start.items()},
        x=native.samples(x),
        y=y.numpy(),
        order=np.concatenate(batches),
        batch_sizes=np.array([len(batch) for batch in batches]),
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        proximal=proximal,
        trainable=trainable or None,
        dropout_key=dropout_key,
    )
    weights, losses = native.train(job)
    return {name: torch.from_numpy(value) for name, value in weights.items()}, torch.from_numpy(losses)


def alignment(model: nn.Module, x: Tensor) -> Tensor:
    """FedDAG's Eq. 42: the mean squared cosine of what two encoders see."""
    assert isinstance(model, DualEncoder)
    cosines: Tensor = functional.cosine_similarity(*model.features(x), dim=1)
    return (cosines**2).mean()


def load_weights(model: nn.Module, weights: Weights) -> None:
    """Copy weights into a network that is used again and again."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(weights[name])
