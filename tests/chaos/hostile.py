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
from feddag.engines.flower import wire
from feddag.engines.worker import Done, Work, Worker
from feddag.weights import Ref

LIE, SITE = "FEDDAG_CHAOS_LIE", "FEDDAG_CHAOS_SITE"

Change = Callable[["LyingWorker", Work, Any, Result], None]


def site() -> tuple[Any, ...]:
    """The samples of this site, and its lie."""
    lie = os.environ[LIE]
    if lie == "forged answers":
        forge()
    else:
        LyingWorker.change = staticmethod(CHANGES[lie])
        node.Worker = LyingWorker  # type: ignore[attr-defined,misc]
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


def signature(worker: LyingWorker, work: Work, step: Any, result: Result) -> None:
    """Negative counts and a reliability of two."""
    if isinstance(step, MakeSignature):
        result.arrays["counts"] = -torch.ones_like(result.arrays["counts"])
        result.arrays["reliability"] = 2 * torch.ones_like(result.arrays["reliability"])


def forge() -> None:
    """Another forgery in each round: huge weights, another client's name, and what is no message at all."""
    honest = wire.pack

    def pack(tree: dict[str, Any]) -> tuple[str, Any]:
        weights = [result["weights"] for result in tree.get("results", []) if result["weights"]]
        round = tree.get("round", 0)
        if round == 1:
            for table in weights:
                table |= {name: torch.full_like(value, 3e38) for name, value in table.items()}
        elif round == 2:
            tree = tree | {"client": tree["client"] + 1}
        return ("[" * 100_000, {}) if round == 3 else honest(tree)

    wire.pack = pack  # type: ignore[assignment]


CHANGES: dict[str, Change] = {"sign-flip": sign_flip, "hostile signature": signature}
