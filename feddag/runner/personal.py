"""What the field `personal` adds to a run: a common model to choose from, and every client's choice at the end."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from feddag.client.evaluate import balanced_accuracies
from feddag.client.personal import ALONE, CANDIDATES, CHOSEN, COMMON, FULL, HEAD, MIXTURE, Personalise
from feddag.experiment import Experiment
from feddag.federation import Federation, Job, Reply
from feddag.methods import Method
from feddag.methods.fedavg import FedAvg
from feddag.records import PersonalRecord
from feddag.runner.evaluation import Evaluation
from feddag.runner.results import block
from feddag.weights import ClientId

TRIED = {"none": (), "head": (HEAD,), "full": (FULL,), "auto": (HEAD, FULL, ALONE, COMMON)}
STABILISERS = ("robust", "balanced", "smoothing", "head")  # clients themselves leave out classes that they lack


class Personal:
    """The clients' choice; and FedAvg beside a method that has no common model, so that there is one to choose."""

    def __init__(self, experiment: Experiment, federation: Federation, method: Method) -> None:
        self._experiment, self._federation, self._method = experiment, federation, method
        self.tried = TRIED[experiment.personal]
        self._beside: FedAvg | None = None
        if COMMON in self.tried and not (isinstance(method, FedAvg) and method.whole):
            same = {name: getattr(experiment.settings, name) for name in STABILISERS}
            self._beside = FedAvg(FedAvg.Settings(**same))

    def start(self) -> None:
        """Before the first round."""
        if self._beside is not None:
            self._beside.start(self._federation)

    def round(self, sampled: Sequence[ClientId]) -> None:
        """After each round of the method, with the same clients: counted as a phase of its own."""
        if self._beside is not None:
            with self._federation.in_phase(COMMON):
                self._beside.round(self._federation, sampled)

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs of the model beside the method."""
        return {} if self._beside is None else self._beside.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with what `state_dict` gave."""
        if self._beside is not None:
            self._beside.load_state_dict(state)

    def choose(self, clients: Sequence[ClientId], evaluation: Evaluation) -> PersonalRecord | None:
        """Let every client choose; None where there is nothing to choose from."""
        if not self.tried:
            return None
        shared = self._shared()
        jobs = []
        for client in clients:
            first, group, shares = evaluation.used(client)
            tried = self.tried if len(group) == 1 else tuple(name for name in self.tried if name in (ALONE, COMMON))
            jobs.append(Job(client, [*first, Personalise(tried, group, shares, **shared)]))
        # Too few answers are no reason to lose the run: whoever gives none keeps the group's model.
        with self._federation.in_phase("personal"):
            replies = {reply.client: reply for reply in self._federation.ask(jobs, optional=True)}
        tables = {client: reply.results[-1].arrays["counts"] for client, reply in replies.items()}
        blocks = {
            name: block([_accuracy(tables[client][row]) if client in tables else math.nan for client in clients])
            for row, name in enumerate((*CANDIDATES, CHOSEN))
        }
        choice = [_choice(replies[client]) if client in replies else None for client in clients]
        return {
            "clients": list(clients),
            "accuracy": {name: found.as_record() for name, found in blocks.items() if found is not None},
            "choice": choice,
            "chose": dict(Counter(name for name in choice if name is not None)),
        }

    def _shared(self) -> dict[str, Any]:
        """What all clients are given alike."""
        federated, put = self._beside or self._method, self._federation.put
        return {
            "common": put(federated.common()) if COMMON in self.tried and isinstance(federated, FedAvg) else None,
            "start": put(self._method.initial_weights(self._federation)) if ALONE in self.tried else None,
            # As often as a client is asked to train in a run, so that it trains as long as method = "local".
            "times": max(1, round(self._experiment.rounds * self._experiment.participation)),
        }


def _accuracy(table: Tensor) -> float:
    return float(balanced_accuracies(table[None])[0])


def _choice(reply: Reply) -> str:
    """The candidate that has more than half of what the client chose; else it mixes them."""
    share, place = reply.results[-1].arrays["shares"].max(dim=0)
    return CANDIDATES[int(place)] if float(share) > 0.5 else MIXTURE
