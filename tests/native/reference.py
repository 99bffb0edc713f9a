"""Plain PyTorch as the reference, and random networks, samples and settings to compare on."""

import itertools

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from feddag import native
from feddag.encoders import TimeLast
from feddag.native import Job
from feddag.rng import dropout_mask


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
    strengths = {
        id(p): job.proximal.get(name, 0.0) if isinstance(job.proximal, dict) else job.proximal
        for name, part in part_names(model).items()
        for p in part.parameters()
    }
    sgd = torch.optim.SGD(parameters, job.lr, job.momentum, weight_decay=job.weight_decay)
    y = torch.from_numpy(job.y)
    losses = []
    ends = np.cumsum(job.batch_sizes)
    for start, end in itertools.pairwise([0, *ends]):
        index = torch.from_numpy(job.order[start:end])
        each = functional.cross_entropy(model(x[index]), y[index], reduction="none")
        weight = torch.ones_like(each) if job.sample_weights is None else torch.from_numpy(job.sample_weights)[index]
        loss = (weight * each).sum() / weight.sum()
        pull = sum(strengths[id(p)] / 2 * ((p - a) ** 2).sum() for p, a in zip(parameters, anchors, strict=True))
        sgd.zero_grad()
        (loss + pull).backward()
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

    series = len(shape) == 2
    conv, max_pool, avg_pool = (
        (nn.Conv1d, nn.MaxPool1d, nn.AvgPool1d) if series else (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)
    )
    if series:
        add(TimeLast() if rng.random() < 0.8 else nn.Flatten())
    if x.ndim > 2:
        for _ in range(rng.integers(0, 4)):
            side = min(x.shape[2:])
            kind = rng.choice(["conv", "conv", "conv", "relu", "max", "avg", "norm", "drop"])
            if kind == "conv":
                padding = int(rng.integers(0, 3))
                kernel = int(rng.integers(1, min(5, side + 2 * padding) + 1))
                channels = int(rng.choice([1, 3, 6, 8, 16, 20]))
                stride = int(rng.choice([1, 1, 2]))
                add(conv(x.shape[1], channels, kernel, stride, padding, bias=bool(rng.random() < 0.8)))
                side = min(x.shape[2:])
                after = str(rng.choice(["", "r", "p", "rp", "pr"]))
                for letter in after:
                    k = int(rng.integers(1, min(3, side) + 1))
                    add(nn.ReLU() if letter == "r" else max_pool(k, int(rng.integers(1, k + 1))))
            elif kind == "relu":
                add(nn.ReLU())
            elif kind in ("max", "avg"):
                k = int(rng.integers(1, min(3, side) + 1))
                add((max_pool if kind == "max" else avg_pool)(k, int(rng.integers(1, k + 1))))
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


def random_pull(rng: np.random.Generator, parts: tuple[str, ...]) -> float | dict[str, float]:
    """The same for all parts, or of a strength of its own for some of them."""
    if rng.random() < 0.7:
        return float(rng.choice([0, 0.1]))
    return {part: float(rng.choice([0, 0.1, 0.3])) for part in parts if rng.random() < 0.7}


def random_case(seed: int, dtype: torch.dtype, steps: int) -> tuple[nn.Module, Tensor, Job]:
    """A random network with random samples and random settings of everything."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    image = (int(rng.integers(1, 4)), *(int(n) for n in rng.integers(5, 12, 2)))
    kind = rng.random()
    shape = image if kind < 0.6 else (int(rng.integers(5, 30)), int(rng.integers(1, 20))) if kind < 0.9 else (7,)
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
        proximal=random_pull(rng, network.parts),
        anchor={name: value + real(0.01) for name, value in weights.items()} if rng.random() < 0.5 else None,
        clip=float(rng.choice([0.1, 1.0])) if rng.random() < 0.3 else None,
        sample_weights=rng.random(count).astype(real) + real(0.1) if rng.random() < 0.3 else None,
        trainable=tuple(part for part in learning if rng.random() < 0.7) or tuple(learning),
        dropout_key=int.from_bytes(rng.bytes(16), "little"),
    )
    return model, x, job
