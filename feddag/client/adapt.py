"""What a client does with a model that is meant to be adapted to its samples before it is used."""

from dataclasses import dataclass, replace

from feddag.client.step import Client, Result
from feddag.client.train import Train
from feddag.client.trainer import LocalSettings
from feddag.heads import without
from feddag.weights import ADAPTED

ALL_SAMPLES = 2**40  # a batch that holds them all


@dataclass(frozen=True)
class Adapt(Train):
    """Take steps of plain gradient descent on all *training* samples at once; what comes out stays with the client.

    Public code adapts by batches of test samples, labels included: that tells more about the test than about the model.
    """

    keep: str | None = ADAPTED
    send: bool = False

    def settings(self, usual: LocalSettings) -> LocalSettings:
        return replace(super().settings(usual), momentum=0.0, batch_size=ALL_SAMPLES)

    def run(self, client: Client) -> Result:
        result = super().run(client)
        client.current = without(client.weights(None), client.absent(self.settings(client.settings)))
        return result
