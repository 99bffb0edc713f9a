"""FedGWC's clusters over pFedMe and Per-FedAvg: what clients do, send and use, by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from feddag.client.step import Result, Step
from feddag.client.train import Train
from feddag.methods.per_fedavg import TrainToAdapt
from feddag.methods.pfedme import TrainEnvelope
from feddag.models import ModelSpec
from feddag.testing import FakeEngine, moved, one_round, started
from feddag.weights import Adapted, Choice, Own, Ref, only
from tests.methods.least_squares import PLAIN, LeastSquares, client_of, packed

SPEC = ModelSpec("mlp", (4,), 2)
TRAINS: dict[str, type[Train]] = {"fedgwc-pfedme": TrainEnvelope, "fedgwc-per-fedavg": TrainToAdapt}


def engine_of(name: str, samples: dict[int, int]) -> FakeEngine:
    """Client i adds i + 1 to every weight, and tells the losses of three steps."""

    def train(engine: FakeEngine, client: int, step: Any, current: Any) -> Result:
        assert step.losses
        weights = {key: value + client + 1 for key, value in engine.resolve(client, step.model, current).items()}
        losses = client % 2 + np.arange(3) / 10
        return Result(weights, {"loss": float(losses.mean())}, {"losses": torch.from_numpy(losses)})

    return FakeEngine(samples, answers={TRAINS[name]: train})


@pytest.mark.parametrize(("name", "far"), [("fedgwc-pfedme", 0.75), ("fedgwc-per-fedavg", 1.5)])
def test_clients_count_alike_inside_a_cluster(name: str, far: float) -> None:
    fields: dict[str, Any] = {"server_lr": 0.5, "inner_steps": 3, "pull": 7.0} if far == 0.75 else {"inner_lr": 0.3}
    engine = engine_of(name, {0: 10, 1: 30, 2: 20})
    federation, method = started(name, engine, SPEC, participation=1.0, **fields)
    start = method.groups.trained[0]
    one_round(federation, method, [0, 1])
    assert moved(start, method.groups.trained[0]) == far  # the plain mean of 1 and 2, or half of it
    sent = engine.jobs[0].steps[0]
    assert {key: getattr(sent, key) for key in fields if key != "server_lr"} == {
        key: value for key, value in fields.items() if key != "server_lr"
    }


def test_what_clients_use() -> None:
    federation, method = started("fedgwc-pfedme", engine_of("fedgwc-pfedme", {0: 10, 1: 30}), SPEC)
    one_round(federation, method, [0, 1])
    assert method.model_of(1) == (method.groups.served[0], Own("personal"))
    assert isinstance(method.model_of(7), Choice)  # a newcomer: the best cluster's
    federation, method = started(
        "fedgwc-per-fedavg", engine_of("fedgwc-per-fedavg", {0: 10, 1: 30}), SPEC, inner_lr=0.3, adapt_steps=2
    )
    one_round(federation, method, [0, 1])
    used = method.model_of(1)
    assert isinstance(used, Adapted) and (used.lr, used.steps) == (0.3, 2) and used.model is method.groups.served[0]


@pytest.mark.parametrize("name", TRAINS)
def test_a_split_goes_by_the_losses_that_were_sent(name: str) -> None:
    engine = engine_of(name, dict.fromkeys(range(12), 10))
    federation, method = started(name, engine, SPEC, participation=1.0, split="paper", epsilon=1.0, most_parts=2)
    one_round(federation, method)
    assert len({(client % 2, cluster) for client, cluster in method.clusters().items()}) == 2


@pytest.mark.parametrize(
    ("step", "told"),
    [
        # x = (1, 0), y = 4: half the squared error is 8 at w = 0, and of theta = 0.56 after two steps (4 - 0.56)^2 / 2
        (TrainEnvelope(Ref("w", 0), pull=5.0, inner_steps=2, inner_lr=0.1, losses=True), [8.0, 3.44**2 / 2]),
        # the loss of the outer step is that at w = 0.1 * 4, where the inner one leads to
        (TrainToAdapt(Ref("w", 0), inner_lr=0.1, losses=True), [3.6**2 / 2]),
    ],
)
def test_the_losses_are_those_of_the_steps(step: Step, told: list[float]) -> None:
    x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([4.0])
    settings = replace(PLAIN, lr=0.05, epochs=2)
    client = client_of(*packed(x, y), LeastSquares(), {"w": {"head.w": torch.zeros(2)}}, settings)
    result = step.run(client)
    assert result.arrays["losses"].tolist() == pytest.approx(told)
    assert result.numbers["loss"] == pytest.approx(np.mean(told)) and step.problem(result) is None
    assert only(result.weights or {}, ("head",)).keys() == {"head.w"}
