from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from feddag.data import datasets, obtain
from feddag.data.datasets import load
from feddag.data.obtain import local
from tests.data import refused


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No data anywhere but in the folder `mine`."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FEDDAG_DATA", str(tmp_path / "mine"))
    monkeypatch.setattr(local, "SYSTEM_FOLDER", tmp_path / "system")
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_digits() -> None:
    first, again = load("digits"), load("digits")
    assert first.name == "digits"
    assert first.x_train.shape == (1438, 8, 8, 1)
    assert first.x_train.dtype == np.uint8
    assert first.x_train.max() == 16
    assert first.classes == tuple("0123456789")
    assert np.array_equal(first.x_test, again.x_test)
    whole = np.bincount(first.y_train) + np.bincount(first.y_test)
    assert whole.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (np.abs(np.bincount(first.y_test) - whole / 5) < 1).all()
    assert first.mean == pytest.approx([first.x_train.mean()])
    assert first.std == pytest.approx([first.x_train.std()])


def test_a_known_set_gets_its_published_statistics_and_class_names(bare_machine: Path) -> None:
    held = {"x_train": images(4, 32, 32, 3), "y_train": [0, 9, 3, 3], "x_test": images(1, 32, 32, 3), "y_test": [5]}
    np.savez(bare_machine / "cifar10.npz", **held)
    dataset = load("cifar10")
    assert dataset.mean == pytest.approx((125.307, 122.961, 113.8575))
    assert dataset.std == pytest.approx((51.5865, 50.847, 51.255))
    assert dataset.num_classes == 10
    assert [dataset.classes[label] for label in dataset.y_train] == ["airplane", "truck", "cat", "cat"]
    np.savez(bare_machine / "cifar10.npz", **held | {"y_test": [10]})
    with refused(bare_machine / "cifar10.npz", "0 .. 9"):
        load("cifar10")


def test_statistics_of_all_known_sets_fit_their_channels() -> None:
    for name, (mean, std) in datasets.STATISTICS.items():
        channels = int(obtain.KNOWN[name].content.split("x")[2][0])
        assert len(mean) == len(std) == channels
    for name, classes in datasets.CLASSES.items():
        assert len(set(classes)) == len(classes) == obtain.KNOWN[name].classes


def test_femnist_keeps_its_writers(bare_machine: Path) -> None:
    (bare_machine / "femnist").mkdir()
    user = '{"x": [' + ",".join([str([0.0] * 784)] * 3) + '], "y": [0, 10, 61]}'
    text = '{"users": ["w1", "w0"], "num_samples": [3, 3], "user_data": {"w1": USER, "w0": USER}}'.replace("USER", user)
    (bare_machine / "femnist" / "all.json").write_text(text)
    dataset = load("femnist")
    assert dataset.num_classes == 62
    assert (dataset.classes[0], dataset.classes[10], dataset.classes[61]) == ("0", "A", "z")
    assert dataset.owners == ("w0", "w1")
    assert dataset.owner_train is not None
    assert dataset.owner_test is not None
    assert np.bincount(dataset.owner_train).tolist() == [2, 2]
    assert np.bincount(dataset.owner_test).tolist() == [1, 1]


def test_versions_of_one_picture_stay_on_one_side(bare_machine: Path) -> None:
    """Every picture of CIFAR-10-C comes in each corruption and severity; training on one must not reveal another."""
    folder = bare_machine / "CIFAR-10-C"
    folder.mkdir()
    pictures = np.arange(20, dtype=np.uint8)
    x = np.tile(pictures, 5)[:, None, None, None] * np.ones((1, 32, 32, 3), np.uint8)
    np.save(folder / "labels.npy", np.tile(pictures % 2, 5))
    for corruption in ("fog", "snow"):
        np.save(folder / f"{corruption}.npy", x)
    dataset = load("cifar10-c")
    train, test = (set(part[:, 0, 0, 0].tolist()) for part in (dataset.x_train, dataset.x_test))
    assert len(train) == 16
    assert len(test) == 4
    assert train.isdisjoint(test)
    assert dataset.domains == ("fog", "snow")
    assert dataset.domain_test is not None
    assert np.bincount(dataset.domain_test).tolist() == [20, 20]
    assert np.bincount(dataset.y_test).tolist() == [20, 20]


def test_names_and_paths_that_do_not_exist(bare_machine: Path) -> None:
    with refused("''", "fmnist"):
        load("")
    with refused("'cifar11'", "did you mean 'cifar10'?", "tiny-imagenet-c"):
        load("cifar11")
    with refused("'fmnist'", "`feddag data get fmnist`"):
        load("fmnist")
    with refused("'pacs'", "pacs48.npz", "FEDDAG_DATA"):
        load("pacs")
    with refused("nowhere.npz", "missing"):
        load("nowhere.npz")
    with refused("no/where"):
        load("no/where")
    (bare_machine / "notes.txt").write_text("text")
    with refused("notes.txt", ".npz"):
        load(str(bare_machine / "notes.txt"))


def own(folder: Path, **arrays: object) -> str:
    np.savez(folder / "own.npz", **arrays)
    return str(folder / "own.npz")


def test_own_grey_images_with_string_labels(tmp_path: Path) -> None:
    labels = ["b", "a", "c", "a", "b"] * 4
    dataset = load(own(tmp_path, x=images(20, 6, 5), y=labels))
    assert dataset.name == "own"
    assert dataset.x_train.shape == (16, 6, 5, 1)
    assert dataset.x_test.shape == (4, 6, 5, 1)
    assert dataset.classes == ("a", "b", "c")
    assert dataset.owner_train is None
    assert dataset.owners == dataset.domains == ()
    assert np.bincount(np.concatenate([dataset.y_train, dataset.y_test])).tolist() == [8, 8, 4]


def test_own_series_keep_their_shape_and_any_integers_are_labels(tmp_path: Path) -> None:
    x = np.zeros((10, 128, 6))
    x[..., 1] = 5.0  # a constant channel
    x[..., 2] = np.arange(10)[:, None]
    dataset = load(own(tmp_path, x=x, y=np.array([-3, 100] * 5), client=["u"] * 5 + ["v"] * 5, domain=[7, 8] * 5))
    assert dataset.x_train.shape == (8, 128, 6)
    assert dataset.x_train.dtype == np.float32
    assert dataset.classes == ("-3", "100")
    assert dataset.owners == ("u", "v")
    assert dataset.domains == ("7", "8")
    assert dataset.mean[:2] == (0.0, 5.0)
    assert dataset.std[:2] == (1.0, 1.0)
    assert dataset.std[2] == pytest.approx(dataset.x_train[..., 2].std())


def test_own_split_is_kept(tmp_path: Path) -> None:
    held = {"x_train": images(2, 4, 4, 3), "y_train": [5, 7], "x_test": images(1, 4, 4, 3), "y_test": [6]}
    dataset = load(own(tmp_path, **held, domain_train=["s", "t"], domain_test=["t"]))
    assert np.array_equal(dataset.x_train, held["x_train"])
    assert dataset.y_train.tolist() == [0, 2]
    assert dataset.y_test.tolist() == [1]
    assert dataset.classes == ("5", "6", "7")
    assert dataset.domain_test is not None
    assert dataset.domain_test.tolist() == [1]
    assert dataset.domain_test.dtype == dataset.y_train.dtype == np.int64


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"x": images(5, 3), "y": [0] * 4}, "(4,)"),
        ({"x": images(5, 3), "y": [0.5] * 5}, "float64"),
        ({"x": images(5, 3), "y": [[0]] * 5}, "(5, 1)"),
        ({"x": images(5, 3), "y": [0] * 5, "client": [1] * 6}, "clients"),
        ({"x": images(5), "y": [0] * 5}, "(5,)"),
        ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, "(0, 3)"),
        ({"x": ["a"] * 5, "y": [0] * 5}, "<U1"),
        ({"x": np.full((5, 3), np.nan), "y": [0] * 5}, "finite"),
        ({"x": np.full((5, 3), 1e300), "y": [0] * 5}, "finite"),
        ({"x": images(5, 3, 32, 32), "y": [0] * 5}, "last"),
        ({"x": np.full((5, 3), -np.inf), "y": [0] * 5}, "finite"),
        ({"x": images(5, 3), "y": np.full(5, 2**64 - 1, np.uint64)}, "64-bit"),
        ({"x": images(5, 3), "y": [0] * 5, "client": np.full(5, 2**63, np.uint64)}, "64-bit"),
        ({"x": images(5, 3), "y": np.frombuffer(b"\xff" * 20, "<U1")}, "cannot be written"),
        ({"x": images(5, 3), "y": ["\udc80"] * 5}, "cannot be written"),
        ({"x": images(5, 3), "y": [0] * 5, "domain": ["\ud800"] * 5}, "cannot be written"),
        ({"x": images(2, 3), "y": [0, 1]}, "too few"),
        ({"x": images(4, 3), "y": [0] * 4, "client": [1, 1, 2, 2]}, "too few"),
        ({"x_train": images(5, 3), "y_train": [0] * 5, "x_test": images(5, 4), "y_test": [0] * 5}, "(4,)"),
        ({"x_train": images(5, 3, 3), "y_train": [0] * 5, "x_test": np.ones((5, 3, 3)), "y_test": [0] * 5}, "float32"),
    ],
)
def test_own_arrays_that_do_not_fit(tmp_path: Path, arrays: dict[str, object], word: str) -> None:
    path = own(tmp_path, **arrays)
    with refused(path, word):
        load(path)


def test_labels_may_be_as_small_or_large_as_64_bits_allow(tmp_path: Path) -> None:
    dataset = load(own(tmp_path, x=images(10, 3), y=[-(2**63), 2**63 - 1] * 5))
    assert dataset.classes == (str(-(2**63)), str(2**63 - 1))


def test_own_image_folder(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / "pets" / kind).mkdir(parents=True)
        for number in range(5):
            Image.fromarray(images(4, 4, 3)).save(tmp_path / "pets" / kind / f"{number}.png")
    dataset = load(str(tmp_path / "pets"))
    assert dataset.name == "pets"
    assert dataset.classes == ("cat", "dog")
    assert dataset.x_train.shape == (8, 4, 4, 3)
    assert np.bincount(dataset.y_test).tolist() == [1, 1]


@settings(max_examples=60, deadline=None)
@given(
    y=hnp.arrays(np.int64, st.shared(st.integers(1, 60), key="n"), elements=st.integers(-2, 3)),
    group=hnp.arrays(np.int64, st.shared(st.integers(1, 60), key="n"), elements=st.integers(0, 4)),
)
def test_a_fifth_of_every_group_and_nearly_of_every_class_in_it(y: np.ndarray, group: np.ndarray) -> None:
    test = datasets._every_fifth(y, group)
    for member in np.unique(group):
        there = group == member
        assert test[there].sum() == (there.sum() + 2) // 5  # n / 5, rounded
        for label in np.unique(y[there]):
            kind = there & (y == label)
            assert abs(test[kind].sum() - kind.sum() / 5) < 1


def test_small_groups_take_turns_in_the_class_they_give() -> None:
    """A hundred owners with one sample of each of ten classes: no class is systematically spared."""
    y, group = np.tile(np.arange(10), 100), np.repeat(np.arange(100), 10)
    given_away = np.bincount(y[datasets._every_fifth(y, group)], minlength=10)
    assert given_away.sum() == 200
    assert given_away.min() > 5


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=3, max_side=4),
        elements=st.floats(-1000, 1000, width=32, allow_subnormal=False),
    )
)
def test_normalised_values_stay_moderate(x: np.ndarray) -> None:
    mean, std = datasets._measured(x)
    normalised = (x.astype(np.float64) - mean) / std
    assert np.abs(normalised).max() <= np.sqrt(x.size) + 1e-3  # no value lies further out than that, ever
