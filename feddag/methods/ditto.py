"""Ditto: beside the common model, every client trains one of its own that is held near it (Li et al., 2021)."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from feddag.client.step import Step
from feddag.client.train import Anchor, Train
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import ClientId, Own, Ref, Served, used

PERSONAL = "personal"


class Ditto(FedAvg):
    """FedAvg, and personal models that minimise their client's loss + lambda / 2 * ||v - w||^2."""

    name = "ditto"
    family = "personalised"
    cost = 2.0
    paper = "Li et al., ICML 2021"

    class Settings(MethodSettings):
        pull: float = Field(0.1, ge=0, description="lambda: pull of the personal towards the common model")

    _settings: Settings

    def local_work(self, model: Ref) -> Sequence[Step]:
        pull = (Anchor(model, self._settings.pull),)
        own = (model, Own(PERSONAL))  # its own where it has one
        how: dict[str, Any] = {"keep": PERSONAL, "send": False, "smoothing": self._settings.smoothing}
        return [Train(model), Train(own, anchors=pull, **how, phase=PERSONAL)]

    def model_of(self, client: ClientId) -> Served:
        return (*self.layers(), used(PERSONAL, self._settings.smoothing))
