"""FedGWC over personalised methods: its clusters, with pFedMe's or Per-FedAvg's work inside them (its Table 9).

Splits, sampling and matrices are FedGWC's. What a client does, what becomes of the answers and what a client uses are
the other method's, with a common model for each cluster. The losses that are compared are those of the steps on the
client's side: pFedMe's before the first inner step on each batch, Per-FedAvg's where its inner step leads to.

Fields choose the form, as in `fedgwc`; as printed: `split = "paper"`, `beta = 0.5`, `most_parts = 10`.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from feddag.client.step import Step
from feddag.federation import Reply
from feddag.methods.base import MethodSettings
from feddag.methods.fedgwc import FedGWC, SplitSettings
from feddag.methods.per_fedavg import PerFedAvg, TrainToAdapt
from feddag.methods.pfedme import PERSONAL, PFedMe, TrainEnvelope, towards
from feddag.weights import Adapted, ClientId, Ref, Served, Weights, used


class PFedMeSettings(SplitSettings, PFedMe.Settings):
    """Fields of both."""


class PerFedAvgSettings(SplitSettings, PerFedAvg.Settings):
    """Fields of both."""


class FedGWCPersonal(FedGWC):
    """What both have in common: clients count alike."""

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        return self.mean(answered, self.groups.trained[cluster], by_samples=False)


class FedGWCPFedMe(FedGWCPersonal):
    """Each client uses the personal model that it made last, or its cluster's before."""

    name = "fedgwc-pfedme"
    cost = PFedMe.cost
    Settings: ClassVar[type[MethodSettings]] = PFedMeSettings
    _settings: PFedMeSettings  # type: ignore[assignment]

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Step:
        own, cluster = self._settings, self.groups.cluster_of[client]
        return TrainEnvelope(
            models[cluster],
            pull=own.pull,
            inner_steps=own.inner_steps,
            inner_lr=own.inner_lr,
            smoothing=own.smoothing,
            losses=True,
            held=self.held_in(cluster),
        )

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        return towards(self.groups.trained[cluster], super().aggregate(cluster, answered), self._settings.server_lr)

    def model_of(self, client: ClientId) -> Served:
        if client not in self.groups.cluster_of:
            return super().model_of(client)
        return (*self.layers_of(self.groups.cluster_of[client]), used(PERSONAL, self._settings.smoothing))


class FedGWCPerFedAvg(FedGWCPersonal):
    """Each client uses its cluster's model after a step of its own; a newcomer, that of the best cluster."""

    name = "fedgwc-per-fedavg"
    Settings: ClassVar[type[MethodSettings]] = PerFedAvgSettings
    _settings: PerFedAvgSettings  # type: ignore[assignment]

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Step:
        cluster = self.groups.cluster_of[client]
        return TrainToAdapt(models[cluster], inner_lr=self._settings.inner_lr, losses=True, held=self.held_in(cluster))

    def model_of(self, client: ClientId) -> Served:
        if client not in self.groups.cluster_of:
            return super().model_of(client)
        model = self.used_in(self.groups.cluster_of[client])
        return Adapted(model, self._settings.inner_lr, self._settings.adapt_steps)
