"""For tests of methods, ours and yours: clients without samples, whose answers can be followed by hand.

>>> from feddag.models import ModelSpec
>>> engine = FakeEngine({0: 10, 1: 30})
>>> federation, method = started("fedavg", engine, ModelSpec("mlp", (2,), 2))
>>> before = method.model_of(0)
>>> one_round(federation, method)
>>> moved(before, method.model_of(0))  # (10 * 1 + 30 * 2) / 40
1.75
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from feddag.client.evaluate import Choose, Evaluate
from feddag.client.step import Result, Step
from feddag.client.train import Train
from feddag.federation import Engine, Federation, Job, Reply
from feddag.methods import Method, find_method
from feddag.models import ModelSpec
from feddag.weights import (
    ClientId,
    ModelSource,
    Own,
    Ref,
    Weights,
    digest,
    keeping,
    kept,
    nbytes,
    only,
    overlaid,
)

Answer = Callable[["FakeEngine", ClientId, Any, Weights], Result]
"""From the engine, a client, its step and the weights that the step before left to what the client answers."""


class FakeEngine(Engine):
    """Clients that pretend: training adds the client's number + 1 to every weight that is trained.

    `samples` says how many samples each client claims to hold. `choices` is the model (by position) that a client
    takes when it may choose; the first, if it is not named. `answers` gives the answer to further kinds of steps, or
    another answer to these. Clients in `silent` do not answer. `jobs` are those of the last exchange.
    """

    def __init__(
        self,
        samples: Mapping[ClientId, int],
        choices: Mapping[ClientId, int] | None = None,
        answers: Mapping[type[Step], Answer] | None = None,
    ) -> None:
        self.samples, self.choices = dict(samples), dict(choices or {})
        self.answers: dict[type[Step], Answer] = {
            Train: _train,
            Choose: _choose,
            Evaluate: _evaluate,
            **(answers or {}),
        }
        self.jobs: list[Job] = []
        self.silent: set[ClientId] = set()
        self.weights: dict[str, Weights] = {}
        self.memory: dict[ClientId, tuple[int, Weights]] = {}

    def population(self) -> tuple[ClientId, ...]:
        return tuple(sorted(self.samples))

    def put(self, weights: Weights) -> Ref:
        self.weights[digest(weights)] = weights
        return Ref(digest(weights), nbytes(weights))

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        self.jobs = list(jobs)
        replies = []
        for job in jobs:
            if job.client in self.silent:
                continue
            current: Weights = {}
            results = []
            for step in job.steps:
                [answer] = [self.answers[kind] for kind in type(step).__mro__ if kind in self.answers][:1]
                results.append(answer(self, job.client, step, current))
                current = current | (results[-1].weights or {})
                if isinstance(step, Train) and step.keep is not None:
                    _, known = self.memory.get(job.client, (0, {}))
                    now = keeping(known, step.keep, results[-1].weights or {}, step.smoothing)
                    self.memory[job.client] = round, now
                    results[-1] = results[-1] if step.send else Result(numbers=results[-1].numbers)
            replies.append(Reply(job.client, results, self.samples[job.client]))
        return replies, {job.client: "silent" for job in jobs if job.client in self.silent}

    def resolve(self, client: ClientId, source: ModelSource, current: Weights) -> Weights:
        """The weights that a step asked for."""
        layers = source if isinstance(source, tuple) else (source,)
        return overlaid(
            kept(self.memory.get(client, (0, {}))[1], layer.name)
            if isinstance(layer, Own)
            else current
            if layer is None
            else self.weights[layer.digest]
            for layer in layers
        )

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return dict(self.memory)

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        self.memory = dict(states)

    def close(self) -> None:
        """Nothing to let go of."""


def _train(engine: FakeEngine, client: ClientId, step: Train, current: Weights) -> Result:
    start = only(engine.resolve(client, step.model, current), step.parts)
    moved = {name: value + client + 1 if value.is_floating_point() else value for name, value in start.items()}
    return Result(weights=moved if step.send or step.keep is not None else None, numbers={"loss": 1.0})


def _choose(engine: FakeEngine, client: ClientId, step: Choose, current: Weights) -> Result:
    chosen = engine.choices.get(client, 0)
    losses = torch.ones(len(step.models), dtype=torch.float64)
    losses[chosen] = 0
    weights = engine.resolve(client, step.models[chosen], current)
    current.update(weights)  # the next step goes on from it
    return Result(arrays={"losses": losses, "chosen": torch.tensor([chosen])})


def _evaluate(engine: FakeEngine, client: ClientId, step: Evaluate, current: Weights) -> Result:
    classes = len(engine.resolve(client, step.model, current)["head.bias"])
    return Result(arrays={"counts": torch.ones(classes, 3, dtype=torch.float64)})


def started(
    method: str | type[Method],
    engine: Engine,
    model: ModelSpec,
    *,
    participation: float = 1.0,
    truth: Mapping[ClientId, int] | None = None,
    seed: int = 0,
    **settings: Any,
) -> tuple[Federation, Any]:
    """A method, by name or class, that has begun on an engine; settings are its own fields."""
    kind = find_method(method) if isinstance(method, str) else method
    federation = Federation(engine, model, seed=seed, participation=participation, truth=truth)
    begun = kind(kind.Settings(**settings))
    begun.setup(federation)
    begun.start(federation)
    return federation, begun


def one_round(federation: Federation, method: Method, sampled: Sequence[ClientId] | None = None) -> None:
    """The next round, with the clients that the method samples or with these."""
    federation.begin_round(federation.round + 1)
    method.round(federation, method.sample(federation) if sampled is None else sampled)


def moved(before: Weights, after: Weights, part: str = "") -> float:
    """By how much weights have moved, which must be the same for all of them, or of one part."""
    parts = (part,) if part else ()
    [by] = {round(float(v), 4) for name in only(before, parts) for v in (after[name] - before[name]).flatten()}
    return by
