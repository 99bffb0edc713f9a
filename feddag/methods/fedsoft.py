"""FedSoft: a client's samples may come from several clusters at once (Ruan and Joe-Wong, AAAI 2022).

Every client keeps a model of its own, held near the clusters' centres in proportion to how many of its samples each
centre explains best; a centre is the mean of the models of clients that are drawn for it, the likelier the more such
samples they hold. Clients send their model and these proportions. The number of clusters must be known.

As in the released code, but that this crashes, and does not shuffle: proportions anew every second round from all
clients, means in which all that were drawn count the same. It draws a fixed number of clients for each cluster; here
the participants of a round are divided among the clusters unless `per_cluster` says so. FedRC's copy counts a sample to
the cluster with the *largest* loss. A client without a model of its own starts from its main cluster's centre.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field

from feddag.client.step import Client, Result, Step
from feddag.client.train import Anchor, Train
from feddag.federation import Federation, Job, Reply
from feddag.heads import out_of_reach, with_rows_of, without
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod, ClusteredSettings, compared_by_shares
from feddag.models import ModelSpec
from feddag.records import Diagnostics
from feddag.server.robust import robust_mean
from feddag.weights import HELD, ClientId, Own, Ref, Served, Weights, used

PERSONAL = "personal"


@dataclass(frozen=True)
class Importance(Step):
    """For each model, the share of the client's training samples that it has the least loss on, the first of equals."""

    models: tuple[Ref, ...]

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"shares": (len(self.models),)}

    def problem(self, result: Result) -> str | None:
        shares = result.arrays["shares"]
        sound = bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 1e-3
        return None if sound else "told shares that cannot be"

    def run(self, client: Client) -> Result:
        absent = client.absent(client.settings)
        losses = torch.stack([client.losses(without(client.weights(model), absent)) for model in self.models])
        best = torch.bincount(losses.argmin(0), minlength=len(self.models)).double()
        return Result(arrays={"shares": best / len(client.y)}, scored=len(self.models) * len(client.y))


class FedSoft(ClusteredMethod):
    """Algorithm 1; a client uses its own model."""

    name = "fedsoft"
    needs = "k"
    sends = "model, shares of samples"
    revision = 2  # with a softmax over some classes, shares and centres know only these
    paper = "Ruan and Joe-Wong, AAAI 2022"

    class Settings(ClusteredSettings):
        clusters: int = Field(2, ge=1, description="how many centres there are (S)")
        pull: float = Field(0.1, ge=0, description="lambda: pull of a client's model towards all centres together")
        estimate_every: int = Field(2, ge=1, description="rounds after which proportions are found anew (tau)")
        least_share: float = Field(1e-4, gt=0, lt=1, description="of a cluster in a client's samples (sigma)")
        per_cluster: int = Field(0, ge=0, description="clients drawn for each cluster (0: their part of a round's)")

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.shares: dict[ClientId, list[float]] = {}  # u, never below sigma
        self.sizes: dict[ClientId, int] = {}
        self.lost: list[ClientId] = []  # whose last answer did not arrive: their own model may be unsound

    def start(self, federation: Federation) -> None:
        for number in range(self._settings.clusters):
            self.groups.found(self.initial_weights(federation, f"cluster {number}"))
        self.estimate(federation, federation.clients)

    def estimate(self, federation: Federation, clients: Sequence[ClientId]) -> list[ClientId]:
        """Ask clients for their proportions; returns those who told them."""
        step = Importance(tuple(federation.put(weights) for weights in self.groups.trained.values()))
        with federation.in_phase("estimate"):
            replies = federation.ask((Job(client, step) for client in clients), optional=True)
        for reply in replies:
            told = reply.results[0].arrays["shares"]
            self.shares[reply.client] = told.clamp(min=self._settings.least_share).tolist()
            self.sizes[reply.client] = reply.samples
            self.groups.move(reply.client, int(told.argmax()))
        self._held = None  # clients may have moved
        return [reply.client for reply in replies]

    def drawn(self, federation: Federation) -> dict[int, list[ClientId]]:
        """Who is drawn for each cluster in this round: without replacement, as likely as it holds samples of it."""
        known, generator = [c for c in federation.clients if c in self.shares], federation.rng("draw for clusters")
        fair = max(1, round(federation.participation * len(federation.clients) / len(self.groups.trained)))
        count = min(self._settings.per_cluster or fair, len(known))
        found: dict[int, list[ClientId]] = {}
        for number in self.groups.trained:
            chances = np.array([self.sizes[client] * self.shares[client][number] for client in known], np.float64)
            found[number] = []
            if known:
                picked = generator.choice(len(known), count, replace=False, p=chances / chances.sum())
                found[number] = sorted(known[place] for place in picked)
        return found

    def sample(self, federation: Federation) -> list[ClientId]:
        return sorted({client for clients in self.drawn(federation).values() for client in clients})

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        self.learn_classes(federation)
        models = {number: federation.put(weights) for number, weights in self.groups.trained.items()}
        drawn = self.drawn(federation)  # the same as in `sample`: it hangs on the round alone
        asked = [client for client in sampled if client in self.shares]
        replies = federation.ask(Job(client, self.local_work(client, models)) for client in asked)
        self.lost = sorted(({*self.lost} | {*asked}) - {reply.client for reply in replies})
        for number, clients in drawn.items():
            if sent := [self.as_sent(reply, number) for reply in replies if reply.client in clients]:
                mean = robust_mean(sent, [1] * len(sent), self.groups.trained[number], self._settings.robust)
                self.groups.update(number, mean, self._settings.smoothing)
        if federation.round % self._settings.estimate_every == 0 or not self.shares:
            self.estimate(federation, federation.clients)

    def as_sent(self, reply: Reply, number: int) -> Weights:
        """A client's model for a centre's mean. Of classes that its own softmax does not know it has nothing to say."""
        centre, weights = self.groups.trained[number], reply.weights
        if self._settings.softmax == "all":
            return weights
        return with_rows_of(weights, centre, out_of_reach(weights))

    def local_work(self, client: ClientId, models: Mapping[int, Ref]) -> Step:
        """Loss + lambda / 2 * sum of u_s ||w - c_s||^2, from the client's own w."""
        pulls = (Anchor(models[n], self._settings.pull * u) for n, u in enumerate(self.shares[client]))
        centre = models[self.groups.cluster_of[client]]
        # With HELD what is sent says what is held.
        first: tuple[Ref | Own, ...] = (centre,) if self._settings.softmax == "all" else (centre, HELD)
        start = first if client in self.lost else (*first, Own(PERSONAL))
        anchors = tuple(anchor for anchor in pulls if anchor.strength)
        return Train(start, anchors=anchors, keep=PERSONAL, smoothing=self._settings.smoothing)

    def place(self, federation: Federation, newcomers: Sequence[ClientId]) -> dict[ClientId, int]:
        return {client: self.groups.cluster_of[client] for client in self.estimate(federation, newcomers)}

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        for client in gone:
            self.shares.pop(client, None)
        self.lost = [client for client in self.lost if client not in gone]

    def model_of(self, client: ClientId) -> Served:
        """Its own; its main cluster's centre where it has none."""
        if client not in self.shares or client in self.lost:
            return super().model_of(client)
        return (*self.layers_of(self.groups.cluster_of[client]), used(PERSONAL, self._settings.smoothing))

    def diagnostics(self) -> Diagnostics:
        return compared_by_shares(self.shares)
