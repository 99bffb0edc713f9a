"""Clusters that differ only in names, or in which classes they hold, train one model together, each by own names."""

from collections.abc import Mapping, Sequence

import numpy as np

from feddag.client.signature import Signature
from feddag.federation import Federation
from feddag.heads import under_names
from feddag.methods.feddag.sharing import Models, NoSecondary
from feddag.records import Diagnostics
from feddag.server.aggregate import mean_of
from feddag.server.grouping import Grouping
from feddag.server.membership import Signed
from feddag.server.naming import matched_families
from feddag.weights import Weights


class Families(NoSecondary):
    """One model for each family, in the names of the first cluster; a cluster's model has the head's rows in its order.

    So clients train and use what they call by their own names, and nothing but the server knows of others'.
    """

    def __init__(self) -> None:
        self.first_cluster: list[Signed] = []
        """What these call a class is the common name, however clusters are numbered later."""
        self.names: list[list[int]] = []
        """For each cluster, the common name of each of its classes."""
        self.family: list[int] = []
        """For each cluster, the first one of its family."""
        self._before: list[int] = []
        """The same before families were last looked for: who was kin then has had one model."""

    def start(self, federation: Federation, grouping: Grouping, first_cluster: Sequence[Signed]) -> None:
        self.first_cluster = list(first_cluster)
        self._look(grouping)

    def founded(self, grouping: Grouping, cluster: int) -> None:
        self._look(grouping)

    def regrouped(self, grouping: Grouping, inherited: Mapping[int, Sequence[int]]) -> None:
        self._look(grouping)
        self._before = list(range(len(self.family)))  # clusters are numbered anew, and have models of their own

    def diagnostics(self) -> Diagnostics:
        return super().diagnostics() | {"families": list(self.family), "names": [list(row) for row in self.names]}

    def kin(self, cluster: int) -> list[int]:
        return [other for other, own in enumerate(self.family) if own == self.family[cluster]]

    def stratum(self, cluster: int) -> int:
        first = self.family[cluster]
        return first if self.names[first] == self.names[cluster] else cluster

    def renamed(self, model: Weights, cluster: int) -> Weights:
        return under_names(model, self.names[cluster]) if len(self.kin(cluster)) > 1 else model

    def from_kin(self, models: Mapping[int, Weights], cluster: int) -> Weights | None:
        known = [other for other in self.kin(cluster) if other in models and other != cluster]
        return self.renamed(self._in_common_names(models[known[0]], known[0]), cluster) if known else None

    def united(self, models: Models, sizes: Mapping[int, float]) -> Models:
        """The mean over what were several families, weighted by how many clients each cluster has."""
        united: Models = {}
        for first in sorted(set(self.family)):
            kin = [z for z in self.kin(first) if z < len(self._before)]
            if len({self._before[z] for z in kin}) > 1:
                common = [self._in_common_names(models[z], z) for z in kin]
                mean = mean_of(common, [sizes[z] for z in kin])
                united |= {z: under_names(mean, self.names[z]) for z in kin}
        return united

    def joined(self, models: Models, samples: Mapping[int, float]) -> Models:
        """The mean over each family, in common names; also for its clusters that nobody answered from."""
        after = dict(models)
        for first in sorted(set(self.family)):
            kin = self.kin(first)
            answered = [cluster for cluster in kin if cluster in models]
            if len(kin) > 1 and answered:
                common = [self._in_common_names(models[cluster], cluster) for cluster in answered]
                mean = mean_of(common, [samples[cluster] for cluster in answered])
                after |= {cluster: under_names(mean, self.names[cluster]) for cluster in kin}
        return after

    def _in_common_names(self, model: Weights, cluster: int) -> Weights:
        return under_names(model, np.argsort(self.names[cluster]).tolist())

    def _look(self, grouping: Grouping) -> None:
        self._before = self.family
        first = [Signature.from_tensors(signed) for signed in self.first_cluster]
        labels = np.concatenate([np.zeros(len(first), int), grouping.labels_ + 1])
        counted = {view for view, weights in grouping.weights_.items() if weights.any()}
        names, family = matched_families([*first, *grouping.signatures], labels, held_alone=counted == {"classes"})
        self.names = names[1:].tolist()
        numbers = {own: cluster for cluster, own in reversed(list(enumerate(family[1:])))}
        self.family = [numbers[own] for own in family[1:]]
