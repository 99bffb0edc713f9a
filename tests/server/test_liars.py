"""A few clients that lie in their signatures: what they claim must not decide how the honest ones are grouped."""

from collections.abc import Callable

import numpy as np
import pytest

from feddag import Experiment, Signature, group
from feddag.bench.groups import signatures_of
from feddag.server.noise import MOST_BY_FEW, estimate_noise
from tests.server.made import same_partition
from tests.server.test_grouping import LABELS, client, client_of_concept

Honest = list[Signature]


def changed(item: Signature, **arrays: object) -> Signature:
    """The same signature but for these arrays."""
    given = {name: np.asarray(value, vars(item)[name].dtype) for name, value in arrays.items()}
    return Signature(**(vars(item) | given))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Scaled to what a signature's vectors have to be: a second moment of norm 1 for each class."""
    squares = np.einsum("cpf,cpf->cp", vectors, vectors, dtype=np.float64)
    norms = np.sqrt((squares**2).sum(1))
    return vectors / np.sqrt(np.where(norms > 0, norms, 1))[:, None, None]


def mean_of_all(honest: Honest, **more: object) -> Signature:
    """In the middle between all groups."""
    arrays = {name: np.mean([vars(item)[name] for item in honest], axis=0) for name in ("vectors", "update", "counts")}
    arrays |= {"vectors": unit(arrays["vectors"]), "counts": arrays["counts"] + 1}
    return changed(honest[0], **(arrays | more))


def random_one(honest: Honest) -> Signature:
    draw, like = np.random.default_rng(3), honest[0]
    vectors, counts = unit(draw.normal(size=like.vectors.shape)), draw.integers(1, 200, like.counts.shape)
    return changed(like, vectors=vectors, counts=counts, update=draw.normal(size=like.update.shape))


def knows_nothing(item: Signature) -> dict[str, object]:
    return {"reliability": np.full_like(item.reliability, 1e-6), "update_reliability": 0}


LIES: dict[str, Callable[[Honest], Signature]] = {
    "made up": random_one,
    "another's": lambda honest: honest[1],
    "the middle": mean_of_all,
    "the middle, nothing known": lambda honest: mean_of_all(honest, **knows_nothing(honest[0])),
    "the middle, of very many": lambda honest: mean_of_all(
        honest, counts=np.full_like(honest[0].counts, 2**40), **knows_nothing(honest[0])
    ),
    "another's, nothing known": lambda honest: changed(honest[1], **knows_nothing(honest[1])),
    "another's, of very many": lambda honest: changed(honest[1], counts=np.where(honest[1].counts > 0, 2**40, 0)),
    "nothing": lambda honest: changed(honest[0], **{name: 0 * array for name, array in vars(honest[0]).items()}),
}


@pytest.fixture(scope="module")
def federations() -> dict[str, Honest]:
    """Honest clients of known groups."""
    draw = np.random.default_rng(0)
    digits = {"dataset": "digits", "clients": 30, "model": "mlp"}
    concepts = {"partition": "concept-shift", "concepts": 4, "skewed": False}
    return {
        "labels": [client(draw, LABELS[kind], int(draw.integers(20, 150))) for kind in np.arange(24) % 4],
        "concepts": [client_of_concept(draw, 2 * kind, int(draw.integers(60, 150))) for kind in np.arange(24) % 3],
        "digits, label skew": signatures_of(Experiment(**digits))[0],
        "digits, concept shift": signatures_of(Experiment(seed=1, **digits, **concepts))[0],
    }


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("share", [0.0, 0.1])  # one, and one in ten
def test_liars_do_not_change_the_groups_of_the_others(federations: dict[str, Honest], lie: str, share: float) -> None:
    for name, honest in federations.items():
        alone = group(honest)
        liars = [LIES[lie](honest)] * max(1, int(share * len(honest)))
        among = group([*honest, *liars]).labels_[: len(honest)]
        assert alone.clusters_ > 2 and same_partition(alone.labels_, among), name


@pytest.mark.parametrize("reversed_update", [False, True])
def test_who_has_a_clients_signature_can_part_it_from_its_group_and_nobody_else(
    federations: dict[str, Honest], reversed_update: bool
) -> None:
    """Only the server sees signatures; a copy is nearer than chance to the one it was copied from."""
    for name in ("concepts", "digits, concept shift"):
        honest = federations[name]
        sure = {"reliability": np.ones_like(honest[1].reliability), "update_reliability": 1}
        copied = changed(honest[1], **({"update": -honest[1].update} if reversed_update else sure))
        alone, among = group(honest).labels_, group([*honest, copied, copied]).labels_[: len(honest)]
        others = np.arange(len(honest)) != 1
        assert same_partition(alone[others], among[others]), name


def noisy(clients: int, liars: int, depth: float) -> np.ndarray:
    """Distances of one group that scatter by 0.1, but for liars who are this far below zero to everybody."""
    draw = np.random.default_rng(0)
    table = np.where(draw.random((clients, clients)) < 0.5, -0.1, 0.1)
    table[-liars:], table[:, -liars:] = -depth, -depth
    return table[np.triu_indices(clients, 1)].astype(np.float32)


def test_a_tenth_of_the_clients_can_raise_the_noise_by_a_bounded_factor() -> None:
    assert estimate_noise(noisy(30, 3, 0.1)) == pytest.approx(0.1)
    assert estimate_noise(noisy(30, 3, 0.9)) == pytest.approx(MOST_BY_FEW * 0.1)  # 0.5 without the bound
    assert estimate_noise(noisy(30, 3, 0.2)) == pytest.approx(0.133, abs=0.01)  # what could be chance counts as it is


def test_where_few_distances_tell_the_noise_nothing_is_left_out() -> None:
    few = np.ones(435, np.float32)
    few[:3] = -0.9  # one client is near three others
    assert estimate_noise(few) == pytest.approx(0.9)
