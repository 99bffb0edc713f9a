"""What a hostile site runs: its own code beside its own data, as any node may (`data = "hostile:site"`).

A node's program loads its data before it works, and from then on everything it sends is a lie. The environment says
which.
"""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from feddag.client.train import Train
from feddag.deploy import node
from feddag.engines.attacks import REVERSED
from feddag.engines.flower import wire
from feddag.engines.worker import Done, Worker

LIE, SITE = "FEDDAG_CHAOS_LIE", "FEDDAG_CHAOS_SITE"

Answer = dict[str, Any]


def site() -> tuple[Any, ...]:
    """The samples of this site, and its lie."""
    LIES[os.environ[LIE]]()
    held = np.load(os.environ[SITE])
    return tuple(held[name] for name in ("x_train", "y_train", "x_test", "y_test"))


class LyingWorker(Worker):
    """Sends ten times its update, reversed, exactly as in a simulated attack."""

    def do(self, work: Any) -> Any:
        done = super().do(work)
        assert isinstance(done, Done)
        for step, result in zip(work.job.steps, done.results, strict=True):
            if isinstance(step, Train) and result.weights is not None:
                start, trained = self._fetch(step.model), result.weights.items()  # type: ignore[arg-type]
                result.weights = {name: start[name] - REVERSED * (value - start[name]) for name, value in trained}
        return done


def reverse() -> None:
    """Lie about updates."""
    node.Worker = LyingWorker  # type: ignore[attr-defined,misc]


def send(change: Callable[[Answer], Answer | None]) -> None:
    """Change every answer on its way out; None for what is no message at all."""
    honest = wire.pack

    def pack(answer: Answer) -> tuple[str, Any]:
        changed = change(answer) if "results" in answer else answer
        return ("[" * 100_000, {}) if changed is None else honest(changed)

    wire.pack = pack  # type: ignore[assignment]


def forged(answer: Answer) -> Answer | None:
    """Another forgery in each round: huge weights, another client's name, no message."""
    if answer["round"] == 1:
        for result in answer["results"]:
            held = result["weights"]
            result["weights"] = held and {name: torch.full_like(value, 3e38) for name, value in held.items()}
    return (answer, answer | {"client": answer["client"] + 1}, None)[(answer["round"] - 1) % 3]


def hostile_signature(answer: Answer) -> Answer:
    """Negative counts and a reliability of two."""
    for arrays in (result["arrays"] for result in answer["results"] if "reliability" in result["arrays"]):
        arrays["counts"] = -torch.ones_like(arrays["counts"])
        arrays["reliability"] = 2 * torch.ones_like(arrays["reliability"])
    return answer


LIES: dict[str, Callable[[], None]] = {
    "sign-flip": reverse,
    "forged answers": lambda: send(forged),
    "hostile signature": lambda: send(hostile_signature),
}
