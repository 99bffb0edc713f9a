"""The second encoder: who trains it, towards what, and what clients use of it (§4).

`NoSecondary` is the ablation without one, `AtHome` the one that trains it inside its own cluster; `Sharing` sends it to
the clusters that have what its own is short of, and `Borrowing` takes a source's primary encoder as it is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from feddag.client.signature import Signature
from feddag.federation import Federation, Reply
from feddag.methods.feddag.settings import SecondarySettings, SharingSettings
from feddag.records import Diagnostics
from feddag.rng import rng
from feddag.server.aggregate import mean_of
from feddag.server.complement import complement_graph
from feddag.server.grouping import Grouping
from feddag.server.membership import Signed
from feddag.server.naming import matched_classes
from feddag.server.robust import robust_mean
from feddag.stateful import Stateful
from feddag.weights import Weights, only, renamed

PRIMARY, SECONDARY, HEAD = "encoder", "secondary", "head"
SHARPNESS = 4.0  # length of the common classifier's directions

Models = dict[int, Weights]
"""A model for each cluster."""


class NoSecondary(Stateful):
    """One encoder only; what every other way to have a second one departs from."""

    graph: Sequence[tuple[int, int]] = ()
    """(learner, source) pairs of clusters that learn from each other."""

    @property
    def diversity(self) -> float:
        """The weight of Eq. 42."""
        return 0.0

    @property
    def starts_warm(self) -> bool:
        """Whether first secondary encoders come from what clients trained in their warm-up."""
        return False

    @property
    def serves_latest(self) -> bool:
        """Whether clients use the secondary encoder as the round left it, or the one that their head knows."""
        return False

    def start(self, federation: Federation, grouping: Grouping, first_cluster: Sequence[Signed]) -> None:
        """The clusters have been found; `first_cluster` is what the members of the first one signed."""

    def first_encoder(self, primary: Weights, everyone: Weights) -> Weights:
        """A cluster's first secondary encoder, from its primary one and the mean of all warm-ups; {}: a random one."""
        return {}

    def later_encoder(self, models: Mapping[int, Weights], cluster: int) -> Weights:
        """The first secondary encoder of a cluster that is founded later, beside these models; {}: as at the start."""
        return {}

    def phases(self, round: int) -> tuple[bool, bool]:
        """Whether primary and secondary encoders are trained in a round."""
        return True, False

    def turns(self, clusters: Sequence[int]) -> list[list[int]]:
        """Which clusters are asked together: all, or one after another."""
        return [list(clusters)]

    def visiting(self, models: Models, source: int) -> Weights | None:
        """What a cluster is to train beside its own model; None for nothing."""
        return None

    def returned(self, before: Models, by_source: Sequence[tuple[int, Sequence[Reply]]], models: Models) -> Models:
        """The models after the secondary phase: `before` were sent, `models` are as the primary phase left them."""
        return models

    def served(self, cluster: int, model: Weights) -> Weights:
        """What clients use of a cluster's model."""
        return model

    def diagnostics(self) -> Diagnostics:
        """Who shares what with whom now."""
        return {"graph": list(self.graph)}

    def kin(self, cluster: int) -> list[int]:
        """The clusters that train one model with this one, itself among them."""
        return [cluster]

    def stratum(self, cluster: int) -> int:
        """The first of the clusters that participants are drawn from together with this one."""
        return cluster

    def renamed(self, model: Weights, cluster: int) -> Weights:
        """A family's first model under the names of one of its clusters."""
        return model

    def from_kin(self, models: Mapping[int, Weights], cluster: int) -> Weights | None:
        """The model that a cluster's kin have, under its names; None if it has no kin."""
        return None

    def united(self, models: Models, sizes: Mapping[int, float]) -> Models:
        """The models of clusters that have just become kin of each other, as the one that they go on with."""
        return {}

    def joined(self, models: Models, samples: Mapping[int, float]) -> Models:
        """What clusters' clients trained in a round, and on how many samples, as the models that they go on with."""
        return models

    def end_round(self, models: Models) -> Models:
        """The models after a round."""
        return models

    def founded(self, grouping: Grouping, cluster: int) -> None:
        """A newcomer has founded a cluster."""

    def regrouped(self, grouping: Grouping, inherited: Mapping[int, Sequence[int]]) -> None:
        """All clients were grouped anew; `inherited` names the old clusters that each new one comes from."""


class AtHome(NoSecondary):
    """A secondary encoder that the cluster's own clients train."""

    def __init__(self, settings: SecondarySettings) -> None:
        self._own = settings
        self.trained: list[int] = []
        """Clusters whose secondary encoder has been trained at least once."""

    @property
    def diversity(self) -> float:
        return self._own.diversity

    @property
    def starts_warm(self) -> bool:
        return self._own.secondary_start == "warm" and not self.diversity

    @property
    def serves_latest(self) -> bool:
        return self._own.secondary_served == "latest"

    def first_encoder(self, primary: Weights, everyone: Weights) -> Weights:
        start = self._own.secondary_start
        if start == "random" or self.diversity:  # A.11: with Eq. 42 both encoders start at random
            return {}
        return renamed(primary if start == "copy" else only(everyone, (PRIMARY,)), PRIMARY, SECONDARY)

    def later_encoder(self, models: Mapping[int, Weights], cluster: int) -> Weights:
        """Among those that it will be averaged with."""
        if not self.starts_warm:
            return {}
        self.trained = sorted({*self.trained, cluster}) if self.trained else []
        return mean_of([only(model, (SECONDARY,)) for model in models.values()], [1] * len(models))

    def phases(self, round: int) -> tuple[bool, bool]:
        """Both, or, by B.9, the one or the other."""
        if self._own.schedule == "full":
            return True, True
        secondary = round % (int(self._own.schedule.partition(":")[0]) + 1) == 0
        return not secondary, secondary

    def learners(self, source: int) -> list[int]:
        """The clusters whose secondary encoder this one trains."""
        return [source]

    def visiting(self, models: Models, source: int) -> Weights | None:
        learners = self.learners(source)
        return self.combined(models, learners) if learners else None

    def combined(self, models: Models, learners: Sequence[int]) -> Weights:
        """Several learners' encoders as one (§4 ii)."""
        return mean_of([only(models[learner], (SECONDARY,)) for learner in learners], [1] * len(learners))

    def added(self, moves: Sequence[Weights]) -> Weights:
        """How a learner moves, from how each of its sources moved what it was sent."""
        return {name: 1 / len(moves) * torch.stack([move[name] for move in moves]).sum(0) for name in moves[0]}

    def returned(self, before: Models, by_source: Sequence[tuple[int, Sequence[Reply]]], models: Models) -> Models:
        """Eq. 21: every learner moves as its sources' clients moved what they had been sent."""
        moves: dict[int, list[Weights]] = {}
        for source, answered in by_source:
            learners = self.learners(source)
            sent = self.combined(before, learners)
            sizes = [reply.samples for reply in answered]
            trained = robust_mean([last_weights(reply) for reply in answered], sizes, sent, self._own.robust)
            move = {name: trained[name] - sent[name] for name in sent if sent[name].is_floating_point()}
            for learner in learners:
                moves.setdefault(learner, []).append(move)
        after = dict(models)
        for learner, updates in moves.items():
            added = self.added(updates)
            after[learner] = models[learner] | {name: models[learner][name] + added[name] for name in added}
        self.trained = sorted({*self.trained, *moves})
        return after

    def regrouped(self, grouping: Grouping, inherited: Mapping[int, Sequence[int]]) -> None:
        self.trained = [new for new, old in inherited.items() if not set(old).isdisjoint(self.trained)]


class Sharing(AtHome):
    """Global representation sharing: a cluster's secondary encoder is trained by complementary clusters (§4)."""

    def __init__(self, settings: SharingSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self.graph: list[tuple[int, int]] = []
        self.first_cluster: list[Signed] = []
        """What these call a class is what the common classifier calls it, however clusters are numbered later."""
        self.matched: list[list[int]] = []
        """For each cluster, which class of the first cluster each of its classes looks like."""
        self.directions = torch.zeros(0)

    def start(self, federation: Federation, grouping: Grouping, first_cluster: Sequence[Signed]) -> None:
        self.graph = _edges(grouping)
        if self.common:
            self.first_cluster = list(first_cluster)
            self.matched = self.match(grouping)
            self.directions = _directions(federation)

    @property
    def common(self) -> bool:
        """Whether encoders are trained against the common classifier, so that it can judge by them."""
        return self._settings.classifier == "common"

    def turns(self, clusters: Sequence[int]) -> list[list[int]]:
        return [[cluster] for cluster in clusters] if self._settings.source_updates == "sequence" else [list(clusters)]

    def learners(self, source: int) -> list[int]:
        at_home = [source] if self.common else []  # asking the same as all others, a cluster also helps itself
        return at_home + [learner for learner, other in self.graph if other == source]

    def visiting(self, models: Models, source: int) -> Weights | None:
        encoder = super().visiting(models, source)
        return encoder if encoder is None or not self.common else encoder | self.common_classifier(source)

    def combined(self, models: Models, learners: Sequence[int]) -> Weights:
        mean = super().combined(models, learners)
        if len(learners) == 1 or self._settings.learner_encoders == "mean":
            return mean
        return {name: value * len(learners) if value.is_floating_point() else value for name, value in mean.items()}

    def added(self, moves: Sequence[Weights]) -> Weights:
        if self._settings.source_updates != "sum" or len(moves) == 1:
            return super().added(moves)
        return {name: torch.stack([move[name] for move in moves]).sum(0) for name in moves[0]}

    def common_classifier(self, cluster: int) -> Weights:
        """A head that belongs to no cluster: a fixed direction for each class, and blind to the primary encoder.

        Sources' own heads ask different things of the same encoder, and what they ask cancels out in the average;
        against one fixed head, every source moves it towards the same features.
        """
        rows = self.directions[self.matched[cluster]]
        return {"head.weight": torch.cat([torch.zeros_like(rows), rows], 1), "head.bias": torch.zeros(len(rows))}

    def served(self, cluster: int, model: Weights) -> Weights:
        """Scores add up: what the cluster says, and what all clusters say together of the same features."""
        if not self.common or self._settings.scores == "own" or cluster not in self.trained:
            return model
        return model | {"head.weight": model["head.weight"] + self.common_classifier(cluster)["head.weight"]}

    def founded(self, grouping: Grouping, cluster: int) -> None:
        own = self._settings
        chance = rng(grouping.seed, "complement")
        graph = complement_graph(grouping.signatures, grouping.labels_, own.sources, own.alignment, chance, own.absent)
        self.graph = [*self.graph, *((cluster, source) for source in graph.sources_of(cluster))]
        if self.common:
            self.matched = [*self.matched, *self.match(grouping)[cluster:]]

    def regrouped(self, grouping: Grouping, inherited: Mapping[int, Sequence[int]]) -> None:
        super().regrouped(grouping, inherited)
        self.graph = _edges(grouping)
        self.matched = self.match(grouping) if self.common else []

    def match(self, grouping: Grouping) -> list[list[int]]:
        """For each cluster of a grouping, which class of the first cluster each of its classes looks like."""
        first = [Signature.from_tensors(signed) for signed in self.first_cluster]
        labels = np.concatenate([np.zeros(len(first), int), grouping.labels_ + 1])
        matched: list[list[int]] = matched_classes([*first, *grouping.signatures], labels).tolist()
        return matched[1:]


class Borrowing(Sharing):
    """The best source's primary encoder becomes the learner's second one. Averaging several would be noise."""

    @property
    def common(self) -> bool:
        return False

    def phases(self, round: int) -> tuple[bool, bool]:
        return True, False

    def end_round(self, models: Models) -> Models:
        best = dict(reversed(self.graph))  # the first of each learner
        return {
            cluster: model | renamed(only(models[best[cluster]], (PRIMARY,)), PRIMARY, SECONDARY)
            if cluster in best
            else model
            for cluster, model in models.items()
        }


def sharing(settings: SharingSettings) -> Sharing:
    """The way of sharing that the settings ask for."""
    return Borrowing(settings) if settings.exchange == "borrow" else Sharing(settings)


def last_weights(reply: Reply) -> Weights:
    """What the last step of a job sent."""
    weights = reply.results[-1].weights
    assert weights is not None
    return weights


def _directions(federation: Federation) -> Tensor:
    """A direction in the secondary encoder's features for each class, at right angles where there is room."""
    classes, features = federation.initial_weights()["head.weight"].shape
    drawn = torch.from_numpy(federation.rng("directions").standard_normal((features // 2, classes)))
    if classes <= features // 2:
        drawn = torch.linalg.qr(drawn)[0]
    return SHARPNESS * functional.normalize(drawn, dim=0).T.float().contiguous()


def _edges(grouping: Grouping) -> list[tuple[int, int]]:
    """(learner, source) pairs of the complementarity graph."""
    graph = grouping.graph_
    return [(p, q) for p in range(len(graph.edges)) for q in graph.sources_of(p)] if graph is not None else []
