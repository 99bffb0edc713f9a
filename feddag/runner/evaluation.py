"""Every client's own model on its own test samples: what a run's accuracies are."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from feddag.client.adapt import Adapt
from feddag.client.evaluate import Choose, Evaluate, EvaluateMixture, balanced_accuracies, mean_loss
from feddag.client.step import Step
from feddag.client.train import Train
from feddag.errors import FeddagError
from feddag.federation import Federation, Ints, Job, Reply
from feddag.methods import Method
from feddag.weights import Adapted, Choice, ClientId, Layered, Mixture, ModelSource, Own, Ref, Served, Weights

TUNE = Train(balanced=False, send=False)  # the same for every method, whatever batches it trains with
Floats = NDArray[np.float64]
NOBODY = np.zeros(0, np.int64)
UNUSABLE_LOSS = 1e4  # mean cross-entropy; guessing among a million classes costs 14


class Evaluation:
    """Scores the models that a method serves. Nothing of it counts as the method's traffic or work."""

    def __init__(self, federation: Federation, method: Method) -> None:
        self._federation, self._method = federation, method
        self._refs: dict[int, tuple[Ref, Weights]] = {}
        self.chosen: dict[ClientId, int] = {}
        """Which of several models each client that has the choice took last."""
        self.unusable = False
        """Whether the models last scored have a loss that no model in use has."""

    def scores(self, clients: Sequence[ClientId], finetuned: bool = False) -> tuple[Floats, float | None]:
        """Each client's balanced accuracy (nan where there is none) and the mean loss over all test samples.

        `finetuned` scores each model after the client's own local epochs; a mixture of models has no such score.
        """
        self._refs = {}
        plain, counts = (NOBODY, None) if finetuned else self._plain(clients)
        place = {clients[n]: n for n in np.setdiff1d(np.arange(len(clients)), plain, assume_unique=True).tolist()}
        jobs = [Job(client, steps) for client in place if (steps := self._steps(client, finetuned))]
        with self._federation.uncounted():
            replies = list(self._federation.ask(jobs))
        self._refs = {}
        self.unusable = False
        self._note_choices(replies)
        found = np.full(len(clients), math.nan)
        tables, which = counts or (torch.zeros(0), NOBODY)
        if told := [reply.results[-1].arrays["counts"] for reply in replies]:
            which = np.concatenate([which, len(tables) + np.arange(len(told))])
            tables = torch.cat([tables, torch.stack(told)]) if len(tables) else torch.stack(told)
        if not len(which):
            return found, None
        asked = np.array([place[reply.client] for reply in replies], np.int64)
        found[np.concatenate([plain, asked])] = balanced_accuracies(tables)[which]
        loss = mean_loss(tables[torch.from_numpy(which)].sum(0))
        self.unusable = bool(tables[:, :, 1].sum() > 0) and not loss <= UNUSABLE_LOSS
        return found, loss if math.isfinite(loss) else None

    def _plain(self, clients: Sequence[ClientId]) -> tuple[Ints, tuple[Tensor, Ints] | None]:
        """The places of clients that use weights known here, and their scores; none where they have to be asked."""
        served = self._models_of(clients)  # many clients share a few objects, and each of these is looked at once
        _, first, which = np.unique(np.fromiter(map(id, served), np.int64), return_index=True, return_inverse=True)
        refs: dict[Ref, int] = {}  # different objects may hold equal weights
        models = [served[place] for place in first.tolist()]
        number = [refs.setdefault(self._ref(m), len(refs)) if isinstance(m, dict) else -1 for m in models]
        chosen, asked = np.array(number, np.int64)[which], np.array(clients, np.int64)
        plain = np.flatnonzero((chosen >= 0) & ~np.isin(asked, list(self._federation.barred)))
        counts = self._federation.counts(list(refs), chosen[plain], asked[plain]) if len(plain) else None
        return (NOBODY if counts is None else plain), counts

    def _models_of(self, clients: Sequence[ClientId]) -> list[Served]:
        served: list[Served] = []
        try:
            served.extend(map(self._method.model_of, clients))
        except LookupError:
            name, client = type(self._method).name, clients[len(served)]
            raise FeddagError(
                f"method '{name}' has no model for client {client}: model_of must answer for every client, also for "
                "one that joined later or has not been sampled yet"
            ) from None
        return served

    def _steps(self, client: ClientId, finetuned: bool) -> list[Step]:
        first, sources, shares = self.used(client)
        if len(sources) > 1:
            return [] if finetuned else [EvaluateMixture(sources, shares)]
        [source] = sources
        return [*first, replace(TUNE, model=source), Evaluate()] if finetuned else [*first, Evaluate(source)]

    def used(self, client: ClientId) -> tuple[list[Step], tuple[ModelSource, ...], tuple[float, ...]]:
        """What a client uses now: a step that has to come first, if any; one model, or several and their shares."""
        [model] = self._models_of([client])
        if isinstance(model, Mixture):
            return [], tuple(map(self._layers, model.models)), model.shares
        if isinstance(model, Choice):
            return [Choose(tuple(map(self._layers, model.models)))], (None,), (1.0,)
        if isinstance(model, Adapted):
            return [Adapt(self._ref(model.model), lr=model.lr, steps=model.steps)], (None,), (1.0,)
        if isinstance(model, tuple):
            return [], (self._layers(model),), (1.0,)
        return [], (model if isinstance(model, Own) else self._ref(model),), (1.0,)

    def _layers(self, model: Weights | Layered) -> ModelSource:
        if isinstance(model, dict):
            return self._ref(model)
        return tuple(layer if isinstance(layer, Own) else self._ref(layer) for layer in model)

    def _ref(self, model: Weights) -> Ref:
        # Most clients share a few sets of weights: each is hashed once, and held, or another might get its id.
        if id(model) not in self._refs:
            self._refs[id(model)] = self._federation.put(model), model
        return self._refs[id(model)][0]

    def _note_choices(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if "chosen" in reply.results[0].arrays:
                self.chosen[reply.client] = int(reply.results[0].arrays["chosen"])
