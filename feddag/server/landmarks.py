"""Groups of more clients than can be compared pair by pair: some are grouped exactly, the others are assigned.

Landmarks, clients drawn at random, are grouped as few clients are: they tell which views count, how wide the scatter
is, and how far a client usually is from its own cluster. Every other client is compared with the clusters
(`profiles`), which takes time in proportion to clients times clusters. Whoever is out of reach of all of them is pooled
with the others that are, and grouped in the same way: so rare groups are found that no landmark belongs to. In the end
clusters are built anew from all members and merged where they do not differ, and clients move to where they fit best.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from feddag.client.signature import Signature
from feddag.errors import FeddagError
from feddag.rng import rng
from feddag.server.checks import USUAL_LANDMARKS, check_alike
from feddag.server.clustering import Labels, build_tree, cluster_means, relabel
from feddag.server.complement import complement_graph
from feddag.server.frame import Frame
from feddag.server.fusion import blend, views_of
from feddag.server.grouping import Grouping
from feddag.server.many_looks import looks_of_everyone, row_of_newcomer
from feddag.server.newcomers import compared_members
from feddag.server.noise import (
    FEW,
    Held,
    few_without_samples,
    merge_insignificant,
    merged_clusters,
    missing_by_chance,
)
from feddag.server.profiles import (
    CHUNK,
    MOST_POOLED,
    Array,
    Profiles,
    distances_to,
    members_of,
    nearer,
    profiles_of,
    some_of,
)
from feddag.server.similarity import Floats, counts_of, square
from feddag.server.style import distances_between

MOST_TURNS = 20
SWEEPS = 2
ENOUGH = 5  # members from which on a cluster tells how far its members are from it
LEAST_SPREAD = 1e-3


class LandmarkSearch:
    """One search for the groups of many clients."""

    def __init__(self, signatures: Sequence[Signature], landmarks: Labels, exact: Grouping, closed: bool) -> None:
        """`exact` is the grouping of the landmarks; `closed`: nobody may be out of reach of its clusters."""
        self.signatures, self.landmarks, self.exact = signatures, landmarks, exact
        self.generator = rng(exact.seed, "landmarks", "search")
        self.most = len(landmarks)  # clients that are compared pair by pair
        style = exact.style_ and looks_of_everyone(exact.style_, signatures, landmarks, self.generator)
        assert exact.usual_noise_ is not None
        self.frame = Frame(
            weights={name: float(own.mean()) for name, own in exact.weights_.items()},
            usual=exact.usual_noise_,
            offsets=exact.offsets_,
            noise=exact.noise_,
            threshold=exact.threshold_,
            clients=len(signatures),
            closed=closed,
            style=style,
            between=None if style is None else distances_between(style.looks),
        )
        self.labels = np.full(len(signatures), -1, np.int64)
        self._is_landmark = np.zeros(len(signatures), bool)
        self._is_landmark[landmarks] = True
        self._weights = {name: np.zeros(len(signatures)) for name in exact.weights_}
        for name, own in exact.weights_.items():
            self._weights[name][landmarks] = own

    def run(self) -> Profiles:
        """Find `labels`; returns the clusters."""
        first = self._profiles(self.landmarks, self.exact.labels_)
        self._calibrate(first)
        self.labels[self.landmarks] = self.exact.labels_
        self._assign(np.flatnonzero(self.labels < 0), first, 0)
        clusters = len(first.sizes)
        for _ in range(MOST_TURNS):
            left = np.flatnonzero(self.labels < 0)
            if not len(left):
                break
            chosen = some_of(left, self.most, self.generator)
            self.labels[chosen] = clusters + (found := self._regrouped(chosen))
            fresh = self._profiles(chosen, found)
            self._assign(np.setdiff1d(left, chosen, assume_unique=True), fresh, clusters)
            clusters += len(fresh.sizes)
        left = np.flatnonzero(self.labels < 0)
        self.labels[left] = clusters + np.arange(len(left))
        self.labels = relabel(self.labels)
        everyone = np.arange(len(self.signatures))
        profiles = self._profiles(everyone, self.labels)
        for _ in range(0 if self.frame.closed else SWEEPS):
            before = self.labels.copy()
            target = self._merged(profiles)
            if len(np.unique(target)) < len(target):
                self.labels = relabel(target[self.labels])
                profiles = self._profiles(everyone, self.labels)
            self._assign(everyone, profiles, 0)
            self.labels = relabel(self.labels)
            if np.array_equal(before, self.labels):
                break
            profiles = self._profiles(everyone, self.labels)
        return profiles if self.frame.closed else self._few_samples_joined(profiles)

    def _few_samples_joined(self, profiles: Profiles) -> Profiles:
        """Clusters of one or two clients that are apart only for want of samples go to the nearest other."""
        counts = counts_of(self.signatures)
        by_chance = missing_by_chance(counts) if "classes" in self.frame.weights else 0.0
        while self.labels.max() > 0 and profiles.sizes.min() <= FEW:
            weights = profiles.weights["classes"][self.labels] if "classes" in profiles.weights else 0.0
            known = Held(counts.sum(1), noise=weights * by_chance)
            apart = self._apart(profiles)
            in_classes = self._apart(profiles, "classes") if "classes" in self.frame.weights else apart
            few, nearest = few_without_samples(self.labels, apart, in_classes, known, self.frame.noise)
            if few is None:
                break
            self.labels = relabel(np.where(self.labels == few, nearest, self.labels))
            profiles = self._profiles(np.arange(len(counts)), self.labels)
        return profiles

    def _profiles(self, clients: Labels, labels: Labels) -> Profiles:
        """The clusters of these clients; views count as they do for the landmarks among them, else as on average."""
        landmark = self._is_landmark[clients]
        told = np.bincount(labels, landmark)
        weights = {
            name: np.where(told > 0, np.bincount(labels, landmark * own[clients]) / np.maximum(told, 1), mean)
            for (name, own), mean in zip(self._weights.items(), self.frame.weights.values(), strict=True)
        }
        looks = None if self.frame.style is None else self.frame.style.labels[clients]
        own = [self.signatures[client] for client in clients.tolist()]
        return profiles_of(own, labels, self.frame.usual, weights, looks, self.generator)

    def _distances(self, clients: Labels, profiles: Profiles) -> Floats:
        style = None
        if self.frame.style is not None and self.frame.between is not None:
            style = self.frame.between[self.frame.style.labels[clients]]
        own = [self.signatures[client] for client in clients.tolist()]
        return distances_to(own, profiles, self.frame.usual, self.frame.offsets, style)

    def _assign(self, clients: Labels, profiles: Profiles, first: int) -> None:
        """Label those that are in reach of a cluster; clusters are numbered from `first`."""
        for chunk in [clients[start : start + CHUNK] for start in range(0, len(clients), CHUNK)]:
            best, found = self.frame.nearest(self._distances(chunk, profiles), profiles.sizes)
            self.labels[chunk[found]] = first + best[found]

    def _calibrate(self, profiles: Profiles) -> None:
        """How far landmarks are from their own clusters."""
        labels = self.exact.labels_
        many = profiles.sizes[labels] >= ENOUGH
        kept = many if many.any() else np.ones(len(labels), bool)
        own = self._distances(self.landmarks[kept], profiles)[np.arange(int(kept.sum())), labels[kept]]
        middle = float(np.median(own))
        spread = 1.4826 * float(np.median(np.abs(own - middle)))
        self.frame = replace(self.frame, middle=middle, spread=max(spread, LEAST_SPREAD))

    def _regrouped(self, clients: Labels) -> Labels:
        """Clients out of reach among themselves, by the landmarks' views, threshold and noise."""
        if len(clients) == 1:
            return np.zeros(1, np.int64)
        distances = self._pairs(clients, {name: np.full(len(clients), own) for name, own in self.frame.weights.items()})
        labels = build_tree(distances).cut(self.frame.threshold)
        return merge_insignificant(square(distances), labels, self.frame.noise)

    def _pairs(self, clients: Labels, weights: dict[str, Array]) -> Floats:
        """The distances of these clients, condensed, with views that count as given."""
        own = [self.signatures[client] for client in clients.tolist()]
        active = [name for name, weight in weights.items() if weight.any()]
        seen = views_of(own, [name for name in active if name != "style"], self.frame.usual)
        seen = {name: view - np.float32(self.frame.offsets.get(name, 0.0)) for name, view in seen.items()}
        if "style" in active and self.frame.style is not None and self.frame.between is not None:
            looks = self.frame.style.labels[clients]
            seen["style"] = self.frame.between[looks[:, None], looks[None]][np.triu_indices(len(looks), 1)]
        return blend(seen, {name: weights[name] for name in seen})

    def _apart(self, profiles: Profiles, view: str = "") -> Array:
        """The mean distance between every two clusters, as if all pairs were compared: of some of their members.

        In one `view`, or as views count for the clusters.
        """
        each = max(1, min(MOST_POOLED, self.most // len(profiles.sizes)))
        clients = np.concatenate([some_of(own, each, self.generator) for own in members_of(self.labels)])
        weights = {name: own[self.labels[clients]] for name, own in profiles.weights.items()}
        weights = {view: np.ones(len(clients))} if view else weights
        return cluster_means(square(self._pairs(clients, weights)), self.labels[clients])[1]

    def _merged(self, profiles: Profiles) -> Labels:
        """For each cluster the one that it becomes part of, because the two do not differ."""
        if len(profiles.sizes) > max(self.most, USUAL_LANDMARKS):  # would take the cube of it
            return np.arange(len(profiles.sizes))
        return merged_clusters(profiles.sizes, self._apart(profiles), self.frame.noise, self.frame.clients)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LandmarkGrouping(Grouping):
    """The groups of many clients. Distances, views, tree and candidates are those of the landmarks."""

    landmarks_: Labels
    """Which clients were grouped exactly; `distances_`, `views_` and `tree_` are in their order."""
    profiles_: Profiles = field(repr=False)
    """Each group as one signature."""
    frame_: Frame = field(repr=False)
    exact_: Grouping = field(repr=False)
    """The grouping of the landmarks alone."""

    @cached_property
    def sureness_(self) -> Array:
        """Of each client, 0 to 1: how much nearer its own group is than the next; 0 where there is only one."""
        sure, usual, offsets = np.zeros(len(self.labels_)), self.frame_.usual, self.frame_.offsets
        if self.clusters_ > 1:
            for start in range(0, len(sure), CHUNK):
                part = slice(start, start + CHUNK)
                style = None if self.style_ is None else distances_between(self.style_.looks)[self.style_.labels[part]]
                rows = distances_to(self.signatures[part], self.profiles_, usual, offsets, style)
                sure[part] = nearer(np.maximum(rows, 0), self.labels_[part])
        return sure

    def cut(self, *, clusters: int) -> "LandmarkGrouping":
        """The same clients in so many groups: the landmarks' tree cut elsewhere, the others assigned to the nearest."""
        if len(self.labels_) > self.frame_.clients:
            raise FeddagError("clients have joined this grouping since: cut the one before, or group all anew")
        return _searched(self.signatures, self.landmarks_, self.exact_.cut(clusters=clusters), closed=True)

    def placed(self, newcomer: Signature) -> tuple[int | None, float]:
        check_alike([self.signatures[0], newcomer], ["0", "newcomer"])
        style = None if self.style_ is None else row_of_newcomer(self.style_, newcomer, self.frame_.clients)[None]
        row = distances_to([newcomer], self.profiles_, self.frame_.usual, self.frame_.offsets, style)
        best, found = self.frame_.nearest(row, self.profiles_.sizes)
        if not found[0]:
            return None, 0.0
        near, others = max(float(row[0, best[0]]), 0.0), np.delete(row[0], best[0])
        next_one = float(others.min() if len(others) else self.frame_.reach(self.profiles_.sizes)[best[0]])
        return int(best[0]), round(max(0.0, 1 - near / next_one), 6) if next_one > 0 else 0.0

    def joined_by(self, newcomer: Signature, cluster: int) -> "LandmarkGrouping":
        profiles, style = self.profiles_, self.style_ and self.style_.joined_by(newcomer)
        if cluster < len(profiles.sizes):
            profiles = replace(profiles, sizes=profiles.sizes + (np.arange(len(profiles.sizes)) == cluster))
        else:
            mean = {name: np.array([weight]) for name, weight in self.frame_.weights.items()}
            looks = None if style is None else style.labels[-1:]
            chance = rng(self.seed, "landmarks", "joined")
            profiles += profiles_of([newcomer], np.zeros(1, int), self.frame_.usual, mean, looks, chance)
        return replace(
            self,
            labels_=np.append(self.labels_, cluster),
            weights_={name: np.append(own, profiles.weights[name][cluster]) for name, own in self.weights_.items()},
            style_=style,
            signatures=(*self.signatures, newcomer),
            profiles_=profiles,
        )

    def _compared(self) -> Labels:
        return self.labels_[self.landmarks_]

    def to_arrays(self) -> dict[str, Any]:
        arrays = super().to_arrays()
        return arrays | {
            "landmarks": self.landmarks_,
            "labels": self._compared(),
            "weights": {name: own[self.landmarks_] for name, own in self.weights_.items()},
        }


def group_by_landmarks(
    signatures: Sequence[Signature], landmarks: int, exactly: Callable[[Sequence[Signature]], Grouping], seed: int
) -> LandmarkGrouping:
    """The groups of all these clients, from the exact grouping of so many of them.

    Where noise tells nothing about groups among the landmarks, or their number was fixed, there are no other groups.
    """
    chosen = np.sort(rng(seed, "landmarks").choice(len(signatures), landmarks, replace=False))
    exact = exactly([signatures[client] for client in chosen.tolist()])
    return _searched(signatures, chosen, exact, closed=exact.rule_ != "noise")


def _searched(signatures: Sequence[Signature], chosen: Labels, exact: Grouping, closed: bool) -> LandmarkGrouping:
    search = LandmarkSearch(signatures, chosen, exact, closed)
    profiles, labels = search.run(), search.labels
    members = compared_members(labels, MOST_POOLED)
    standing_for = [signatures[client] for client in members.tolist()]
    chance = rng(exact.seed, "complement")
    graph = complement_graph(standing_for, labels[members], exact.sources, exact.alignment, chance, exact.absent)
    changed = {
        "labels_": labels,
        "weights_": {name: own[labels] for name, own in profiles.weights.items()},
        "graph_": graph,
        "style_": search.frame.style,
        "signatures": tuple(signatures),
    }
    return LandmarkGrouping(
        **{one.name: getattr(exact, one.name) for one in fields(Grouping)} | changed,
        landmarks_=chosen,
        profiles_=profiles,
        frame_=search.frame,
        exact_=exact,
    )
