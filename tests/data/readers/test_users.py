import json
from pathlib import Path

import numpy as np
import pytest

from feddag.data import readers
from feddag.errors import FeddagError
from tests.data import refused
from tests.data.readers import both_parts, images, save_image


def leaf(**users: list[int]) -> dict[str, object]:
    return {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {name: {"x": [[label / 255] * 784 for label in y], "y": y} for name, y in users.items()},
    }


def test_leaf_keeps_writers_and_restores_bytes(tmp_path: Path) -> None:
    for part in ("train", "test"):
        (tmp_path / part).mkdir()
    (tmp_path / "train" / "all_data_0.json").write_text(json.dumps(leaf(f1=[3, 61], f2=[10])))
    (tmp_path / "train" / "all_data_1.json").write_text(json.dumps(leaf(f3=[5])))
    (tmp_path / "test" / "all_data_0.json").write_text(json.dumps(leaf(f2=[7])))
    train, test = both_parts(readers.read_leaf(tmp_path))
    assert train.x.shape == (4, 28, 28, 1)
    assert train.x[:, 0, 0, 0].tolist() == train.y.tolist() == [3, 61, 10, 5]
    assert train.owner is not None
    assert train.owner.tolist() == ["f1", "f1", "f2", "f3"]
    assert test.owner is not None
    assert test.owner.tolist() == ["f2"]
    together, nothing = readers.read_leaf(tmp_path / "train")
    assert nothing is None
    assert together.y.tolist() == [3, 61, 10, 5]


def test_leaf_with_letters_that_look_alike_merged(tmp_path: Path) -> None:
    """C and c are class 12, a and z are 36 and with Z 35; of the lower case b, d, ... t are left, 11 with a."""
    labels = [0, 9, 12, 38, 36, 61, 35, 37, 55]
    (tmp_path / "all.json").write_text(json.dumps(leaf(f1=labels)))
    train, _ = readers.read_leaf_merged(tmp_path)
    assert train.y.tolist() == [0, 9, 12, 12, 36, 35, 35, 37, 46]
    (tmp_path / "all.json").write_text(json.dumps(leaf(f1=list(range(62)))))
    assert sorted(set(readers.read_leaf_merged(tmp_path)[0].y.tolist())) == list(range(47))
    (tmp_path / "all.json").write_text(json.dumps(leaf(f1=[62])))
    with refused("62 classes"):
        readers.read_leaf_merged(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "[]",
        "{}",
        json.dumps(leaf(f1=[3]))[:-5],
        json.dumps(leaf(f1=[3]) | {"num_samples": [2]}),
        json.dumps(leaf(f1=[3]) | {"num_samples": [1, 1]}),
        json.dumps(leaf(f1=[3]) | {"user_data": {}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.0] * 783], "y": [3]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[1.5] * 784], "y": [3]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[float("nan")] * 784], "y": [3]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.0] * 784], "y": [[3]]}}}),
        json.dumps(leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.0] * 784], "y": ["three"]}}}),
    ],
)
def test_leaf_refuses_damaged_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.json").write_text(text)
    with refused(tmp_path / "bad.json"):
        readers.read_leaf(tmp_path)


def test_leaf_pixels_go_to_the_nearest_byte(tmp_path: Path) -> None:
    held = leaf(f1=[3]) | {"user_data": {"f1": {"x": [[0.498] * 784], "y": [3]}}}
    (tmp_path / "all.json").write_text(json.dumps(held))
    assert np.unique(readers.read_leaf(tmp_path)[0].x).tolist() == [127]  # 126.99


def test_leaf_without_files_or_samples(tmp_path: Path) -> None:
    with refused(tmp_path, ".json"):
        readers.read_leaf(tmp_path)
    (tmp_path / "empty.json").write_text(json.dumps(leaf()))
    with refused(tmp_path, "sample"):
        readers.read_leaf(tmp_path)


def test_user_csv(tmp_path: Path) -> None:
    for name, grey in (("a.jpg", 10), ("b.png", 20), ("c.jpg", 30)):
        save_image(tmp_path / "images" / name, np.full((30, 90, 3), grey, np.uint8))
    (tmp_path / "train.csv").write_text("user_id,image_id,class\nu2,a,10\nu1,b,9\n")
    samples, nothing = readers.read_user_csv(tmp_path)
    assert nothing is None
    assert samples.x.shape == (2, 64, 64, 3)
    assert samples.x[:, 5, 5, 0].tolist() == [10, 20]
    assert samples.y.tolist() == [10, 9]
    assert samples.owner is not None
    assert samples.owner.tolist() == ["u2", "u1"]
    (tmp_path / "test.csv").write_text("image_id,class\nc,9\n")  # as published: nobody owns a test image
    assert both_parts(readers.read_user_csv(tmp_path))[1].owner is None
    (tmp_path / "test.csv").write_text("user_id,image_id,class\nu1,c,9\n")
    test_owner = both_parts(readers.read_user_csv(tmp_path))[1].owner
    assert test_owner is not None
    assert test_owner.tolist() == ["u1"]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "train.csv"),
        ("user_id,image_id,class\n", "train.csv"),
        ("user_id,image_id\nu,a\n", "class"),
        ("image_id,class\na,1\n", "user_id"),
        ("user_id,image_id,class\nu,a\n", "class"),
        ("user_id,image_id,class\nu,missing,1\n", "'missing'"),
        ('user_id,image_id,class\nu,"two\nlines",1\n', "two\\nlines"),
        (f"user_id,image_id,class\nu,{'a' * 100_000},1\n", "train.csv"),
        ("user_id,image_id,class\nu,../secret,1\n", "secret"),
        ("user_id,image_id,class\nu,{folder}/secret,1\n", "secret"),
        ('user_id,image_id,class\nu,"' + "a" * 200_000, "train.csv"),
    ],
)
def test_user_csv_refuses_damaged_files(tmp_path: Path, text: str, word: str) -> None:
    save_image(tmp_path / "images" / "a.jpg", images(4, 4, 3))
    save_image(tmp_path / "secret.jpg", images(4, 4, 3))
    (tmp_path / "train.csv").write_text(text.replace("{folder}", str(tmp_path)))
    with refused(word):
        readers.read_user_csv(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        {"x": [[0.0] * 783 + ["31337"]], "y": [3]},
        {"x": [[0.0] * 783 + ["secret"]], "y": [3]},
        {"x": [["secret"] * 784], "y": [3]},
        {"x": [[0.0] * 784], "y": ["secret"]},
        {"x": [[0.0] * 784], "y": [31337.5]},
        {"x": [[31337] * 784], "y": [3]},
        {"x": {"secret": 1}, "y": [3]},
    ],
)
def test_leaf_shows_no_value_of_a_sample_or_label(tmp_path: Path, data: object) -> None:
    (tmp_path / "bad.json").write_text(json.dumps(leaf(f1=[3]) | {"user_data": {"f1": data}}))
    with pytest.raises(FeddagError) as caught:
        readers.read_leaf(tmp_path)
    assert "secret" not in str(caught.value) and "31337" not in str(caught.value)


def test_text_in_another_encoding_is_refused_without_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_bytes(b"user_id,image_id,class\nu,a,\xff\n")
    with refused(tmp_path / "train.csv", "UTF-8"):
        readers.read_user_csv(tmp_path)
