"""What a hostile site runs: its own code beside its own data, as any node may (`data = "hostile:site"`).

A node's program loads its data before it works, and from then on everything it sends is a lie. The environment says
which.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from feddag.client.step import Result
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.deploy import node
from feddag.engines.attacks import REVERSED
from feddag.engines.flower import grid, wire
from feddag.engines.flower.wire import JobId, Message
from feddag.engines.worker import Done, Work, Worker
from feddag.weights import Ref

LIE, SITE = "FEDDAG_CHAOS_LIE", "FEDDAG_CHAOS_SITE"

Change = Callable[["LyingWorker", Work, Any, Result], None]


def site() -> tuple[Any, ...]:
    """The samples of this site, and its lie."""
    lie = os.environ[LIE]
    if lie in CHANGES:
        LyingWorker.change = staticmethod(CHANGES[lie])
        node.Worker = LyingWorker  # type: ignore[attr-defined,misc]
    else:
        FORGERIES[lie]()
    held = np.load(os.environ[SITE])
    return tuple(held[name] for name in ("x_train", "y_train", "x_test", "y_test"))


class LyingWorker(Worker):
    """Does the work, and changes what it sends."""

    change: Change

    def do(self, work: Any) -> Any:
        done = super().do(work)
        assert isinstance(done, Done)
        for step, result in zip(work.job.steps, done.results, strict=True):
            type(self).change(self, work, step, result)
        return done

    def handed(self, ref: Ref) -> dict[str, torch.Tensor]:
        """Weights that the server sent."""
        return self._fetch(ref)


def sign_flip(worker: LyingWorker, work: Work, step: Any, result: Result) -> None:
    """Ten times the update, reversed, exactly as in a simulated attack."""
    if isinstance(step, Train) and result.weights is not None:
        start = worker.handed(step.model)  # type: ignore[arg-type]
        result.weights = {
            name: start[name] - REVERSED * (value - start[name]) for name, value in result.weights.items()
        }


def huge(worker: LyingWorker, work: Work, step: Any, result: Result) -> None:
    """Weights that are larger in every round, from a thousandfold to what float32 just holds, and then none at all."""
    if isinstance(step, Train) and result.weights is not None:
        value = (1e3, 1e7, 3e38, float("nan"))[(work.moment[0] - 1) % 4]
        result.weights = {name: torch.full_like(held, value) for name, held in result.weights.items()}


def signature(worker: LyingWorker, work: Work, step: Any, result: Result) -> None:
    """Negative counts and a reliability of two."""
    if isinstance(step, MakeSignature):
        result.arrays["counts"] = -torch.ones_like(result.arrays["counts"])
        result.arrays["reliability"] = 2 * torch.ones_like(result.arrays["reliability"])


def forge() -> None:
    """Answers in another client's name, for another round, of another run, and of no protocol at all."""
    honest = wire._headed

    def headed(job: JobId) -> dict[str, Any]:
        told = honest(job)
        lie = {"client": job.client + 1}, {"round": job.round + 1}, {"run": "elsewhere"}, {"protocol": 10**400}
        return told | lie[(job.round - 1) % len(lie)]

    wire._headed = headed


def malform() -> None:
    """Arrays whose shapes are not theirs, text that is no JSON, and text that never ends."""
    honest = grid.to_record

    def to_record(message: Message) -> Any:
        shapes = {name: array.reshape(-1)[:1] for name, array in message.arrays.items()}
        lies = Message(message.text, shapes), Message("{"), Message("[" * 100_000), Message("9" * 100_000)
        return honest(lies[len(message.arrays) and int.from_bytes(os.urandom(1), "big") % len(lies)])

    grid.to_record = to_record


CHANGES: dict[str, Change] = {"sign-flip": sign_flip, "huge weights": huge, "hostile signature": signature}
FORGERIES: dict[str, Callable[[], None]] = {"forged replies": forge, "malformed replies": malform}
