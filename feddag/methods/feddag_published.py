"""FedDAG as its paper prints it, and as its released code runs it: one implementation, other defaults.

Each line below is a choice that `feddag` makes differently; docs/fidelity.md says why, and what neither can reproduce.
What is not the method's own stays the experiment's: batch size, weight decay, epochs, and how accuracy is counted.
"""

from typing import Any

from feddag.methods.base import with_defaults
from feddag.methods.feddag import FedDAG, FedDAGDagger, FedDAGStar
from feddag.methods.feddag.settings import GroupingSettings, SecondarySettings, SharingSettings

PLAIN: dict[str, Any] = {
    # Both have no stabilisers, and compare raw samples and one plain warm-up.
    "sampling": "all",  # Algorithm 1, lines 3-4
    "balanced": False,
    "smoothing": 0.0,
    "head": "random",
    "softmax": "all",
    "warmup_balanced": False,
    "warmup_halves": False,
    "samples_per_class": 0,
    "inputs": "raw",
    "style": False,
    "similarity": "fused",  # §3.3
    "fusion": "mlp",
    "linkage": "single",  # A.2
}
PAPER_GROUPING = PLAIN | {
    "vector_share": 0.01,  # §5: about one per cent of the class
    "vectors": 10,  # the most: a signature has to end somewhere
    "primary_start": "warm",  # Eq. 22
}
PAPER_SECONDARY = PAPER_GROUPING | {
    "secondary_start": "random",  # Algorithm 1, line 14
    "secondary_beside": "cluster",  # Eq. 19
    "secondary_served": "latest",  # Eq. 15
}
PAPER = PAPER_SECONDARY | {
    "sharing": "encoder",  # §4
    "sources": 2,
    "alignment": "paper",  # Eq. 13-14
    "classifier": "source",  # Eq. 19-20
    "scores": "own",
    "learner_encoders": "sum",  # §4 (ii)
    "source_updates": "sum",  # Eq. 21
}
RELEASED = PLAIN | {
    "vectors": 3,
    "warmup_epochs": 10,
    "angles": "released",
    "threshold": 0.4,
    "primary_start": "common",  # clients are reset before they are averaged: Eq. 22 is not done
    "sharing": "encoder",
    "secondary_start": "copy",
    "secondary_beside": "own",
    "secondary_served": "latest",
    "sources": 2,
    "alignment": "none",  # Eq. 12
    "absent": "none",
    "classifier": "source",
    "scores": "own",
    "learner_encoders": "mean",
    "source_updates": "sequence",
}


class FedDAGPaper(FedDAG):
    """The whole method as printed: Eq. 3-22 and Algorithms 1-4, with the plateau of Eq. 10 for alpha*."""

    name = "feddag-paper"
    cost = FedDAGDagger.cost
    revision = 1
    Settings = with_defaults(SharingSettings, PAPER)


class FedDAGPaperStar(FedDAGStar):
    """As printed, with one encoder and without sharing (FedDAG* of §5)."""

    name = "feddag-paper-star"
    revision = 1
    Settings = with_defaults(GroupingSettings, PAPER_GROUPING)


class FedDAGPaperDagger(FedDAGDagger):
    """As printed, with two encoders and without sharing (FedDAG† of §5)."""

    name = "feddag-paper-dagger"
    revision = 1
    Settings = with_defaults(SecondarySettings, PAPER_SECONDARY)


class FedDAGReleased(FedDAG):
    """As the published code runs it."""

    name = "feddag-released"
    cost = FedDAGDagger.cost
    revision = 1
    Settings = with_defaults(SharingSettings, RELEASED)
