"""FedAvgM: momentum on the server (Hsu et al., 2019)."""

from pydantic import Field

from feddag.federation import Federation, Replies
from feddag.methods.base import MethodSettings
from feddag.methods.fedavg import FedAvg
from feddag.server.aggregate import momentum_step
from feddag.weights import Weights


class FedAvgM(FedAvg):
    """The mean update of the clients is a gradient for the server's own SGD with momentum."""

    name = "fedavgm"
    paper = "Hsu et al., 2019"

    class Settings(MethodSettings):
        server_momentum: float = Field(0.9, ge=0, lt=1, description="share of the last update that carries over")
        server_lr: float = Field(1.0, gt=0, description="step of the server along its velocity")

    _settings: Settings

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self.velocity = {name: value.new_zeros(value.shape) for name, value in self.weights.items()}

    def combined(self, replies: Replies) -> Weights | None:
        mean = super().combined(replies)
        if mean is None:
            return None
        own = self._settings
        new, self.velocity = momentum_step(self.weights, mean, self.velocity, own.server_momentum, own.server_lr)
        return new
