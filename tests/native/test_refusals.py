"""The native trainer against hostile input, and networks that it does not understand."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from feddag import native
from feddag.errors import FeddagError
from feddag.native import Conv, Flatten, Job, Linear, MaxPool, Network, ReLU, TimeLast
from tests.native.reference import Single


def small_job() -> Job:
    network = Network((Conv("c", 1, 2, 3), ReLU(), MaxPool(2, 2), Flatten()), (Linear("h", 8, 3),))
    shapes = {"c.weight": (2, 1, 3, 3), "c.bias": (2,), "h.weight": (3, 8), "h.bias": (3,)}
    weights = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    x = np.ones((5, 6, 6, 1), np.float32)
    return Job(network, weights, x, np.arange(5) % 3, np.arange(5), np.array([2, 3]), lr=0.1)


SERIES = Network((TimeLast(), Conv("c", 1, 2, 3, series=True), ReLU(), Flatten()), (Linear("h", 8, 3),))
HOSTILE = {
    "wrong kind of x": ({"x": np.ones((5, 6, 6, 1), np.int32)}, "x is an array of int32"),
    "missing axes": ({"x": np.ones(5, np.float32)}, "x has 1 axes"),
    "a series for an image": ({"x": np.ones((5, 6, 6), np.float32)}, "takes 1 channels but its input is 36 values"),
    "an image for a series": ({"network": SERIES}, "needs a series but its input is 1 channels of 6 x 6"),
    "a series too short": ({"network": SERIES, "x": np.ones((5, 2, 1), np.float32)}, "window of 3"),
    "squares over time": (
        {"network": replace(SERIES, encoder=(TimeLast(), Conv("c", 1, 2, 1))), "x": np.ones((5, 6, 1), np.float32)},
        "is for images but its input is 1 channels of 6 steps",
    ),
    "time over squares": (
        {"network": Network((MaxPool(2, 2, series=True), Flatten()), (Linear("h", 18, 3),))},
        "is for series but its input is 1 channels of 6 x 6",
    ),
    "time turned twice": (
        {"network": Network((TimeLast(), TimeLast(), Flatten()), ()), "x": np.ones((5, 6, 1), np.float32)},
        "is not the first of its part",
    ),
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
    "pull of an absent part": ({"proximal": {"secondary": 0.1}}, "proximal holds 'secondary'"),
    "negative pull": ({"proximal": {"head": -0.1}}, "proximal is -0.1"),
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


def test_heads_and_groups_are_checked() -> None:
    job = small_job()
    for head, message in (({}, "a head has no 'h.weight'"), (None, "a head is not a dictionary")):
        with pytest.raises(FeddagError, match=message):
            native.evaluate_heads(job.network, job.weights, [head], job.x, job.y, [5])  # type: ignore[list-item]
    with pytest.raises(FeddagError, match=r"group has shape \(4\)"):
        native.evaluate_heads(job.network, job.weights, [job.weights], job.x, job.y, [3, 1])
    for beyond in (-1, 2):
        given = {"network": job.network, "weights": job.weights, "heads": [], "x": job.x, "y": job.y, "groups": 2}
        with pytest.raises(FeddagError, match=f"group holds the number {beyond}, but there are 2 groups"):
            native._call("evaluate", job.x, given | {"group": np.full(5, beyond)})


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


def test_a_layer_that_stands_there_twice_is_computed_twice() -> None:
    relu, linear = nn.ReLU(), nn.Linear(4, 4)
    network = native.describe(Single(nn.Sequential(nn.Flatten(), relu, linear, relu), nn.Identity()), (1, 2, 2))
    assert network is not None
    assert network.encoder == (Flatten(), ReLU(), Linear("encoder.2", 4, 4), ReLU())
    tied = Single(nn.Sequential(nn.Flatten(), linear, relu, linear), nn.Identity())
    assert "uses some of its weights twice" in native.obstacle(tied, (1, 2, 2))


def test_without_a_build_everything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_kernels", None)
    monkeypatch.setattr(native, "_reason", "there is no compiler")
    assert not native.available()
    assert native.reason() == "there is no compiler"
    with pytest.raises(FeddagError, match="no compiler"):
        native.train(small_job())
