"""Both trainers against each other and against gradients by hand: anchors, sample weights, losses."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from feddag import native
from feddag.client.trainer import (
    LocalSettings,
    NativeTrainer,
    Pull,
    TorchTrainer,
    Trainer,
    make_trainer,
    merged_pulls,
    native_network,
)
from feddag.errors import FeddagError
from feddag.heads import without
from feddag.models import ModelSpec
from feddag.weights import Weights, only, part_of

SPEC = ModelSpec("mlp", (4,), 3)
PLAIN = LocalSettings(lr=0.1, momentum=0.0, weight_decay=0.0)
BATCHES = [np.array([0, 1, 2, 3]), np.array([4, 5])] * 3


@dataclass
class Problem:
    x: Tensor
    y: Tensor
    start: Weights
    other: Weights
    third: Weights


@pytest.fixture
def problem() -> Problem:
    draw = np.random.default_rng(0)
    x = torch.from_numpy(draw.normal(size=(6, 4)).astype(np.float32))
    return Problem(x, torch.tensor([0, 1, 2, 0, 1, 2]), *(SPEC.initial_weights(0, name) for name in "abc"))


@pytest.fixture(params=["torch", "native"])
def trainer(request: pytest.FixtureRequest) -> Trainer:
    if request.param == "native" and not native.available():
        pytest.skip(native.reason())
    return make_trainer(SPEC, native_network(SPEC, request.param))


def by_hand(problem: Problem, pulls: list[Pull], weights: Tensor | None = None) -> Weights:
    """Plain gradient descent, with every pull's gradient added by itself."""
    now = {name: value.clone().requires_grad_() for name, value in problem.start.items()}
    for batch in BATCHES:
        model = SPEC.build()
        scores = torch.func.functional_call(model, now, problem.x[batch])
        losses = functional.cross_entropy(scores, problem.y[batch], reduction="none")
        shares = torch.ones(len(batch)) if weights is None else weights[batch]
        loss = (losses * shares).sum() / shares.sum()
        for pull in pulls:
            for name, value in now.items():
                if not pull.parts or part_of(name) in pull.parts:
                    loss = loss + pull.strength / 2 * ((value - pull.centre[name]) ** 2).sum()
        grads = torch.autograd.grad(loss, list(now.values()))
        now = {
            name: (value - PLAIN.lr * grad).detach().requires_grad_()
            for (name, value), grad in zip(now.items(), grads, strict=True)
        }
    return {name: value.detach() for name, value in now.items()}


def test_several_anchors_with_strengths_and_parts(trainer: Trainer, problem: Problem) -> None:
    pulls = [Pull(problem.other, 0.3), Pull(problem.third, 0.7, ("head",)), Pull(problem.start, 0.2, ("encoder",))]
    got, _ = trainer.fit(problem.start, problem.x, problem.y, BATCHES, PLAIN, pulls=pulls)
    torch.testing.assert_close(got, by_hand(problem, pulls), rtol=1e-4, atol=1e-6)
    free, _ = trainer.fit(problem.start, problem.x, problem.y, BATCHES, PLAIN)
    assert not torch.allclose(free["head.weight"], got["head.weight"], atol=1e-3)


def test_an_anchor_of_one_part_leaves_the_others_alone(trainer: Trainer, problem: Problem) -> None:
    pulls = [Pull(problem.other, 5.0, ("head",))]
    got, _ = trainer.fit(problem.start, problem.x, problem.y, BATCHES, PLAIN, parts=("encoder",), pulls=pulls)
    free, _ = trainer.fit(problem.start, problem.x, problem.y, BATCHES, PLAIN, parts=("encoder",))
    torch.testing.assert_close(got, free, rtol=0, atol=0)


def test_samples_that_count_more(trainer: Trainer, problem: Problem) -> None:
    weights = torch.tensor([1.0, 0.0, 2.0, 0.5, 3.0, 1.0])
    got, losses = trainer.fit(problem.start, problem.x, problem.y, BATCHES, PLAIN, sample_weights=weights)
    torch.testing.assert_close(got, by_hand(problem, [], weights), rtol=1e-4, atol=1e-6)
    each = trainer.losses(problem.start, problem.x, problem.y)
    first = (each[:4] * weights[:4]).sum() / weights[:4].sum()
    assert len(losses) == len(BATCHES) and float(losses[0]) == pytest.approx(float(first), abs=1e-5)


def test_the_loss_of_each_sample_and_the_scores(trainer: Trainer, problem: Problem) -> None:
    model = SPEC.build()
    model.load_state_dict(problem.start)
    scores = model(problem.x).detach()
    torch.testing.assert_close(trainer.logits(problem.start, problem.x), scores, rtol=1e-4, atol=1e-6)
    expected = functional.cross_entropy(scores, problem.y, reduction="none").double()
    torch.testing.assert_close(trainer.losses(problem.start, problem.x, problem.y), expected, rtol=1e-4, atol=1e-6)
    table = trainer.score(problem.start, problem.x, problem.y)
    assert table[:, 1].tolist() == [2, 2, 2] and float(table[:, 2].sum()) == pytest.approx(float(expected.sum()))
    assert trainer.losses(problem.start, problem.x[:0], problem.y[:0]).shape == (0,)


def test_runs_of_samples_are_scored_as_if_each_were_alone(trainer: Trainer, problem: Problem) -> None:
    sizes = [1, 3, 2]
    runs = list(zip(torch.split(problem.x, sizes), torch.split(problem.y, sizes), strict=True))
    alone = torch.stack([trainer.score(problem.start, x, y).sum(0) for x, y in runs])
    assert torch.equal(trainer.score_each(problem.start, [problem.start], problem.x, problem.y, sizes)[0], alone)
    assert torch.equal(trainer.score_each(problem.start, [problem.start], *runs[1], [3])[0], alone[1:2])


@pytest.mark.parametrize("encoders", [1, 2])
@pytest.mark.parametrize("kind", [TorchTrainer, NativeTrainer])
def test_many_heads_give_the_bytes_of_each_by_itself(kind: type, encoders: int) -> None:
    """On more samples than are scored at once, in runs of one class, over a model that has been trained in between."""
    spec = ModelSpec("lenet5", (1, 28, 28), 5, encoders)
    torch.manual_seed(7)
    sizes, labels = [3, 1, 530, 40], [2, 0, 4, 2]
    x, y = torch.randn(sum(sizes), 1, 28, 28), torch.repeat_interleave(torch.tensor(labels), torch.tensor(sizes))
    model = spec.initial_weights(0, "m")
    heads = [only(spec.initial_weights(0, name), ("head",)) for name in ("a", "b")]
    heads.append(only(without(model, torch.tensor([False, True, False, True, True])), ("head",)))
    if kind is NativeTrainer:
        network = native_network(spec, "native") if native.available() else pytest.skip(native.reason())
        assert network is not None
        trainer: Trainer = NativeTrainer(spec, network)
    else:
        trainer = TorchTrainer(spec)
    found = trainer.score_each(model, [*heads, model], x, y, sizes)
    trainer.fit(model, x[:4], y[:4], [np.arange(4)], PLAIN)  # weights that scoring left can still be trained
    runs = list(zip(torch.split(x, sizes), torch.split(y, sizes), strict=True))
    for rows, head in zip(found, [*heads, model], strict=True):
        alone = [trainer.score(model | head, *run).sum(0) for run in runs]
        assert torch.equal(rows, torch.stack(alone))
    assert float(found[2, 2, 0]) == 0 and float(found[2, 2, 2]) > 900 * 530  # a class that is out of reach


def test_pulls_of_no_strength_are_none() -> None:
    one = {"head.w": torch.zeros(1)}
    assert merged_pulls([Pull(one, 0.0)], ["encoder", "head"]) == ({}, {})


def test_what_pytorch_trained_can_be_scored_natively() -> None:
    """PyTorch keeps images and filters channels last; native code wants them in order."""
    spec = ModelSpec("lenet5", (1, 28, 28), 3)
    network = native_network(spec, "native") if native.available() else pytest.skip(native.reason())
    assert network is not None
    x, y = torch.randn(6, 1, 28, 28), torch.tensor([0, 1, 2, 0, 1, 2])
    fast = NativeTrainer(spec, network)
    trained, _ = fast.fit(
        *(spec.initial_weights(0, "m"), x, y, [np.arange(6)], PLAIN),
        penalty=lambda model, batch: 0.0 * model(batch).sum(),  # so that PyTorch does it
    )
    assert all(value.is_contiguous() for value in trained.values())
    expected = TorchTrainer(spec).score(trained, x, y)
    torch.testing.assert_close(fast.score(trained, x, y), expected, rtol=1e-4, atol=1e-5)
    lying = {name: value.to(memory_format=torch.channels_last) if value.ndim == 4 else value
             for name, value in trained.items()}  # fmt: skip
    torch.testing.assert_close(fast.score(lying, x, y), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "shape", "shapes"),
    [
        ("cnn1d", (32, 6), [(64, 6, 5), (128, 64, 5), (128, 128, 3), (3, 128)]),
        ("fedgwc-cnn", (3, 32, 32), [(64, 3, 5, 5), (64, 64, 5, 5), (384, 1600), (192, 384), (3, 192)]),
        ("fedac-cnn", (3, 32, 32), [(32, 3, 5, 5), (64, 32, 5, 5), (1024, 4096), (512, 1024), (3, 512)]),
    ],
)
def test_networks_are_trained_natively_as_on_pytorch(
    name: str, shape: tuple[int, ...], shapes: list[tuple[int, ...]]
) -> None:
    spec = ModelSpec(name, shape, 3)
    network = native_network(spec, "native") if native.available() else pytest.skip(native.reason())
    assert network is not None
    start, x, y = spec.initial_weights(0, "m"), torch.randn(6, *shape), torch.tensor([0, 1, 2, 0, 1, 2])
    sizes = [tuple(value.shape) for name, value in start.items() if name.endswith("weight")]
    assert sizes == shapes
    batches = [np.arange(4), np.arange(2, 6)]
    ours, theirs = (
        trainer.fit(start, x, y, batches, PLAIN)[0] for trainer in (NativeTrainer(spec, network), TorchTrainer(spec))
    )
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-4, atol=1e-5)


def test_a_trainer_that_cannot_train_a_model_says_so() -> None:
    with pytest.raises(FeddagError, match="trainer = 'native' cannot train model = 'resnet9'"):
        native_network(ModelSpec("resnet9", (3, 32, 32), 3), "native")
