"""FedAvg inside the true groups: the ceiling of any clustering."""

from collections.abc import Sequence

from feddag.client.train import Train
from feddag.federation import Federation, Job
from feddag.methods.base import Method
from feddag.server.aggregate import weighted_mean
from feddag.weights import ClientId, Weights


class Oracle(Method):
    """Knows the groups that the partition made, and trains one FedAvg model in each."""

    name = "oracle"
    needs_truth = True

    def start(self, federation: Federation) -> None:
        assert federation.truth is not None
        self.groups = dict(federation.truth)
        first = federation.initial_weights()
        self.models = dict.fromkeys(sorted(set(self.groups.values())), first)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        sent = {group: federation.put(model) for group, model in self.models.items()}
        replies = federation.ask(Job(client, Train(sent[self.groups[client]])) for client in sampled)
        for group, answered in replies.by_group(self.groups):
            self.models[group] = weighted_mean(answered) or self.models[group]

    def model_of(self, client: ClientId) -> Weights:
        return self.models[self.groups[client]]

    def clusters(self) -> dict[ClientId, int]:
        return self.groups
