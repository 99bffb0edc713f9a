"""FedDAG's fields: what the paper leaves open, or what it and its released code do differently (docs/fidelity.md)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from feddag.client.warmup import WarmupInputs
from feddag.errors import FeddagError
from feddag.methods.clustered import ClusteredSettings
from feddag.server.clustering import Algorithm, Linkage
from feddag.server.complement import Absent, Alignment
from feddag.server.cutting import CutSettings, Rule
from feddag.server.drift import DriftRule
from feddag.server.grouping import Fusion
from feddag.server.similarity import Angles

SECONDARY_BESIDE = "secondary phase beside the cluster's model, or beside what the client has just trained"


class GroupingSettings(ClusteredSettings):
    """Grouping and life with the groups: all that `feddag-star` has."""

    # signatures, §3.1-3.2; clients warm up for them only where updates are compared or models start warm
    warmup_rounds: int = Field(2, ge=1, description="rounds of local training before grouping (t_g)")
    warmup_steps: int = Field(10, ge=1, description="SGD steps in each of them")
    warmup_epochs: int = Field(
        0, ge=0, description="epochs in each instead; the update is then the last round's (released code)"
    )
    warmup_start: Literal["common", "own"] = Field("common", description="one start for all, or one of each client's")
    warmup_balanced: bool = Field(True, description="warm-up batches hold a client's classes in equal parts")
    warmup_halves: bool = Field(True, description="warm up on each half of the samples, to know the update's noise")
    sparsity: float = Field(0.02, gt=0, le=1, description="share of the update's coordinates that is sent")
    vectors: int = Field(3, ge=1, description="principal vectors per class (p), the most of them with vector_share")
    vector_share: float = Field(0.0, ge=0, le=1, description="p as a share of the class's samples (0: p is vectors)")
    samples_per_class: int = Field(1000, ge=0, description="samples that vectors are made of, at most (A.6.2; 0: all)")
    inputs: WarmupInputs = Field(
        "standardised", description="what vectors are made of: samples, raw samples, or an encoder's features (A.6.1)"
    )
    style: bool = Field(True, description="clients also tell how their samples look, whatever they show")
    sketch: int = Field(0, ge=0, description="dimensions that signatures are projected onto, to be small (0: not)")
    least_per_class: int = Field(1, ge=1, description="classes of fewer samples are left out of signatures")
    # grouping, §3.2-3.4
    similarity: Literal["fused", "data", "gradient"] = Field(
        "data", description="what clients are compared by: samples, updates of a warm-up, or both"
    )
    fusion: Fusion = Field("clarity", description="how views become one distance; mlp and projected as printed")
    angles: Angles = Field("printed", description="Eq. 4-6 as printed or as released, for the printed fusions")
    delta: float = Field(0.5, ge=0, le=1, description="range of Eq. 5's weights")
    linkage: Linkage = Field("average", description="of the agglomerative clustering")
    cut: Literal["auto", Rule] = Field("auto", description="where the tree is cut: by noise, on a plateau, lowest loss")
    threshold: float = Field(0.0, ge=0, description="a fixed alpha instead (0: searched)")
    clusters: int = Field(0, ge=0, description="a fixed number of clusters instead (0: searched)")
    cut_lambda: float = Field(0.01, ge=0, description="lambda of Eq. 10: what small clusters cost")
    cut_gamma: float = Field(1.0, ge=0, description="gamma of Eq. 9")
    cut_tau: float = Field(0.0, ge=0, description="tau of Eq. 9, in clients (0: a tenth of the mean cluster size)")
    clustering: Algorithm = Field("agglomerative", description="who finds the members of that many clusters (A.2)")
    primary_start: Literal["common", "warm", "random"] = Field(
        "common", description="first primary encoder: the untrained start that all share, Eq. 22, or random"
    )
    # stability
    sampling: Literal["clusters", "all"] = Field(
        "clusters", description="participants: a share of each cluster, or of all"
    )
    balanced: bool = Field(True, description="local batches hold a client's classes in equal parts")
    smoothing: float = Field(0.7, ge=0, lt=1, description="share of the rounds before in the models that clients use")
    head: Literal["random", "sharp"] = Field("sharp", description="first head: random, or a long direction each class")
    softmax: Literal["all", "held", "own"] = Field(
        "own", description="classes the loss tells apart: all, the cluster's, or the client's"
    )
    # a federation that changes, A.8 and A.9
    drift_every: int = Field(0, ge=0, description="rounds between looks for drifted clients (delta'; 0: never)")
    drift_histogram: float = Field(0.2, gt=0, description="1-Wasserstein distance of class shares that counts as drift")
    drift_rule: DriftRule = Field("shares", description="compare shares, or counts as in Eq. 41")
    drift_loss: float = Field(
        0.1, gt=0, description="rise of a client's loss over that of its group that counts, in units of ln(classes)"
    )
    regroup_after: int = Field(0, ge=0, description="arrivals after which all are grouped anew (0: never)")

    @property
    def cut_settings(self) -> CutSettings:
        """The fields about where the tree is cut."""
        return CutSettings(
            rule=None if self.cut == "auto" else self.cut,
            threshold=self.threshold or None,
            clusters=self.clusters or None,
            balance=self.cut_lambda,
            gamma=self.cut_gamma,
            tau=self.cut_tau or None,
            algorithm=self.clustering,
        )

    @model_validator(mode="after")
    def _noise_must_be_known(self) -> "GroupingSettings":
        _ = self.cut_settings  # refuses what contradicts itself
        if self.fusion == "clarity" and self.similarity != "data" and not self.warmup_halves:
            raise FeddagError(
                "warmup_halves = false needs similarity = 'data' or a printed fusion: 'clarity' weighs updates by noise"
            )
        if self.fusion != "clarity" and self.cut == "noise":
            raise FeddagError(f"cut = 'noise' needs fusion = 'clarity': distances of '{self.fusion}' have no zero")
        return self

    @model_validator(mode="after")
    def _views_are_ours_to_choose(self) -> "GroupingSettings":
        if self.similarity == "gradient" and self.fusion != "clarity":
            raise FeddagError(f"similarity = 'gradient' does nothing with fusion = '{self.fusion}': it names its views")
        return self


class SecondarySettings(GroupingSettings):
    """What a second encoder adds: `feddag-dagger`."""

    secondary_start: Literal["warm", "random", "copy"] = Field(
        "warm", description="first secondary encoder: from all warm-ups, random, or a copy of the primary"
    )
    # At home both phases would mend the same errors twice if they began from the same model, and in the end diverge.
    secondary_beside: Literal["cluster", "own"] = Field("own", description=SECONDARY_BESIDE)
    schedule: str = Field(
        "full",
        pattern=r"^(full|[1-9]\d*:1)$",
        description="full (both phases in every round) or K:1 (K primary rounds, then a secondary one: B.9)",
    )
    secondary_served: Literal["known", "latest"] = Field(
        "known", description="clients use the secondary encoder that their head was trained beside, or the latest"
    )
    diversity: float = Field(0.0, ge=0, description="weight of Eq. 42; above 0 both encoders start random")


class SharingSettings(SecondarySettings):
    """What sharing adds: the whole of `feddag`. But for `sharing`, its fields are about visiting encoders (§4)."""

    came_later: ClassVar[Mapping[str, Any]] = {**SecondarySettings.came_later, "sharing": "encoder"}

    sharing: Literal["renamed", "encoder", "none"] = Field(
        "renamed",
        description="one model for clusters that differ in names or held classes only, visiting encoders (§4), nothing",
    )
    secondary_beside: Literal["cluster", "own"] = Field("cluster", description=SECONDARY_BESIDE)
    sources: int = Field(8, ge=0, description="most clusters that a cluster learns from (k)")
    alignment: Alignment = Field("affinity", description="Eq. 13: affinity, paper (as printed) or none (Eq. 12)")
    absent: Absent = Field("rarest", description="how much a class is wanted that a client lacks: as its rarest, not")
    classifier: Literal["common", "source"] = Field(
        "common", description="visiting encoders are trained against one classifier for all, or the source's (Eq. 20)"
    )
    scores: Literal["joint", "own"] = Field(
        "joint",
        description="with a common classifier, clients use it together with their cluster's head, or the head alone",
    )
    learner_encoders: Literal["mean", "sum"] = Field(
        "mean", description="how learners' encoders become one (the paper: sum)"
    )
    source_updates: Literal["mean", "sum", "sequence"] = Field(
        "mean", description="updates of several sources: their mean, sum (Eq. 21), or each source after the one before"
    )
    exchange: Literal["visit", "borrow"] = Field(
        "visit", description="secondary encoders are trained at sources, or are the primary encoders of the sources"
    )

    @model_validator(mode="after")
    def _encoders_visit(self) -> "SharingSettings":
        visiting = {*SecondarySettings.__annotations__, *SharingSettings.__annotations__} - {"sharing", "came_later"}
        fields = type(self).model_fields
        changed = [name for name in sorted(visiting) if getattr(self, name) != fields[name].default]
        if changed and self.sharing != "encoder":
            raise FeddagError(f"{changed[0]} does nothing with sharing = '{self.sharing}': it needs 'encoder'")
        return self

    @model_validator(mode="after")
    def _borrowed_encoders_are_not_trained(self) -> "SharingSettings":
        if self.exchange == "borrow" and self.schedule != "full":
            raise FeddagError(f"schedule = '{self.schedule}' does nothing with exchange = 'borrow': it has one phase")
        return self
