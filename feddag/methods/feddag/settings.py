"""FedDAG's fields: what the paper leaves open, or what it and its released code do differently (docs/fidelity.md)."""

from typing import Literal

from pydantic import Field, model_validator

from feddag.errors import FeddagError
from feddag.methods.clustered import ClusteredSettings
from feddag.server.clustering import Linkage
from feddag.server.complement import Alignment
from feddag.server.drift import DriftRule
from feddag.server.grouping import Fusion

SECONDARY_BESIDE = "secondary phase beside the cluster's model, or beside what the client has just trained"


class GroupingSettings(ClusteredSettings):
    """Grouping and life with the groups: all that `feddag-star` has."""

    # grouping, §3
    warmup_rounds: int = Field(2, ge=1, description="rounds of local training before grouping (t_g)")
    warmup_steps: int = Field(10, ge=1, description="SGD steps in each of them")
    sparsity: float = Field(0.02, gt=0, le=1, description="share of the update's coordinates that is sent")
    vectors: int = Field(3, ge=1, description="principal vectors per class (p)")
    inputs: Literal["standardised", "raw"] = Field("standardised", description="samples as principal vectors see them")
    least_per_class: int = Field(1, ge=1, description="classes of fewer samples are left out of signatures")
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
    drift_rule: DriftRule = Field("shares", description="compare shares, or counts as in Eq. 41")
    drift_loss: float = Field(
        0.1, gt=0, description="rise of a client's loss over that of its group that counts, in units of ln(classes)"
    )
    regroup_after: int = Field(0, ge=0, description="arrivals after which all are grouped anew (0: never)")

    @model_validator(mode="after")
    def _views_are_ours_to_choose(self) -> "GroupingSettings":
        if self.similarity != "fused" and self.fusion != "clarity":
            raise FeddagError(
                f"similarity = '{self.similarity}' does nothing with fusion = '{self.fusion}': it names its own views"
            )
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
    diversity: float = Field(0.0, ge=0, description="weight of Eq. 42; above 0 both encoders start random")


class SharingSettings(SecondarySettings):
    """What sharing adds, §4: the whole of `feddag`."""

    secondary_beside: Literal["cluster", "own"] = Field("cluster", description=SECONDARY_BESIDE)
    sources: int = Field(8, ge=0, description="most clusters that a cluster learns from (k)")
    alignment: Alignment = Field("affinity", description="Eq. 13: affinity, paper (as printed) or none (Eq. 12)")
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
    def _borrowed_encoders_are_not_trained(self) -> "SharingSettings":
        if self.exchange == "borrow" and self.schedule != "full":
            raise FeddagError(f"schedule = '{self.schedule}' does nothing with exchange = 'borrow': it has one phase")
        return self
