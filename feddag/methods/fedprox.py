"""FedProx: clients are held near the model they were sent (Li et al., 2020)."""

from pydantic import Field

from feddag.client.step import Step
from feddag.client.train import Anchor, Train
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.weights import Ref


class FedProx(FedAvg):
    """FedAvg with mu / 2 * ||w - w_global||^2 added to every client's loss."""

    name = "fedprox"
    paper = "Li et al., MLSys 2020"

    class Settings(MethodSettings):
        mu: float = Field(0.01, ge=0, description="pull towards the global model")

    _settings: Settings

    def local_work(self, model: Ref) -> Step:
        return Train(model, anchors=(Anchor(model, self._settings.mu),))
