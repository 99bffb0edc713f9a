"""FairAvg: every client counts the same, however many samples it has (Michieli and Ozay, 2021)."""

from feddag.federation import Replies
from feddag.methods.fedavg import FedAvg
from feddag.weights import Weights


class FairAvg(FedAvg):
    """FedAvg with an unweighted mean."""

    name = "fairavg"
    paper = "Michieli and Ozay, 2021"

    def combined(self, replies: Replies) -> Weights | None:
        return self.mean(list(replies), self.weights, by_samples=False) if len(replies) else None
