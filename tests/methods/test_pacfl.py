"""PACFL: angles against SciPy's, clusters by hand and on real samples, newcomers by their own vectors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

import feddag
from feddag import testing
from feddag.client.step import Result
from feddag.methods.pacfl import PrincipalVectors
from feddag.models import ModelSpec
from feddag.server.directions import Angle, angles_between, angles_to
from feddag.testing import FakeEngine, moved, one_round
from tests.methods.beside import RealClients, linear_spec

SPEC = ModelSpec("mlp", (3,), 2)
QUICK = {"clients": 10, "groups": 5, "rounds": 2, "epochs": 1, "workers": 1, "finetune": False}


def between(one: torch.Tensor, other: torch.Tensor, angle: Angle) -> float:
    return float(angles_to(one, [other], angle)[0])


def turned(*degrees: float) -> torch.Tensor:
    """Unit vectors in the first plane of three dimensions, as the vectors of the first of two classes."""
    rows = [[np.cos(np.radians(d)), np.sin(np.radians(d)), 0.0] for d in degrees]
    return torch.stack([torch.tensor(rows), torch.zeros(len(rows), 3)]).float()


def clients_at(angles: dict[int, float], **settings: Any) -> Any:
    """Clients that send one vector each, at these angles."""

    def answer(engine: FakeEngine, client: int, step: PrincipalVectors, current: Any) -> Result:
        return Result(arrays={"vectors": turned(angles[client])})

    engine = FakeEngine(dict.fromkeys(angles, 10), answers={PrincipalVectors: answer})
    return engine, *testing.started("pacfl", engine, SPEC, vectors=1, **settings)


@pytest.mark.parametrize("seed", range(5))
def test_the_principal_angle_is_scipys(seed: int) -> None:
    draw = np.random.default_rng(seed)
    one, other = (np.linalg.qr(draw.normal(size=(20, 3)))[0] for _ in range(2))
    sent = [torch.tensor(basis.T[None]).float() for basis in (one, other)]
    expected = np.degrees(subspace_angles(one, other).min())
    assert between(*sent, "principal") == pytest.approx(expected, abs=1e-3)
    flipped = sent[0] * torch.tensor([1.0, -1.0, 1.0])[None, :, None]  # an SVD's signs are arbitrary
    for kind in ("principal", "smallest", "sum"):
        assert between(flipped, sent[1], kind) == pytest.approx(between(*sent, kind), abs=1e-4)


def test_vectors_of_several_classes_span_one_subspace() -> None:
    """They are not at right angles to each other: the smallest angle of two, as released, is not the principal one."""
    draw = np.random.default_rng(0)
    one, other = (draw.normal(size=(2, 2, 9)) for _ in range(2))
    one, other = (table / np.linalg.norm(table, axis=2, keepdims=True) for table in (one, other))
    found = between(torch.tensor(one), torch.tensor(other), "principal")
    expected = np.degrees(subspace_angles(one.reshape(4, 9).T, other.reshape(4, 9).T).min())
    assert found == pytest.approx(expected, abs=1e-4)
    assert found < between(torch.tensor(one), torch.tensor(other), "smallest") - 5


def test_a_client_without_vectors_is_at_right_angles_to_all() -> None:
    assert between(turned(0), torch.zeros(2, 1, 3), "principal") == 90


def test_what_a_client_sends_are_numpys_singular_vectors() -> None:
    draw = np.random.default_rng(1)
    x, y = draw.normal(size=(12, 5)) + 1, np.repeat([0, 1], [9, 3])
    client = RealClients(linear_spec(5, 3), {0: (x, y)}).client(0)
    table = PrincipalVectors(4, by_class=True).run(client).arrays["vectors"]
    assert table.shape == (3, 4, 5) and not table[2].any() and not table[1, 3].any()  # 3 samples: 3 vectors
    for label in (0, 1):
        expected = np.linalg.svd(x[y == label].T)[0].T[: 4 if label == 0 else 3]
        np.testing.assert_allclose(np.abs((table[label].numpy()[: len(expected)] * expected).sum(1)), 1, atol=1e-5)
    whole = PrincipalVectors(2, by_class=False).run(client)
    expected = np.linalg.svd(x.T)[0].T[:2]
    np.testing.assert_allclose(np.abs((whole.arrays["vectors"][0].numpy() * expected).sum(1)), 1, atol=1e-5)
    assert PrincipalVectors(2, False).problem(whole) is None
    assert PrincipalVectors(2, False).problem(Result(arrays={"vectors": 2 * whole.arrays["vectors"]})) is not None


def test_clusters_by_threshold_and_by_number() -> None:
    angles = {0: 0.0, 1: 3.0, 2: 40.0, 3: 43.0, 4: 80.0}
    for settings, expected in (
        ({"threshold": 4.0}, [0, 0, 1, 1, 2]),
        ({"threshold": 38.9}, [0, 0, 1, 1, 1]),  # weighted: 80 is 38.5 from {40, 43}
        ({"threshold": 1.0}, [0, 1, 2, 3, 4]),
        ({"clusters": 3}, [0, 0, 1, 1, 2]),
        ({"clusters": 1}, [0, 0, 0, 0, 0]),
        ({"clusters": 9}, [0, 1, 2, 3, 4]),
    ):
        _, _, pacfl = clients_at(angles, **settings)
        assert list(pacfl.clusters().values()) == expected, settings
    told = pacfl.diagnostics()
    assert told["distances"][:4].round(3).tolist() == [3.0, 40.0, 43.0, 80.0] and len(told["merges"]) == 4


def test_fedavg_inside_clusters_and_a_newcomer_goes_where_its_vectors_are() -> None:
    angles = {0: 0.0, 1: 3.0, 2: 40.0, 3: 30.0}
    engine, federation, pacfl = clients_at({client: angles[client] for client in (0, 1, 2)}, threshold=4.0)
    before = pacfl.model_of(0)
    one_round(federation, pacfl)
    assert moved(before, pacfl.model_of(0)) == 1.5 and moved(before, pacfl.model_of(2)) == 3
    engine.answers[PrincipalVectors] = lambda e, client, step, c: Result(arrays={"vectors": turned(angles[client])})
    engine.samples[3] = 10
    pacfl.join(federation, [3])  # 30 is 28.5 from {0, 3} and 10 from {40}
    assert pacfl.clusters()[3] == 1 and 3 in pacfl.held
    pacfl.leave(federation, [2, 3])
    assert 3 not in pacfl.held and set(pacfl.clusters()) == {0, 1}
    one_round(federation, pacfl, [3])  # its cluster has nobody left to compare with, and it is nearer to no other
    assert pacfl.clusters()[3] == 0


def test_silent_clients_are_placed_when_they_answer() -> None:
    engine = FakeEngine(
        dict.fromkeys(range(3), 10),
        answers={PrincipalVectors: lambda e, client, step, c: Result(arrays={"vectors": turned(40.0 * client)})},
    )
    engine.silent = {0, 1, 2}
    federation, pacfl = testing.started("pacfl", engine, SPEC, vectors=1)
    assert pacfl.clusters() == {} and len(pacfl.groups.trained) == 1
    engine.silent = {1}
    one_round(federation, pacfl)
    assert pacfl.clusters() == {0: 0, 2: 0}  # there was nobody to compare with: one cluster


def test_a_liar_with_vectors_of_any_length_is_missing() -> None:
    engine = FakeEngine(
        {0: 10, 1: 10},
        answers={PrincipalVectors: lambda e, c, step, w: Result(arrays={"vectors": turned(0.0) * (1 + 5 * c)})},
    )
    federation, pacfl = testing.started("pacfl", engine, SPEC, vectors=1)
    assert pacfl.clusters() == {0: 0} and federation.missing[1] == "sent principal vectors that are not of length 1"


def test_label_skew_on_digits_is_found(tmp_path: Path) -> None:
    run = feddag.run(feddag.Experiment(method="pacfl", clusters=5, **QUICK), tmp_path / "r")
    assert run.result["ari"] == 1.0 and set(run.result["bytes_by_phase"]["up"]) == {"describe", "train"}


@pytest.mark.parametrize("angle", ["principal", "smallest", "sum"])
def test_the_angles_of_all_pairs_are_those_of_each(angle: Angle) -> None:
    generator = torch.Generator().manual_seed(0)
    clients = [torch.nn.functional.normalize(torch.randn(3, 2, 12, generator=generator), dim=2) for _ in range(5)]
    clients[1][2], clients[3][:] = 0, 0  # a class that a client does not hold; a client without samples
    pairs = [between(clients[i], clients[j], angle) for i in range(5) for j in range(i + 1, 5)]
    assert angles_between(clients, angle) == pytest.approx(np.array(pairs))
    assert [pairs[place] for place in (2, 5, 7, 9)] == [90] * 4
