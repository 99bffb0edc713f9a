"""Grouping as scikit-learn users know it: `ClientClustering().fit(signatures).predict(newcomers)`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from feddag.client.signature import Signature
from feddag.errors import FeddagError
from feddag.server.clustering import Labels
from feddag.server.cutting import CutSettings
from feddag.server.fusion import LEAST_SILHOUETTE_RATIO, VIEWS
from feddag.server.grouping import Grouping, group


class ClientClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    """Groups of clients, from their signatures or from a square array of distances between them.

    A sample of this estimator is a client. Parameters are those of `feddag.group`; `n_clusters` fixes the number of
    groups, `distance_threshold` where the tree of merges is cut. Leave both at None to have the number found.

    >>> from feddag import signature
    >>> draw = np.random.default_rng(0)
    >>> def client(labels):
    ...     return signature(draw.normal(size=(20, 4)), draw.permutation(np.repeat(labels, 10)), num_classes=4)
    >>> model = ClientClustering().fit([client([0, 1]), client([2, 3]), client([0, 1]), client([2, 3])])
    >>> model.labels_.tolist(), model.predict([client([2, 3])]).tolist()
    ([0, 1, 0, 1], [1])
    """

    def __init__(
        self,
        *,
        n_clusters: int | None = None,
        distance_threshold: float | None = None,
        fusion: str = "clarity",
        views: Sequence[str] = VIEWS,
        linkage: str = "average",
        sources: int = 2,
        least_silhouette_ratio: float = LEAST_SILHOUETTE_RATIO,
        landmarks: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.distance_threshold = distance_threshold
        self.fusion = fusion
        self.views = views
        self.linkage = linkage
        self.sources = sources
        self.least_silhouette_ratio = least_silhouette_ratio
        self.landmarks = landmarks
        self.random_state = random_state

    def fit(self, X: Sequence[Signature] | NDArray[Any], y: object = None) -> "ClientClustering":
        """Find the groups of these clients; `y` is not looked at."""
        cut = CutSettings(clusters=self.n_clusters, threshold=self.distance_threshold)
        self.grouping_: Grouping = group(
            X,
            cut=cut,
            seed=self.random_state,
            **{name: getattr(self, name) for name in ("fusion", "views", "linkage", "sources")},
            **{name: getattr(self, name) for name in ("least_silhouette_ratio", "landmarks")},
        )
        self.labels_: Labels = self.grouping_.labels_
        self.n_clusters_ = self.grouping_.clusters_
        return self

    def predict(self, X: Sequence[Signature]) -> Labels:
        """The group of each newcomer; -1 for one that is unlike every group. Nobody else is moved."""
        check_is_fitted(self, "grouping_")
        if isinstance(X, np.ndarray):
            raise FeddagError("newcomers are placed by their signatures: an array does not tell how far groups are")
        found = [self.grouping_.assign(newcomer) for newcomer in X]
        return np.array([-1 if cluster is None else cluster for cluster in found], np.int64)
