"""FedAvg: one model for everyone (McMahan et al., 2017)."""

from collections.abc import Sequence

from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies
from feddag.methods.base import Method, MethodSettings
from feddag.weights import ClientId, Ref, Served, Weights, smoothed


class FedAvg(Method):
    """The new model is the sample-weighted mean of what the sampled clients trained."""

    name = "fedavg"
    smooths = True

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.served: Weights = {}
        """What clients use where that is smoothed; empty where it is `weights`."""
        self.updates = 0

    def start(self, federation: Federation) -> None:
        self.weights = federation.initial_weights()

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        model = federation.put(self.weights)
        replies = federation.ask(Job(client, self.local_work(model)) for client in sampled)
        if (combined := self.combined(replies)) is None:
            return  # nobody answered: keep what we have
        self.weights = combined
        if smoothing := self._settings.smoothing:
            self.updates += 1
            self.served = smoothed(self.served, combined, smoothing, self.updates)

    def local_work(self, model: Ref) -> Step | Sequence[Step]:
        """What a sampled client does."""
        return Train(model)

    def combined(self, replies: Replies) -> Weights | None:
        """The new global model; None when nobody answered."""
        return self.mean(list(replies), self.weights) if len(replies) else None

    def common(self) -> Weights:
        """The model of all clients together."""
        return self.served or self.weights

    def model_of(self, client: ClientId) -> Served:
        return self.common()
