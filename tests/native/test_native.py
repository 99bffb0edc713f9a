"""The native trainer against PyTorch in double precision, and against finite differences."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from feddag import native
from feddag.models import ModelSpec
from feddag.native import Conv, Flatten, Job, Linear, Network, TimeLast
from feddag.rng import dropout_mask
from tests.native.reference import Dropout, Dual, Single, random_case, torch_train, weights_of, width


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_fifty_steps_agree_with_torch_in_double(seed: int) -> None:
    model, x, job = random_case(seed, torch.float64, steps=50)
    trained, losses = native.train(job)
    expected_losses = torch_train(model, x, job)
    # Steps let a rounding of 1e-16 grow (fifty: to 6e-9, seen once in some thousand networks); a wrong formula shows
    # in the first ten.
    np.testing.assert_allclose(losses[:10], expected_losses[:10], rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-6, atol=1e-6)
    for name, expected in weights_of(model).items():
        tolerance = 1e-6 * max(0.01, np.abs(expected).max())
        np.testing.assert_allclose(trained[name], expected, rtol=1e-6, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("two", [False, True], ids=["one encoder", "two encoders"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_wide_layers_agree_with_torch_in_double(clip: float | None, two: bool) -> None:
    """Widths and images of a power of two, several panels and blocks wide, and more classes than a vector has lanes."""
    torch.manual_seed(2)
    encoder = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    head = nn.Sequential(nn.Linear(1024 if two else 512, 512), nn.ReLU(), Dropout(0.5), nn.Linear(512, 40))
    model = Dual(encoder, copy.deepcopy(encoder), head).double() if two else Single(encoder, head).double()
    x = torch.randn(40, 3, 8, 8, dtype=torch.float64)
    network = native.describe(model, (3, 8, 8))
    assert network is not None
    order = np.concatenate([np.random.default_rng(i).permutation(40) for i in range(2)])
    batches = np.array([33, 7, 16, 24])
    data = native.samples(x), np.arange(40), order, batches
    job = Job(network, weights_of(model), *data, lr=0.05, momentum=0.9, clip=clip, dropout_key=5)
    trained, losses = native.train(job)
    np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=1e-10)
    for name, expected in weights_of(model).items():
        np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-11, err_msg=name)


def small_windows(channels: tuple[int, int], kernel: int, padding: int, pool: int, relu: bool) -> nn.Sequential:
    """A first convolution that makes many channels, and one whose kernel and windows suit Winograd's tiles."""
    after = [*([nn.ReLU()] if relu else []), *([nn.MaxPool2d(pool)] if pool > 1 else []), nn.Flatten()]
    return nn.Sequential(nn.Conv2d(2, channels[0], 1), nn.Conv2d(*channels, kernel, padding=padding), *after)


WINOGRAD = [
    # image, channels, kernel, padding, pool, relu: one tile, tiles that overlap, whole and partly filled vectors
    ((6, 6), (16, 16), 3, 0, 1, False),
    ((7, 9), (16, 20), 3, 1, 1, True),
    ((9, 14), (32, 33), 3, 1, 2, True),
    ((11, 8), (20, 64), 3, 0, 2, False),
    ((9, 9), (13, 16), 3, 1, 4, True),
    ((8, 8), (16, 16), 5, 0, 2, True),
    ((9, 13), (16, 48), 5, 2, 1, True),
    ((14, 14), (16, 32), 5, 2, 2, True),
    ((5, 7), (64, 17), 5, 2, 2, False),
]


@pytest.mark.parametrize(("side", "channels", "kernel", "padding", "pool", "relu"), WINOGRAD)
def test_winograd_agrees_with_torch(
    side: tuple[int, int], channels: tuple[int, int], kernel: int, padding: int, pool: int, relu: bool
) -> None:
    torch.manual_seed(3)
    encoder = small_windows(channels, kernel, padding, pool, relu)
    shape = (2, *side)
    model = Single(encoder, nn.Linear(width(encoder, shape), 5)).double()
    x = torch.randn(9, *shape, dtype=torch.float64)
    network = native.describe(model, shape)
    assert network is not None
    order = np.concatenate([np.random.default_rng(i).permutation(9) for i in range(4)])
    data = native.samples(x), np.arange(9) % 5, order, np.array([4, 5] * 4)
    job = Job(network, weights_of(model), *data, lr=0.02, momentum=0.5)
    scores = native.scores(network, job.weights, job.x)
    single = native.scores(network, {k: v.astype("f4") for k, v in job.weights.items()}, job.x.astype("f4"))
    np.testing.assert_allclose(single, scores, rtol=1e-5, atol=1e-5 * np.abs(scores).max())
    trained, losses = native.train(job)
    np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=1e-11)
    for name, expected in weights_of(model).items():
        np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("pool", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3])
def test_gradients_of_small_patches_agree_with_torch(channels: int, pool: int) -> None:
    """Few taps are summed pixel by pixel: with fewer and more output channels than a vector has lanes."""
    torch.manual_seed(4)
    for outputs in (3, 20):
        encoder = nn.Sequential(nn.Conv2d(channels, outputs, 5, padding=2), nn.MaxPool2d(pool), nn.ReLU(), nn.Flatten())
        shape = (channels, 9, 8)
        model = Single(encoder, nn.Linear(width(encoder, shape), 4)).double()
        x = torch.randn(6, *shape, dtype=torch.float64)
        network = native.describe(model, shape)
        assert network is not None
        data = native.samples(x), np.arange(6) % 4, np.arange(6).repeat(2), np.array([4, 3, 5])
        job = Job(network, weights_of(model), *data, lr=0.05, momentum=0.5)
        trained, losses = native.train(job)
        np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=1e-11)
        for name, expected in weights_of(model).items():
            np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-11, err_msg=name)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_one_step_agrees_with_torch_in_single_precision(seed: int) -> None:
    model, x, job = random_case(seed, torch.float32, steps=1)
    trained, losses = native.train(job)
    np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=1e-5, atol=1e-5)
    for name, expected in weights_of(model).items():
        np.testing.assert_allclose(trained[name], expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max()))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_scores_and_counts_agree_with_torch(seed: int) -> None:
    model, x, job = random_case(seed, torch.float64, steps=1)
    model.eval()
    with torch.no_grad():
        expected = model(x)
    np.testing.assert_allclose(native.scores(job.network, job.weights, job.x), expected, rtol=1e-9, atol=1e-9)
    classes = expected.shape[1]
    correct, count, loss = native.evaluate(job.network, job.weights, job.x, job.y, classes)
    y = torch.from_numpy(job.y)
    hits = expected.argmax(1) == y
    losses = functional.cross_entropy(expected, y, reduction="none")
    np.testing.assert_allclose(native.losses(job.network, job.weights, job.x, job.y), losses, rtol=1e-9, atol=1e-9)
    for label in range(classes):
        assert correct[label] == hits[y == label].sum()
        assert count[label] == (y == label).sum()
        assert loss[label] == pytest.approx(losses[y == label].sum().item(), rel=1e-9, abs=1e-9)


@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from([torch.float32, torch.float64]))
@settings(max_examples=30, deadline=None)
def test_many_heads_give_the_bytes_of_each_by_itself(seed: int, dtype: torch.dtype) -> None:
    model, _, job = random_case(seed, dtype, steps=1)
    rng = np.random.default_rng(seed)
    count, classes = int(rng.integers(30, 80)), int(job.y.max()) + 1  # more than one batch
    x, y = rng.normal(size=(count, *job.x.shape[1:])).astype(job.x.dtype), rng.integers(0, classes, count)
    classes = native.scores(job.network, job.weights, x).shape[1]
    names = [f"head.{name}" for name, _ in model.get_submodule("head").named_parameters()]
    heads = [{n: rng.normal(size=job.weights[n].shape).astype(x.dtype) for n in names} for _ in range(3)]
    ends = np.sort(rng.integers(0, count + 1, 4))
    sizes = np.diff([0, *ends, count])
    correct, counted, loss = native.evaluate_heads(
        job.network, job.weights, [*heads, job.weights], x, y, sizes.tolist()
    )
    assert counted.tolist() == sizes.tolist()
    for number, head in enumerate([*heads, job.weights]):
        scores, losses = native.scores_and_losses(job.network, job.weights | head, x, y)
        run = np.repeat(np.arange(5), sizes)
        assert correct[number].tolist() == np.bincount(run, scores.argmax(1) == y, 5).tolist()
        assert loss[number].tobytes() == np.bincount(run, losses, 5).tobytes()
        table = native.evaluate(job.network, job.weights | head, x, y, classes)
        assert table[0].sum() == correct[number].sum() and table[1].sum() == count


def test_heads_by_hand() -> None:
    """Features are the samples; one head tells the larger value, one the smaller, and one only ever the first class."""
    network = Network((Flatten(),), (Linear("head", 2, 2),))
    x, y = np.array([[3, 1], [1, 4], [2, 1]], np.float32), np.array([0, 1, 1])
    weights = {"head.weight": np.zeros((2, 2), np.float32), "head.bias": np.zeros(2, np.float32)}
    eye = np.eye(2, dtype=np.float32)
    heads = [weights | {"head.weight": eye}, weights | {"head.weight": -eye},
             {"head.weight": eye, "head.bias": np.array([0, -1000], np.float32)}]  # fmt: skip
    correct, count, loss = native.evaluate_heads(network, weights, heads, x, y, [1, 2])
    assert correct.tolist() == [[1, 1], [0, 1], [1, 0]] and count.tolist() == [1, 2]
    np.testing.assert_allclose(loss[0], [np.log1p(np.exp(-2)), np.log1p(np.exp(-3)) + np.log1p(np.exp(1))], rtol=1e-6)
    np.testing.assert_allclose(loss[2], [0, (1 - 4 + 1000) + (2 - 1 + 1000)], atol=1e-12)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_frozen_parts_do_not_change_by_a_bit(seed: int) -> None:
    _, _, job = random_case(seed, torch.float32, steps=3)
    assert job.trainable is not None
    trained, _ = native.train(job)
    assert trained.keys() == job.weights.keys()
    prefixes = {"encoder": ("encoder.", "primary."), "secondary": ("secondary.",), "head": ("head.",)}
    learning = tuple(prefix for part in job.trainable for prefix in prefixes[part])
    for name, before in job.weights.items():
        if not name.startswith(learning):
            assert trained[name].tobytes() == before.tobytes()


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6, deadline=None)
def test_the_number_of_threads_changes_nothing(seed: int) -> None:
    jobs = [random_case(seed + i, torch.float32, steps=4)[2] for i in range(5)]
    one, two = native.train_many(jobs, threads=1), native.train_many(jobs, threads=2)
    for (w1, l1), (w2, l2) in zip(one, two, strict=True):
        assert l1.tobytes() == l2.tobytes()
        assert all(w1[name].tobytes() == w2[name].tobytes() for name in w1)


@pytest.mark.parametrize(("time", "channels"), [(8, 1), (16, 2), (33, 6), (128, 9)])
@pytest.mark.parametrize("encoders", [1, 2])
def test_the_network_for_series_agrees_with_torch(time: int, channels: int, encoders: int) -> None:
    torch.manual_seed(6)
    spec = ModelSpec("cnn1d", (time, channels), 5, encoders)
    model = spec.build().double()
    x = torch.randn(9, time, channels, dtype=torch.float64)
    network = native.describe(model, spec.shape)
    assert network is not None, native.obstacle(model, spec.shape)
    order = np.concatenate([np.random.default_rng(i).permutation(9) for i in range(4)])
    data = native.samples(x), np.arange(9) % 5, order, np.array([4, 5] * 4)
    job = Job(network, weights_of(model), *data, lr=0.02, momentum=0.5)
    scores = native.scores(network, job.weights, job.x)
    np.testing.assert_allclose(scores, model(x).detach(), rtol=1e-10, atol=1e-12)
    single = native.scores(network, {k: v.astype("f4") for k, v in job.weights.items()}, job.x.astype("f4"))
    np.testing.assert_allclose(single, scores, rtol=1e-5, atol=1e-5 * np.abs(scores).max())
    trained, losses = native.train(job)
    np.testing.assert_allclose(losses, torch_train(model, x, job), rtol=1e-11)
    for name, expected in weights_of(model).items():
        np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=1e-11, err_msg=name)


def test_a_convolution_over_time_by_hand() -> None:
    """Two channels, three steps: weights 1, 2, 3 on the first channel and 10 on the middle step of the second."""
    over_time = Conv("c", 2, 1, 3, padding=1, bias=False, series=True)
    network = Network((TimeLast(), over_time, Flatten()), (Linear("h", 3, 3, bias=False),))
    weights = {"c.weight": np.array([[[1, 2, 3], [0, 10, 0]]], np.float32), "h.weight": np.eye(3, dtype=np.float32)}
    x = np.array([[[1, 0], [2, 1], [4, 0]]], np.float32)
    # step 0: 2*1 + 3*2; step 1: 1*1 + 2*2 + 3*4 + 10*1; step 2: 1*2 + 2*4
    assert native.scores(network, weights, x).tolist() == [[8, 27, 10]]


def test_a_series_that_is_not_turned_is_a_vector_in_the_order_of_its_file() -> None:
    head = (Linear("h", 6, 6, bias=False),)
    weights, x = {"h.weight": np.eye(6, dtype=np.float32)}, np.arange(6, dtype=np.float32).reshape(1, 3, 2)
    assert native.scores(Network((Flatten(),), head), weights, x).tolist() == [[0, 1, 2, 3, 4, 5]]
    assert native.scores(Network((TimeLast(), Flatten()), head), weights, x).tolist() == [[0, 2, 4, 1, 3, 5]]


LAYERS: dict[str, list[nn.Module]] = {
    "convolution": [nn.Conv2d(2, 3, 3, padding=1), nn.Flatten()],
    "strided convolution": [nn.Conv2d(2, 3, 3, 2), nn.Flatten()],
    "convolution, pool, relu": [nn.Conv2d(2, 9, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()],
    "two convolutions": [nn.Conv2d(2, 5, 3, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(5, 4, 3), nn.Flatten()],
    "group norm": [nn.Conv2d(2, 4, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten()],
    "average pool": [nn.Conv2d(2, 4, 1), nn.AvgPool2d(3, 2), nn.Flatten()],
    "max pool": [nn.Conv2d(2, 4, 1), nn.AvgPool2d(1), nn.MaxPool2d(3, 2), nn.Flatten()],
    "dropout": [nn.Conv2d(2, 4, 1), Dropout(0.4), nn.Flatten()],
    "linear": [nn.Flatten(), nn.Linear(2 * 6 * 7, 5), nn.ReLU()],
}


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_gradients_equal_finite_differences(layers: list[nn.Module]) -> None:
    torch.manual_seed(1)
    rng = np.random.default_rng(1)
    shape = (2, 6, 7)
    encoder = copy.deepcopy(nn.Sequential(*layers))
    for layer in encoder:  # the same weights every time: differences taken across a kink of ReLU would be wrong
        if hasattr(layer, "reset_parameters"):
            layer.reset_parameters()
    model = Single(encoder, nn.Linear(width(encoder, shape), 3)).double()
    network = native.describe(model, shape)
    assert network is not None
    order = np.arange(4)
    job = Job(
        network, weights_of(model), rng.normal(size=(4, 6, 7, 2)), np.array([0, 1, 2, 0]), order, np.array([4]), lr=1.0
    )
    trained, _ = native.train(job)

    def loss(name: str, at: int, move: float) -> float:
        moved = {key: value.copy() for key, value in job.weights.items()}
        moved[name].ravel()[at] += move
        return float(native.train(replace(job, weights=moved))[1][0])

    for name, before in job.weights.items():
        for at in rng.choice(before.size, min(before.size, 4), replace=False):
            difference = (loss(name, at, 1e-5) - loss(name, at, -1e-5)) / 2e-5
            assert (before - trained[name]).ravel()[at] == pytest.approx(difference, rel=1e-5, abs=1e-8), name


@given(key=st.integers(0, 2**128 - 1), layer=st.integers(0, 9), step=st.integers(0, 10**6), count=st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_dropout_draws_equal_the_numpy_reference(key: int, layer: int, step: int, count: int) -> None:
    draws = native._kernels.dropout_draws((key & (2**64 - 1), key >> 64), layer, step, count)
    for p in (0.1, 0.5):
        assert ((draws >= round(p * 65536)) == (dropout_mask(key, layer, step, (count,), p) > 0)).all()


def test_one_step_by_hand() -> None:
    """Scores 0 and 0: the loss is ln 2, the gradient of the first score (label 1) is 1/2, of its weight x / 2."""
    network = Network((Flatten(),), (Linear("head", 1, 2),))
    weights = {"head.weight": np.zeros((2, 1), np.float32), "head.bias": np.zeros(2, np.float32)}
    job = Job(network, weights, np.array([[3.0]], np.float32), np.array([1]), np.array([0]), np.array([1]), lr=0.5)
    trained, losses = native.train(job)
    assert losses == pytest.approx([np.log(2)])
    assert trained["head.weight"].tolist() == [[-0.75], [0.75]]
    assert trained["head.bias"].tolist() == [-0.25, 0.25]


def test_an_empty_schedule_changes_nothing() -> None:
    _, _, job = random_case(3, torch.float32, steps=1)
    empty = np.empty(0, np.int64)
    trained, losses = native.train(replace(job, order=empty, batch_sizes=empty))
    assert len(losses) == 0
    assert all(trained[name].tobytes() == value.tobytes() for name, value in job.weights.items())
