"""FedPer: a common encoder below heads that never leave their clients (Arivazhagan et al., 2019).

Every sampled client trains the common encoder and its own head together; the server averages encoders alone. So
features are learnt from everybody's samples, and what they mean for the classes of one client is its own affair.

Clients send their encoders; nothing has to be known in advance. The paper tries several depths of what is personal; as
in the public copies, it is the head here. A client's first head is the same random one for all, not one of its own:
heads are never averaged, so that no two have to differ, and a newcomer needs one as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies
from feddag.heads import without
from feddag.methods.fedavg import FedAvg
from feddag.weights import ClientId, Own, Served, Weights, only, part_of, used

PERSONAL = "personal"
BASE, HEAD = ("encoder",), ("head",)


@dataclass(frozen=True)
class SendParts(Step):
    """Send some parts of the model that the step before left, and remember the others under the name `keep`."""

    parts: tuple[str, ...] = ()
    keep: str = PERSONAL
    smoothing: float = 0.0

    def run(self, client: Client) -> Result:
        model = without(client.weights(None), client.absent(client.settings))  # it answers with what it learnt
        own = {name: value for name, value in model.items() if part_of(name) not in self.parts}
        client.keep(self.keep, own, self.smoothing)
        return Result(weights=only(model, self.parts))

    def sends(self) -> bool:
        return True


class FedPer(FedAvg):
    """FedAvg of encoders, each trained below its client's own head."""

    name = "fedper"
    family = "personalised"
    sends = "encoder"
    paper = "Arivazhagan et al., 2019"
    whole = False

    def start(self, federation: Federation) -> None:
        super().start(federation)
        self.headed: list[ClientId] = []  # who certainly has a head: it is not sent there again

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.learn_classes(federation)
        base, head = (federation.put(only(self.weights, parts)) for parts in (BASE, HEAD))
        send = SendParts(BASE, PERSONAL, self._settings.smoothing)
        jobs = []
        for client in sampled:
            first = () if client in self.headed else (head,)
            jobs.append(Job(client, [Train((base, *first, Own(PERSONAL)), send=False), send]))
        replies = federation.ask(jobs)
        self.headed = sorted({*self.headed, *(reply.client for reply in replies)})
        self.update(self.combined(replies))

    def combined(self, replies: Replies) -> Weights | None:
        mean = super().combined(replies)
        return None if mean is None else self.weights | mean

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        self.headed = [client for client in self.headed if client not in gone]

    def model_of(self, client: ClientId) -> Served:
        return (*self.layers(), used(PERSONAL, self._settings.smoothing))
