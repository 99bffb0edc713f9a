"""Data from Python: whatever it came as, the same samples, and the same result under the same key."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import torch

import feddag
from feddag.data.datasets import Dataset, load
from feddag.errors import FeddagError
from tests.data import refused

QUICK: dict[str, Any] = {"method": "fedavg", "rounds": 1, "epochs": 1, "workers": 1, "participation": 1.0}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 3)).astype(np.float32)
Y = np.tile(["sit", "walk"], 30)
WHO = np.repeat(["ann", "bob", "eve"], 20)


def frame() -> pandas.DataFrame:
    return pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2], "activity": Y, "subject": WHO})


class Pairs(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Samples as a torch Dataset gives them: tensors, with labels as numbers."""

    def __len__(self) -> int:
        return 60

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        return torch.from_numpy(X[number]), int(Y[number] == "walk")


def by_clients() -> Dataset:
    return feddag.dataset(clients={who: (X[who == WHO], Y[who == WHO]) for who in ("ann", "bob", "eve")})


def hugging_face() -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {
            "values": datasets.List(datasets.Value("float32"), 3),
            "activity": datasets.ClassLabel(names=["sit", "walk"]),
            "subject": datasets.Value("string"),
        }
    )
    told = {"values": X.tolist(), "activity": (Y == "walk").astype(int).tolist(), "subject": WHO.tolist()}
    return datasets.Dataset.from_dict(told, features=features)


@pytest.mark.parametrize(
    "made",
    [
        by_clients,
        lambda: feddag.dataset(X, Y, client=WHO),
        lambda: feddag.dataset(X.tolist(), list(Y), client=list(WHO)),
        lambda: feddag.dataset(frame(), label="activity", client="subject"),
        lambda: feddag.dataset(frame().drop(columns="subject"), label="activity", client=WHO),
        lambda: feddag.dataset(hugging_face(), label="activity", client="subject"),
    ],
    ids=["clients", "arrays", "lists", "frame", "frame and column", "hugging face"],
)
def test_the_same_samples_are_the_same_dataset(made: Any) -> None:
    expected, found = feddag.dataset(X, Y, client=WHO, name="other"), made()
    assert found.classes == ("sit", "walk") and found.owners == ("ann", "bob", "eve")
    assert np.array_equal(found.x_train, expected.x_train) and np.array_equal(found.y_test, expected.y_test)
    assert np.array_equal(found.owner_train, expected.owner_train)
    assert found.x_train.shape == (48, 3) and len(found.x_test) == 12  # a fifth of each client's
    assert found.name.partition("@")[2] == expected.name.partition("@")[2]


def test_a_torch_dataset_and_clients_of_them() -> None:
    whole = feddag.dataset(Pairs(), client=WHO)
    assert whole.classes == ("0", "1") and np.array_equal(whole.x_train, feddag.dataset(X, Y, client=WHO).x_train)
    parts = [torch.utils.data.Subset(Pairs(), np.flatnonzero(who == WHO).tolist()) for who in ("ann", "bob", "eve")]
    assert np.array_equal(feddag.dataset(clients=parts).x_train, whole.x_train)


def test_images_of_hugging_face_and_its_split() -> None:
    datasets = pytest.importorskip("datasets")
    pixels = RANDOM.integers(0, 255, (12, 5, 6, 3), dtype=np.uint8)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])})
    told = {"image": list(pixels), "label": [0, 1] * 6}
    whole = datasets.Dataset.from_dict(told, features=features)
    split = datasets.DatasetDict(train=whole.select(range(8)), test=whole.select(range(8, 12)))
    made = feddag.dataset(split)
    assert np.array_equal(made.x_train, pixels[:8]) and np.array_equal(made.x_test, pixels[8:])
    assert made.classes == ("cat", "dog") and made.y_test.tolist() == [0, 1, 0, 1]


def test_own_test_samples() -> None:
    made = feddag.dataset(X[:40], Y[:40], test=(X[40:], Y[40:]))
    assert np.array_equal(made.x_train, X[:40]) and np.array_equal(made.x_test, X[40:])
    made = feddag.dataset(clients=[(X[:20], Y[:20], X[20:30], Y[20:30]), (X[30:50], Y[30:50], X[50:], Y[50:])])
    assert np.array_equal(made.x_train, X[[*range(20), *range(30, 50)]]) and made.owner_test is not None
    assert made.owner_test.tolist() == [0] * 10 + [1] * 10


def test_it_is_accepted_wherever_a_name_is_and_keyed_by_content(tmp_path: Path) -> None:
    made = by_clients()
    experiment = feddag.Experiment(dataset=made, **QUICK)
    assert experiment.partition == "natural" and experiment.title().startswith("data@")
    assert feddag.Experiment(dataset=made, partition="iid", clients=2, **QUICK).partition == "iid"
    assert feddag.Experiment(dataset=feddag.dataset(X, Y)).partition == "label-skew"  # it names no clients
    run = feddag.run(experiment, tmp_path / "r")
    assert run.result["clients"] == 3 and run.model(1).predict(X[:2])
    # The same samples in a file give the same result.
    np.savez(tmp_path / "own.npz", x=X, y=Y, client=WHO)
    filed = feddag.run(feddag.Experiment(dataset=str(tmp_path / "own.npz"), partition="natural", **QUICK))
    assert filed.result["accuracy"] == run.result["accuracy"]
    # Equal content under another name is the same experiment, other content is not.
    renamed = feddag.Experiment(dataset=feddag.dataset(X, Y, client=WHO, name="phones"), **QUICK)
    other = feddag.Experiment(dataset=feddag.dataset(2 * X, Y, client=WHO), **QUICK)
    assert renamed.key() == experiment.key() != other.key()
    assert experiment.with_(seed=1).dataset == experiment.dataset
    assert feddag.run(renamed, tmp_path / "r", resume=True).result == run.result


def test_a_run_can_be_read_where_the_data_are_not(tmp_path: Path, monkeypatch) -> None:
    run = feddag.run(feddag.Experiment(dataset=by_clients(), **QUICK), tmp_path / "r")
    monkeypatch.setattr("feddag.data.datasets.HELD", {})
    assert feddag.load(tmp_path / "r").model(0).predict(X[:3])
    with pytest.raises(FeddagError, match=r"was given from Python: give it again, by feddag.dataset"):
        load(run.experiment.dataset)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: feddag.dataset(), "either its data, or clients"),
        (lambda: feddag.dataset(X, Y, clients=[(X, Y)]), "either its data, or clients"),
        (lambda: feddag.dataset(clients=[]), "clients is empty"),
        (lambda: feddag.dataset(clients=[(X, Y), (X[:, :2], Y)]), "samples of different shapes"),
        (lambda: feddag.dataset(clients=[(X, Y, X)]), "client '0': it is a tuple of 3"),
        (lambda: feddag.dataset(clients=[(X, Y, X, Y), (X, Y)]), "for all, or for none"),
        (lambda: feddag.dataset(clients=[(X, Y)], test=(X, Y)), "leave out test and client"),
        (lambda: feddag.dataset(X), "a ndarray without labels is no dataset"),
        (lambda: feddag.dataset(X, Y[:-1]), "has 60 samples but labels of shape"),
        (lambda: feddag.dataset(X, X[:, 0]), "has labels of type float32: only classification is supported"),
        (lambda: feddag.dataset(X, np.where(Y == "sit", None, Y)), "empty value"),
        (lambda: feddag.dataset(X * np.nan, Y), "not a finite 32-bit number"),
        (lambda: feddag.dataset([["a"]] * 60, Y), "must hold numeric samples"),
        (lambda: feddag.dataset(frame()), "has no column 'label'; say which of a, b, c, activity, subject"),
        (
            lambda: feddag.dataset(frame(), label="activty"),
            "no column 'activty' for the label; did you mean 'activity'",
        ),
        (
            lambda: feddag.dataset(frame(), label="activity"),
            "column 'subject' that does not hold one number per sample",
        ),
        (lambda: feddag.dataset(frame().assign(a=np.nan), label="activity"), "an empty cell in column 'a'"),
        (lambda: feddag.dataset([1, 2, 3]), r"item 0 of the list is no \(sample, label\) pair"),
        (lambda: feddag.dataset(X, Y, name="a/b"), "it should be a word"),
    ],
)
def test_what_is_no_dataset_is_refused(made: Any, sentence: str) -> None:
    with pytest.raises(FeddagError, match=sentence) as caught:
        made()
    assert "\n" not in str(caught.value)


# Tables in files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_table_in_a_file(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"phones.{ending}"
    if ending == "parquet":
        pytest.importorskip("pyarrow")
        frame().to_parquet(path)
    else:
        frame().to_csv(path, index=False)
    found, expected = load(str(path), "label=activity,client=subject"), feddag.dataset(X, Y, client=WHO)
    np.testing.assert_allclose(found.x_train, expected.x_train, rtol=1e-6)
    assert found.classes == ("sit", "walk") and found.owners == ("ann", "bob", "eve")
    frame().rename(columns={"activity": "label", "subject": "client"}).to_csv(tmp_path / "usual.csv", index=False)
    assert load(str(tmp_path / "usual.csv")).owners == ("ann", "bob", "eve")
    fields = {"dataset": str(path), "columns": "label=activity,client=subject", "partition": "natural"}
    run = feddag.run(feddag.Experiment(**fields, **QUICK))
    assert run.result["clients"] == 3
    swapped = feddag.Experiment(**fields | {"columns": "label=subject,client=activity"}, **QUICK)
    assert swapped.key() != run.experiment.key()
    assert "columns" not in feddag.Experiment().to_toml()  # and so keys are what they were


def test_a_parquet_file_of_series(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    told = {"series": [[[1.0, 2.0]] * 4, [[3.0, 4.0]] * 4] * 10, "label": [0, 1] * 10}
    pandas.DataFrame(told).to_parquet(tmp_path / "s.parquet")
    assert load(str(tmp_path / "s.parquet")).x_train.shape == (16, 4, 2)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "it has no rows"),
        ("a,label\n", "it has no rows"),
        ("a,a,label\n1,2,x\n", "a name of its own"),
        ("a,label\n1,x\n2\n", "not all as long as its first line"),
        ("a,label\nfour,x\n", "column a holds something that is not a number"),
        ("a,label\n1,\n", "column label has an empty cell"),
        ("a,label\n1,0.5\n2,0.7\n", "labels of type float64: only classification is supported"),
        ("label\nx\n", "no column beside label"),
        ("a,b\n1,2\n", "has no column 'label'; say which of a, b it is: --columns label="),
        ('a,label\n"1,x\n', "is not a CSV file"),
        ("a,label\ninf,x\n1,y\n2,x\n3,y\n4,x\n", "not a finite 32-bit number"),
    ],
)
def test_a_csv_file_that_is_none_is_refused(content: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(content)
    with refused("t.csv", sentence):
        load(str(tmp_path / "t.csv"))


def test_a_parquet_file_that_is_none_is_refused(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 nothing PAR1")
    monkeypatch.setattr("feddag.data.readers.tables.find_spec", lambda name: None)
    with refused("t.parquet", "pip install 'feddag[tables]'"):
        load(str(tmp_path / "t.parquet"))
    monkeypatch.undo()
    pytest.importorskip("pyarrow")
    with refused("t.parquet", "is not a Parquet file"):
        load(str(tmp_path / "t.parquet"))
    pandas.DataFrame({"a": [1.0, None], "label": [0, 1]}).to_parquet(tmp_path / "gap.parquet")
    with refused("gap.parquet", "column a has an empty cell"):
        load(str(tmp_path / "gap.parquet"))


@pytest.mark.parametrize("text", ["activity", "label=", "label=a,label=b", "lable=a", "label=a;client=b"])
def test_columns_that_say_nothing_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,x\n")
    with pytest.raises(FeddagError, match=r"columns = '.*' is not allowed|has no column"):
        load(str(tmp_path / "t.csv"), text)


# Larger than memory ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["images", "series", "doubles", "split", "shifted"])
def test_an_archive_larger_than_memory_is_mapped_and_gives_the_same_run(kind: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("feddag.data.large.PIECE", 1000)  # many pieces
    x: Any = RANDOM.integers(0, 255, (200, 8, 8), dtype=np.uint8)
    if kind in ("series", "doubles"):
        x = RANDOM.normal(size=(200, 16, 2)).astype(np.float32 if kind == "series" else np.float64)
    y = np.tile(np.arange(4), 50)
    arrays = {"x": x, "y": y}
    if kind == "split":
        arrays = {"x_train": x[:160], "y_train": y[:160], "x_test": x[160:], "y_test": y[160:]}
    np.savez(tmp_path / "large.npz", **arrays)
    partition = {"partition": "feature-skew" if kind == "shifted" else "iid", "clients": 4, "trainer": "torch"}
    experiment = feddag.Experiment(dataset=str(tmp_path / "large.npz"), **QUICK | partition)
    plain, known = feddag.run(experiment), load(experiment.dataset)
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "4000")
    mapped = load(experiment.dataset)
    assert isinstance(mapped.x_train, np.memmap) and isinstance(mapped.x_test, np.memmap)
    assert np.array_equal(mapped.x_train, known.x_train) and np.array_equal(mapped.x_test, known.x_test)
    assert mapped.mean == known.mean and mapped.std == known.std
    again = feddag.run(experiment)
    assert again.result["accuracy"] == plain.result["accuracy"]
    with_workers = feddag.run(experiment.with_(workers=2))
    assert with_workers.result["accuracy"] == plain.result["accuracy"]


def test_mapped_samples_need_room_on_the_disk(tmp_path: Path, monkeypatch) -> None:
    np.savez(tmp_path / "large.npz", x=np.zeros((50, 100), np.float32), y=np.tile([0, 1], 25))
    np.savez_compressed(tmp_path / "packed.npz", x=np.zeros((50, 100), np.float32), y=np.tile([0, 1], 25))
    monkeypatch.setenv("FEDDAG_LARGEST_DATA", "4000")
    with refused("packed.npz", "FEDDAG_LARGEST_DATA"):  # what is packed cannot be mapped
        load(str(tmp_path / "packed.npz"))
    monkeypatch.setattr("feddag.data.large.SPARE", 2**60)
    with refused("TMPDIR"):
        load(str(tmp_path / "large.npz"))
