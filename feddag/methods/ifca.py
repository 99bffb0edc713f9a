"""IFCA: every sampled client takes the model that fits it best, and trains that one (Ghosh et al., 2020).

Clients send the model they trained, and which it was. The number of clusters must be known. A client chooses by the
loss on its *training* samples; copies of IFCA that choose by test accuracy measure something else.
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from feddag.client.evaluate import Choose
from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Replies, Reply
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings, chosen
from feddag.weights import ClientId, Ref, Weights


class IFCA(ClusteredMethod):
    """K models from K random starts; clusters are who chose which."""

    name = "ifca"

    class Settings(ClusteredSettings):
        clusters: int = Field(3, ge=1, description="how many models there are (K)")

    _settings: Settings

    def start(self, federation: Federation) -> None:
        for number in range(self._settings.clusters):
            self.groups.found(self.initial_weights(federation, f"cluster {number}"))

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.train(federation, sampled)  # whoever has no cluster yet chooses like everybody else

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Sequence[Step]:
        return [Choose(tuple(models.values())), Train()]

    def assign(self, replies: Replies) -> None:
        for reply in replies:
            self.groups.move(reply.client, chosen(reply))

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        return self.mean(answered, self.groups.trained[cluster], by_samples=False)
