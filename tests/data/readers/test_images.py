import io
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feddag.data import readers
from tests.data import refused
from tests.data.readers import both_parts, images, save_image


def test_image_folder_without_split(tmp_path: Path) -> None:
    x = images(3, 5, 4)
    save_image(tmp_path / "cat" / "b.png", x[1])
    save_image(tmp_path / "cat" / "a.png", x[0])
    save_image(tmp_path / "dog" / "c.bmp", x[2])
    (tmp_path / "cat" / ".hidden").write_text("left by a file browser")
    (tmp_path / "readme.txt").write_text("not in a class folder")
    samples, test = readers.read_image_folder(tmp_path)
    assert test is None
    assert np.array_equal(samples.x, x[..., np.newaxis])
    assert samples.y.tolist() == ["cat", "cat", "dog"]


def test_image_folder_with_split_and_colour_in_one_part(tmp_path: Path) -> None:
    save_image(tmp_path / "train" / "cat" / "a.png", np.full((2, 2), 7, np.uint8))
    coloured = images(2, 2, 3)
    save_image(tmp_path / "test" / "dog" / "a.png", coloured)
    train, test = both_parts(readers.read_image_folder(tmp_path))
    assert train.x.tolist() == [[[[7, 7, 7]] * 2] * 2]
    assert np.array_equal(test.x[0], coloured)
    assert (train.y.tolist(), test.y.tolist()) == (["cat"], ["dog"])


@pytest.mark.parametrize("split", [False, True])
def test_an_image_folder_of_clients(tmp_path: Path, split: bool) -> None:
    x = images(4, 5, 4)
    for part in ("train", "test") if split else ("",):
        for number, place in enumerate(("ann/cat", "ann/dog", "bob/cat", "bob/dog")):
            save_image(tmp_path / part / place / "a.png", x[number])
    found = readers.read_image_folder(tmp_path)
    for samples in both_parts(found) if split else found[:1]:
        assert np.array_equal(samples.x, x[..., np.newaxis]) and samples.owner is not None
        assert samples.owner.tolist() == ["ann", "ann", "bob", "bob"]
        assert samples.y.tolist() == ["cat", "dog"] * 2


def test_images_of_differing_sizes_all_become_32_by_32(tmp_path: Path) -> None:
    save_image(tmp_path / "a" / "1.png", np.full((40, 50), 9, np.uint8))
    save_image(tmp_path / "b" / "2.png", np.full((8, 8), 200, np.uint8))
    samples, _ = readers.read_image_folder(tmp_path)
    assert samples.x.shape == (2, 32, 32, 1)
    assert (np.unique(samples.x[0]).tolist(), np.unique(samples.x[1]).tolist()) == ([9], [200])


def png(width: int, height: int) -> bytes:
    """A PNG that announces this size and holds nearly nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def encoded(pixels: np.ndarray, kind: str) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels).save(held, kind)
    return held.getvalue()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "image"),
        (b"plain text", "image"),
        (encoded(images(40, 40, 3), "JPEG")[:-200], "truncated"),
        (png(4, 4), "image"),
        (png(10_000, 10_000), "bomb"),  # Pillow by itself only warns
        (png(60_000, 60_000), "bomb"),
        (encoded(images(4, 4), "GIF"), "identify"),  # a format that is not allowed
        (encoded(np.full((4, 4), 40_000, np.uint16), "PNG"), "8 bits"),
    ],
)
def test_image_folder_refuses_anything_but_complete_8_bit_images(tmp_path: Path, content: bytes, word: str) -> None:
    save_image(tmp_path / "a" / "1.png", images(4, 4))
    (tmp_path / "a" / "2.png").write_bytes(content)
    with refused(tmp_path / "a" / "2.png", word):
        readers.read_image_folder(tmp_path)


def test_image_folder_without_images(tmp_path: Path) -> None:
    with refused(tmp_path, "CLASS/IMAGE"):
        readers.read_image_folder(tmp_path)


def test_domain_folder(tmp_path: Path) -> None:
    for domain, kind, grey in [("sketch", "dog", 1), ("photo", "dog", 2), ("photo", "cat", 3)]:
        save_image(tmp_path / domain / kind / "1.png", np.full((60, 48, 3), grey, np.uint8))
    samples, test = readers.read_domain_folder(tmp_path)
    assert test is None
    assert samples.x.shape == (3, 48, 48, 3)
    assert samples.x[:, 0, 0, 0].tolist() == [3, 2, 1]
    assert samples.y.tolist() == ["cat", "dog", "dog"]
    assert samples.domain is not None
    assert samples.domain.tolist() == ["photo", "photo", "sketch"]


def test_tiny_imagenet_c(tmp_path: Path) -> None:
    for corruption in ("fog", "snow"):
        for severity in ("1", "5"):
            path = tmp_path / corruption / severity / "n01" / "val_7.JPEG"
            save_image(path, np.full((64, 64, 3), 50 + 10 * int(severity), np.uint8))
    samples, _ = readers.read_tiny_imagenet_c(tmp_path)
    assert samples.x.shape == (4, 64, 64, 3)
    assert samples.x[:, 0, 0, 0].tolist() == [60, 100, 60, 100]
    assert samples.y.tolist() == ["n01"] * 4
    assert samples.domain is not None
    assert samples.domain.tolist() == ["fog", "fog", "snow", "snow"]
    assert samples.version_of is not None
    assert len(set(samples.version_of.tolist())) == 1
    broken = tmp_path / "fog" / "1" / "n01" / "val_7.JPEG"
    broken.write_bytes(broken.read_bytes()[:300])
    with refused(broken):
        readers.read_tiny_imagenet_c(tmp_path)


def test_an_image_is_what_it_holds_whatever_it_is_called(tmp_path: Path) -> None:
    """Public datasets have a few JPEG files that are called .png; what is no image at all is refused above."""
    (tmp_path / "a").mkdir()
    for name, kind in (("1.png", "JPEG"), ("2.jpg", "PNG"), ("3", "BMP")):
        (tmp_path / "a" / name).write_bytes(encoded(np.full((8, 8), 90, np.uint8), kind))
    samples, _ = readers.read_image_folder(tmp_path)
    assert np.unique(samples.x).tolist() == [90]
    (tmp_path / "a" / "4.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    with refused(tmp_path / "a" / "4.png", "cannot identify"):
        readers.read_image_folder(tmp_path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM"])
def test_a_truncated_image_is_refused_at_every_length(tmp_path: Path, kind: str) -> None:
    whole = encoded(images(8, 8, 3), kind)
    path = tmp_path / "a" / "1"
    path.parent.mkdir()
    for length in range(len(whole) - (20 if kind == "PNG" else 0)):  # a PNG file's last 20 bytes hold nothing of it
        path.write_bytes(whole[:length])
        with refused(path):
            readers.read_image_folder(tmp_path)


def test_nothing_is_said_of_a_damaged_image_but_our_sentence(tmp_path: Path) -> None:
    whole = encoded(images(8, 8, 3), "TIFF")
    entry = struct.pack(
        "<HHII", 277, 3, 1, 3
    )  # three samples per pixel, of which Pillow logs an error if they are many
    assert whole.count(entry) == 1
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1").write_bytes(whole.replace(entry, struct.pack("<HHII", 277, 3, 1, 35)))
    program = """
import sys
from pathlib import Path
from feddag.data import readers
from feddag.errors import FeddagError
try:
    readers.read_image_folder(Path(sys.argv[1]))
except FeddagError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")
