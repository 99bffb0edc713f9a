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

from feddag.client.evaluate import balanced_accuracy
from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings
from feddag.heads import without
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
candidate's name, what is its own of that one: what it has trained, or the head that leaves out other classes."""
FEWEST = 10  # samples to choose by
PRIOR = 10  # samples that speak for all candidates alike
UNSURE = 0.5  # samples by which a class, however few of it are set aside, speaks for the common model
FITS = 0.9  # balanced accuracy of a group's model on samples that it was trained on
MIXING_STEPS = 100

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
        # They stay as they were compared: trained again on all samples they were no better (seeds 100 and above), for
        # twice the work, and a client would use a model that nobody has measured.
        models, passes = self._candidates(client, group)
        if len(y) >= FEWEST:
            rare = len(set(client.y.tolist()) - set(y.tolist()))
            shares = choose(probabilities(client, models, x), y.numpy(), rare)
        else:
            x, y = client.x, client.y
            shares = without_aside(probabilities(client, models, x), y.numpy())
        table = torch.tensor([shares.get(name, 0.0) for name in CANDIDATES], dtype=torch.float64)
        client.keep(TUNED, {"shares": table})
        for name in (name for name in (HEAD, FULL, ALONE, COMMON) if name in shares):  # the group's is not its own
            client.keep(f"{TUNED} {name}", only(models[name][0][0], (HEAD,) if name in (HEAD, COMMON) else ()))
        test_x, test_y = client.test_samples()
        scores = probabilities(client, models, test_x)
        scores[CHOSEN] = mixed(scores, shares)
        counts = torch.from_numpy(count_hits(scores, test_y.numpy(), client.num_classes))
        scored = len(y) * sum(map(len, models.values()))
        return Result(arrays={"shares": table, "counts": counts}, samples=passes, scored=scored)

    def _candidates(self, client: Client, group: Sequence[Weights]) -> tuple[Candidates, int]:
        """Every candidate, trained on this client's samples; and how many of these went through training."""
        found: Candidates = {GROUP: list(zip(group, self.shares, strict=True))}
        absent = client.absent(client.settings)
        passes = 0
        for name in self.tried:
            if name == COMMON:
                weights = client.weights(self.common)
            else:
                client.current = client.weights(self.start) if name == ALONE else group[0]
                passes += self.training(name, client.settings).run(client).samples
                weights = client.current
            found[name] = [(without(weights, absent), 1.0)]  # it answers with what it learnt to tell apart
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


def choose(found: Mapping[str, Array], y: Labels, rare: int = 0) -> dict[str, float]:
    """The share of each candidate in the model to use, by what each makes of samples that none has been trained on.

    It is the mixture of all. Where two samples or more of every class are there to tell, and none of the client's
    classes is too `rare` to have any, it must not have a lower balanced accuracy than the group's model tuned as a
    whole (as it is, where that was not tried): on validation samples of seeds 100 and above no other single one was
    better on average. Accuracy on a few dozen samples is coarse, and the best of five by it is often the luckiest: so
    the mixture's shares follow the log loss, and a mixture is seldom much worse than the best model in it.

    >>> one, other = np.array([[0.9, 0.1], [0.8, 0.2]]), np.array([[0.1, 0.9], [0.8, 0.2]])
    >>> choose({"group": one, "alone": other}, np.array([0, 1]))["group"] > 0.5
    True
    >>> choose({"group": one, "alone": other}, np.array([1, 0]))["alone"] > 0.5
    True
    >>> choose({"group": other, "full": one}, np.array([0, 0]))["full"] > 0.5
    True
    """
    names = usable(found) or [GROUP]
    trusted = names.index(COMMON) if COMMON in names else None
    mixture = dict(zip(names, mixing_shares([found[name] for name in names], y, rare, trusted).tolist(), strict=True))
    if rare or np.unique(y, return_counts=True)[1].min() < 2:
        return mixture
    single = FULL if FULL in names else GROUP
    usual, other = (balanced_accuracy(table.argmax(axis=1), y) for table in (found[single], mixed(found, mixture)))
    return mixture if other >= usual else {single: 1.0}


def without_aside(found: Mapping[str, Array], y: Labels) -> dict[str, float]:
    """What a client takes that has too few samples to set any aside, by what candidates make of its training samples.

    All have seen these, so that nothing can be chosen by them. But a group's model that is wrong about a tenth of what
    it was trained on does not fit this client: then the others are mixed in equal parts.

    >>> right, wrong = np.array([[0.9, 0.1]]), np.array([[0.2, 0.8]])
    >>> without_aside({"group": right, "full": right, "alone": wrong}, np.array([0]))
    {'group': 1.0}
    >>> without_aside({"group": wrong, "full": right, "alone": right}, np.array([0]))
    {'full': 0.5, 'alone': 0.5}
    """
    others = [name for name in usable(found) if name != GROUP]
    if not others or balanced_accuracy(found[GROUP].argmax(axis=1), y) >= FITS:
        return {GROUP: 1.0}
    return dict.fromkeys(others, 1 / len(others))


def usable(found: Mapping[str, Array]) -> list[str]:
    """The candidates that have probabilities to mix: one that has diverged has none."""
    return [name for name in CANDIDATES if name in found and np.isfinite(found[name]).all()]


def mixing_shares(found: Sequence[Array], y: Labels, rare: int = 0, trusted: int | None = None) -> Array:
    """The shares with which a mixture of models has the least log loss, where every class counts alike.

    By expectation-maximisation: a model's new share is its part in the probabilities of the true classes, so shares
    stay from 0 to 1 and sum to 1. `PRIOR` further samples, which belong to all models in equal parts, keep a few from
    deciding everything. So many classes more are so `rare` that no sample tells about them, and of others only a few
    do: where a model is `trusted` with what a client has hardly seen, the weight that these lack is its own.

    >>> right, wrong = np.array([[1.0, 0.0]] * 90), np.array([[0.0, 1.0]] * 90)
    >>> mixing_shares([wrong, right, wrong], np.zeros(90, int)).round(3).tolist()
    [0.033, 0.933, 0.033]
    >>> mixing_shares([wrong, right, wrong], np.zeros(90, int), rare=1, trusted=0).round(2).tolist()
    [0.49, 0.48, 0.03]
    """
    if len(found) == 1:
        return np.ones(1)
    given = np.stack([table[np.arange(len(y)), y] for table in found], axis=1).clip(1e-12)
    _, place, sizes = np.unique(y, return_inverse=True, return_counts=True)
    each = len(y) / len(sizes) if trusted is None else len(y) / (len(sizes) + rare)  # what a class weighs
    known = sizes / (sizes + (0 if trusted is None else UNSURE))
    weights = (each * known / sizes)[place]
    before: Array = np.full(len(found), PRIOR / len(found))
    if trusted is not None:
        before[trusted] += len(y) - weights.sum()
    shares = np.full(len(found), 1 / len(found))
    for _ in range(MIXING_STEPS):
        parts = shares * given
        shares = (weights @ (parts / parts.sum(axis=1, keepdims=True)) + before) / (len(y) + PRIOR)
    return shares
