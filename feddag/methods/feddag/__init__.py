"""FedDAG (ICLR 2026): groups by data and gradients, a dual-encoder model per group, and groups that learn from others.

The rounds follow Algorithm 1. Where the paper and its released code differ, a field chooses (`settings`);
docs/fidelity.md tells what each was measured to do. The second encoder is `sharing`'s, signatures and placing are
`server.membership`'s, and whether a client has drifted is for `server.drift` to say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional

from feddag.client.evaluate import Monitor
from feddag.client.loss import Penalty
from feddag.client.step import Step
from feddag.client.train import Train
from feddag.client.warmup import MakeSignature
from feddag.errors import FeddagError
from feddag.federation import Federation, Job, Reply
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredMethod
from feddag.methods.feddag.families import Families
from feddag.methods.feddag.settings import GroupingSettings, SecondarySettings, SharingSettings
from feddag.methods.feddag.sharing import HEAD, PRIMARY, SECONDARY, AtHome, NoSecondary, sharing
from feddag.models import DualEncoder
from feddag.records import Diagnostics
from feddag.server.aggregate import weighted_mean
from feddag.server.drift import DriftMonitor
from feddag.server.membership import Membership
from feddag.weights import ClientId, Ref, Served, Weights, only

VIEWS_BY_SIMILARITY = {"fused": ("classes", "data", "gradient"), "data": ("classes", "data"), "gradient": ("gradient",)}


@dataclass(frozen=True)
class TrainDiversely(Train):
    """Training that keeps apart what two encoders see."""

    diversity: float = 0.0

    def penalty(self) -> Penalty:
        """Eq. 42: the mean squared cosine of what two encoders see."""

        def penalty(model: nn.Module, x: Tensor) -> Tensor:
            assert isinstance(model, DualEncoder)
            cosines: Tensor = functional.cosine_similarity(*model.features(x), dim=1)
            return self.diversity * (cosines**2).mean()

        return penalty


class FedDAGStar(ClusteredMethod):
    """Grouping only: a single encoder and head per cluster. What the other two forms have in common."""

    name = "feddag-star"
    sends = "model; once, a signature"
    paper = "FedDAG, ICLR 2026"
    revision = 8  # concepts are found among clients of one look
    Settings: ClassVar[type[MethodSettings]] = GroupingSettings
    _settings: GroupingSettings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        own = self._settings
        self.second = self.secondary()
        self.membership = Membership(**self.grouping_options())
        self.monitor = DriftMonitor(own.drift_histogram, own.drift_rule, own.drift_loss)
        self.arrivals = 0
        """Clients that joined since all were grouped together."""

    def secondary(self) -> NoSecondary:
        """The way to have a second encoder."""
        return NoSecondary()

    def grouping_options(self) -> dict[str, Any]:
        """What `feddag.group` is told."""
        own = self._settings
        how = {name: getattr(own, name) for name in ("fusion", "angles", "delta", "linkage")}
        views = (*VIEWS_BY_SIMILARITY[own.similarity], *(["style"] if own.style else []))
        return how | {"views": views, "cut": own.cut_settings}

    def setup(self, federation: Federation) -> None:
        self.membership.use(seed=federation.seed)

    # Warm-up and grouping, Algorithm 1 lines 1-14 ---------------------------------------------------------------------

    def start(self, federation: Federation) -> None:
        warmed = self.sign(federation, federation.clients, optional=False)
        if not warmed:
            reasons = ", ".join(sorted(set(federation.missing.values()))) or "there is none"
            raise FeddagError(f"no client could be grouped: {reasons}")
        grouping, cluster_of = self.membership.search()
        self.membership.found(grouping, cluster_of)
        signed = self.membership.signatures
        self.second.start(federation, grouping, [signed[client] for client in signed if cluster_of[client] == 0])
        everyone = self.mean_encoders(warmed.values())
        for cluster in range(grouping.clusters_):
            kin = self.second.kin(cluster)
            signed_here = [reply for client, reply in warmed.items() if cluster_of[client] in kin]
            first = self.first_model(federation, kin[0], self.mean_encoders(signed_here), everyone)
            self.groups.found(self.second.renamed(first, cluster))
        self.groups.cluster_of = cluster_of
        self.unsigned = self.initial_weights(federation)
        """What a client uses that has not signed yet."""

    def sign(self, federation: Federation, clients: Sequence[ClientId], optional: bool = True) -> dict[ClientId, Reply]:
        """Ask for signatures (lines 6-10); whoever does not answer is asked again when it is next sampled."""
        names = {client: self.warmup_start(client) for client in clients}
        starts: dict[str, Ref | tuple[()]] = dict.fromkeys(names.values(), ())
        if self.warms_up() or self._settings.inputs == "features":
            starts = {name: federation.put(federation.initial_weights(name)) for name in starts}
        with federation.in_phase("warm-up"):
            jobs = [Job(client, self.signing(starts[name])) for client, name in names.items()]
            replies = federation.ask(jobs, optional=optional)
        self.membership.signatures |= {reply.client: reply.results[0].arrays for reply in replies}
        return {reply.client: reply for reply in replies}

    def warmup_start(self, client: ClientId) -> str:
        """The name of the weights that a client's warm-up starts from: the common ones, unless each has its own."""
        return f"client {client}" if self._settings.warmup_start == "own" else "model"  # Algorithm 1, line 1: own

    def signing(self, start: Ref | tuple[()]) -> MakeSignature:
        """What a client does to be grouped, from these weights."""
        own = self._settings
        how: dict[str, Any] = {
            "steps": self.warms_up() * own.warmup_steps * (1 if own.warmup_epochs else own.warmup_rounds),
            "epochs": self.warms_up() * own.warmup_epochs,
            "rounds": own.warmup_rounds if own.warmup_epochs else 1,
            "balanced": own.warmup_balanced,
            "halves": own.warmup_halves,
            "per_class": own.samples_per_class or None,
            "send": self.needs_warm_encoders(),
            **{
                name: getattr(own, name)
                for name in ("sparsity", "vectors", "vector_share", "inputs", "style", "sketch")
            },
            "least_per_class": own.least_per_class,
        }
        return MakeSignature(start, **how)

    def mean_encoders(self, warmed: Iterable[Reply]) -> Weights:
        """Eq. 22: the mean of what clients trained in their warm-up, if that was asked for."""
        return (weighted_mean(warmed) or {}) if self.needs_warm_encoders() else {}

    def needs_warm_encoders(self) -> bool:
        """Whether anything starts from what clients trained in their warm-up; else it stays with them."""
        warm = self._settings.primary_start == "warm" and not self.second.diversity
        return warm or self.second.starts_warm

    def warms_up(self) -> bool:
        """Whether clients train before they sign: for their updates to be compared, or to start from."""
        own = self._settings
        return own.similarity != "data" or own.fusion not in ("clarity", "data") or self.needs_warm_encoders()

    def first_model(self, federation: Federation, cluster: int, members: Weights, everyone: Weights) -> Weights:
        """Eq. 22 for the primary encoder, from warm-ups; the secondary one as `second` says, and a fresh head."""
        fresh = self.initial_weights(federation, f"cluster {cluster}")
        start = "random" if self.second.diversity else self._settings.primary_start  # A.11: with Eq. 42 at random
        source = {"warm": members, "random": fresh, "common": federation.initial_weights()}[start]
        primary = only(source, (PRIMARY,))
        return fresh | primary | self.second.first_encoder(primary, everyone)

    # A round, lines 15-23 ---------------------------------------------------------------------------------------------

    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        if unsigned := [client for client in sampled if client not in self.groups.cluster_of]:
            self.join(federation, unsigned)
        if self._settings.drift_every and federation.round % self._settings.drift_every == 0:
            self.look_for_drift(federation)
        cluster_of = self.groups.cluster_of
        for clusters in self.second.turns(list(self.groups.trained)):
            self.exchange(federation, clusters, [client for client in sampled if cluster_of.get(client) in clusters])
        self.groups.trained = self.second.end_round(self.groups.trained)
        if self.second.serves_latest:
            for z, model in self.groups.trained.items():
                self.groups.served[z] = self.groups.served[z] | only(model, (SECONDARY,))

    def exchange(self, federation: Federation, clusters: Sequence[int], clients: Sequence[ClientId]) -> None:
        """Both phases with the clients of these clusters."""
        primary, secondary = self.second.phases(federation.round)
        before = dict(self.groups.trained)
        own = {z: federation.put(before[z]) for z in clusters}
        visiting = {z: sent for z in clusters if secondary and (sent := self.second.visiting(before, z)) is not None}
        refs = {z: federation.put(encoder) for z, encoder in visiting.items()}
        steps = {z: self.steps(own[z], refs.get(z), primary, self.held_in(z)) for z in clusters}
        cluster_of = self.groups.cluster_of
        replies = federation.ask(
            Job(client, steps[cluster_of[client]]) for client in clients if steps[cluster_of[client]]
        )
        if primary:
            answers = dict(replies.by_group(cluster_of))
            trained = {z: before[z] | self.aggregate(z, answered) for z, answered in answers.items()}
            samples = {z: float(sum(reply.samples for reply in answered)) for z, answered in answers.items()}
            for z, model in self.second.joined(trained, samples).items():
                self.groups.update(z, model, self._settings.smoothing, self.second.served(z, model))
        by_source = [(z, answered) for z, answered in replies.by_group(cluster_of) if z in visiting]
        self.groups.trained = self.second.returned(before, by_source, self.groups.trained)

    def steps(self, own: Ref, visiting: Ref | None, primary: bool, held: tuple[int, ...]) -> list[Step]:
        """One exchange: train the own cluster's primary encoder and head (Eq. 17), then a visiting encoder (Eq. 20)."""
        steps: list[Step] = []
        balanced = self._settings.balanced
        if primary:
            how: dict[str, Any] = {"parts": (PRIMARY, HEAD), "balanced": balanced, "phase": "primary", "held": held}
            diversity = self.second.diversity
            steps.append(TrainDiversely(own, **how, diversity=diversity) if diversity else Train(own, **how))
        if visiting is not None:
            beside = None if primary and self.beside_own_training() else own
            steps.append(Train((beside, visiting), parts=(SECONDARY,), balanced=balanced, phase="secondary", held=held))
        return steps

    def strata(self) -> dict[ClientId, int]:
        """Clusters, but those that train one model under one name for each class count as one."""
        return {client: self.second.stratum(cluster) for client, cluster in self.groups.cluster_of.items()}

    def held_by(self, client: ClientId) -> Sequence[int]:
        """As its signature tells."""
        signed = self.membership.signatures.get(client)
        return () if signed is None else signed["counts"].nonzero().flatten().tolist()

    def beside_own_training(self) -> bool:
        """Whether a visiting encoder is trained beside what the client has just trained, or its cluster's model."""
        return False

    def aggregate(self, cluster: int, answered: Sequence[Reply]) -> Weights:
        """A cluster's primary encoder and head after its clients' training (Eq. 18)."""
        return self.mean(answered, self.groups.trained[cluster], step=0)

    # Newcomers, drift, growth: A.8 and A.9 ---------------------------------------------------------------------------

    def join(self, federation: Federation, newcomers: Sequence[ClientId]) -> None:
        """Algorithm 4: send a signature, be placed among the groups as they are."""
        placed = self.settle(federation, self.sign(federation, newcomers))
        for client, cluster in placed.items():
            federation.tell("join", f"client {client} joined cluster {cluster}", [client])
        self.arrivals += len(placed)
        if 0 < self._settings.regroup_after <= self.arrivals:
            self.regroup(federation)

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        super().leave(federation, gone)
        self.monitor.forget(gone)

    def settle(self, federation: Federation, signed: Mapping[ClientId, Reply]) -> dict[ClientId, int]:
        """Each into the nearest cluster, or, unlike all of them, into one of its own."""
        for client, reply in signed.items():
            cluster = self.membership.nearest(client)
            if cluster is None:
                cluster = self.found(federation, client, reply)
            else:
                self.membership.place(client, cluster)
            self.groups.move(client, cluster)
        self._held = None
        return {client: self.groups.cluster_of[client] for client in signed}

    def found(self, federation: Federation, client: ClientId, reply: Reply) -> int:
        """A cluster of a client's own, whose model is that of its kin, or one that its client trains at once.

        One founder after the other: the next may be its kin.
        """
        number = self.groups.next_number
        warm = self.mean_encoders([reply])
        model = self.first_model(federation, number, warm, warm)
        cluster = self.groups.found(model | self.second.later_encoder(self.groups.trained, number))
        self.membership.place(client, cluster)
        self.second.founded(self.membership.grouping, cluster)
        self.groups.served[cluster] = self.second.served(cluster, self.groups.trained[cluster])
        self.unite()
        for models in (self.groups.trained, self.groups.served):
            models[cluster] = self.second.from_kin(models, cluster) or models[cluster]
        if len(self.second.kin(cluster)) == 1:
            self.train_first(federation, client, cluster)
        return cluster

    def unite(self) -> None:
        """Clusters that have become kin have one model from now on."""
        members = list(self.groups.cluster_of.values())
        for models in (self.groups.trained, self.groups.served):
            models |= self.second.united(models, {z: members.count(z) or 1e-6 for z in models})

    def train_first(self, federation: Federation, client: ClientId, cluster: int) -> None:
        """A group of one has a model at once: what its client makes of the largest group's primary encoder.

        Not where the primary encoder has been trained in a warm-up.
        """
        start = "random" if self.second.diversity else self._settings.primary_start
        if start == "warm":
            return
        model, members = self.groups.trained[cluster], list(self.groups.cluster_of.values())
        largest = max((z for z in self.groups.trained if z != cluster), key=members.count, default=None)
        if start == "common" and largest is not None:
            model = model | only(self.groups.trained[largest], (PRIMARY,))
        how: dict[str, Any] = {"parts": (PRIMARY, HEAD), "balanced": self._settings.balanced, "phase": "primary"}
        replies = federation.ask([Job(client, Train(federation.put(model), **how))], optional=True)
        for reply in replies:
            model = model | reply.weights
        self.groups.trained[cluster], self.groups.served[cluster] = model, self.second.served(cluster, model)

    def look_for_drift(self, federation: Federation) -> None:
        """A.9: class shares that moved, or a loss that rose, make a client sign again and perhaps move."""
        cluster_of = self.groups.cluster_of
        with federation.in_phase("watch"):
            sent = {z: federation.put(model) for z, model in self.groups.trained.items()}
            least = self._settings.least_per_class
            jobs = [Job(c, Monitor(sent[cluster_of[c]], least)) for c in federation.clients if c in cluster_of]
            now = {reply.client: reply.results[0].arrays for reply in federation.ask(jobs)}
        signed = {client: arrays["counts"] for client, arrays in self.membership.signatures.items()}
        drifted = self.monitor.drifted(now, cluster_of, signed)
        before_all = dict(cluster_of)
        moved = self.settle(federation, self.sign(federation, drifted))
        for client, after in moved.items():
            before = before_all[client]
            what = f"moved from cluster {before} to {after}" if after != before else "stays"
            federation.tell("drift", f"client {client} drifted and {what}", [client])
        # Whoever drifted and did not sign is compared with what it was before, and so asked again.
        self.monitor.note({client: seen for client, seen in now.items() if client not in drifted})
        self.monitor.forget(moved)  # the next look is compared with their new signatures

    def regroup(self, federation: Federation) -> None:
        """Growth: the search for groups runs again; each new group starts from the models its members have used."""
        self.arrivals = 0
        before = self.groups.cluster_of
        grouping, cluster_of = self.membership.search(before)
        if _partition(cluster_of) == _partition(before):
            return
        sizes = {client: float(self.membership.signatures[client]["counts"].sum()) for client in cluster_of}
        clusters = len(self.groups.trained)
        inherited = self.groups.regroup(cluster_of, sizes)
        text = f"{len(cluster_of)} clients grouped anew: {clusters} clusters became {len(inherited)}"
        federation.tell("regroup", text, cluster_of)
        self._held = None
        self.second.regrouped(grouping, inherited)
        self.unite()
        self.membership.found(grouping, cluster_of)
        self.monitor.forget(list(self.monitor.last))  # losses under other models

    # Who uses what ----------------------------------------------------------------------------------------------------

    def model_of(self, client: ClientId) -> Served:
        """Its cluster's model; a client that has not signed yet has the common start."""
        return super().model_of(client) if client in self.groups.cluster_of else self.unsigned

    def diagnostics(self) -> Diagnostics:
        """The grouping of the founders, what every client says it holds, and who learns from whom now."""
        return cast("Diagnostics", self.membership.diagnostics() | self.second.diagnostics())


class FedDAGDagger(FedDAGStar):
    """Dual encoders without sharing: the secondary encoder is trained inside its own cluster."""

    name = "feddag-dagger"
    cost = 2.7  # the second encoder, and the first one's forward pass beside it
    revision = 9
    encoders = 2
    Settings = SecondarySettings
    _settings: SecondarySettings

    def secondary(self) -> NoSecondary:
        return AtHome(self._settings)

    def beside_own_training(self) -> bool:
        return self._settings.secondary_beside == "own"


class FedDAG(FedDAGDagger):
    """The whole method. What clusters share is a field: one model for all that are renamings of each other or differ in
    held classes only, or second encoders that visit other clusters along the complementarity graph, as in the paper."""

    name = "feddag"
    cost = 1.0  # with second encoders that visit other clusters it is that of `feddag-dagger`
    revision = 10
    Settings = SharingSettings
    _settings: SharingSettings

    @classmethod
    def encoders_for(cls, settings: MethodSettings) -> int:
        assert isinstance(settings, SharingSettings)
        return 2 if settings.sharing == "encoder" else 1

    def secondary(self) -> NoSecondary:
        how = self._settings.sharing
        return sharing(self._settings) if how == "encoder" else Families() if how == "renamed" else NoSecondary()

    def grouping_options(self) -> dict[str, Any]:
        own = self._settings
        return super().grouping_options() | {"sources": own.sources, "alignment": own.alignment, "absent": own.absent}


def _partition(cluster_of: Mapping[ClientId, int]) -> set[frozenset[ClientId]]:
    return {frozenset(c for c, own in cluster_of.items() if own == z) for z in cluster_of.values()}
