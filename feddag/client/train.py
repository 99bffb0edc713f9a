"""Local training as a step, and the batches it goes through."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feddag.client.loss import Objective, Penalty, Pull
from feddag.client.step import Client, Result, Step
from feddag.client.trainer import LocalSettings
from feddag.heads import without
from feddag.weights import ModelSource, only


class Anchor(NamedTuple):
    """A pull of strength / 2 * ||w - to||^2 towards other weights, on some parts (all, if none is named)."""

    to: ModelSource
    strength: float
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Train(Step):
    """Train a model on the client's samples by SGD.

    Only `parts` (all if none is named) are trained and sent; the others stand still: no gradient, no weight decay,
    dropout off. `anchors` pull the weights towards others. `epochs`, `steps`, `lr` and `balanced` (every class is drawn
    equally often) differ from the experiment's where given. `held` names classes of others that the softmax is to know
    as well, where it knows only those that are held. `sample_weights` names what an earlier step of the job left
    in the client's `scratch`: a weight for each sample. `losses` sends the loss of every SGD step. `keep` remembers the
    result on the client under that name, with `smoothing` its mean over rounds as well; `send = False` keeps it from
    travelling back.
    """

    model: ModelSource = None
    parts: tuple[str, ...] = ()
    balanced: bool | None = None
    held: tuple[int, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    epochs: int | None = None
    steps: int | None = None
    lr: float | None = None
    sample_weights: str | None = None
    losses: bool = False
    phase: str | None = None
    keep: str | None = None
    smoothing: float = 0.0
    send: bool = True

    def run(self, client: Client) -> Result:
        start = client.weights(self.model)
        settings = self.settings(client.settings)
        batches = batches_of(client, settings)
        pulls = [Pull(client.weights(to), strength, tuple(parts)) for to, strength, parts in self.anchors]
        trained, losses = client.fit(
            start,
            batches,
            settings,
            parts=self.parts,
            pulls=pulls,
            sample_weights=None if self.sample_weights is None else client.scratch[self.sample_weights],
            penalty=self.penalty(),
            objective=self.objective(client),
            held=self.held,
        )
        client.current = trained
        if self.keep is not None:
            own = without(trained, client.absent(settings, self.held))  # it answers with what it learnt to tell apart
            client.keep(self.keep, only(own, self.parts), self.smoothing)
        return Result(
            weights=only(trained, self.parts) if self.send else None,
            numbers={"loss": float(np.add.reduce(losses.numpy()) / len(batches))},
            arrays={"losses": losses.double()} if self.losses else {},
            samples=sum(map(len, batches)),
        )

    def sends(self) -> bool:
        return self.send

    def problem(self, result: Result) -> str | None:
        if set(result.arrays) != ({"losses"} if self.losses else set()) or not set(result.numbers) <= {"loss"}:
            return "answered with an array of a wrong name, shape or type"
        return None

    def settings(self, usual: LocalSettings) -> LocalSettings:
        """The experiment's settings but for what this step says."""
        names = ("epochs", "steps", "lr", "balanced")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if "epochs" in given:
            given.setdefault("steps", None)
        return replace(usual, **given) if given else usual

    def penalty(self) -> Penalty | None:
        """What a method's own kind of training adds to the loss (PyTorch then does the work); None for nothing."""
        return None

    def objective(self, client: Client) -> Objective | None:
        """What a method's own kind of training minimises instead (PyTorch then does the work); None for the usual."""
        return None


def batches_of(client: Client, settings: LocalSettings) -> list[NDArray[np.int64]]:
    """The batches of a client's training, with its classes in equal parts where the settings say so."""
    batches = list(draw_batches(len(client.y), settings, client.rng("batches")))
    if settings.balanced:
        everything = np.arange(len(client.y))
        batches = balanced_batches(client.y.numpy(), everything, list(map(len, batches)), client.rng("balance"))
    return batches


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
