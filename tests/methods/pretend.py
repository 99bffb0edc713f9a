"""Clients that only pretend to train, for what FedDAG does on the server to be computed by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import feddag
from feddag import testing
from feddag.client.evaluate import Monitor
from feddag.client.signature import Signature
from feddag.client.step import Result
from feddag.client.warmup import MakeSignature
from feddag.federation import Federation
from feddag.methods import find_method
from feddag.methods.feddag import FedDAG, FedDAGStar
from feddag.models import ModelSpec
from feddag.testing import FakeEngine
from feddag.weights import ClientId, Weights, only

SPEC = ModelSpec("mlp", (8,), 4, encoders=2)

SINGLE = ModelSpec("mlp", (8,), 4)


def signed(labels: Sequence[int], coordinates: int) -> Signature:
    """Thirty samples of each label, in a direction that belongs to the label."""
    y = np.repeat(labels, 30)
    x = np.eye(8)[y] * 5 + np.random.default_rng(0).normal(size=(len(y), 8))
    update = np.eye(4, coordinates)[list(labels)].sum(0)
    return feddag.signature(x, y, 4, inputs="raw", update=update, update_reliability=0.99 if coordinates else 0.0)


class Pretend(FakeEngine):
    """Fake clients that hold these labels; warm-ups answer with their number in place of every weight."""

    def __init__(self, held: Mapping[ClientId, Sequence[int]], single: bool = False) -> None:
        samples = {client: 10 * (client + 1) for client in range(10)}
        super().__init__(samples, answers={MakeSignature: self.sign, Monitor: self.look})
        self.held = dict(held)
        self.loss = dict.fromkeys(held, 0.1)
        self.single = single

    def population(self) -> tuple[ClientId, ...]:
        return tuple(sorted(self.held))

    def look(self, _: FakeEngine, client: ClientId, step: Monitor, current: Weights) -> Result:
        counts = np.bincount(np.repeat(self.held[client], 30), minlength=4)
        return Result(arrays={"counts": torch.tensor(counts), "loss": torch.tensor([self.loss[client]])})

    def sign(self, _: FakeEngine, client: ClientId, step: MakeSignature, current: Weights) -> Result:
        asked = step.shapes(SINGLE if self.single else SPEC)
        made = signed(self.held[client], asked["update"][0])
        arrays = {name: torch.from_numpy(np.atleast_1d(array)) for name, array in vars(made).items() if name in asked}
        start = only(self.weights[step.model.digest], step.parts) if step.model else {}
        sent = {name: torch.full_like(value, client) for name, value in start.items()}
        return Result(weights=sent if step.send else None, arrays=arrays)


def started(
    held: Mapping[ClientId, Sequence[int]], name: str = "feddag", participation: float = 1.0, **settings: Any
) -> tuple[Pretend, Federation, FedDAG]:
    kind = find_method(name)
    engine = Pretend(held, kind.encoders == 1)
    wanted = {name: value for name, value in (PAPER | settings).items() if name in kind.Settings.model_fields}
    model = SPEC if kind.encoders == 2 else SINGLE
    federation, method = testing.started(name, engine, model, participation=participation, **wanted)
    assert isinstance(method, FedDAGStar)
    return engine, federation, method


TWO = {0: [0, 1], 1: [2, 3], 2: [0, 1], 3: [2, 3]}

WARM = {"similarity": "fused", "primary_start": "warm"}
"""A warm-up before clients sign: updates are compared, and first primary encoders are Eq. 22's."""

PAPER = {"smoothing": 0.0, "classifier": "source", "secondary_start": "random", **WARM}
PAPER |= {"sharing": "encoder", "head": "random", "softmax": "all"}

"""What is computed by hand here follows the paper where our defaults do not."""


def told(federation: Federation) -> list[str]:
    return [event.text for event in federation.events()]


def alarms(federation: Federation) -> list[ClientId]:
    return [client for event in federation.events() if event.kind == "drift" for client in event.clients]
