"""Groups of clients from their signatures: what a server calls, with or without the rest of the library."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feddag.client.signature import Signature
from feddag.errors import FeddagError
from feddag.rng import rng
from feddag.server.checks import (
    check_alike,
    check_matrix,
    check_options,
    check_views,
    client_names,
    condense,
    landmarks_wanted,
    one_of,
)
from feddag.server.clustering import Cut, Labels, Linkage, Tree, build_tree, regrouped_by
from feddag.server.complement import Absent, Alignment, ComplementGraph, complement_graph
from feddag.server.confidence import in_a_line, said, significance, stability, sureness
from feddag.server.cutting import (
    Candidate,
    CutSettings,
    choose_cut,
    cut_into,
    range_of,
    search_scaled_thresholds,
    search_thresholds,
)
from feddag.server.fusion import LEAST_SILHOUETTE_RATIO, VIEWS, fuse_by_clarity, views_of
from feddag.server.newcomers import Row, compared_members, nearest_cluster, row_as_printed, row_by_clarity
from feddag.server.noise import (
    Held,
    estimate_noise,
    least_significant_distance,
    misjudged,
    missing_by_chance,
    speaks_alone,
    with_few_samples_joined,
)
from feddag.server.printed_fusion import fuse_as_printed
from feddag.server.similarity import Angles, Floats, counts_of, square, usual_noise
from feddag.server.style import StyleSpace, style_space

if TYPE_CHECKING:  # pandas is an extra
    from pandas import DataFrame

Fusion = Literal["clarity", "mlp", "projected", "data", "gradient", "stacked"]
FUSIONS: tuple[str, ...] = get_args(Fusion)


@dataclass(frozen=True, eq=False, repr=False)
class Grouping:
    """Groups, and everything that led to them. Attributes that end in _ are results, as in scikit-learn."""

    labels_: Labels
    """The group of each client, in the order of the signatures; groups are numbered by their first client."""
    threshold_: float
    """alpha*: the distance at which the tree of merges was cut."""
    candidates_: list[Candidate]
    """Other thresholds, with the number of clusters and the loss (Eq. 10) of each."""
    tree_: Tree
    distances_: Floats
    """The fused distance of every pair, condensed."""
    views_: dict[str, Floats]
    """The distances that were fused, condensed."""
    weights_: dict[str, NDArray[np.float64]]
    """How much each view counted for each client."""
    noise_: float
    """The spread of distances between clients of one group, estimated; 0 where they do not allow it."""
    graph_: ComplementGraph | None
    """Which group can teach which; None for precomputed distances."""
    style_: StyleSpace | None = field(default=None, repr=False)
    """The directions in which clients look different, if there are any."""
    signatures: Sequence[Signature] = field(default=(), repr=False)
    fusion: str = ""
    """How the views became one distance; empty for precomputed distances."""
    delta: float = 0.5
    angles: Angles = "printed"
    seed: int = 0
    """What gates and ties were drawn by."""
    linkage: Linkage = "average"
    sources: int = 2
    alignment: Alignment = "affinity"
    absent: Absent = "rarest"
    usual_noise_: NDArray[np.float64] | None = field(default=None, repr=False)
    ranges_: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Constants that newcomers do not move: each class's usual noise, and what min-max scaling took for 0 and 1."""
    offsets_: dict[str, float] = field(default_factory=dict, repr=False)
    """By how much each view was moved towards zero, because few samples misjudge what chance explains."""
    rule_: str = "given"
    """What chose the threshold: noise, plateau, lowest, or given."""
    unit_: tuple[float, float] = (0.0, 1.0)
    """The distances that a candidate's alpha of 0 and of 1 stand for."""

    @property
    def clusters_(self) -> int:
        """How many groups there are."""
        return int(self.labels_.max()) + 1

    @property
    def proximity_(self) -> Floats:
        """The fused distances as a square matrix."""
        return square(self.distances_)

    @cached_property
    def sureness_(self) -> NDArray[np.float64]:
        """Of each client that was grouped, 0 to 1: how much nearer its own group is than the next."""
        return sureness(self.distances_, self._compared(), self.threshold_)

    @cached_property
    def significance_(self) -> NDArray[np.float64]:
        """Of each merge of the tree: its distance by the least that chance does not explain; from 1 on it counts."""
        return significance(self.distances_, self.tree_)

    @cached_property
    def stability_(self) -> float:
        """How alike the groups are when some clients are missing: the mean adjusted Rand index of 20 resamples."""
        return stability(self.distances_, self._compared(), self.linkage, self.seed)

    @property
    def verdict_(self) -> str:
        """What was found, in a few words: "5 groups, clear", "no groups: clients are alike"."""
        return said(self.clusters_, self.sureness_, self.stability_)

    def cut(self, *, clusters: int) -> "Grouping":
        """The same clients in so many groups, coarser or finer: the tree of merges cut elsewhere.

        Groups may hold groups (a country's hospitals, each with its own scanners): this grouping is the finest that
        chance does not explain, `cut` gives any other level.
        """
        if len(self.labels_) > self.tree_.clients:
            raise FeddagError("clients have joined this grouping since: cut the one before, or group all anew")
        found, graph = cut_into(self.tree_, clusters), self.graph_
        if graph is not None:
            chance = rng(self.seed, "complement")
            graph = complement_graph(self.signatures, found.labels, self.sources, self.alignment, chance, self.absent)
        return replace(self, labels_=found.labels, threshold_=found.alpha, graph_=graph, rule_=found.rule)

    def assign(self, newcomer: Signature) -> int | None:
        """The group for a client that was not there before; None if it is unlike every group (Algorithm 4).

        No other client is moved. A view counts for the newcomer as much as it tells the groups apart for it.
        """
        return self.placed(newcomer)[0]

    def placed(self, newcomer: Signature) -> tuple[int | None, float]:
        """The same, and how sure that is: 1 - the distance to the group / that to the next, from 0 to 1."""
        members = compared_members(self.labels_)
        row = self._row(newcomer, members)
        sizes = np.unique(self.labels_, return_counts=True)[1].astype(float)
        reach = np.full(len(sizes), self.threshold_)
        if self.fusion == "clarity":
            least = least_significant_distance(self.noise_, np.ones(len(sizes)), sizes, len(self.labels_))
            reach = np.maximum(reach, least)
        return nearest_cluster(row.distances, self.labels_[members], reach)

    def joined_by(self, newcomer: Signature, cluster: int) -> "Grouping":
        """The same groups with one more member (or one more group), for placing later newcomers.

        Distances, tree and candidates stay those of the clients that were grouped together.
        """
        weights = self._row(newcomer, compared_members(self.labels_)).weights
        return replace(
            self,
            labels_=np.append(self.labels_, cluster),
            weights_={name: np.append(old, weights[name]) for name, old in self.weights_.items()},
            style_=self.style_ and self.style_.joined_by(newcomer),
            signatures=(*self.signatures, newcomer),
        )

    def _row(self, newcomer: Signature, members: Labels) -> Row:
        """The newcomer's distances to these members, and how much each view counts for it."""
        if not self.signatures:
            raise FeddagError("a grouping of precomputed distances cannot place a newcomer: it has no signatures")
        everyone = [*(self.signatures[client] for client in members), newcomer]
        check_alike(everyone, [*(str(client) for client in members), "newcomer"])
        founders = self.tree_.clients
        if self.fusion != "clarity":
            known = self.signatures[:founders]
            return row_as_printed(everyone, self.fusion, self.delta, known, self.ranges_, self.angles)
        active_views = [name for name, weights in self.weights_.items() if weights[:founders].any()]
        member_weights = {name: weights[members] for name, weights in self.weights_.items()}
        style = {} if self.style_ is None else {"style": self.style_.row(newcomer)[members]}
        labels, offsets = self.labels_[members], self.offsets_
        return row_by_clarity(everyone, labels, member_weights, active_views, self.usual_noise_, style, offsets)

    def to_frame(self, names: Sequence[str] | None = None) -> "DataFrame":
        """A pandas table with a row for each client: its group, how sure that is, its samples, the views' weights."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise FeddagError("a table needs pandas: pip install 'feddag[tables]'") from None
        sure = np.full(len(self.labels_), np.nan)  # not known of clients that joined later
        sure[: len(self.sureness_)] = self.sureness_
        columns: dict[str, Any] = {"group": self.labels_, "sureness": sure}
        if self.signatures:
            columns["samples"] = counts_of(self.signatures).sum(1)
        columns |= {f"weight of {name}": weights for name, weights in self.weights_.items()}
        return DataFrame(columns, index=client_names(names, len(self.labels_)))

    def __repr__(self) -> str:
        """In a line: how many groups of how many clients, and how large they are."""
        return in_a_line(type(self).__name__, self.labels_, self.threshold_)

    def _compared(self) -> Labels:
        """The groups of those clients whose distances are known, in the order of the distances."""
        return self.labels_[: self.tree_.clients]

    def to_arrays(self) -> dict[str, Any]:
        """Plain arrays and numbers, for a report."""
        return {
            "labels": self.labels_,
            "threshold": self.threshold_,
            "rule": self.rule_,
            "noise": self.noise_,
            "distances": self.distances_,
            "merges": self.tree_.merges,
            "candidates": np.array([[c.alpha, c.clusters, c.loss] for c in self.candidates_]),
            "unit": np.array(self.unit_),
            "views": dict(self.views_),
            "weights": dict(self.weights_),
            **({} if self.graph_ is None else {"scores": self.graph_.scores, "edges": self.graph_.edges}),
        }


def group(
    signatures: Sequence[Signature] | NDArray[Any],
    *,
    fusion: Fusion = "clarity",
    views: Sequence[str] = VIEWS,
    linkage: Linkage = "average",
    sources: int = 2,
    alignment: Alignment = "affinity",
    absent: Absent = "rarest",
    delta: float = 0.5,
    angles: Angles = "printed",
    cut: CutSettings | None = None,
    least_silhouette_ratio: float = LEAST_SILHOUETTE_RATIO,
    landmarks: int | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
) -> Grouping:
    """Find the groups, and how many there are, from signatures or from a square matrix of distances.

    `fusion = "clarity"` is the default described in docs/grouping.md, over the given `views`; "mlp" and "projected"
    are the paper's, "data" and "gradient" its single views, "stacked" PACFL's signal: these cut by the plateau of the
    paper's loss. `cut` chooses another rule, or fixes the threshold or the number of groups; `angles` are Eq. 4-6 as
    printed or as released. Where the silhouette of the groups by fused views is less than `least_silhouette_ratio`
    times that of the best single view, one view decides alone (0: never). Of more than 5,000 clients only
    2,000 are compared pair by pair, or as many `landmarks` as are given (0: always all of them). `names` name the
    clients.

    >>> from feddag.client.signature import signature
    >>> draw = np.random.default_rng(0)
    >>> def client(labels):
    ...     return signature(draw.normal(size=(20, 4)), draw.permutation(np.repeat(labels, 10)), num_classes=4)
    >>> group([client([0, 1]), client([2, 3]), client([0, 1]), client([2, 3])]).labels_.tolist()
    [0, 1, 0, 1]
    """
    one_of("fusion", fusion, FUSIONS)
    one_of("angles", angles, get_args(Angles))
    check_options(linkage, alignment, absent, sources, delta, least_silhouette_ratio)
    cut = cut or CutSettings()
    if isinstance(signatures, np.ndarray):
        check_matrix(signatures)
        distances = condense(signatures, client_names(names, len(signatures)))
        return _of_distances(distances, linkage, cut, seed, by_noise=False)
    names = client_names(names, len(signatures))
    check_alike(signatures, names)
    check_views(fusion, views, updates=bool(len(signatures[0].update)))
    if fusion == "clarity" and (many := landmarks_wanted(landmarks, len(signatures))):
        from feddag.server.landmarks import group_by_landmarks  # which groups the landmarks by this very function

        exactly = partial(group, views=views, linkage=linkage, sources=sources, alignment=alignment, absent=absent)
        exactly = partial(exactly, cut=cut, least_silhouette_ratio=least_silhouette_ratio, landmarks=0, seed=seed)
        return group_by_landmarks(signatures, many, exactly, seed)
    if fusion == "clarity":
        found = _by_clarity(signatures, views, linkage, cut, least_silhouette_ratio, seed)
    else:
        made = fuse_as_printed(signatures, fusion, delta, seed, angles)
        found = _of_distances(made.distances, linkage, cut, seed, by_noise=False, scaled=False)
        found = replace(found, views_=made.views, weights_=made.weights, ranges_=made.ranges)
    graph = complement_graph(signatures, found.labels_, sources, alignment, rng(seed, "complement"), absent)
    return replace(
        found,
        graph_=graph,
        signatures=tuple(signatures),
        fusion=fusion,
        delta=delta,
        angles=angles,
        seed=seed,
        sources=sources,
        alignment=alignment,
        absent=absent,
        usual_noise_=usual_noise(signatures),
    )


def _by_clarity(
    signatures: Sequence[Signature],
    views: Sequence[str],
    linkage: Linkage,
    cut: CutSettings,
    least_silhouette_ratio: float,
    seed: int,
) -> Grouping:
    """The groups by views that are an excess over chance, each counting as much as it is clear."""
    style = style_space(signatures) if "style" in views else None
    seen = views_of(signatures, tuple(views), style=style)
    offsets = misjudged({name: view for name, view in seen.items() if name != "style"}, counts_of(signatures))
    seen |= {name: seen[name] - np.float32(offset) for name, offset in offsets.items() if offset}
    if not seen:  # nothing but a style that is silent: all are alike
        seen = {"style": np.zeros(len(signatures) * (len(signatures) - 1) // 2, np.float32)}
    fused = fuse_by_clarity(seen, linkage, least_silhouette_ratio)
    found = _of_distances(fused.distances, linkage, cut, seed, by_noise=True)
    if cut.threshold is None and cut.clusters is None:
        counts = counts_of(signatures)
        by_chance = fused.weights["classes"] * missing_by_chance(counts) if "classes" in seen else 0.0
        trusted = [
            cut for name, cut in fused.cuts.items() if name != "gradient" or len(seen) == 1 or speaks_alone(counts)
        ]
        found = _sure(found, trusted, Held(counts.sum(1), seen.get("classes"), by_chance))
    noise = estimate_noise(fused.distances)
    return replace(found, views_=seen, weights_=fused.weights, noise_=noise, style_=style, offsets_=offsets)


def _sure(found: Grouping, by_view: Iterable[Cut], known: Held) -> Grouping:
    """Without groups that no view sees by itself, and without those that only want samples.

    Views that see nothing but noise may agree by chance: small clients are far from others in all of them.
    """
    if all(cut.clusters == 1 for cut in by_view):
        whole = cut_into(found.tree_, 1)
        return replace(found, labels_=whole.labels, threshold_=whole.alpha)
    noise = estimate_noise(found.distances_)
    return replace(found, labels_=with_few_samples_joined(found.distances_, found.labels_, known, noise))


def _of_distances(
    distances: Floats, linkage: Linkage, how: CutSettings, seed: int, *, by_noise: bool, scaled: bool = True
) -> Grouping:
    """The groups that these distances give; what the distances were made of is added by the caller.

    `scaled`: the paper's thresholds, 0.05 to 1, are taken as shares of the range of the distances.
    """
    tree = build_tree(distances, linkage)
    if scaled:
        candidates = search_scaled_thresholds(distances, tree, how)
    else:
        candidates = search_thresholds(square(distances), tree, how=how)
    cut = choose_cut(distances, tree, candidates, how, by_noise=by_noise, scaled=scaled)
    labels = cut.labels
    if how.algorithm != "agglomerative":
        labels = regrouped_by(how.algorithm, distances, cut.clusters, seed)
    unit = range_of(distances) if scaled else (0.0, 1.0)
    made = Grouping(labels, cut.alpha, candidates, tree, distances, {}, {}, 0.0, None, linkage=linkage)
    return replace(made, rule_=cut.rule, unit_=unit)
