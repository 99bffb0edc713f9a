"""FeSEM: clients belong to the centre that is nearest to what they trained (Long et al., WWW Journal 2023).

A k-means of models: clients train from their centre, go to the nearest one (E-step), and every centre becomes the mean
of its clients' models (M-step). Clients send the model they trained; the number of clusters must be known.

The first centres are k-means of the first models, for which all clients are asked once; the released code takes the
first K clients for it. Distances are over all weights as in the paper; the released code looks at one layer
(`compared = "head"`). In later rounds means are over those who took part, where the paper has all clients take part.
A client without a centre, such as a newcomer, trains from the mean of all centres and is then nearest to one of them.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from feddag.client.step import Step
from feddag.client.train import Train
from feddag.federation import Federation, Job, Replies, Reply
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
from feddag.server.clustering import relabel
from feddag.weights import ClientId, Ref, Weights, flat, mean_of, only

NO_CENTRE = -1


class CentreSettings(ClusteredSettings):
    """How many centres there are, and how models are compared with them."""

    clusters: int = Field(3, ge=1, description="how many centres there are (K)")
    compared: Literal["all", "head"] = Field("all", description="the weights that distances are measured over")


class FeSEM(ClusteredMethod):
    """E-step and M-step after each round of local training."""

    name = "fesem"
    needs = "k"
    paper = "Long et al., WWW Journal 2023"
    Settings: ClassVar[type[MethodSettings]] = CentreSettings
    _settings: CentreSettings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.founded = False

    def start(self, federation: Federation) -> None:
        self.groups.found(self.initial_weights(federation))

    def sample(self, federation: Federation) -> list[ClientId]:
        """Everybody until there are centres."""
        return super().sample(federation) if self.founded else list(federation.clients)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.learn_classes(federation)
        models = {cluster: federation.put(weights) for cluster, weights in self.groups.trained.items()}
        models[NO_CENTRE] = self.common(federation)
        at = {client: self.groups.cluster_of.get(client, NO_CENTRE) for client in sampled}
        replies = federation.ask(Job(client, self.work(models[at[client]], at[client])) for client in sampled)
        if not len(replies):
            return
        if self.founded:
            self.e_step(replies)
        else:
            self.found(federation, replies)
        for cluster, answered in replies.by_group(self.groups.cluster_of):
            self.groups.update(cluster, self.aggregate(cluster, answered), self._settings.smoothing)
        self._held = None  # clients have moved

    def work(self, model: Ref, cluster: int) -> Step:
        """What a client does with the model of its centre, or with the mean of all where it has none."""
        return Train(model, held=self.held_in(cluster))

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        """The M-step: all clients count the same."""
        return self.mean(answered, self.groups.trained[cluster], by_samples=False)

    def common(self, federation: Federation) -> Ref:
        """The mean of all centres, from which clients train that have none."""
        centres = list(self.groups.trained.values())
        return federation.put(mean_of(centres, [1] * len(centres)))

    def found(self, federation: Federation, replies: Replies) -> None:
        """The first centres: k-means of the first models."""
        from sklearn.cluster import KMeans  # here, because importing it takes as long as PyTorch

        [cluster], seed = self.groups.trained, int(federation.rng("k-means").integers(2**31))
        wanted = min(self._settings.clusters, len(replies))
        points = torch.stack([self.point(reply.weights) for reply in replies]).numpy()
        labels = relabel(KMeans(wanted, n_init=10, random_state=seed).fit_predict(points)).tolist()
        for reply in replies:
            self.groups.move(reply.client, cluster)
        parts = [[r.client for r, own in zip(replies, labels, strict=True) if own == n] for n in sorted({*labels})]
        self.groups.split(cluster, parts)
        self.founded = True

    def e_step(self, replies: Replies) -> None:
        for reply in replies:
            self.groups.move(reply.client, self.nearest(reply.weights))

    def nearest(self, weights: Weights) -> int:
        """The centre at the least Euclidean distance, the first of equals."""
        own = self.point(weights)
        return min(self.groups.trained, key=lambda n: float((own - self.point(self.groups.trained[n])).norm()))

    def point(self, weights: Weights) -> Tensor:
        """The weights that are compared, in float64: distances are small beside the models themselves."""
        return flat(only(weights, ("head",) if self._settings.compared == "head" else ())).double()

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        work = self.work(self.common(federation), NO_CENTRE)
        replies = federation.ask((Job(client, work) for client in newcomers), optional=True)
        return {reply.client: self.nearest(reply.weights) for reply in replies}
