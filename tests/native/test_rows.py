"""A first convolution of few channels, whose vectors hold neighbouring windows of a row, against PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from feddag import native
from feddag.models import ModelSpec
from feddag.native import Job
from tests.native.reference import Single, torch_train, weights_of, width


def way(layers: nn.Module, shape: tuple[int, ...]) -> str:
    """How the build in use computes the first layer."""
    network = native.describe(Single(layers, nn.Linear(width(layers, shape), 3)), shape)
    ways: list[str] = native._kernels.check(network, native.samples(torch.empty(0, *shape)))
    return ways[0]


def encoder(shape: tuple[int, ...], channels: int, kernel: int, *rest: nn.Module, **options: int) -> nn.Sequential:
    first = nn.Conv2d(shape[0], channels, kernel, **options)
    return nn.Sequential(first, *(copy.deepcopy(layer) for layer in rest), nn.Flatten())


RELU, POOL = nn.ReLU(), nn.MaxPool2d(2)
CASES: dict[str, tuple[tuple[int, ...], nn.Sequential]] = {
    "LeNet-5's": ((1, 28, 28), encoder((1,), 6, 5, RELU, POOL, padding=2)),
    "no padding": ((1, 28, 28), encoder((1,), 6, 5, RELU, POOL)),
    "a column and a row left over": ((1, 15, 25), encoder((1,), 6, 3, POOL)),
    "two vectors, the second nearly empty": ((1, 9, 34), encoder((1,), 6, 3, POOL, RELU, padding=1)),
    "three channels": ((3, 16, 32), encoder((3,), 6, 5, RELU, POOL, padding=2)),
    "two channels, wide kernel": ((2, 12, 32), encoder((2,), 3, 11, RELU, POOL, padding=5)),
    "no pool": ((1, 7, 16), encoder((1,), 5, 3, RELU, padding=1)),
    "nothing but the convolution": ((2, 6, 15), encoder((2,), 8, 3, padding=1)),
    "stride": ((1, 19, 59), encoder((1,), 4, 5, RELU, POOL, stride=2)),
    "windows that overlap": ((1, 9, 16), encoder((1,), 7, 3, nn.MaxPool2d(2, 1), RELU, padding=1)),
    "windows with gaps": ((1, 11, 45), encoder((1,), 4, 3, nn.MaxPool2d(2, 3), RELU)),
    "one channel, one pixel": ((1, 5, 16), encoder((1,), 1, 1, RELU)),
    "no bias": ((1, 14, 28), encoder((1,), 2, 3, RELU, POOL, padding=1, bias=False)),
    "read by a padded convolution": (
        (1, 12, 28),
        encoder((1,), 6, 3, RELU, POOL, nn.Conv2d(6, 9, 3, padding=1), RELU, padding=1),
    ),
    "read by a norm and a pool": (
        (1, 12, 28),
        encoder((1,), 6, 3, POOL, nn.GroupNorm(3, 6), nn.AvgPool2d(2), padding=1),
    ),
}


def prepared(shape: tuple[int, ...], layers: nn.Sequential, dtype: torch.dtype) -> tuple[nn.Module, Tensor, Job]:
    """Batches of several sizes, the last one larger than those before."""
    torch.manual_seed(7)
    for layer in layers:
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    model = Single(layers, nn.Linear(width(layers.float(), shape), 3)).to(dtype)
    x = torch.randn(9, *shape, dtype=dtype)
    network = native.describe(model, shape)
    assert network is not None, native.obstacle(model, shape)
    order = np.concatenate([np.random.default_rng(i).permutation(9) for i in range(3)])
    data = native.samples(x), np.arange(9) % 3, order, np.array([4, 1, 5, 8, 9])
    return model, x, Job(network, weights_of(model), *data, lr=0.02, momentum=0.5)


@pytest.mark.parametrize(("shape", "layers"), CASES.values(), ids=CASES)
def test_it_agrees_with_torch(shape: tuple[int, ...], layers: nn.Sequential) -> None:
    assert way(layers, shape) == "rows"
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 2e-5)):
        model, x, job = prepared(shape, layers, dtype)
        with torch.no_grad():
            expected_scores = model(x).numpy()
        scores = native.scores(job.network, job.weights, job.x)
        np.testing.assert_allclose(scores, expected_scores, rtol=tolerance, atol=tolerance)
        trained, losses = native.train(job)
        np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=tolerance)
        for name, expected in weights_of(model).items():
            np.testing.assert_allclose(trained[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)
    layers.float()


@pytest.mark.parametrize("encoders", [1, 2])
def test_lenet_5_is_computed_so(encoders: int) -> None:
    spec = ModelSpec("lenet5", (1, 28, 28), 10, encoders)
    network = native.describe(spec.build(), spec.shape)
    ways = native._kernels.check(network, native.samples(torch.empty(0, *spec.shape)))
    assert ways[0] == "rows"
    assert ways[1] in ("tiles", "winograd")


OTHERS: dict[str, tuple[tuple[int, ...], nn.Sequential]] = {
    "many channels come out": ((1, 28, 28), encoder((1,), 32, 5, RELU, POOL)),
    "a narrow image": ((1, 28, 6), encoder((1,), 8, 3, RELU, POOL)),
    "a large pool": ((1, 28, 28), encoder((1,), 6, 5, RELU, nn.MaxPool2d(3))),
    "it is not the first": ((1, 28, 28), nn.Sequential(nn.AvgPool2d(1), nn.Conv2d(1, 6, 5), nn.Flatten())),
}


@pytest.mark.parametrize(("shape", "layers"), OTHERS.values(), ids=OTHERS)
def test_others_are_not(shape: tuple[int, ...], layers: nn.Sequential) -> None:
    assert way(layers, shape) != "rows"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_first_of_equal_pixels_wins(dtype: torch.dtype) -> None:
    """Pixels of small whole numbers and weights of few values: windows are full of ties, and sums are exact."""
    layers = encoder((1,), 4, 3, POOL, RELU, padding=1)
    model, _, job = prepared((1, 14, 28), layers, dtype)
    draw = np.random.default_rng(3)
    x = torch.from_numpy(draw.integers(0, 2, (9, 1, 14, 28))).to(dtype)
    with torch.no_grad():
        layers[0].weight.copy_(torch.from_numpy(draw.integers(-1, 2, (4, 1, 3, 3))))
        layers[0].bias.copy_(torch.tensor([0.0, 1.0, 2.0, 8.0]))
    job = Job(job.network, weights_of(model), native.samples(x), job.y, np.arange(9), np.array([9]), lr=0.5)
    assert way(layers.float(), (1, 14, 28)) == "rows"
    layers.to(dtype)
    trained, _ = native.train(job)
    torch_train(model, x, job)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for name, expected in weights_of(model).items():
        np.testing.assert_allclose(trained[name], expected, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("relu", [True, False])
def test_a_pixel_that_is_not_a_number_stays_visible(relu: bool, dtype: type) -> None:
    """It reaches the scores of its own sample, those of no other, and none of a later batch."""
    layers = encoder((1,), 6, 5, *([RELU] if relu else []), POOL, padding=2)
    _, _, job = prepared((1, 28, 28), layers, torch.float64 if dtype == np.float64 else torch.float32)
    x = np.concatenate([job.x] * 4)  # more than the native trainer scores at once
    x[5, 0, 0] = np.nan
    seen = np.isnan(native.scores(job.network, job.weights, x)).all(axis=1)
    assert seen.tolist() == [i == 5 for i in range(36)]


@pytest.mark.parametrize("clip", [None, 0.1])
def test_what_fills_up_vectors_counts_for_nothing(clip: float | None) -> None:
    """Neither in the norm of clipped gradients nor in decay, with the surplus of a patch's rows and of the channels."""
    model, x, job = prepared((1, 28, 28), encoder((1,), 6, 5, RELU, POOL, padding=2), torch.float64)
    job = Job(**{**vars(job), "clip": clip, "weight_decay": 0.1})
    trained, losses = native.train(job)
    np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=1e-11)
    for name, expected in weights_of(model).items():
        np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-11, err_msg=name)
