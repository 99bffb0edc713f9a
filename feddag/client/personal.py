"""The model a client would really use, chosen at home by samples that it has kept from training since the start.

A client tries its group's model, the same with a tuned head or tuned as a whole, a model trained alone, the common
model, and a mixture of them all. Only its choice and scores are sent; what it tuned stays with it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings
from feddag.models import ModelSpec
from feddag.weights import ModelSource, Weights, only

GROUP, HEAD, FULL, ALONE, COMMON, MIXTURE, CHOSEN = "group", "head", "full", "alone", "common", "mixture", "chosen"
ABOUT = {
    GROUP: "the model that the method gives the client",
    HEAD: "the same with a head tuned on the client's samples",
    FULL: "the same, tuned as a whole",
    ALONE: "trained on the client's samples alone",
    COMMON: "one model for all clients",
    MIXTURE: "several of these, their class probabilities averaged",
}
CANDIDATES = (GROUP, HEAD, FULL, ALONE, COMMON)
TUNED = "tuned"
"""Under this name a client keeps the share of each of `CANDIDATES` in the model that it chose; followed by a
candidate's name, what it has trained of that one."""
FEWEST = 10  # samples to choose by
ERRORS = 1.0  # standard errors by which a candidate must be better than the group's model
MIXING_STEPS = 100
SMALLEST_SHARE = 0.05  # of a mixture: less changes nothing, and a model more would have to be kept

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
Candidates = dict[str, list[tuple[Weights, float]]]
"""By name: a model, or several with their shares."""


@dataclass(frozen=True)
class Personalise(Step):
    """Try candidates beside the group's model, keep the best, and tell which it is and how good each is.

    `group` is what the client uses now: one model, or several with their `shares`. The `common` model, and the `start`
    of one trained alone, are given where these are `tried`; alone it trains so many `times` as long as in a round.
    """

    tried: tuple[str, ...]
    group: tuple[ModelSource, ...] = (None,)
    shares: tuple[float, ...] = (1.0,)
    common: ModelSource = None
    start: ModelSource = None
    times: int = 1

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"shares": (len(CANDIDATES),), "counts": (len(CANDIDATES) + 1, model.num_classes, 2)}

    def sends(self) -> bool:
        return False

    def problem(self, result: Result) -> str | None:
        shares, counts = result.arrays["shares"], result.arrays["counts"]
        if not bool((shares >= 0).all()) or abs(float(shares.sum()) - 1) > 1e-6:
            return "told shares that cannot be"
        right, samples = counts[..., 0], counts[..., 1]
        return None if bool(((right >= 0) & (right <= samples)).all()) else "told a score that cannot be"

    def run(self, client: Client) -> Result:
        group = [client.weights(source) for source in self.group]
        x, y = client.aside() if client.aside is not None else (client.x[:0], client.y[:0])
        # They stay as they were compared. Training them again on all samples gave the same accuracy in our trials, takes
        # twice the work, and would leave the client with a model that nobody has measured.
        models, passes = self._candidates(client, group)
        found = probabilities(client, models, x)
        shares = choose(found, y.numpy()) if len(y) >= FEWEST else {GROUP: 1.0}
        table = torch.tensor([shares.get(name, 0.0) for name in CANDIDATES], dtype=torch.float64)
        client.keep(TUNED, {"shares": table})
        for name in set(shares) & {HEAD, FULL, ALONE}:  # the others are not the client's own
            client.keep(f"{TUNED} {name}", only(models[name][0][0], (HEAD,) if name == HEAD else ()))
        test_x, test_y = client.test_samples()
        scores = probabilities(client, models, test_x)
        scores[CHOSEN] = mixed(scores, shares)
        counts = torch.from_numpy(count_hits(scores, test_y.numpy(), client.num_classes))
        scored = len(y) * sum(map(len, models.values()))
        return Result(arrays={"shares": table, "counts": counts}, samples=passes, scored=scored)

    def _candidates(self, client: Client, group: Sequence[Weights]) -> tuple[Candidates, int]:
        """Every candidate, trained on this client's samples; and how many of these went through training."""
        found: Candidates = {GROUP: list(zip(group, self.shares, strict=True))}
        passes = 0
        for name in self.tried:
            if name == COMMON:
                found[name] = [(client.weights(self.common), 1.0)]
                continue
            client.current = client.weights(self.start) if name == ALONE else group[0]
            passes += self.training(name, client.settings).run(client).samples
            found[name] = [(client.current, 1.0)]
        return found, passes

    def training(self, name: str, usual: LocalSettings) -> Train:
        """How a candidate is trained: with classes in equal parts, because that is how it is scored."""
        times = self.times if name == ALONE else 1
        steps = None if usual.steps is None else times * usual.steps
        return Train(
            parts=(HEAD,) if name == HEAD else (), balanced=True, epochs=times * usual.epochs, steps=steps, send=False
        )


def probabilities(client: Client, models: Candidates, x: Tensor) -> dict[str, Array]:
    """What each candidate makes of samples: class probabilities, samples x classes."""
    found = {}
    for name, members in models.items():
        parts = [
            share * functional.softmax(client.trainer.logits(weights, x).double(), dim=1) for weights, share in members
        ]
        found[name] = torch.stack(parts).sum(0).numpy()
    return found


def mixed(found: Mapping[str, Array], shares: Mapping[str, float]) -> Array:
    """The mean of several candidates' probabilities, weighted by their shares."""
    total: Array = np.sum([share * found[name] for name, share in shares.items()], axis=0)
    return total


def count_hits(found: Mapping[str, Array], y: Labels, num_classes: int) -> Array:
    """For each candidate and for what was chosen, by class: how many it got right, and of how many; 0 of 0 untried.

    >>> count_hits({"group": np.eye(2), "chosen": np.eye(2)}, np.array([0, 0]), 2)[[0, -1], 0].tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    counts = np.zeros((len(CANDIDATES) + 1, num_classes, 2))
    for row, name in enumerate((*CANDIDATES, CHOSEN)):
        if name in found:
            hits = found[name].argmax(axis=1) == y
            counts[row, :, 0] = np.bincount(y[hits], minlength=num_classes)
            counts[row, :, 1] = np.bincount(y, minlength=num_classes)
    return counts


def choose(found: Mapping[str, Array], y: Labels) -> dict[str, float]:
    """The shares of candidates in the model to use, by what each makes of samples that none of them has seen.

    TODO
    """
    shares = mixing_shares(list(found.values()), y)
    mixture = {name: share for name, share in zip(found, shares.tolist(), strict=True) if share >= SMALLEST_SHARE}
    mixture = {name: share / sum(mixture.values()) for name, share in mixture.items()}
    options = [{name: 1.0} for name in found if name != GROUP] + [mixture]
    usual = found[GROUP].argmax(axis=1) == y
    best, most = {GROUP: 1.0}, 0.0
    for option in options:
        gain, error = gain_over(usual, mixed(found, option).argmax(axis=1) == y, y)
        if gain > ERRORS * error and gain > most:
            best, most = option, gain
    return best


def gain_over(usual: NDArray[np.bool_], other: NDArray[np.bool_], y: Labels) -> tuple[float, float]:
    """By how much balanced accuracy is better with other hits than with the usual ones, and its standard error.

    The mean over classes of the mean difference d of their samples. Its variance is that of d within classes, which all
    classes share, times the sum of 1 / (samples of a class), over the squared number of classes.

    >>> hits = np.array([True, True, False, True, False, False])
    >>> gain_over(hits, ~hits, np.array([0, 0, 0, 1, 1, 1]))[0]
    0.0
    """
    d = other.astype(float) - usual
    _, place, sizes = np.unique(y, return_inverse=True, return_counts=True)
    means = np.bincount(place, d) / sizes
    variance = float(((d - means[place]) ** 2).sum()) / max(1, len(y) - len(sizes))
    return float(means.mean()), float(np.sqrt(variance * (1 / sizes).sum())) / len(sizes)


def mixing_shares(found: Sequence[Array], y: Labels) -> Array:
    """The shares with which a mixture of models has the least log loss, where every class counts alike.

    By expectation-maximisation: a model's new share is its part in the probabilities of the true classes. So shares stay
    from 0 to 1 and sum to 1.

    >>> sure, wrong = np.array([[0.9, 0.1]]), np.array([[0.1, 0.9]])
    >>> mixing_shares([sure, wrong], np.array([0])).round(2).tolist()
    [1.0, 0.0]
    """
    given = np.stack([table[np.arange(len(y)), y] for table in found], axis=1).clip(1e-12)
    _, place, sizes = np.unique(y, return_inverse=True, return_counts=True)
    weights = 1 / (len(sizes) * sizes[place])
    shares: Array = np.full(len(found), 1 / len(found))
    for _ in range(MIXING_STEPS):
        parts = shares * given
        shares = weights @ (parts / parts.sum(axis=1, keepdims=True))
    return shares
