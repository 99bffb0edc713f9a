"""FedDAG (ICLR 2026): groups by data and gradients, a dual-encoder model per group, and groups that learn from others.

The rounds follow Algorithm 1. Where the paper and its released code differ, a field chooses; docs/fidelity.md tells
what each was measured to do.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from feddag.client.signature import Signature
from feddag.client.step import Client, Result, Step
from feddag.client.train import Train
from feddag.client.trainer import Penalty
from feddag.client.warmup import Sign, received
from feddag.errors import FeddagError
from feddag.federation import Federation, Job, Reply
from feddag.methods.base import Method, MethodSettings
from feddag.models import DualEncoder, ModelSpec
from feddag.records import Diagnostics
from feddag.rng import rng
from feddag.server.aggregate import mean_of
from feddag.server.clustering import Linkage
from feddag.server.complement import Alignment, ComplementGraph, complement_graph, matched_classes
from feddag.server.drift import classes_moved, loss_rose
from feddag.server.grouping import Fusion, Grouping, group
from feddag.weights import ClientId, Ref, Weights, only


@dataclass(frozen=True)
class Watch(Step):
    """Class counts, and how the given model fares on the client's own training samples."""

    model: Ref

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"counts": (model.num_classes,), "loss": (1,)}

    def run(self, client: Client) -> Result:
        table = client.counts(client.weights(self.model))
        counts = torch.bincount(client.y, minlength=client.num_classes).double()
        return Result(
            arrays={"counts": counts, "loss": (table[:, 2].sum() / len(client.y)).reshape(1)}, scored=len(client.y)
        )


@dataclass(frozen=True)
class TrainDiversely(Train):
    """Training that keeps what two encoders see apart."""

    diversity: float = 0.0

    def penalty(self) -> Penalty:
        """Eq. 42: the mean squared cosine of what two encoders see."""

        def penalty(model: nn.Module, x: Tensor) -> Tensor:
            assert isinstance(model, DualEncoder)
            cosines: Tensor = functional.cosine_similarity(*model.features(x), dim=1)
            return self.diversity * (cosines**2).mean()

        return penalty


SHARPNESS = 4.0  # length of the common classifier's directions
PRIMARY, SECONDARY, HEAD = "encoder", "secondary", "head"
AGAINST = "secondary phase beside the cluster's model, or beside what the client has just trained"
VIEWS = {"fused": ("classes", "data", "gradient"), "data": ("classes", "data"), "gradient": ("gradient",)}


class FedDAGStarSettings(MethodSettings):
    """Grouping and life with the groups: what the paper leaves open, or what it and its code do differently."""

    # grouping, §3
    warmup_rounds: int = Field(2, ge=1, description="rounds of local training before grouping (t_g)")
    warmup_steps: int = Field(10, ge=1, description="SGD steps in each of them")
    sparsity: float = Field(0.02, gt=0, le=1, description="share of the update's coordinates that is sent")
    vectors: int = Field(3, ge=1, description="principal vectors per class (p)")
    inputs: Literal["standardised", "raw"] = Field("standardised", description="samples as principal vectors see them")
    similarity: Literal["fused", "data", "gradient"] = Field("fused", description="what clients are compared by")
    fusion: Fusion = Field("clarity", description="how views become one distance; mlp and projected as printed")
    linkage: Linkage = Field("average", description="of the agglomerative clustering")
    primary_start: Literal["warm", "random"] = Field("warm", description="first primary encoder: Eq. 22, or random")
    # stability
    sampling: Literal["clusters", "all"] = Field(
        "clusters", description="participants: a share of each cluster, or of all"
    )
    balanced: bool = Field(True, description="local batches hold a client's classes in equal parts")
    smoothing: float = Field(0.7, ge=0, lt=1, description="share of the rounds before in the models that clients use")
    # a federation that changes, A.8 and A.9
    drift_every: int = Field(0, ge=0, description="rounds between looks for drifted clients (delta'; 0: never)")
    drift_histogram: float = Field(0.2, gt=0, description="1-Wasserstein distance of class shares that counts as drift")
    drift_rule: Literal["shares", "paper"] = Field("shares", description="compare shares, or counts as in Eq. 41")
    drift_loss: float = Field(
        0.1, gt=0, description="rise of a client's loss over that of its group that counts, in units of ln(classes)"
    )
    regroup_after: int = Field(0, ge=0, description="arrivals after which all are grouped anew (0: never)")

    @model_validator(mode="after")
    def _views_are_ours_to_choose(self) -> "FedDAGStarSettings":
        if self.similarity != "fused" and self.fusion != "clarity":
            raise FeddagError(
                f"similarity = '{self.similarity}' has no say in fusion = '{self.fusion}', which names its own views"
            )
        return self


class FedDAGDaggerSettings(FedDAGStarSettings):
    """What a second encoder adds."""

    secondary_start: Literal["warm", "random", "copy"] = Field(
        "warm", description="first secondary encoder: from all warm-ups, random, or a copy of the primary"
    )
    # At home both phases would mend the same errors twice if they began from the same model, and in the end diverge.
    against: Literal["cluster", "own"] = Field("own", description=AGAINST)
    schedule: str = Field(
        "full",
        pattern=r"^(full|[1-9]\d*:1)$",
        description="full (both phases in every round) or K:1 (K primary rounds, then a secondary one: B.9)",
    )
    diversity: float = Field(0.0, ge=0, description="weight of Eq. 42; above 0 both encoders start random")


class FedDAGSettings(FedDAGDaggerSettings):
    """What sharing adds, §4."""

    against: Literal["cluster", "own"] = Field("cluster", description=AGAINST)
    sources: int = Field(8, ge=0, description="most clusters that a cluster learns from (k)")
    alignment: Alignment = Field("affinity", description="Eq. 13: affinity, paper (as printed) or none (Eq. 12)")
    classifier: Literal["common", "source"] = Field(
        "common", description="visiting encoders are trained against one classifier for all, or the source's (Eq. 20)"
    )
    scores: Literal["joint", "own"] = Field(
        "joint",
        description="with a common classifier, clients use it together with their cluster's head, or the head alone",
    )
    combined: Literal["mean", "sum"] = Field("mean", description="how learners' encoders become one (the paper: sum)")
    several: Literal["mean", "sum", "sequence"] = Field(
        "mean", description="updates of several sources: their mean, sum (Eq. 21), or each source after the one before"
    )
    exchange: Literal["visit", "borrow"] = Field(
        "visit", description="secondary encoders are trained at sources, or are the primary encoders of the sources"
    )

    @model_validator(mode="after")
    def _borrowed_encoders_are_not_trained(self) -> "FedDAGSettings":
        if self.exchange == "borrow" and self.schedule != "full":
            raise FeddagError(f"schedule = '{self.schedule}' has no say in exchange = 'borrow': it has one phase")
        return self


class FedDAG(Method):
    """The whole method: dual encoders, and global representation sharing along the complementarity graph."""

    name = "feddag"
    revision = 4
    encoders: ClassVar[int] = 2
    sharing: ClassVar[bool] = True
    """Secondary encoders visit other clusters; else they are trained at home."""
    Settings: ClassVar[type[MethodSettings]] = FedDAGSettings
    _settings: FedDAGSettings  # of an ablation, only the fields that it needs
    _grouping: Grouping | None = None

    # Warm-up and grouping, Algorithm 1 lines 1-14 ---------------------------------------------------------------------

    def start(self, federation: Federation) -> None:
        self.signatures: dict[ClientId, dict[str, Tensor]] = {}
        first = federation.initial_weights()
        warmed = self._sign(federation, federation.clients, first, later=False)
        if not warmed:
            reasons = ", ".join(sorted(set(federation.missing.values()))) or "there is none"
            raise FeddagError(f"no client could be grouped: {reasons}")
        self._grouping = self._group(list(self.signatures.values()))
        self.labels = dict(zip(self.signatures, self._grouping.labels_.tolist(), strict=True))
        self.founders = list(self.signatures)
        self.founding = dict(self.signatures)
        """The founders' signatures, by which newcomers are placed; a founder that drifts signs anew beside them."""
        self.placed: list[tuple[ClientId, int, dict[str, Tensor]]] = []
        """Who came or moved since, in this order: client, cluster and signature."""
        first_group = [client for client in self.founders if self.labels[client] == 0] if self._commonly() else []
        self.first_group = [self.signatures[client] for client in first_group]
        """What these call a class is what the common classifier calls it, however clusters are numbered later."""
        self.graph = _edges(self._grouping)
        self.directions = _directions(federation, first) if self.encoders == 2 else torch.zeros(0)
        self.matched = self._match(self._grouping)
        self.models = {z: self._first_model(federation, z, warmed, first) for z in sorted(set(self.labels.values()))}
        self.used: dict[int, Weights] = dict(self.models)
        self.rounds_of: dict[int, int] = {}
        """In how many rounds each cluster's model was trained."""
        self.taught: list[int] = []
        """Clusters whose secondary encoder has been trained, so that the common classifier can judge by it."""
        self.alone = first
        """What a client uses that no group has taken in yet."""
        self.arrivals = 0
        self.watched: dict[ClientId, dict[str, Tensor]] = {}

    def _sign(
        self, federation: Federation, clients: Sequence[ClientId], first: Weights, *, later: bool = True
    ) -> dict[ClientId, Reply]:
        """Ask for signatures (lines 6-10); whoever does not answer is asked again when it is next sampled."""
        federation.phase = "warm-up"
        own = self._settings
        sign = Sign(
            federation.put(first),
            steps=own.warmup_rounds * own.warmup_steps,
            sparsity=own.sparsity,
            vectors=own.vectors,
            inputs=own.inputs,
        )
        replies = federation.ask((Job(client, sign) for client in clients), spare=later)
        federation.phase = "train"
        for reply in replies:
            self.signatures[reply.client] = reply.results[0].arrays
        return {reply.client: reply for reply in replies}

    def _group(self, signed: Sequence[Mapping[str, Tensor]]) -> Grouping:
        own = self._settings
        signatures = [_signature(arrays) for arrays in signed]
        how: dict[str, Any] = {"fusion": own.fusion, "views": VIEWS[own.similarity], "linkage": own.linkage}
        if self.sharing:
            how |= {"sources": own.sources, "alignment": own.alignment}
        return group(signatures, **how)

    def _first_model(
        self, federation: Federation, cluster: int, warmed: Mapping[ClientId, Reply], first: Weights
    ) -> Weights:
        """Eq. 22 for the primary encoder; the secondary encoder and the head start afresh."""
        own = self._settings
        fresh = federation.initial_weights(f"cluster {cluster}")
        members = [reply for client, reply in warmed.items() if self.labels[client] == cluster]
        apart = self.encoders == 2 and own.diversity > 0  # A.11: then both start at random
        if own.primary_start == "warm" and not apart:
            trained = mean_of([reply.weights for reply in members], [reply.samples for reply in members])
            primary = only(trained, (PRIMARY,))
        else:
            primary = only(fresh, (PRIMARY,))
        model = fresh | primary
        if self.encoders == 1:
            return model
        if own.secondary_start == "copy" and not apart:
            model |= _renamed(primary, PRIMARY, SECONDARY)
        elif own.secondary_start == "warm" and not apart:
            everyone = mean_of([r.weights for r in warmed.values()], [r.samples for r in warmed.values()])
            model |= _renamed(only(everyone, (PRIMARY,)), PRIMARY, SECONDARY)
        return model

    # A round, lines 15-23 ---------------------------------------------------------------------------------------------

    def sample(self, federation: Federation) -> list[ClientId]:
        if self._settings.sampling == "all":
            return super().sample(federation)
        generator = federation.rng("sample in clusters")
        drawn: list[ClientId] = []
        for cluster in [*self.models, None]:  # and of those who have not signed yet
            members = [client for client in federation.clients if self.labels.get(client) == cluster]
            if members:
                count = max(1, round(federation.participation * len(members)))
                drawn += [members[number] for number in generator.choice(len(members), count, replace=False)]
        return sorted(drawn)

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        if unsigned := [client for client in sampled if client not in self.labels]:
            self.join(federation, unsigned)
        if self._settings.drift_every and federation.round % self._settings.drift_every == 0:
            self._look_for_drift(federation)
        taking_part = [client for client in sampled if client in self.labels]
        in_turn = self.sharing and self._settings.several == "sequence"
        for clusters in [[z] for z in self.models] if in_turn else [list(self.models)]:
            self._exchange(federation, clusters, [client for client in taking_part if self.labels[client] in clusters])
        if self._borrowing():
            self._borrow()

    def _exchange(self, federation: Federation, clusters: Sequence[int], clients: Sequence[ClientId]) -> None:
        primary, secondary = self._phases(federation.round)
        own = {z: federation.put(self.models[z]) for z in clusters}
        visiting = self._visiting(federation, clusters) if secondary else {}
        steps = {z: self._steps(own[z], visiting.get(z), primary) for z in clusters}
        replies = federation.ask(
            Job(client, steps[self.labels[client]]) for client in clients if steps[self.labels[client]]
        )
        before = dict(self.models)
        if primary:
            for z, answered in replies.by_group(self.labels):
                self.models[z] = self.models[z] | self.averaged(z, answered)
                self.rounds_of = {**self.rounds_of, z: self.rounds_of.get(z, 0) + 1}
                self._smooth(z)  # with the secondary encoder that this head was trained beside
        self._return_secondaries(before, [(z, sent) for z, sent in replies.by_group(self.labels) if z in visiting])

    def _phases(self, number: int) -> tuple[bool, bool]:
        """Whether primary and secondary encoders are trained in a round: both, or, by B.9, the one or the other."""
        if self.encoders == 1 or self._borrowing():
            return True, False
        if self._settings.schedule == "full":
            return True, True
        secondary = number % (int(self._settings.schedule.partition(":")[0]) + 1) == 0
        return not secondary, secondary

    def _borrowing(self) -> bool:
        return self.sharing and self._settings.exchange == "borrow"

    def averaged(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        """A cluster's primary encoder and head after its clients' training (Eq. 18)."""
        return mean_of([_sent(reply, 0) for reply in answered], [reply.samples for reply in answered])

    def _steps(self, own: Ref, visiting: Ref | None, primary: bool) -> list[Train]:
        """One exchange: train the own cluster's primary encoder and head (Eq. 17), then a visiting encoder (Eq. 20)."""
        setting = self._settings
        steps = []
        if primary:
            diversity = setting.diversity if self.encoders == 2 else 0.0
            common: dict[str, Any] = {"parts": (PRIMARY, HEAD), "balanced": setting.balanced, "phase": "primary"}
            steps.append(TrainDiversely(own, **common, diversity=diversity) if diversity else Train(own, **common))
        if visiting is not None:
            beside = None if primary and setting.against == "own" else own
            steps.append(Train((beside, visiting), parts=(SECONDARY,), balanced=setting.balanced, phase="secondary"))
        return steps

    def _visiting(self, federation: Federation, clusters: Sequence[int]) -> dict[int, Ref]:
        """The encoder that each cluster trains for its learners: theirs combined (§4 ii), or, at home, its own."""
        sent = {}
        for z in clusters:
            learners = self._learners(z)
            if learners:
                sent[z] = federation.put(self._combined(self.models, learners) | self._common_classifier(z))
        return sent

    def _learners(self, z: int) -> list[int]:
        if not self.sharing:
            return [z]
        at_home = [z] if self._commonly() else []  # asking the same as all others, a cluster also helps itself
        return at_home + [learner for learner, source in self.graph if source == z]

    def _commonly(self) -> bool:
        """Whether encoders are trained against the common classifier, so that it can judge by them."""
        return self.sharing and self._settings.classifier == "common" and not self._borrowing()

    def _common_classifier(self, z: int) -> Weights:
        """A head that belongs to no cluster: a fixed direction for each class, and blind to the primary encoder.

        Sources' own heads ask different things of the same encoder, and what they ask cancels out in the average;
        against one fixed head, every source moves it towards the same features.
        """
        if not self._commonly():
            return {}
        rows = self.directions[self.matched[z]]
        return {"head.weight": torch.cat([torch.zeros_like(rows), rows], 1), "head.bias": torch.zeros(len(rows))}

    def _match(self, grouping: Grouping) -> list[list[int]]:
        """For each cluster, which class of the first group each of its classes looks like."""
        if not self._commonly():
            return []
        first = [_signature(arrays) for arrays in self.first_group]
        labels = np.concatenate([np.zeros(len(first), int), grouping.labels_ + 1])
        matched: list[list[int]] = matched_classes([*first, *grouping.signatures], labels).tolist()
        return matched[1:]

    def _combined(self, models: Mapping[int, Weights], learners: Sequence[int]) -> Weights:
        mean = mean_of([only(models[learner], (SECONDARY,)) for learner in learners], [1] * len(learners))
        if len(learners) == 1 or self._settings.combined == "mean":
            return mean
        return {name: value * len(learners) if value.is_floating_point() else value for name, value in mean.items()}

    def _return_secondaries(
        self, before: Mapping[int, Weights], by_source: Sequence[tuple[int, Sequence[Reply]]]
    ) -> None:
        """Eq. 21: every learner moves as its sources' clients moved what they had been sent."""
        moves: dict[int, list[Weights]] = {}
        for source, answered in by_source:
            learners = self._learners(source)
            sent = self._combined(before, learners)
            trained = mean_of([_sent(reply, -1) for reply in answered], [reply.samples for reply in answered])
            for learner in learners:
                moves.setdefault(learner, []).append({name: trained[name] - sent[name] for name in sent})
        for learner, updates in moves.items():
            share = 1.0 if len(updates) == 1 or self._settings.several == "sum" else 1.0 / len(updates)
            moved = {
                name: self.models[learner][name] + share * torch.stack([update[name] for update in updates]).sum(0)
                for name, value in updates[0].items()
                if value.is_floating_point()  # and no counter of batches
            }
            self.models[learner] = self.models[learner] | moved
        self.taught = sorted({*self.taught, *moves})

    def _borrow(self) -> None:
        """The best source's primary encoder becomes the learner's second one. Averaging several would be noise."""
        primaries = {z: only(model, (PRIMARY,)) for z, model in self.models.items()}
        for learner in self.models:
            sources = [source for one, source in self.graph if one == learner]
            if sources:
                self.models[learner] = self.models[learner] | _renamed(primaries[sources[0]], PRIMARY, SECONDARY)

    def _smooth(self, z: int) -> None:
        """What clients use: the mean of the cluster's models after each of its rounds, the older the less."""
        kept, rounds = self._settings.smoothing, self.rounds_of[z]
        older = (kept - kept**rounds) / (1 - kept**rounds)  # nothing in the first round: the start is no round's result
        newest = self._with_common_classifier(z)
        self.used[z] = mean_of([self.used[z], newest], [older, 1 - older]) if older else newest

    def _with_common_classifier(self, z: int) -> Weights:
        """Scores add up: what the cluster says, and what all clusters say together of the same features."""
        model = self.models[z]
        if not self._commonly() or self._settings.scores == "own" or z not in self.taught:
            return model
        return model | {"head.weight": model["head.weight"] + self._common_classifier(z)["head.weight"]}

    # Newcomers, drift, growth: A.8 and A.9 ---------------------------------------------------------------------------

    def join(self, federation: Federation, newcomers: Sequence[ClientId]) -> None:
        """Algorithm 4: warm up alone, send a signature, be placed among the groups as they are."""
        first = federation.initial_weights()
        warmed = self._sign(federation, newcomers, first)
        for client, reply in warmed.items():
            self._place(federation, client, reply, first)
            federation.tell("join", f"client {client} joined cluster {self.labels[client]}", [client])
        self.arrivals += len(warmed)
        if 0 < self._settings.regroup_after <= self.arrivals:
            self._regroup(federation)

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        for client in gone:
            self.labels.pop(client, None)
            self.watched.pop(client, None)

    def _place(self, federation: Federation, client: ClientId, reply: Reply, first: Weights) -> None:
        """Into the nearest group, or, unlike all of them, into one of its own that starts from its warm-up."""
        grouping = self._known()
        signed = _signature(self.signatures[client])
        label = grouping.assign(signed)
        if label is None:
            label = len(self.models)
            self.labels[client] = label
            self.models[label] = self._founded(federation, label, {client: reply}, first)
            grouping = grouping.joined_by(signed, label)
            if self.sharing:
                self.matched += self._match(grouping)[label:]
                self.graph += [(label, source) for source in self._graph_of(grouping).sources_of(label)]
            self.used[label] = self._with_common_classifier(label)
        else:
            grouping = grouping.joined_by(signed, label)
        self.labels[client] = label
        self.placed = [*self.placed, (client, label, self.signatures[client])]
        self._grouping = grouping

    def _founded(self, federation: Federation, label: int, warmed: Mapping[ClientId, Reply], first: Weights) -> Weights:
        """The model of a cluster that comes later; its secondary encoder starts among those it is averaged with."""
        model = self._first_model(federation, label, warmed, first)
        if self.encoders == 2 and self._settings.secondary_start == "warm" and not self._settings.diversity:
            others = [only(other, (SECONDARY,)) for other in self.models.values()]
            model |= mean_of(others, [1] * len(others))
            self.taught = sorted({*self.taught, label}) if self.taught else []
        return model

    def _known(self) -> Grouping:
        """The grouping of the founders with all who were placed since; made again after a resume."""
        if self._grouping is None:
            self._grouping = self._group([self.founding[client] for client in self.founders])
            for _, label, arrays in self.placed:
                self._grouping = self._grouping.joined_by(_signature(arrays), label)
        return self._grouping

    def _graph_of(self, grouping: Grouping) -> ComplementGraph:
        own = self._settings
        return complement_graph(grouping.signatures, grouping.labels_, own.sources, own.alignment, rng(0, "complement"))

    def _look_for_drift(self, federation: Federation) -> None:
        """A.9: class shares that moved, or a loss that rose, make a client sign again and perhaps change its group."""
        federation.phase = "watch"
        sent = {z: federation.put(model) for z, model in self.models.items()}
        watched = [client for client in federation.clients if client in self.labels]
        replies = federation.ask(Job(client, Watch(sent[self.labels[client]])) for client in watched)
        now = {reply.client: reply.results[0].arrays for reply in replies}
        rises = {c: float(now[c]["loss"] - self.watched[c]["loss"]) for c in now if c in self.watched}
        shifted = [client for client in now if self._has_drifted(client, now[client], rises)]
        first = federation.initial_weights()
        for client, reply in self._sign(federation, shifted, first).items():
            before = self.labels[client]
            self._place(federation, client, reply, first)
            moved = (
                f"moved from cluster {before} to {self.labels[client]}" if self.labels[client] != before else "stays"
            )
            federation.tell("drift", f"client {client} drifted and {moved}", [client])
            self.watched.pop(client, None)  # its next look is compared with its new signature and group
        # Whoever drifted and did not sign is compared with what it was before, and so asked again.
        self.watched = self.watched | {client: seen for client, seen in now.items() if client not in shifted}
        federation.phase = "train"

    def _has_drifted(self, client: ClientId, now: Mapping[str, Tensor], rises: Mapping[ClientId, float]) -> bool:
        """A concept may change and leave the histogram as it was: then the loss rises, beyond that of the others."""
        own, group_of = self._settings, self.labels
        before = self.watched.get(client, self.signatures[client])["counts"].double()
        if classes_moved(before, now["counts"].double(), own.drift_histogram, own.drift_rule):
            return True
        mates = [rises[other] for other in rises if other != client and group_of[other] == group_of[client]]
        return client in rises and loss_rose(rises[client], mates, least=own.drift_loss * math.log(len(before)))

    def _regroup(self, federation: Federation) -> None:
        """Growth: the search for groups runs again; each new group starts from the models its members have used."""
        self.arrivals = 0
        present = [client for client in self.signatures if client in self.labels]
        grouping = self._group([self.signatures[client] for client in present])
        labels = dict(zip(present, grouping.labels_.tolist(), strict=True))
        if _partition(labels) == _partition(self.labels):
            return
        models, used, rounds_of, taught = {}, {}, {}, []
        for label in range(grouping.clusters_):
            members = [client for client in present if labels[client] == label]
            # A group that has not trained yet has nothing to leave, unless there is nothing else.
            heirs = [client for client in members if self.rounds_of.get(self.labels[client], 0)] or members
            sizes = [float(self.signatures[client]["counts"].sum()) for client in heirs]
            models[label] = mean_of([self.models[self.labels[client]] for client in heirs], sizes)
            used[label] = mean_of([self.used[self.labels[client]] for client in heirs], sizes)
            rounds_of[label] = max(self.rounds_of.get(self.labels[client], 0) for client in heirs)
            taught += [label] if any(self.labels[client] in self.taught for client in heirs) else []
        said = f"{len(present)} clients grouped anew: {len(self.models)} clusters became {len(models)}"
        federation.tell("regroup", said, present)
        self.models, self.used, self.labels = models, used, labels
        self.rounds_of, self.taught = rounds_of, taught
        self.watched = {}  # losses under other models
        self.graph, self.matched = _edges(grouping), self._match(grouping)
        self.founders, self.placed = present, []
        self.founding = {client: self.signatures[client] for client in present}
        self._grouping = grouping

    # Who uses what ----------------------------------------------------------------------------------------------------

    def model_of(self, client: ClientId) -> Weights:
        if client not in self.labels:
            return self.alone
        return self.used[self.labels[client]]

    def clusters(self) -> dict[ClientId, int]:
        return self.labels

    def diagnostics(self) -> Diagnostics:
        """The grouping of the founders, what every client says it holds, and who learns from whom now."""
        grouping, first = self._known(), len(self.founders)
        arrays = grouping.to_arrays()
        now: Diagnostics = {
            "clients": list(self.founders),
            "labels": arrays["labels"][:first],
            "weights": {name: values[:first] for name, values in arrays["weights"].items()},
            "graph": list(self.graph) if self.sharing else [],
            "counts": {client: arrays["counts"] for client, arrays in self.signatures.items()},
        }
        return cast("Diagnostics", arrays | now)


class FedDAGStar(FedDAG):
    """Grouping only: a single encoder and head per cluster."""

    name = "feddag-star"
    revision = 2
    Settings = FedDAGStarSettings
    encoders = 1
    sharing = False


class FedDAGDagger(FedDAG):
    """Dual encoders without sharing: the secondary encoder is trained inside its own cluster."""

    name = "feddag-dagger"
    revision = 3
    Settings = FedDAGDaggerSettings
    sharing = False


def _directions(federation: Federation, first: Weights) -> Tensor:
    """A direction in the secondary encoder's features for each class, at right angles where there is room."""
    classes, features = first["head.weight"].shape
    drawn = torch.from_numpy(federation.rng("directions").standard_normal((features // 2, classes)))
    if classes <= features // 2:
        drawn = torch.linalg.qr(drawn)[0]
    return SHARPNESS * functional.normalize(drawn, dim=0).T.float().contiguous()


def _sent(reply: Reply, step: int) -> Weights:
    weights = reply.results[step].weights
    assert weights is not None
    return weights


def _signature(arrays: Mapping[str, Tensor]) -> Signature:
    return received(Result(arrays=dict(arrays)))


def _edges(grouping: Grouping) -> list[tuple[int, int]]:
    """(learner, source) pairs of the complementarity graph."""
    graph = grouping.graph_
    return [(p, q) for p in range(len(graph.edges)) for q in graph.sources_of(p)] if graph is not None else []


def _partition(labels: Mapping[ClientId, int]) -> set[frozenset[ClientId]]:
    return {frozenset(c for c, label in labels.items() if label == z) for z in labels.values()}


def _renamed(weights: Weights, old: str, new: str) -> Weights:
    return {new + name.removeprefix(old): value for name, value in weights.items()}
