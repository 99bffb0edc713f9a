"""An idea tried in one file: would momentum on the server calm the groups' models?

feddag compare experiments/cifar10-options.toml --methods experiments.server_momentum:Momentum --seeds 100
"""

from collections.abc import Sequence

from pydantic import Field

from feddag.federation import Federation, Reply
from feddag.methods.feddag import FedDAGStar
from feddag.methods.feddag.settings import GroupingSettings
from feddag.weights import Weights


class Momentum(FedDAGStar):
    """`feddag-star` whose groups move by their clients' mean update and a share of how they moved before."""

    name = "feddag-star-momentum"

    class Settings(GroupingSettings):
        server_momentum: float = Field(0.9, ge=0, lt=1, description="share of the last move that carries over")

    _settings: Settings  # type: ignore[assignment]

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self.velocity: dict[int, Weights] = {}

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        mean, model = super().aggregate(cluster, answered), self.groups.trained[cluster]
        before = self.velocity.get(cluster, {})
        move = {name: value - model[name] for name, value in mean.items()}
        if before:
            move = {name: value + self._settings.server_momentum * before[name] for name, value in move.items()}
        self.velocity = {**self.velocity, cluster: move}
        return {name: model[name] + value for name, value in move.items()}
