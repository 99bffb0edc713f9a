"""Clusters that are renamings of each other: one model, each cluster under its own names."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag.client.signature import Signature
from feddag.client.train import Train
from feddag.heads import directions
from feddag.methods import find_method
from feddag.methods.feddag.families import Families
from feddag.report.recorded import read_run
from feddag.report.run import run_document
from feddag.server.membership import Signed
from feddag.weights import Weights
from tests.methods.pretend import started
from tests.server.made import made

DIGITS = {"dataset": "digits", "partition": "concept-shift", "clients": 12, "rounds": 2, "model": "mlp"}


def families(names: Sequence[Sequence[int]], family: Sequence[int]) -> Families:
    made = Families()
    made.names, made.family = [list(row) for row in names], list(family)
    return made


def as_sent(signature: Signature) -> Signed:
    return {name: torch.from_numpy(np.atleast_1d(array)) for name, array in vars(signature).items()}


def model(rows: Sequence[float], encoder: float) -> Weights:
    return {
        "encoder.w": torch.tensor([encoder]),
        "head.weight": torch.tensor(rows)[:, None],
        "head.bias": torch.tensor(rows),
    }


def test_a_familys_mean_by_hand() -> None:
    """Cluster 0 trained on 1 sample, cluster 1 on 3; cluster 1 calls 0 1 2 what is 1 2 0 elsewhere; 2 has no kin."""
    second = families([[0, 1, 2], [1, 2, 0], [0, 1, 2], [1, 0, 2]], [0, 0, 2, 0])
    trained = {0: model([0.0, 1.0, 2.0], 0.0), 1: model([6.0, 5.0, 4.0], 4.0), 2: model([9.0, 9.0, 9.0], 9.0)}
    after = second.joined(trained, {0: 1.0, 1: 3.0, 2: 5.0})
    assert sorted(after) == [0, 1, 2, 3]  # cluster 3, from which nobody answered, goes on with its family's model
    assert after[0]["head.bias"].tolist() == [3.0, 4.75, 4.25]  # (0 + 3 * 4) / 4, (1 + 3 * 6) / 4, (2 + 3 * 5) / 4
    assert after[1]["head.bias"].tolist() == [4.75, 4.25, 3.0]
    assert after[3]["head.bias"].tolist() == [4.75, 3.0, 4.25]
    assert [after[z]["encoder.w"].item() for z in (0, 1, 3)] == [3.0] * 3
    assert after[2] is trained[2]
    assert second.from_kin({0: after[0], 2: after[2]}, 1)["head.bias"].tolist() == [4.75, 4.25, 3.0]
    assert second.from_kin(trained, 2) is None


def test_clusters_that_become_kin_later_go_on_with_their_mean() -> None:
    """Cluster 0 has 1 client and cluster 1 three, by other names; cluster 3 comes and is kin of both; 2 of nobody."""
    second = families([[0, 1, 2], [1, 2, 0], [0, 1, 2], [0, 1, 2]], [0, 0, 2, 0])
    second._before = [0, 1, 2]
    trained = {0: model([0.0, 1.0, 2.0], 0.0), 1: model([6.0, 5.0, 4.0], 4.0), 2: model([9.0, 9.0, 9.0], 9.0)}
    united = second.united(trained, {0: 1.0, 1: 3.0, 2: 5.0, 3: 1.0})
    assert sorted(united) == [0, 1]
    assert united[0]["head.bias"].tolist() == [3.0, 4.75, 4.25] and united[1]["head.bias"].tolist() == [4.75, 4.25, 3.0]
    assert united[0]["encoder.w"].item() == united[1]["encoder.w"].item() == 3.0
    second._before = [0, 0, 2]
    assert second.united(trained, {0: 1.0, 1: 3.0, 2: 5.0, 3: 1.0}) == {}  # they were kin before


@pytest.mark.parametrize(
    ("counted", "family"),
    [
        ({"classes": 1.0, "data": 0.0}, [0, 0]),
        ({"classes": 0.5, "data": 0.5}, [0, 1]),
        ({"classes": 0.0, "data": 1.0}, [0, 1]),
    ],
)
def test_clusters_that_share_most_classes_are_kin_if_nothing_else_told_them_apart(
    counted: dict[str, float], family: list[int]
) -> None:
    """The first holds classes 0 and 1, the second 0, 1 and 2: two of three."""
    looks = np.eye(4)
    signatures = [made(counts, dict(enumerate(looks[:3])), shape=(1, 4)) for counts in ([9, 9, 0], [9, 9, 9])]
    weights = {view: np.full(2, weight) for view, weight in counted.items()}
    grouping = SimpleNamespace(labels_=np.arange(2), weights_=weights, signatures=signatures)
    second = Families()
    second.start(SimpleNamespace(), grouping, [as_sent(signatures[0])])
    assert second.family == family and second.names == [[0, 1, 2]] * 2


def test_kin_under_the_same_names_are_one_stratum_and_renamed_kin_are_not() -> None:
    """Cluster 1 is kin of 0 under its names, 2 under others; 3 has no kin."""
    second = families([[0, 1, 2], [0, 1, 2], [1, 0, 2], [0, 1, 2]], [0, 0, 0, 3])
    assert [second.stratum(cluster) for cluster in range(4)] == [0, 0, 2, 3]


@pytest.mark.parametrize(
    ("names", "family", "drawn"),
    [
        ([[0, 1, 2, 3]] * 3, [0, 0, 2], {"01": 1, "2": 1}),  # four clients of a stratum, and two: a quarter of each
        ([[0, 1, 2, 3], [1, 0, 2, 3], [0, 1, 2, 3]], [0, 0, 2], {"0": 1, "1": 1, "2": 1}),
        ([[0, 1, 2, 3]] * 3, [0, 1, 2], {"0": 1, "1": 1, "2": 1}),
        ([[0, 1, 2, 3]] * 3, [0, 0, 0], {"012": 2}),
    ],
)
def test_participants_are_a_share_of_each_stratum(
    names: list[list[int]], family: list[int], drawn: dict[str, int]
) -> None:
    held = {client: [client // 2] for client in range(6)}
    _, federation, method = started(
        held, sharing="renamed", classifier="common", secondary_start="warm", participation=0.25
    )
    method.groups.cluster_of = {client: client // 2 for client in range(6)}
    method.second = families(names, family)
    for number in range(1, 6):
        federation.begin_round(number)
        sampled = method.sample(federation)
        assert len(sampled) == sum(drawn.values())
        for clusters, expected in drawn.items():
            assert len([client for client in sampled if str(client // 2) in clusters]) == expected


def run(folder: Path, **settings: object) -> tuple[feddag.Run, dict[str, Any]]:
    """A run, and what it tells about its groups."""
    done = feddag.run(feddag.Experiment(method="feddag", **DIGITS, **settings), folder)
    return done, read_run(folder).diagnostics


def test_kin_have_one_model_under_their_own_names(tmp_path: Path) -> None:
    found, told = run(tmp_path / "run")
    names, family = told["names"], told["families"]
    assert family == [0, 0, 0] and len({tuple(row) for row in names}) == 3  # three concepts, three ways to call things
    clusters = found.result["clusters"]
    first = found.model(clusters.index(0)).network.state_dict()
    for client, cluster in enumerate(clusters):
        weights = found.model(client).network.state_dict()
        rows = weights["head.weight"][torch.tensor(names[cluster]).argsort()]
        torch.testing.assert_close(rows, first["head.weight"][torch.tensor(names[0]).argsort()])
        torch.testing.assert_close(weights["encoder.1.weight"], first["encoder.1.weight"])


def test_without_sharing_every_cluster_goes_its_own_way(tmp_path: Path) -> None:
    (alone, told), (together, _) = run(tmp_path / "a", sharing="none"), run(tmp_path / "b")
    assert "families" not in told
    assert alone.result["bytes_up"] == together.result["bytes_up"]  # a family costs no byte
    assert alone.result["accuracy"] != together.result["accuracy"]


def test_the_first_head_is_sharp_and_the_loss_knows_the_clusters_classes() -> None:
    engine, federation, method = started(
        {0: [0, 1], 1: [2, 3], 2: [0, 1], 3: [2, 3]}, "feddag-star", head="sharp", softmax="held"
    )
    width = method.groups.trained[0]["head.weight"].shape[1]
    assert torch.equal(method.groups.trained[0]["head.weight"], directions(4, width, federation.seed))
    method.round(federation, federation.clients)
    sent = {job.client: step.held for job in engine.jobs for step in job.steps if isinstance(step, Train)}
    assert sent == {0: (0, 1), 1: (2, 3), 2: (0, 1), 3: (2, 3)}
    assert method.model_of(0)["head.bias"][2:].max() < -100 < method.model_of(0)["head.bias"][:2].min()
    assert method.model_of(0) is method.model_of(2)


def test_fields_of_visiting_encoders_need_them() -> None:
    with pytest.raises(feddag.FeddagError, match="sources does nothing with sharing = 'renamed'"):
        feddag.Experiment(method="feddag", sources=3)
    for name in ("feddag-paper", "feddag-released"):
        kind = find_method(name)
        assert kind.encoders_for(kind.Settings()) == 2
    assert feddag.Experiment(method="feddag").encoders == 1
    assert feddag.Experiment(method="feddag", sharing="encoder", sources=3).encoders == 2


def test_the_page_tells_who_is_kin_under_which_names(tmp_path: Path) -> None:
    run(tmp_path / "run")
    sections = {section["id"]: section for section in run_document(read_run(tmp_path / "run"))["sections"]}
    rows = sections["families"]["table"]["rows"]
    assert [row[:2] for row in rows] == [[0, "1, 2"], [1, "0, 2"], [2, "0, 1"]]
    assert [row[2] for row in rows].count("as in the first cluster") == 1
    assert all("is the others'" in row[2] and "more" in row[2] for row in rows[1:])
