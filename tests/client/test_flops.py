"""Training FLOPs by hand, and beside what PyTorch counts while it trains."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import feddag
from feddag import native
from feddag.client.flops import costs_of, forward_flops, layer_costs, training_flops
from feddag.client.trainer import LocalSettings, NativeTrainer, TorchTrainer, native_network
from feddag.methods.feddag import TrainDiversely
from feddag.models import ModelSpec

MLP = ModelSpec("mlp", (1, 8, 8), 10)
MLP_ENCODER, MLP_HEAD = 2 * 64 * 128, 2 * 128 * 10
LENET = ModelSpec("lenet5", (1, 28, 28), 10)
LENET_LAYERS = [  # output values x uses of a weight for each of them, twice
    2 * (6 * 28 * 28) * (1 * 5 * 5),
    2 * (16 * 10 * 10) * (6 * 5 * 5),
    2 * 120 * (16 * 5 * 5),
    2 * 84 * 120,
    2 * 10 * 84,
]
LENETS = ModelSpec("lenet5", (1, 28, 28), 10, encoders=2)
TWICE = ModelSpec("mlp", (1, 8, 8), 10, encoders=2)
TWICE_HEAD = 2 * 256 * 10
BATCHES = [np.array([0, 1, 2]), np.array([2, 1]), np.array([0, 1, 2])]  # 8 passes of 3 samples


def native_trainer(spec: ModelSpec) -> NativeTrainer:
    network = native_network(spec)
    assert network is not None
    return NativeTrainer(spec, network)


def test_a_dense_network_by_hand() -> None:
    assert forward_flops(MLP) == MLP_ENCODER + MLP_HEAD
    # The encoder's layer has no gradient by inputs: nothing before it learns.
    assert training_flops(costs_of(MLP), (), 7, 7) == 7 * (2 * MLP_ENCODER + 3 * MLP_HEAD)
    assert training_flops(costs_of(MLP), ("encoder",), 7, 7) == 7 * (2 * MLP_ENCODER + 2 * MLP_HEAD)
    assert training_flops(costs_of(MLP), ("head",), 7, 7) == 7 * (MLP_ENCODER + 2 * MLP_HEAD)


def test_lenet_by_hand() -> None:
    assert [cost.forward for cost in costs_of(LENET) if cost.forward] == LENET_LAYERS
    assert training_flops(costs_of(LENET), (), 1, 1) == 3 * sum(LENET_LAYERS) - LENET_LAYERS[0]


def test_two_encoders_by_hand() -> None:
    layers = costs_of(TWICE)
    primary = training_flops(layers, ("encoder", "head"), 8, 3)
    assert primary == 8 * (2 * MLP_ENCODER + 3 * TWICE_HEAD) + 3 * MLP_ENCODER
    secondary = training_flops(
        layers, ("secondary",), 8, 3
    )  # the head stands still, and the gradient passes through it
    assert secondary == 8 * (2 * MLP_ENCODER + 2 * TWICE_HEAD) + 3 * MLP_ENCODER


@pytest.mark.skipif(not native.available(), reason=native.reason())
def test_a_frozen_encoder_is_passed_once_natively_and_in_every_epoch_on_pytorch() -> None:
    x, parts = torch.zeros(3, 1, 8, 8), ("encoder", "head")
    learning = 8 * (2 * MLP_ENCODER + 3 * TWICE_HEAD)
    assert native_trainer(TWICE).flops(x, BATCHES, parts) == learning + 3 * MLP_ENCODER
    assert TorchTrainer(TWICE).flops(x, BATCHES, parts) == learning + 8 * MLP_ENCODER
    assert native_trainer(TWICE).flops(x, BATCHES) == TorchTrainer(TWICE).flops(x, BATCHES)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (MLP, ()),
        (MLP, ("head",)),
        (LENET, ()),
        (LENET, ("encoder",)),
        (LENET, ("head",)),
        (LENETS, ("encoder", "head")),
        (LENETS, ("secondary",)),
        (ModelSpec("cnn", (3, 32, 32), 10), ()),
        (ModelSpec("fedgwc-cnn", (3, 32, 32), 10), ()),
        (ModelSpec("fedac-cnn", (3, 32, 32), 10), ()),
        (ModelSpec("resnet9", (3, 32, 32), 10), ()),
    ],
    ids=str,
)
def test_pytorch_computes_what_is_counted(spec: ModelSpec, parts: tuple[str, ...]) -> None:
    trained_and_counted(spec, parts)


@pytest.mark.parametrize("parts", [("encoder", "head"), ("secondary",), ()])
def test_pytorch_computes_what_is_counted_of_a_penalty(parts: tuple[str, ...]) -> None:
    with_penalty = trained_and_counted(LENETS, parts, diversity=0.5)
    assert with_penalty > trained_and_counted(LENETS, parts)


def trained_and_counted(spec: ModelSpec, parts: tuple[str, ...], diversity: float = 0.0) -> int:
    trainer, x, y = TorchTrainer(spec), torch.randn(3, *spec.shape), torch.tensor([0, 1, 2])
    penalty = TrainDiversely(diversity=diversity).penalty() if diversity else None
    first = spec.initial_weights(0, "first")
    with FlopCounterMode(display=False) as counter:
        trainer.fit(first, x, y, BATCHES, LocalSettings(), parts=parts, penalty=penalty)
    counted = trainer.flops(x, BATCHES, parts, penalty)
    assert counted == counter.get_total_flops()
    return counted


def test_counting_a_penalty_draws_no_dropout_mask() -> None:
    spec = ModelSpec("cnn", (3, 24, 24), 4, encoders=2)
    trainer, x = TorchTrainer(spec), torch.randn(3, 3, 24, 24)
    drawn = [module.step for module in trainer._model.modules() if hasattr(module, "step")]
    assert drawn and trainer.flops(x, BATCHES, (), TrainDiversely(diversity=1.0).penalty()) > trainer.flops(x, BATCHES)
    assert [module.step for module in trainer._model.modules() if hasattr(module, "step")] == drawn


class Odd(nn.Module):
    """Layers in the order of their use, one of them twice, one that is not known, one that stands still."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.conv = nn.Linear(6, 6), nn.Conv1d(4, 8, 3, groups=2)
        self.still, self.other = nn.Linear(4, 3), nn.Bilinear(3, 3, 5)
        self.still.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = functional.relu(self.conv(self.twice(self.twice(x))))  # 4 x 6, then 8 x 4
        scores = self.still(features)
        return self.other(scores, scores)


def test_other_networks_count_what_is_known() -> None:
    layers = layer_costs(Odd(), lambda model: model(torch.zeros(1, 4, 6)))
    dense, conv, still = 2 * 4 * 6 * 6, 2 * (8 * 4) * (2 * 3), 2 * (8 * 3) * 4
    assert [layer.forward for layer in layers] == [dense, dense, conv, still, 0]
    assert [layer.learns for layer in layers] == [True, True, True, False, True]


# Runs -----------------------------------------------------------------------------------------------------------------

QUICK: dict[str, Any] = {"partition": "iid", "clients": 4, "rounds": 2, "epochs": 3, "participation": 1.0, "workers": 1}
TRAINED = 1438  # of digits, all of them at clients


def test_a_run_counts_its_training_and_its_scoring() -> None:
    run = feddag.run(feddag.Experiment(method="ifca", clusters=2, finetune=False, **QUICK))
    whole = 2 * 3 * TRAINED * (2 * MLP_ENCODER + 3 * MLP_HEAD)
    assert run.result["training_flops"] == whole == sum(run.result["by_client"]["training_flops"])
    assert run.result["training_flops_by_phase"] == {"train": whole}
    assert [record["training_flops"] for record in run.history] == [whole // 2, whole]
    assert run.result["scoring_flops"] == 2 * 2 * TRAINED * (MLP_ENCODER + MLP_HEAD)


@pytest.mark.parametrize("trainer", ["auto", "torch"])
def test_feddag_counts_both_phases_and_the_warm_up(trainer: str) -> None:
    fields: dict[str, Any] = {"balanced": False, "trainer": trainer, "batch_size": 8, "warmup_steps": 3}
    fields |= {"sharing": "encoder"}
    run = feddag.run(feddag.Experiment(method="feddag", finetune=False, **fields, **QUICK))
    passes = 2 * 3 * TRAINED
    frozen = MLP_ENCODER * (2 * TRAINED if native.available() and trainer == "auto" else passes)
    by_phase = run.result["training_flops_by_phase"]
    assert by_phase["primary"] == passes * (2 * MLP_ENCODER + 3 * TWICE_HEAD) + frozen
    assert by_phase["secondary"] == passes * (2 * MLP_ENCODER + 2 * TWICE_HEAD) + frozen
    warmed = run.result["sample_passes_by_phase"]["warm-up"]
    assert warmed == 4 * 2 * (2 * 3 * 8)  # clients x halves x steps x batch
    learning = warmed * (2 * MLP_ENCODER + 3 * TWICE_HEAD)
    assert learning < by_phase["warm-up"] <= learning + warmed * MLP_ENCODER
    if trainer == "torch":
        assert by_phase["warm-up"] == learning + warmed * MLP_ENCODER
