"""FedAvg inside the true groups: the ceiling of any clustering."""

from collections.abc import Sequence

from feddag.federation import Federation
from feddag.methods.clustered import ClusteredMethod
from feddag.weights import ClientId


class Oracle(ClusteredMethod):
    """Knows the groups that the partition made, and trains one FedAvg model in each."""

    name = "oracle"
    family = "baseline"
    needs = "true groups"
    needs_truth = True

    def setup(self, federation: Federation) -> None:
        assert federation.truth is not None
        self._truth = federation.truth

    def start(self, federation: Federation) -> None:
        first = self.initial_weights(federation)
        for group in sorted(set(self._truth.values())):
            self.groups.found(first, [client for client, own in self._truth.items() if own == group])

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        groups = sorted(set(self._truth.values()))
        return {client: groups.index(self._truth[client]) for client in newcomers}
