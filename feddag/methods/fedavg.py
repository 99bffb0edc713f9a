"""FedAvg: one model for everyone (McMahan et al., 2017)."""

from collections.abc import Sequence
from typing import ClassVar

from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies
from feddag.methods.base import Method, MethodSettings
from feddag.weights import HELD, ClientId, Layered, Ref, Served, Weights, smoothed


class FedAvg(Method):
    """The new model is the sample-weighted mean of what the sampled clients trained."""

    name = "fedavg"
    smooths = True
    paper = "McMahan et al., AISTATS 2017"
    whole: ClassVar[bool] = True
    """Whether `common` is a model that a client can use as it is: not where parts of models stay with clients."""

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.served: Weights = {}
        """What clients use where that is smoothed; empty where it is `weights`."""
        self.updates = 0

    def start(self, federation: Federation) -> None:
        self.weights = self.initial_weights(federation)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.learn_classes(federation)
        model = federation.put(self.weights)
        work = self.local_work(model)
        replies = federation.ask(Job(client, work) for client in sampled)
        self.update(self.combined(replies))

    def update(self, combined: Weights | None) -> None:
        """Go on with a new global model."""
        if combined is None:
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
        """The common model; where clients' losses knew only their own classes, it answers with one of these."""
        used = self.layers()
        return used if len(used) > 1 else self.common()

    def layers(self) -> Layered:
        """The common model as a client uses it that has nothing of its own to lay over it."""
        return (self.common(),) if self._settings.softmax == "all" else (self.common(), HELD)
