"""FairAvg: every client counts the same, however many samples it has (Michieli and Ozay, 2021)."""

from feddag.federation import Replies
from feddag.methods.fedavg import FedAvg
from feddag.server.aggregate import plain_mean
from feddag.weights import Weights


class FairAvg(FedAvg):
    """FedAvg with an unweighted mean."""

    name = "fairavg"

    def combined(self, replies: Replies) -> Weights | None:
        return plain_mean(replies)
