"""The native trainer against PyTorch in double precision, against finite differences, and against hostile input."""

import copy
import importlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from feddag import native
from feddag.errors import FeddagError
from feddag.native import Conv, Flatten, Job, Linear, MaxPool, Network, ReLU
from feddag.rng import dropout_mask

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "available")
torch.set_num_threads(1)

BUILDS = importlib.import_module("feddag.native._portable").runnable() if native.available() else ["none"]


@pytest.fixture(scope="module", params=BUILDS, autouse=True)
def build(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs with every build that this processor can run."""
    saved = native._kernels
    native._kernels = importlib.import_module(f"feddag.native._{request.param}")
    yield request.param
    native._kernels = saved


class Dropout(nn.Module):
    """Dropout with the shared masks; `layer` is its number among the dropouts of its network."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.layer, self.step, self.key = p, 0, 0, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = dropout_mask(self.key, self.layer, self.step, tuple(x.shape), self.p)
        self.step += 1
        return x * torch.from_numpy(mask).to(x)


class Single(nn.Module):
    def __init__(self, encoder: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


class Dual(nn.Module):
    def __init__(self, primary: nn.Module, secondary: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.primary, self.secondary, self.head = primary, secondary, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.primary(x), self.secondary(x)], dim=1))


def part_names(model: nn.Module) -> dict[str, nn.Module]:
    return {{"primary": "encoder"}.get(name, name): part for name, part in model.named_children()}


def torch_train(model: nn.Module, x: Tensor, job: Job) -> np.ndarray:
    """The reference: plain PyTorch, trained in place; returns the losses."""
    trainable = job.network.parts if job.trainable is None else job.trainable
    model.train()
    for name, part in part_names(model).items():
        if name not in trainable:
            part.eval().requires_grad_(False)
    for layer, module in enumerate(m for m in model.modules() if isinstance(m, Dropout)):
        module.layer, module.key, module.step = layer, job.dropout_key, 0
    parameters = [p for p in model.parameters() if p.requires_grad]
    names = {id(p): name for name, p in model.named_parameters()}
    anchors = [torch.from_numpy((job.anchor or job.weights)[names[id(p)]]) for p in parameters]
    sgd = torch.optim.SGD(parameters, job.lr, job.momentum, weight_decay=job.weight_decay)
    y = torch.from_numpy(job.y)
    losses = []
    ends = np.cumsum(job.batch_sizes)
    for start, end in itertools.pairwise([0, *ends]):
        index = torch.from_numpy(job.order[start:end])
        each = functional.cross_entropy(model(x[index]), y[index], reduction="none")
        weight = torch.ones_like(each) if job.sample_weights is None else torch.from_numpy(job.sample_weights)[index]
        loss = (weight * each).sum() / weight.sum()
        pull = sum(((p - a) ** 2).sum() for p, a in zip(parameters, anchors, strict=True))
        sgd.zero_grad()
        (loss + job.proximal / 2 * pull).backward()
        if job.clip is not None:
            nn.utils.clip_grad_norm_(parameters, job.clip)
        sgd.step()
        losses.append(loss.item())
    return np.array(losses)


def weights_of(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(value.detach().numpy().copy()) for name, value in model.state_dict().items()}


def random_layers(rng: np.random.Generator, shape: tuple[int, ...]) -> nn.Sequential:
    """A random stack for samples of this shape that ends with a vector."""
    layers: list[nn.Module] = []
    x = torch.zeros(1, *shape)

    def add(layer: nn.Module) -> None:
        nonlocal x
        x = layer(x)
        layers.append(layer)

    if len(shape) == 3:
        for _ in range(rng.integers(0, 4)):
            side = min(x.shape[2:])
            kind = rng.choice(["conv", "conv", "conv", "relu", "max", "avg", "norm", "drop"])
            if kind == "conv":
                padding = int(rng.integers(0, 3))
                kernel = int(rng.integers(1, min(5, side + 2 * padding) + 1))
                channels = int(rng.choice([1, 3, 6, 8, 16, 20]))
                stride = int(rng.choice([1, 1, 2]))
                add(nn.Conv2d(x.shape[1], channels, kernel, stride, padding, bias=bool(rng.random() < 0.8)))
                side = min(x.shape[2:])
                after = str(rng.choice(["", "r", "p", "rp", "pr"]))
                for letter in after:
                    k = int(rng.integers(1, min(3, side) + 1))
                    add(nn.ReLU() if letter == "r" else nn.MaxPool2d(k, int(rng.integers(1, k + 1))))
            elif kind == "relu":
                add(nn.ReLU())
            elif kind in ("max", "avg"):
                k = int(rng.integers(1, min(3, side) + 1))
                add((nn.MaxPool2d if kind == "max" else nn.AvgPool2d)(k, int(rng.integers(1, k + 1))))
            elif kind == "norm" and x.shape[2:].numel() > 1:
                channels = x.shape[1]
                add(nn.GroupNorm(int(rng.choice([g for g in (1, 2, 3, channels) if channels % g == 0])), channels))
            else:
                add(Dropout(0.3))
        add(nn.Flatten())
    for _ in range(rng.integers(0, 3)):
        add(nn.Linear(x.shape[1], int(rng.integers(2, 40)), bias=bool(rng.random() < 0.8)))
        if rng.random() < 0.6:
            add(nn.ReLU())
        if rng.random() < 0.3:
            add(Dropout(0.5))
    return nn.Sequential(*layers)


def width(layers: nn.Module, shape: tuple[int, ...]) -> int:
    return layers(torch.zeros(1, *shape)).shape[1]


def random_case(seed: int, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Tensor, Job]:
    """A random network with random samples and random settings of everything."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), *(int(n) for n in rng.integers(5, 12, 2))) if rng.random() < 0.8 else (7,)
    first = random_layers(rng, shape)
    head_input = width(first, shape)
    classes = int(rng.integers(2, 12))
    model: nn.Module
    if rng.random() < 0.4:
        second = random_layers(rng, shape)
        head_input += width(second, shape)
        hidden = random_layers(rng, (head_input,))
        head = nn.Sequential(*hidden, nn.Linear(width(hidden, (head_input,)), classes))
        model = Dual(first, second, head)
    else:
        model = Single(first, nn.Linear(head_input, classes))
    model.to(dtype)
    count = int(rng.integers(3, 30))
    x = torch.randn(count, *shape, dtype=dtype)
    network = native.describe(model, shape)
    assert network is not None, native.obstacle(model, shape)
    weights = weights_of(model)
    learning = [part for part in network.parts if any(True for _ in part_names(model)[part].parameters())]
    sizes = rng.integers(1, 14, steps)
    real = np.float64 if dtype == torch.float64 else np.float32
    job = Job(
        network,
        weights,
        native.samples(x),
        rng.integers(0, classes, count),
        rng.integers(0, count, sizes.sum()),
        sizes,
        lr=0.02,
        momentum=float(rng.choice([0, 0.5, 0.9])),
        weight_decay=float(rng.choice([0, 0.01])),
        proximal=float(rng.choice([0, 0.1])),
        anchor={name: value + real(0.01) for name, value in weights.items()} if rng.random() < 0.5 else None,
        clip=float(rng.choice([0.1, 1.0])) if rng.random() < 0.3 else None,
        sample_weights=rng.random(count).astype(real) + real(0.1) if rng.random() < 0.3 else None,
        trainable=tuple(part for part in learning if rng.random() < 0.7) or tuple(learning),
        dropout_key=int.from_bytes(rng.bytes(16), "little"),
    )
    return model, x, job


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_fifty_steps_agree_with_torch_in_double(seed: int) -> None:
    model, x, job = random_case(seed, torch.float64, steps=50)
    trained, losses = native.train(job)
    expected_losses = torch_train(model, x, job)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-9, atol=1e-9)
    for name, expected in weights_of(model).items():
        tolerance = 1e-9 * max(0.01, np.abs(expected).max())
        np.testing.assert_allclose(trained[name], expected, rtol=1e-9, atol=tolerance, err_msg=name)


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
    for label in range(classes):
        assert correct[label] == hits[y == label].sum()
        assert count[label] == (y == label).sum()
        assert loss[label] == pytest.approx(losses[y == label].sum().item(), rel=1e-9, abs=1e-9)


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
    for layer in encoder:  # the same weights every time: a slope taken across a kink of ReLU would be wrong
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
            slope = (loss(name, at, 1e-5) - loss(name, at, -1e-5)) / 2e-5
            assert (before - trained[name]).ravel()[at] == pytest.approx(slope, rel=1e-5, abs=1e-8), name


@given(key=st.integers(0, 2**128 - 1), layer=st.integers(0, 9), step=st.integers(0, 10**6), count=st.integers(1, 200))
@settings(max_examples=50, deadline=None)
def test_dropout_draws_equal_the_numpy_reference(key: int, layer: int, step: int, count: int) -> None:
    draws = native._kernels.dropout_draws((key & (2**64 - 1), key >> 64), layer, step, count)
    for p in (0.1, 0.5):
        assert ((draws >= round(p * 65536)) == (dropout_mask(key, layer, step, (count,), p) > 0)).all()


def test_one_step_by_hand() -> None:
    """Scores 0 and 0: the loss is ln 2, the slope of the first score (label 1) is 1/2, of its weight x / 2."""
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


def small_job() -> Job:
    network = Network((Conv("c", 1, 2, 3), ReLU(), MaxPool(2, 2), Flatten()), (Linear("h", 8, 3),))
    shapes = {"c.weight": (2, 1, 3, 3), "c.bias": (2,), "h.weight": (3, 8), "h.bias": (3,)}
    weights = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    x = np.ones((5, 6, 6, 1), np.float32)
    return Job(network, weights, x, np.arange(5) % 3, np.arange(5), np.array([2, 3]), lr=0.1)


HOSTILE = {
    "wrong kind of x": ({"x": np.ones((5, 6, 6, 1), np.int32)}, "x is an array of int32"),
    "missing axis": ({"x": np.ones((5, 6, 6), np.float32)}, "x has 3 axes"),
    "empty side": ({"x": np.ones((5, 0, 6, 1), np.float32)}, "sides"),
    "other channels": ({"x": np.ones((5, 6, 6, 2), np.float32)}, "takes 1 channels"),
    "too small": ({"x": np.ones((5, 2, 2, 1), np.float32)}, "window of 3"),
    "other size": ({"x": np.ones((5, 8, 8, 1), np.float32)}, "takes 8 values"),
    "not contiguous": ({"x": np.ones((5, 6, 12, 1), np.float32)[:, :, ::2]}, "contiguous"),
    "labels beyond": ({"y": np.array([0, 1, 3, 0, 0])}, "label 3"),
    "negative label": ({"y": np.array([0, 1, -1, 0, 0])}, "label -1"),
    "few labels": ({"y": np.array([0, 1])}, "y has shape"),
    "labels of float": ({"y": np.zeros(5)}, "y is not a NumPy array of int64"),
    "index beyond": ({"order": np.array([0, 1, 2, 3, 5])}, "index 5"),
    "negative index": ({"order": np.array([0, 1, 2, 3, -1])}, "index -1"),
    "sizes too many": ({"batch_sizes": np.array([2, 4])}, "add up to 6"),
    "size zero": ({"batch_sizes": np.array([0, 5])}, "batch_sizes holds 0"),
    "huge size": ({"batch_sizes": np.array([2**40, 5])}, "batch_sizes holds"),
    "nan rate": ({"lr": float("nan")}, "lr is nan"),
    "negative decay": ({"weight_decay": -1.0}, "weight_decay is -1.0"),
    "no clip": ({"clip": 0.0}, "clip is 0.0"),
    "unknown part": ({"trainable": ("body",)}, "'body'"),
    "absent part": ({"trainable": ("secondary",)}, "'secondary'"),
    "sample weights": ({"sample_weights": -np.ones(5, np.float32)}, "sample_weights"),
    "huge kernel": (
        {"network": Network((Conv("c", 1, 2, 2**40), Flatten()), (Linear("h", 8, 3),))},
        "kernel of a layer",
    ),
    "huge width": ({"network": Network((Flatten(),), (Linear("h", 36, 2**24),))}, "2^2"),
    "huge batch": (
        {
            "network": Network((Flatten(),), (Linear("h", 36, 4096),)),
            "order": np.zeros(2**20, np.int64),
            "batch_sizes": np.array([2**20]),
        },
        "batch of 1048576",
    ),
    "zero stride": ({"network": Network((MaxPool(2, 0), Flatten()), (Linear("h", 9, 3),))}, "stride of a layer"),
    "no flatten": ({"network": Network((Conv("c", 1, 2, 3),), (Linear("h", 8, 3),))}, "Flatten"),
    "weights missing": ({"weights": {}}, "weights has no 'c.weight'"),
    "weights of double": (
        {"weights": {"c.weight": np.ones((2, 1, 3, 3))}},
        "'c.weight' is not a NumPy array of float32",
    ),
    "weights of other shape": ({"weights": {"c.weight": np.ones((2, 1, 3, 2), np.float32)}}, r"shape \(2, 1, 3, 2\)"),
}


@pytest.mark.parametrize(("change", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_input_is_refused_in_one_sentence(change: dict[str, object], message: str) -> None:
    with pytest.raises(FeddagError, match=message.replace("^", r"\^")) as caught:
        native.train(replace(small_job(), **change))
    assert "\n" not in str(caught.value)


def test_nan_input_does_not_crash_and_is_seen_in_the_loss() -> None:
    job = small_job()
    _, losses = native.train(replace(job, x=np.full_like(job.x, np.nan)))
    assert np.isnan(losses).all()


def test_numbers_of_threads_and_classes_are_checked() -> None:
    job = small_job()
    assert native.train_many([], threads=1) == []
    with pytest.raises(FeddagError, match="threads = 0"):
        native.train_many([job], threads=0)
    with pytest.raises(FeddagError, match="num_classes = 4"):
        native.evaluate(job.network, job.weights, job.x, job.y, 4)


def test_what_cannot_be_described_is_named() -> None:
    bad = {
        "BatchNorm2d": nn.BatchNorm2d(3),
        "not square": nn.Conv2d(3, 3, (3, 5)),
        "groups=3": nn.Conv2d(3, 3, 3, groups=3),
        "ceil_mode=True": nn.MaxPool2d(2, ceil_mode=True),
        "takes 7 values": nn.Sequential(nn.Flatten(), nn.Linear(7, 2)),
    }
    for message, module in bad.items():
        model = Single(
            module if isinstance(module, nn.Sequential) else nn.Sequential(module, nn.Flatten()), nn.Identity()
        )
        assert native.describe(model, (3, 8, 8)) is None
        assert message in native.obstacle(model, (3, 8, 8))


def test_without_a_build_everything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_kernels", None)
    monkeypatch.setattr(native, "_reason", "there is no compiler")
    assert not native.available()
    assert native.reason() == "there is no compiler"
    with pytest.raises(FeddagError, match="no compiler"):
        native.train(small_job())
