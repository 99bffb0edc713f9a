"""No federation: every client trains alone. The baseline that a federation has to beat to be worth its traffic."""

from collections.abc import Sequence
from typing import Any

from feddag.client.train import Train
from feddag.federation import Federation, Job
from feddag.methods.base import Method
from feddag.weights import ClientId, Own, Weights, used

MODEL = "model"


class Local(Method):
    """Sampled clients go on with their own model: the same expected sample passes per client as in FedAvg."""

    name = "local"
    family = "baseline"
    sends = "nothing"
    smooths = True

    def start(self, federation: Federation) -> None:
        self.weights = self.initial_weights(federation)
        self.started: dict[ClientId, bool] = {}

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        first = federation.put(self.weights)
        how: dict[str, Any] = {"keep": MODEL, "send": False, "smoothing": self._settings.smoothing}
        replies = federation.ask(
            Job(client, Train(Own(MODEL) if client in self.started else first, **how)) for client in sampled
        )
        self.started |= {reply.client: True for reply in replies}

    def model_of(self, client: ClientId) -> Weights | Own:
        return used(MODEL, self._settings.smoothing) if client in self.started else self.weights
