"""PACFL: clients whose samples span nearly the same directions share a model (Vahidian et al., AAAI 2023).

Every client sends a few principal vectors of its samples once; the server joins clients whose subspaces are at a small
angle, by hierarchical clustering up to a threshold, and trains FedAvg inside clusters. The threshold, an angle in
degrees, must be known: it depends on the dataset, and the paper gives no rule for it; or else the number of clusters.

The angle is the paper's (Eq. 2: the smallest principal angle; Eq. 3, a trace: `angle = "sum"`). Taken from the
released code: 3 vectors of each class of raw samples (the paper decomposes all samples of a client at once: `vectors_of
= "client"`), linkage and threshold. Its own angle is the smallest between any two of the vectors, whose signs are
arbitrary and count there; here they do not (`angle = "smallest"`). A newcomer goes to the cluster of the least mean
angle; the paper builds the whole tree again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from pydantic import Field

from feddag.client.signature import principal_vectors
from feddag.client.step import Client, Result, Step
from feddag.federation import Federation, Reply
from feddag.methods.base import MethodSettings
from feddag.methods.clustered import ClusteredSettings
from feddag.methods.oneshot import OneShot
from feddag.models import ModelSpec
from feddag.records import Diagnostics
from feddag.server.clustering import Linkage, build_tree
from feddag.server.directions import Angle, angles_between, angles_to
from feddag.weights import ClientId, Weights


@dataclass(frozen=True)
class PrincipalVectors(Step):
    """The leading singular vectors of the client's samples, of each class or of all; zeros where there are none."""

    vectors: int
    by_class: bool

    def shapes(self, model: ModelSpec) -> dict[str, tuple[int, ...]]:
        return {"vectors": (model.num_classes if self.by_class else 1, self.vectors, int(np.prod(model.shape)))}

    def problem(self, result: Result) -> str | None:
        lengths = result.arrays["vectors"].double().norm(dim=2)
        sound = (lengths < 1e-6) | ((lengths - 1).abs() < 1e-3)
        return None if bool(sound.all()) else "sent principal vectors that are not of length 1"

    def run(self, client: Client) -> Result:
        told, labels = client.released().numpy(), client.y.numpy()
        samples = (client.x.numpy() if client.stored is None else client.stored).reshape(len(labels), -1)
        table = np.zeros((client.num_classes if self.by_class else 1, self.vectors, samples.shape[1]), np.float32)
        for row in range(len(table)):
            chosen = told & (labels == row) if self.by_class else told
            if chosen.any():
                found = principal_vectors(samples[chosen].astype(np.float64), self.vectors)[1]
                table[row, : len(found)] = found
        return Result(arrays={"vectors": torch.from_numpy(table)})


class PACFL(OneShot):
    """One exchange before the first round, then FedAvg inside clusters."""

    name = "pacfl"
    needs = "a threshold or k"
    sends = "model; once, principal vectors"
    paper = "Vahidian et al., AAAI 2023"

    class Settings(ClusteredSettings):
        vectors: int = Field(3, ge=1, description="principal vectors (p) of each class, or of the client")
        vectors_of: Literal["classes", "client"] = Field("classes", description="of each class, or of all samples")
        angle: Angle = Field("principal", description="between subspaces (Eq. 2); smallest of two vectors; sum (Eq. 3)")
        linkage: Linkage = Field("weighted", description="of the hierarchical clustering")
        threshold: float = Field(4.9, ge=0, description="degrees up to which clusters are joined (beta)")
        clusters: int = Field(0, ge=0, description="how many clusters there are (0: as many as the threshold leaves)")

    _settings: Settings

    def __init__(self, settings: MethodSettings) -> None:
        super().__init__(settings)
        self.compared: list[ClientId] = []
        self.angles = torch.zeros(0)  # of all pairs of them, condensed

    def description(self, federation: Federation) -> Step:
        return PrincipalVectors(self._settings.vectors, self._settings.vectors_of == "classes")

    def kept(self, reply: Reply) -> Weights:
        return {"vectors": reply.results[0].arrays["vectors"]}

    def divide(self, federation: Federation, clients: Sequence[ClientId]) -> list[int]:
        if not clients:
            return []
        self.compared = list(clients)
        vectors = [self.held[client]["vectors"] for client in clients]
        self.angles = torch.from_numpy(angles_between(vectors, self._settings.angle)).float()
        tree, wanted = build_tree(self.angles.numpy(), self._settings.linkage), self._settings.clusters
        if not wanted:
            return [int(label) for label in tree.cut(self._settings.threshold)]
        heights = [-1.0, *sorted(tree.heights)]
        return [int(label) for label in tree.cut(heights[max(0, len(clients) - wanted)])]

    def distances_to_clusters(self, client: ClientId, known: Sequence[ClientId]) -> dict[int, float]:
        others = [self.held[other]["vectors"] for other in known]
        far: dict[int, list[float]] = {}
        for other, angle in zip(
            known, angles_to(self.held[client]["vectors"], others, self._settings.angle), strict=True
        ):
            far.setdefault(self.groups.cluster_of[other], []).append(float(angle))
        return {cluster: float(np.mean(angles)) for cluster, angles in far.items()}

    def diagnostics(self) -> Diagnostics:
        if len(self.compared) < 2:
            return {}
        told: Diagnostics = {"clients": self.compared, "distances": self.angles.numpy(), "rule": "given"}
        told["merges"] = build_tree(self.angles.numpy(), self._settings.linkage).merges
        return told if self._settings.clusters else told | {"threshold": self._settings.threshold}
