"""Clients that lie, for experiments: an engine around another one that changes what some clients answer."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from feddag.client.step import Result
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.data.clients import ClientData
from feddag.federation import Engine, Job, Reply
from feddag.records import Event
from feddag.rng import rng
from feddag.weights import ClientId, ModelSource, Ref, Weights

Attack = Literal["none", "sign-flip", "scale", "label-flip", "noise", "free-rider", "signature-mimic"]
REVERSED = 10.0  # sign-flip: as many times the honest update, the other way
SCALED = 100.0  # scale: as many times the honest update
NOISE = 10.0  # noise: standard deviation, in units of that of the honest update
CLAIMED = 100  # free-rider: as many times the samples it has


def draw_attackers(seed: int, clients: int, share: float) -> tuple[ClientId, ...]:
    """Who lies: a share of the clients, at least one.

    >>> len(draw_attackers(0, 20, 0.1))
    2
    """
    count = max(1, round(share * clients))
    return tuple(sorted(int(client) for client in rng(seed, "attackers").choice(clients, count, replace=False)))


def flip_labels(data: ClientData, attackers: Collection[ClientId]) -> None:
    """What attackers train on is called by the wrong name: class c is called the last class - c (label-flip)."""
    for client in attackers:
        part = slice(data.offsets[client], data.offsets[client + 1])
        data.y[part] = int(data.num_classes) - 1 - data.y[part]


class AttackedEngine(Engine):
    """Answers of attackers are changed on their way to the server; everything else is another engine's."""

    def __init__(self, engine: Engine, attack: Attack, attackers: Collection[ClientId], seed: int) -> None:
        self._engine, self._attack, self._attackers, self._seed = engine, attack, frozenset(attackers), seed
        self._handed: dict[Ref, Weights] = {}

    def population(self) -> tuple[ClientId, ...]:
        return self._engine.population()

    def held(self) -> Tensor | None:
        return self._engine.held()

    def put(self, weights: Weights) -> Ref:
        ref = self._engine.put(weights)
        self._handed[ref] = weights
        return ref

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        self._engine.watch = self.watch
        replies, missing = self._engine.perform(jobs, round, exchange)
        steps = {job.client: job.steps for job in jobs}
        honest = [reply for reply in replies if reply.client not in self._attackers]
        changed = []
        for reply in replies:
            if reply.client not in self._attackers:
                changed.append(reply)
                continue
            draw = torch.Generator().manual_seed(
                int(rng(self._seed, "lie", round, exchange, reply.client).integers(2**62))
            )
            results = []
            for number, (step, result) in enumerate(zip(steps[reply.client], reply.results, strict=True)):
                if isinstance(step, Train) and result.weights is not None:
                    result = self._trained(step, result, draw)
                elif isinstance(step, MakeSignature) and self._attack == "signature-mimic" and honest:
                    victim = honest[int(torch.randint(len(honest), (1,), generator=draw))]
                    result = replace(result, numbers={}, arrays=dict(victim.results[number].arrays))
                results.append(result)
            trains = any(isinstance(step, Train) for step in steps[reply.client])
            claimed = CLAIMED if self._attack == "free-rider" and trains else 1
            changed.append(Reply(reply.client, results, claimed * reply.samples))
        return changed, missing

    def _trained(self, step: Train, result: Result, draw: torch.Generator) -> Result:
        assert result.weights is not None
        start = self._start(step.model, result.weights)
        lie = {
            name: self._lie(value, start[name], draw) if value.is_floating_point() else value
            for name, value in result.weights.items()
        }
        return replace(result, weights=lie)

    def _lie(self, trained: torch.Tensor, start: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
        update = trained - start
        if self._attack == "sign-flip":
            return start - REVERSED * update
        if self._attack == "scale":
            return start + SCALED * update
        if self._attack == "noise":
            return trained + NOISE * update.std(correction=0) * torch.randn(update.shape, generator=draw)
        return start.clone() if self._attack == "free-rider" else trained

    def _start(self, source: ModelSource, like: Weights) -> Weights:
        """What training started from, as far as the server sent it; else what came back."""
        found = dict(like)
        for layer in source if isinstance(source, tuple) else (source,):
            if isinstance(layer, Ref):
                found |= {name: value for name, value in self._handed[layer].items() if name in like}
        return found

    def begin_round(self, round: int) -> None:
        self._handed = {}
        self._engine.begin_round(round)

    def events(self) -> list[Event]:
        return self._engine.events()

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return self._engine.states()

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        self._engine.restore(states)

    def close(self) -> None:
        self._engine.close()
