"""How each partition assigns training samples to clients: one function per partition, its settings as keywords.

Nearly all of them fill one table of sample counts, clients x classes, and assign samples by it. What is not possible is
refused first: every client gets samples, or the user is told why that cannot be.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feddag.data.partitions.samples import Assignment, Draw, Ints, SampleInfo, assign_samples
from feddag.data.partitions.settings import corruption_names, dirichlet_factor, labels_per_set, one_of, whole
from feddag.data.partitions.tables import (
    balanced_kinds,
    class_mask,
    even_table,
    holders_table,
    lda_table,
    least_used_classes,
    mixture_table,
    random_groups,
)
from feddag.data.shifts import Shift, concepts_of
from feddag.errors import FeddagError


def iid(info: SampleInfo, clients: int, draw: Draw) -> Assignment:
    """All clients alike: equal sizes, and classes as even as possible."""
    return Assignment(assign_samples(info, even_table(info, clients, draw), draw), truth=[0] * clients)


def label_skew(
    info: SampleInfo, clients: int, draw: Draw, *, label_fraction: float, concentration: float, groups: int | None
) -> Assignment:
    """Data Distribution I: groups of clients with one label set each, and uneven quantities.

    Groups take labels that no other group has while there are any, and then others, so sets can overlap or be equal;
    the true group of a client is therefore its label set.
    """
    count = labels_per_set(info, label_fraction)
    concentration = dirichlet_factor(concentration)
    groups = whole("groups", min(5, clients) if groups is None else groups, 1, clients, "the number of clients")

    generator = draw("labels")
    fresh = generator.permutation(info.classes)
    label_sets = []
    for group in range(groups):
        taken, fresh = fresh[:count], fresh[count:]
        if not len(taken):
            taken = info.classes[[group % len(info.classes)]]
        others = generator.permutation(np.setdiff1d(info.classes, taken))
        label_sets.append(np.concatenate([taken, others[: count - len(taken)]]))
    group_of = random_groups(groups, clients, draw("groups"))
    holds = class_mask(np.array(label_sets)[group_of], info.num_classes)
    return Assignment(assign_samples(info, holders_table(info, holds, draw, concentration), draw), truth=_rows(holds))


def pairs(info: SampleInfo, clients: int, draw: Draw, *, concentration: float, groups: int | None) -> Assignment:
    """Many true groups: 11 different pairs of classes (or `groups` of them); a class may be in several."""
    concentration = dirichlet_factor(concentration)
    first, second = np.triu_indices(len(info.classes), 1)
    most = min(clients, len(first))
    limit = f"{clients} clients and {len(first)} pairs of classes"
    groups = whole("groups", min(11, most) if groups is None else groups, 1, most, limit)

    chosen = draw("pairs").choice(len(first), groups, replace=False)
    group_of = chosen[random_groups(groups, clients, draw("groups"))]
    holds = class_mask(info.classes[np.stack([first[group_of], second[group_of]], axis=1)], info.num_classes)
    return Assignment(assign_samples(info, holders_table(info, holds, draw, concentration), draw), truth=_rows(holds))


def pacfl(info: SampleInfo, clients: int, draw: Draw, *, label_fraction: float) -> Assignment:
    """Client i holds class i mod C and others at random; a class is split evenly among its holders. No groups."""
    count = labels_per_set(info, label_fraction)
    own = np.arange(clients) % len(info.classes)
    chance = draw("labels").random((clients, len(info.classes)))
    chance[np.arange(clients), own] = -1  # sorts first
    holds = class_mask(info.classes[np.argsort(chance, axis=1)[:, :count]], info.num_classes)
    return Assignment(assign_samples(info, holders_table(info, holds, draw), draw))


def pathological(info: SampleInfo, clients: int, draw: Draw, *, classes_per_client: int) -> Assignment:
    """The same number of classes for each client, all held equally often, each class cut into equal shards."""
    count = whole("classes_per_client", classes_per_client, 1, len(info.classes), "the number of classes")
    holds = class_mask(least_used_classes(info, clients, count, draw("classes")), info.num_classes)
    return Assignment(assign_samples(info, holders_table(info, holds, draw), draw))


def concept_shift(
    info: SampleInfo,
    clients: int,
    draw: Draw,
    *,
    concepts: int,
    skewed: bool,
    label_fraction: float,
    concentration: float,
    groups: int | None,
) -> Assignment:
    """Data Distribution II: the same images under different labels; evenly divided, or with label skew."""
    known = concepts_of(info.num_classes)
    most = min(clients, len(known))
    limit = f"{clients} clients and {len(known)} different concepts of {info.num_classes} classes"
    names = known[: whole("concepts", concepts, 1, most, limit)]
    if skewed:
        base = label_skew(
            info, clients, draw, label_fraction=label_fraction, concentration=concentration, groups=groups
        )
    else:
        base = iid(info, clients, draw)
    concept_of = balanced_kinds(len(names), clients, draw("concepts"))
    assert base.truth is not None  # both set it
    truth = list(zip(concept_of.tolist(), base.truth, strict=True))
    return Assignment(base.client_of, truth=truth, shifts=[Shift(names[concept]) for concept in concept_of])


def dirichlet(info: SampleInfo, clients: int, draw: Draw, *, concentration: float) -> Assignment:
    """Data Distribution III: every class split over all clients by a Dirichlet draw. No groups."""
    return Assignment(
        assign_samples(info, lda_table(info, clients, dirichlet_factor(concentration), draw("quantity")), draw)
    )


def feature_skew(
    info: SampleInfo, clients: int, draw: Draw, *, corruptions: int | str, severity: int, concentration: float
) -> Assignment:
    """Data Distribution IV: one corruption per client, or one of the dataset's domains, and Dirichlet quantities."""
    concentration = dirichlet_factor(concentration)
    if info.domain is not None:
        return _domain_skew(info, info.domain, clients, draw, concentration)
    names = corruption_names(info, "feature-skew", corruptions)
    shifts = [Shift(corruption=name, severity=severity) for name in names]
    whole("corruptions", len(names), 1, clients, "the number of clients")
    kind_of = balanced_kinds(len(names), clients, draw("kinds"))
    client_of = assign_samples(info, lda_table(info, clients, concentration, draw("quantity")), draw)
    return Assignment(client_of, truth=kind_of.tolist(), shifts=[shifts[kind] for kind in kind_of])


def _domain_skew(
    info: SampleInfo, domain_of_sample: Ints, clients: int, draw: Draw, concentration: float
) -> Assignment:
    domains, sizes = np.unique(domain_of_sample, return_counts=True)
    whole("clients", clients, len(domains), limit=f"one for each domain of '{info.dataset}'")
    domain_of = domains[balanced_kinds(len(domains), clients, draw("kinds"))]
    members = [np.flatnonzero(domain_of == domain) for domain in domains]
    for domain, size, who in zip(domains, sizes, members, strict=True):
        if size < len(who):
            raise FeddagError(
                f"clients = {clients}: domain '{info.domains[domain]}' of '{info.dataset}' has {size} training samples"
                f" for {len(who)} clients, but each needs at least one, so fewer clients are allowed"
            )
    client_of = np.full(len(info.y), -1)
    for domain, who in zip(domains.tolist(), members, strict=True):
        samples = np.flatnonzero(domain_of_sample == domain)
        inside = _only(info, samples)
        table = lda_table(inside, len(who), concentration, draw("quantity", domain))
        client_of[samples] = who[assign_samples(inside, table, _named(draw, domain))]
    return Assignment(client_of, truth=domain_of.tolist(), domains=domain_of)


def _only(info: SampleInfo, samples: Ints) -> SampleInfo:
    return SampleInfo(info.dataset, info.num_classes, info.channels, info.y[samples], None, (), None, ())


def _named(draw: Draw, name: int) -> Draw:
    return lambda *names: draw(name, *names)


def sized(
    info: SampleInfo,
    clients: int,
    draw: Draw,
    *,
    base: str,
    samples_min: int,
    samples_max: int,
    concentration: float,
    classes_per_client: int,
) -> Assignment:
    """FedAC's: a random size for each client, filled by its own Dirichlet mixture or evenly from a few classes.

    Samples that no client needs stay unused.
    """
    one_of("base", base, ("dirichlet", "pathological"))
    concentration = dirichlet_factor(concentration)
    count = whole("classes_per_client", classes_per_client, 1, len(info.classes), "the number of classes")
    low = whole("samples_min", samples_min, count if base == "pathological" else 1)
    high = whole("samples_max", samples_max, low, len(info.y), "the training samples in use")
    wanted = draw("sizes").integers(low, high, clients, endpoint=True)
    if wanted.sum() > len(info.y):
        raise FeddagError(
            f"samples_max = {high}: {clients} clients with {low} to {high} samples need {wanted.sum()},"
            f" and '{info.dataset}' has {len(info.y)}"
        )
    if base == "dirichlet":
        table = mixture_table(info.sizes, wanted.tolist(), concentration, draw("quantity"))
    else:
        table = _few_classes_table(info, least_used_classes(info, clients, count, draw("classes")), wanted, high)
    return Assignment(assign_samples(info, table, draw))


def _few_classes_table(info: SampleInfo, label_sets: Ints, wanted: Ints, samples_max: int) -> Ints:
    """As many samples as each client needs, evenly from its own classes."""
    count = label_sets.shape[1]
    table = np.zeros((len(wanted), info.num_classes), np.int64)
    extra = np.arange(count) < (wanted % count)[:, None]
    np.put_along_axis(table, label_sets, (wanted // count)[:, None] + extra, axis=1)
    if (over := table.sum(axis=0) - info.sizes).max() > 0:
        label = int(over.argmax())
        raise FeddagError(
            f"samples_max = {samples_max}: the clients that hold class {label} of '{info.dataset}' need"
            f" {table[:, label].sum()} of its samples, and it has {info.sizes[label]}"
        )
    return table


def heterogeneity_mix(
    info: SampleInfo,
    clients: int,
    draw: Draw,
    *,
    mix: str,
    mix_kind: str,
    severity: int,
    homogeneous: float,
    heterogeneous: float,
) -> Assignment:
    """FedGWC's: shares of clients of three kinds, which are the true groups.

    By labels: homogeneous, heterogeneous (by their Dirichlet factors) and one class only, all of equal size. By
    domains: clients of one distribution with clean, noisy and blurred images.
    """
    one_of("mix_kind", mix_kind, ("labels", "domains"))
    clients_of_kind = _parse_mix(mix, clients)
    kind_of = draw("kinds").permutation(np.repeat(np.arange(3), clients_of_kind))
    if mix_kind == "domains":
        if info.channels is None:
            raise FeddagError(f"mix_kind = 'domains': it corrupts images, and dataset '{info.dataset}' has none")
        kinds = [Shift(corruption=name, severity=severity) for name in (None, "gaussian_noise", "gaussian_blur")]
        return Assignment(iid(info, clients, draw).client_of, kind_of.tolist(), [kinds[kind] for kind in kind_of])

    factors = dirichlet_factor(homogeneous, "homogeneous"), dirichlet_factor(heterogeneous, "heterogeneous")
    return Assignment(assign_samples(info, _mixed_table(info, kind_of, factors, draw), draw), truth=kind_of.tolist())


def _mixed_table(info: SampleInfo, kind_of: Ints, factors: tuple[float, float], draw: Draw) -> Ints:
    """Clients of equal size: nearly all classes alike (kind 0), uneven classes (kind 1), one class only (kind 2)."""
    homogeneous, heterogeneous, single = (np.flatnonzero(kind_of == kind) for kind in range(3))
    clients = len(kind_of)
    size = len(info.y) // clients
    table = np.zeros((clients, info.num_classes), np.int64)
    if len(single):
        own_class = least_used_classes(info, len(single), 1, draw("classes"))[:, 0]
        # One-class clients take of a class no more than their own share of all clients: the rest is for the others.
        holders = np.bincount(own_class, minlength=info.num_classes)
        fitting = info.sizes * len(single) // (clients * np.maximum(holders, 1))
        size = min(size, int(fitting[holders > 0].min()))
        if size < 1:
            raise FeddagError(
                f"clients = {clients}: '{info.dataset}' has too few samples per class for {len(single)} clients with"
                " one class each, so fewer clients are allowed"
            )
        table[single, own_class] = size
    names = 1000, 0.5  # of the two draws, from when their factors could not be chosen: names decide the result
    for factor, name, members in zip(factors, names, (homogeneous, heterogeneous), strict=True):
        left = info.sizes - table.sum(axis=0)
        table[members] = mixture_table(left, [size] * len(members), factor, draw("quantity", name))
    return table


def _parse_mix(mix: Any, clients: int) -> Ints:
    """How many clients of each of the three kinds: the shares in per cent, largest remainders rounded up.

    >>> _parse_mix("40,30,30", 5).tolist(), _parse_mix("50, 0, 50", 4).tolist()
    ([2, 2, 1], [2, 0, 2])
    """
    try:
        shares = np.array([float(part) for part in str(mix).split(",")])
    except ValueError:
        shares = np.zeros(0)
    if len(shares) != 3 or not (shares >= 0).all() or not np.isclose(shares.sum(), 100):
        raise FeddagError(f"mix = {mix!r}: it must be three shares that add up to 100, such as '40,30,30'")
    exact = shares * clients / 100
    numbers = np.floor(exact).astype(np.int64)
    numbers[np.argsort(numbers - exact, kind="stable")[: clients - numbers.sum()]] += 1
    if ((numbers == 0) & (shares > 0)).any():
        raise FeddagError(f"mix = {mix!r}: {clients} clients are too few for one of every kind")
    return numbers


def natural(info: SampleInfo, clients: int | None, draw: Draw) -> Assignment:
    """As the data came: one client per owner (or per domain), all of them or `clients` of them at random."""
    column, names = (info.owner, info.owners) if info.owner is not None else (info.domain, info.domains)
    if column is None:
        raise FeddagError(
            f"partition = 'natural': dataset '{info.dataset}' does not say which client a sample belongs to;"
            " any other partition is allowed"
        )
    known = np.unique(column)
    count = len(known) if clients is None else whole("clients", clients, 1, len(known), "the owners of samples")
    chosen = np.sort(draw("owners").choice(known, count, replace=False))
    client_of = np.full(int(known.max()) + 1, -1)
    client_of[chosen] = np.arange(count)
    client_of = client_of[column]
    truth = None
    if info.domain is not None:
        pairs_seen = np.unique(np.stack([client_of, info.domain])[:, client_of >= 0], axis=1)
        if len(pairs_seen[0]) == count:  # no client has two domains
            truth = pairs_seen[1].tolist()
    return Assignment(
        client_of,
        truth=truth,
        owners=chosen if info.owner is not None else None,
        domains=chosen if info.owner is None else None,
        names=[names[owner] if names else str(owner) for owner in chosen],
    )


def _rows(table: NDArray[np.generic]) -> list[bytes]:
    return [row.tobytes() for row in table]


PARTITIONS: Mapping[str, Callable[..., Assignment]] = {
    "iid": iid,
    "label-skew": label_skew,
    "pacfl": pacfl,
    "concept-shift": concept_shift,
    "dirichlet": dirichlet,
    "feature-skew": feature_skew,
    "pairs": pairs,
    "pathological": pathological,
    "sized": sized,
    "heterogeneity-mix": heterogeneity_mix,
    "natural": natural,
}
