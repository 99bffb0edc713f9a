"""FedSoft: proportions, draws, pulls and means by hand; a mixture of two sources; the twin with FedRC's defect."""

from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag import testing
from feddag.client.step import Client, Result
from feddag.client.train import Anchor
from feddag.methods.fedsoft import Importance
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round
from feddag.weights import Choice, Own, Weights
from tests.methods.beside import RealClients, classifier, linear_spec

SPEC = ModelSpec("mlp", (2,), 2)
QUICK = {"clients": 6, "groups": 2, "rounds": 3, "epochs": 1, "workers": 1, "finetune": False, "participation": 0.5}
FOUR = {0: [1.0, 0.0], 1: [0.75, 0.25], 2: [0.0, 1.0], 3: [0.5, 0.5]}


def told(shares: dict[int, list[float]]) -> Any:
    def answer(engine: FakeEngine, client: int, step: Importance, current: Weights) -> Result:
        return Result(arrays={"shares": torch.tensor(shares[client], dtype=torch.float64)})

    return answer


def started(**settings: Any) -> Any:
    engine = FakeEngine({client: 10 * (client + 1) for client in FOUR}, answers={Importance: told(FOUR)})
    return engine, *testing.started("fedsoft", engine, SPEC, **settings)


class LargestLoss(Importance):
    """What FedRC's copy of FedSoft counts."""

    def run(self, client: Client) -> Result:
        losses = torch.stack([client.losses(client.weights(model)) for model in self.models])
        shares = torch.bincount(losses.argmax(0), minlength=len(self.models)).double() / len(client.y)
        return Result(arrays={"shares": shares})


@pytest.mark.parametrize(("kind", "right"), [(Importance, True), (LargestLoss, False)])
def test_proportions_are_those_of_the_mixture_that_samples_come_from(kind: type[Importance], right: bool) -> None:
    """70 of 100 samples follow the first model's rule and 30 the second's, which is the reverse."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(100, 2))
    x[:, 0] += np.sign(x[:, 0])
    y = np.where(np.arange(100) < 70, x[:, 0] > 0, x[:, 0] < 0).astype(int)
    engine = RealClients(linear_spec(2), {0: (x, y)})
    models = [classifier([[-s, 0.0], [s, 0.0]]) for s in (1.0, -1.0)]
    shares = kind(tuple(map(engine.put, models))).run(engine.client(0)).arrays["shares"].tolist()
    assert (shares == [0.7, 0.3]) == right
    assert right or shares == [0.3, 0.7]


def test_clients_are_drawn_in_proportion_to_their_samples_of_a_cluster() -> None:
    """For cluster 0 the chances are 10 : 15 : 0 : 20 of 45, but for sigma; over many rounds they are met."""
    _, federation, fedsoft = started(per_cluster=1)
    drawn: dict[int, list[int]] = {0: [], 1: []}
    for number in range(1, 1001):
        federation.begin_round(number)
        for cluster, [client] in fedsoft.drawn(federation).items():
            drawn[cluster].append(client)
        assert fedsoft.sample(federation) == sorted({drawn[0][-1], drawn[1][-1]})
    shares = [np.bincount(drawn[cluster], minlength=4) / 1000 for cluster in (0, 1)]
    np.testing.assert_allclose(shares[0], np.array([10, 15, 0, 20]) / 45, atol=0.05)
    np.testing.assert_allclose(shares[1], np.array([0, 5, 30, 20]) / 55, atol=0.05)


def test_the_participants_of_a_round_are_divided_among_the_clusters() -> None:
    _, federation, fedsoft = started(participation=0.5)
    assert [len(clients) for clients in fedsoft.drawn(federation).values()] == [1, 1]
    _, federation, fedsoft = started(per_cluster=3)
    assert [len(set(clients)) for clients in fedsoft.drawn(federation).values()] == [3, 3]


def test_local_work_and_means_by_hand() -> None:
    engine, federation, fedsoft = started(pull=0.4, per_cluster=3)
    before = dict(fedsoft.groups.trained)
    assert fedsoft.clusters() == {0: 0, 1: 0, 2: 1, 3: 0} and fedsoft.shares[0] == [1.0, 1e-4]
    federation.begin_round(1)
    drawn = fedsoft.drawn(federation)
    fedsoft.round(federation, fedsoft.sample(federation))
    steps = {job.client: job.steps[0] for job in engine.jobs}
    refs = [engine.put(before[n]) for n in (0, 1)]
    assert steps[1].anchors == (Anchor(refs[0], pytest.approx(0.3)), Anchor(refs[1], pytest.approx(0.1)))
    assert steps[1].model == (refs[0], Own("personal")) and steps[1].keep == "personal" and steps[1].send
    starts = {client: before[fedsoft.clusters()[client]] for client in steps}
    for cluster, clients in drawn.items():  # client i adds i + 1; all that were drawn count the same
        for name, value in fedsoft.groups.trained[cluster].items():
            expected = torch.stack([starts[client][name] + client + 1 for client in clients]).mean(0)
            torch.testing.assert_close(value, expected)
    assert fedsoft.model_of(1) == (fedsoft.groups.served[0], Own("personal"))


def test_proportions_are_asked_anew_every_second_round() -> None:
    engine, federation, fedsoft = started()
    engine.answers[Importance] = told({client: [0.2, 0.8] for client in FOUR})
    one_round(federation, fedsoft)
    assert fedsoft.shares[0] == [1.0, 1e-4]
    one_round(federation, fedsoft)
    assert fedsoft.shares == {client: [0.2, 0.8] for client in FOUR} and set(fedsoft.clusters().values()) == {1}


def test_silence_newcomers_and_an_answer_that_was_lost() -> None:
    engine, federation, fedsoft = started(per_cluster=4)
    engine.silent = {1}
    one_round(federation, fedsoft)
    assert fedsoft.lost == [1] and fedsoft.model_of(1) is fedsoft.groups.served[0]
    engine.silent = set()
    one_round(federation, fedsoft)
    assert fedsoft.lost == []
    engine.answers[Importance] = told({4: [0.1, 0.9]})
    engine.samples[4] = 10
    assert isinstance(fedsoft.model_of(4), Choice)
    fedsoft.join(federation, [4])
    assert fedsoft.clusters()[4] == 1
    fedsoft.leave(federation, [4])
    assert 4 not in fedsoft.shares and 4 not in fedsoft.clusters()


def test_nobody_answers_at_first() -> None:
    engine = FakeEngine({0: 10, 1: 10}, answers={Importance: told({0: [1.0, 0.0], 1: [0.0, 1.0]})})
    engine.silent = {0, 1}
    federation, fedsoft = testing.started("fedsoft", engine, SPEC)
    assert fedsoft.sample(federation) == []
    engine.silent = set()
    before = dict(fedsoft.groups.trained)
    one_round(federation, fedsoft)
    assert fedsoft.clusters() == {0: 0, 1: 1} and fedsoft.groups.trained == before
    one_round(federation, fedsoft)
    assert moved(before[0], fedsoft.groups.trained[0]) in (1, 2)


def test_a_pull_towards_two_centres_leads_between_them() -> None:
    """Without a loss to speak of, w goes to the mean of the centres weighted by u: here to 0.75 of the way."""
    spec = linear_spec(1)
    engine = RealClients(spec, {0: ([[0.0]], [0])}, lr=0.1, weight_decay=0.0, epochs=400)
    federation, fedsoft = testing.started("fedsoft", engine, spec, pull=1.0)
    fedsoft.groups.trained = {0: classifier([[1.0], [1.0]]), 1: classifier([[5.0], [5.0]])}
    fedsoft.shares, fedsoft.sizes = {0: [0.25, 0.75]}, {0: 1}
    one_round(federation, fedsoft, [0])
    for weights in fedsoft.groups.trained.values():
        assert weights["head.weight"].flatten().tolist() == pytest.approx([4.0, 4.0], abs=1e-3)


def test_a_client_says_nothing_about_classes_that_its_softmax_does_not_know() -> None:
    """Its own model never answers with them, and a centre must not learn that from it."""
    draw = np.random.default_rng(0)
    held = {client: (draw.normal(size=(20, 2)), draw.integers(client, client + 2, 20)) for client in (0, 1)}
    spec = linear_spec(2, 3)
    engine = RealClients(spec, held, lr=0.1, held=True)
    federation, fedsoft = testing.started("fedsoft", engine, spec, softmax="held", per_cluster=2)
    for _ in range(3):
        one_round(federation, fedsoft)
    assert fedsoft.classes == {0: [0, 1], 1: [1, 2]}
    assert engine.resolve(0, Own("personal"), {})["head.bias"][2] == -1000
    assert all(weights["head.bias"].abs().max() < 2 for weights in fedsoft.groups.trained.values())


def test_on_digits() -> None:
    run = feddag.run(feddag.Experiment(method="fedsoft", balanced=True, smoothing=0.5, **QUICK))
    assert run.result["answers_missing"] == 0 and set(run.result["bytes_by_phase"]["up"]) == {"estimate", "train"}
    one, two = run.network(0).state_dict(), run.network(1).state_dict()
    assert any(not torch.equal(value, two[name]) for name, value in one.items())  # personal
