"""Local training against SGD done by hand."""

from collections import OrderedDict

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from feddag.client.loss import Pull
from feddag.client.step import to_tensor
from feddag.client.train import Train, draw_batches
from feddag.client.trainer import LocalSettings, TorchTrainer
from feddag.encoders import Dropout, seed_dropout
from feddag.models import Model, ModelSpec
from feddag.rng import dropout_mask


def trainer_of(model: nn.Module, classes: int = 2) -> TorchTrainer:
    """The PyTorch trainer of any network, however small."""
    made = TorchTrainer(ModelSpec("mlp", (1,), classes))
    made._model = model
    return made


class OneWeight(nn.Module):
    """Scores (w * x, 0): cross-entropy for label 0 is log(1 + exp(-w x))."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.w * x[:, 0], torch.zeros(len(x))], dim=1)


def train_one_weight(start: float, steps: int, proximal: float = 0.0, **chosen: float) -> tuple[float, list[float]]:
    local = LocalSettings(**({"lr": 0.5, "momentum": 0.0, "weight_decay": 0.0} | chosen))
    batches = [np.array([0])] * steps
    x, y = torch.tensor([[2.0]]), torch.tensor([0])
    first = {"part.w": torch.tensor([start])}
    pulls = [Pull(first, proximal)] if proximal else []
    model = nn.Sequential(OrderedDict(part=OneWeight()))
    weights, losses = trainer_of(model).fit(first, x, y, batches, local, pulls=pulls)
    return float(weights["part.w"]), losses.tolist()


def by_hand(start: float, steps: int, momentum: float = 0.0, weight_decay: float = 0.0, mu: float = 0.0) -> float:
    w, velocity = start, None
    for _ in range(steps):
        gradient = -2 / (1 + np.exp(2 * w)) + mu * (w - start) + weight_decay * w
        velocity = gradient if velocity is None else momentum * velocity + gradient
        w -= 0.5 * velocity
    return w


def test_plain_sgd_by_hand() -> None:
    got, losses = train_one_weight(0.0, 1)
    assert got == 0.5  # gradient -2 * sigmoid(0) = -1, step 0.5
    np.testing.assert_allclose(losses, [np.log(2)], rtol=1e-6)


def test_momentum_and_weight_decay_by_hand() -> None:
    got, _ = train_one_weight(0.3, 5, momentum=0.5, weight_decay=0.1)
    np.testing.assert_allclose(got, by_hand(0.3, 5, momentum=0.5, weight_decay=0.1), rtol=1e-5)


def test_the_proximal_term_really_acts() -> None:
    free, _ = train_one_weight(0.3, 5)
    held, _ = train_one_weight(0.3, 5, proximal=1.0)
    np.testing.assert_allclose(held, by_hand(0.3, 5, mu=1.0), rtol=1e-5)
    assert abs(held - 0.3) < 0.9 * abs(free - 0.3)


def test_pooling_before_relu_changes_neither_values_nor_gradients() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 1)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(3, 2)).double()
    x, y = torch.randn(6, 1, 10, 10, dtype=torch.float64).round(decimals=1), torch.tensor([0, 1, 1, 0, 1, 0])
    x[:, :, :4] = 0  # windows of equal values
    slopes = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
    expected = {
        name: value.detach() - 0.5 * slope
        for (name, value), slope in zip(model.named_parameters(), slopes, strict=True)
    }
    start = {name: value.clone() for name, value in model.state_dict().items()}
    local = LocalSettings(lr=0.5, momentum=0.0, weight_decay=0.0)
    got, _ = trainer_of(model).fit(start, x, y, [np.arange(6)], local)
    assert [type(layer).__name__ for layer in model][1:6] == ["MaxPool2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU"]
    for name, value in expected.items():
        torch.testing.assert_close(got[name], value, rtol=1e-13, atol=1e-13)


@given(samples=st.integers(1, 40), batch=st.integers(1, 17), epochs=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_every_epoch_sees_every_sample_once(samples: int, batch: int, epochs: int) -> None:
    local = LocalSettings(epochs=epochs, batch_size=batch)
    batches = list(draw_batches(samples, local, np.random.default_rng(0)))
    order = np.concatenate(batches).reshape(epochs, samples)
    assert all(sorted(row) == list(range(samples)) for row in order)
    assert max(map(len, batches)) <= batch


@given(samples=st.integers(1, 40), batch=st.integers(1, 17), steps=st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_steps_override_epochs(samples: int, batch: int, steps: int) -> None:
    batches = list(draw_batches(samples, LocalSettings(steps=steps, batch_size=batch), np.random.default_rng(0)))
    assert len(batches) == steps
    assert all(len(set(taken)) == len(taken) > 0 for taken in batches)


def test_dropout_draws_the_published_masks() -> None:
    layer = Dropout(0.5)
    model = Model(nn.Sequential(Dropout(0.25), layer), nn.Identity())
    seed_dropout(model, key=9)
    x = torch.ones(3, 5)
    layer.train()
    first, second = layer(x), layer(x)
    np.testing.assert_array_equal(first.numpy(), dropout_mask(9, 1, 0, (3, 5), 0.5))  # the second layer of the model
    np.testing.assert_array_equal(second.numpy(), dropout_mask(9, 1, 1, (3, 5), 0.5))
    layer.eval()
    assert torch.equal(layer(x), x)


def test_dropout_masks_keep_the_right_share() -> None:
    mask = dropout_mask(1, 0, 0, (100, 100), 0.3)
    assert abs((mask == 0).mean() - 0.3) < 0.02
    np.testing.assert_allclose(mask[mask > 0], 1 / 0.7, rtol=1e-6)


def test_training_with_dropout_repeats_itself() -> None:
    spec = ModelSpec("cnn", (3, 32, 32), 4)
    x, y = torch.randn(6, 3, 32, 32), torch.arange(6) % 4
    start = spec.initial_weights(0, "model")

    def once(key: int) -> torch.Tensor:
        return TorchTrainer(spec).fit(start, x, y, [np.arange(6)] * 2, LocalSettings(), dropout_key=key)[0][
            "head.weight"
        ]

    assert torch.equal(once(1), once(1))
    assert not torch.equal(once(1), once(2))


def test_images_become_channels_first_and_stay_channels_last_in_memory() -> None:
    x = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    tensor = to_tensor(x, (1.0, 2.0, 3.0), (2.0, 2.0, 2.0))
    assert tensor.shape == (2, 3, 4, 5)
    assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert tensor[1, 2, 3, 4] == (x[1, 3, 4, 2] - 3.0) / 2.0


def test_a_step_follows_the_experiments_batches_unless_it_says_otherwise() -> None:
    usual = LocalSettings(balanced=True)
    assert Train().settings(usual).balanced and not Train(balanced=False).settings(usual).balanced
    assert Train(balanced=True).settings(LocalSettings()).balanced and not Train().settings(LocalSettings()).balanced
