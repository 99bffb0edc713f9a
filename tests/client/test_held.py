"""A loss over the classes that are held, and a head that starts sharp."""

from typing import Any

import numpy as np
import pytest
import torch

import feddag
from feddag.client.evaluate import Choose, Monitor
from feddag.client.step import Client, Result
from feddag.client.train import Anchor, Train
from feddag.client.trainer import LocalSettings, make_trainer, native_network
from feddag.errors import FeddagError
from feddag.heads import OUT_OF_REACH, check_linear, out_of_reach, sharpened
from feddag.methods.fedsoft import Importance
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, started
from feddag.weights import HELD, Own, Ref, Weights

SPEC = ModelSpec("mlp", (6,), 5)


def client(held: bool, native: bool, spec: ModelSpec = SPEC) -> tuple[Client, Weights]:
    draw = np.random.default_rng(0)
    x, y = torch.from_numpy(draw.normal(size=(40, 6)).astype(np.float32)), torch.from_numpy(draw.integers(0, 2, 40))
    start = spec.initial_weights(0, "model")
    trainer = make_trainer(spec, native_network(spec, "auto" if native else "torch", "cpu"))
    settings = LocalSettings(epochs=3, batch_size=8, lr=0.1, held=held)
    one = Client(0, x, y, trainer, settings, 5, lambda _: start, None, None, seed=0, moment=(1, 1))
    one.current = start
    return one, start


def trained_by_hand(start: Weights, batches: list[np.ndarray], one: Client, held: list[int]) -> Weights:
    """The same SGD on a head that has the held classes' rows only."""
    model = SPEC.build()
    model.load_state_dict(start)
    model.head.weight.data, model.head.bias.data = model.head.weight.data[held], model.head.bias.data[held]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5, weight_decay=1e-4)
    place = torch.full((5,), -1)
    place[held] = torch.arange(len(held))
    for batch in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(one.x[batch]), place[one.y[batch]]).backward()
        optimizer.step()
    return {name: value.detach() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("named", [(), (3,)])
def test_the_loss_knows_only_what_is_held(native: bool, named: tuple[int, ...]) -> None:
    one, start = client(held=True, native=native)
    batches = [np.arange(8 * n, 8 * n + 8) for n in range(5)]
    trained, _ = one.fit(start, batches, held=named)
    held = sorted({0, 1, *named})
    expected = trained_by_hand(start, batches, one, held)
    for name in ("head.weight", "head.bias"):
        torch.testing.assert_close(trained[name][held], expected[name], rtol=1e-4, atol=1e-5)
        absent = [row for row in range(5) if row not in held]
        assert torch.equal(trained[name][absent], start[name][absent])
    encoder = next(name for name in start if name.startswith("encoder"))
    torch.testing.assert_close(trained[encoder], expected[encoder], rtol=1e-4, atol=1e-5)


def test_all_classes_take_part_unless_asked_otherwise() -> None:
    one, start = client(held=False, native=True)
    trained, _ = one.fit(start, [np.arange(8)], held=(3,))
    assert not torch.isclose(trained["head.bias"], start["head.bias"]).any()


def test_a_pull_does_not_bring_back_what_is_left_out() -> None:
    one, start = client(held=True, native=True)
    Train(anchors=(Anchor(None, 5.0),)).run(one)
    assert one.current is not None
    assert torch.equal(one.current["head.weight"][2:], start["head.weight"][2:])
    alone, _ = client(held=True, native=True)
    Train().run(alone)
    assert not torch.equal(alone.current["head.weight"][:2], one.current["head.weight"][:2])


def test_what_a_client_keeps_answers_with_what_it_learnt() -> None:
    one, _ = client(held=True, native=True)
    result = Train(keep="own", held=(4,)).run(one)
    assert one.state["own/head.bias"][[2, 3]].tolist() == [OUT_OF_REACH] * 2
    assert result.weights is not None and result.weights["head.bias"].min() > OUT_OF_REACH  # what travels is whole
    assert one.state["own/head.bias"][4] > OUT_OF_REACH


def test_a_sharp_head_is_the_same_for_all_and_looks_at_the_first_encoder() -> None:
    two = ModelSpec("mlp", (6,), 5, encoders=2)
    one, other = (sharpened(two.initial_weights(seed, "model"), seed=3)["head.weight"] for seed in (0, 1))
    assert torch.equal(one, other)
    features = one.shape[1] // 2
    assert not one[:, features:].any()
    torch.testing.assert_close(one @ one.T, 16 * torch.eye(5), rtol=0, atol=1e-4)


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(FeddagError, match="linear head"):
        check_linear({"head.0.weight": torch.zeros(2, 2)})


FIELDS = {"dataset": "digits", "partition": "label-skew", "clients": 8, "rounds": 2, "model": "mlp"}


def answers(method: str, softmax: str) -> tuple[float, list[set[int]]]:
    """A run's accuracy, and which classes its clients' models ever answer with."""
    run = feddag.run(feddag.Experiment(method=method, softmax=softmax, balanced=True, **FIELDS))
    noise = np.random.default_rng(0).integers(0, 17, (200, 8, 8, 1)).astype(np.uint8)
    return run.result["accuracy"]["mean"], [set(run.model(client).predict(noise)) for client in range(8)]


@pytest.mark.parametrize("method", ["fedavg", "oracle"])
def test_models_answer_with_what_their_clients_or_clusters_hold(method: str) -> None:
    accuracy, classes = answers(method, "held")
    plain, others = answers(method, "all")
    assert max(map(len, classes)) <= 2 and classes != others  # a client of label skew 0.2 holds two of ten
    assert accuracy >= plain


PAIRS = FIELDS | {"partition": "pathological", "classes_per_client": 2, "balanced": True}


def answered(method: str, **fields: Any) -> list[int]:
    """Of each client, each of whom holds two classes: how many its model ever answers with."""
    run = feddag.run(feddag.Experiment(method=method, **PAIRS | fields))
    noise = np.random.default_rng(0).integers(0, 17, (400, 8, 8, 1)).astype(np.uint8)
    return [len(set(run.model(client).predict(noise))) for client in range(8)]


def test_inside_a_cluster_clients_answer_with_their_own_classes_or_with_all_of_their_cluster() -> None:
    one_cluster = {"method": "feddag", "clusters": 1}
    assert max(answered(**one_cluster, softmax="own")) <= 2
    assert min(answered(**one_cluster, softmax="held")) > 2


@pytest.mark.parametrize("method", ["fedavg", "ifca"])
def test_a_newcomer_answers_with_its_own_classes(method: str) -> None:
    assert max(answered(method, softmax="own", holdout=0.25)) <= 2


def test_a_client_itself_says_what_it_cannot_answer() -> None:
    one, start = client(held=False, native=False)
    model = one.weights((Ref("any", 0), HELD))
    assert model["head.bias"].tolist() == [*start["head.bias"][:2].tolist(), *[OUT_OF_REACH] * 3]
    assert one.weights((Ref("any", 0), HELD, Own("nothing yet"))).keys() == model.keys()


def test_classes_that_a_client_may_not_tell_about_can_be_answered() -> None:
    """Every class of these clients is below the least that is told: the server knows of none."""
    fields = {"method": "fedavg", "softmax": "own", "partition": "dirichlet", "clients": 20, "rounds": 3}
    told = feddag.run(feddag.Experiment(**fields))
    with pytest.MonkeyPatch.context() as patched:
        released = Client.released
        patched.setattr(Client, "released", lambda self, least=1: released(self, 1000))
        hidden = feddag.run(feddag.Experiment(**fields))
    assert hidden.result["accuracy"] == told.result["accuracy"]


@pytest.mark.parametrize("method", ["feddag", "oracle"])
def test_clients_that_change_answer_with_what_they_hold_now(method: str) -> None:
    fields = {"drift_round": 2, "rounds": 4, "participation": 1.0, "clients": 10, "label_fraction": 0.2}
    run = feddag.run(feddag.Experiment(method=method, softmax="own", **fields))
    drift = run.result["drift"]
    assert drift is not None and drift["accuracy_drifting"]["after"] > 0.3


def test_whoever_comes_back_is_asked_again() -> None:
    engine = FakeEngine({0: 10, 1: 10})
    federation, method = started("fedavg", engine, SPEC, softmax="own")
    method.classes = {0: [0, 1], 1: [2]}
    method.leave(federation, [0])
    assert method.classes == {1: [2]}


def answers_of(run: feddag.Run, clients: int) -> list[set[int]]:
    noise = np.random.default_rng(0).integers(0, 17, (600, 8, 8, 1)).astype(np.uint8)
    return [set(map(int, run.model(client).predict(noise))) for client in range(clients)]


@pytest.mark.parametrize("method", ["fedavg", "feddag"])
def test_the_model_of_a_client_that_changed_answers_with_what_it_holds_now(method: str) -> None:
    fields = {"rounds": 3, "participation": 1.0, "clients": 10, "label_fraction": 0.2, "softmax": "own"}
    before = answers_of(feddag.run(feddag.Experiment(method=method, **fields)), 10)
    after = answers_of(feddag.run(feddag.Experiment(method=method, drift_round=2, **fields)), 10)
    changed = [client for client in range(10) if before[client].isdisjoint(after[client])]
    assert len(changed) == 2  # a fifth


def test_a_model_answers_with_classes_of_which_nothing_was_told() -> None:
    """Also where a client has no head of its own yet, and whoever asks holds fewer samples than are told of."""
    fields = {"partition": "dirichlet", "clients": 10, "rounds": 2, "softmax": "own", "concentration": 0.3}
    for method in ({"method": "feddag", "least_per_class": 6}, {"method": "fedper", "participation": 0.2}):
        experiment = feddag.Experiment(**method, **fields)
        dataset = experiment.load_dataset()
        held = [set(dataset.y_train[own].tolist()) for own in experiment.divide(dataset).train]
        run = feddag.run(experiment)
        for client, answered in enumerate(held):
            bias = run.network(client).state_dict()["head.bias"]
            assert {label for label in range(10) if bias[label] > OUT_OF_REACH / 2} == answered


def test_what_is_sent_from_a_masked_start_says_what_is_held() -> None:
    one, start = client(held=True, native=False)
    result = Train(model=(Ref("any", 0), HELD)).run(one)
    assert result.weights is not None
    assert out_of_reach(result.weights).tolist() == [False, False, True, True, True]
    assert torch.equal(result.weights["head.weight"][2:], start["head.weight"][2:])


@pytest.mark.parametrize("method", ["ditto", "cgpfl", "fedsoft", "pfedme", "fedgwc-pfedme"])
def test_before_it_has_a_model_of_its_own_a_client_answers_with_its_classes(method: str) -> None:
    half = Result(arrays={"shares": torch.tensor([0.5, 0.5]).double()})
    engine = FakeEngine({0: 10, 1: 10}, answers={Importance: lambda *_: half})
    _, made = started(method, engine, SPEC, softmax="own")
    if made.clusters() is not None:
        made.groups.cluster_of[0] = 0
        getattr(made, "shares", {})[0] = [1.0]
    layers = made.model_of(0)
    assert isinstance(layers, tuple) and layers[1] == HELD and isinstance(layers[2], Own)


@pytest.mark.parametrize(("held", "chosen"), [(True, 0), (False, 1)])
def test_a_model_is_chosen_and_watched_by_the_classes_that_training_knows(held: bool, chosen: int) -> None:
    """The first model is right, but for a class that the client does not hold; the second knows nothing."""
    one, start = client(held=held, native=False)
    plain = {name: torch.zeros_like(value) for name, value in start.items()}
    right = one.fit(start, [np.arange(40)] * 50, held=())[0]
    right = right | {"head.bias": right["head.bias"] + torch.tensor([0.0, 0.0, 0.0, 0.0, 20.0])}
    one.fetch = lambda ref: right if ref == Ref("right", 0) else plain
    choice = Choose((Ref("right", 0), Ref("plain", 0))).run(one).arrays
    assert int(choice["chosen"]) == chosen
    loss = float(Monitor(Ref("right", 0)).run(one).arrays["loss"])
    assert loss == pytest.approx(float(choice["losses"][0])) and (loss < 0.7) == held
