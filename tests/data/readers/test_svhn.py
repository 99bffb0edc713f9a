import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from feddag.data import readers
from feddag.data.readers import apart
from tests.data import refused
from tests.data.readers import both_parts, images


def test_svhn_mat_puts_samples_first_and_ten_means_zero(tmp_path: Path) -> None:
    x = images(3, 32, 32, 3)
    for name in ("train", "test"):
        held = {"X": x.transpose(1, 2, 3, 0), "y": np.uint8([[10], [1], [9]])}
        savemat(tmp_path / f"{name}_32x32.mat", held, do_compression=True)
    train, _ = both_parts(readers.read_svhn(tmp_path))
    assert np.array_equal(train.x, x)
    assert train.y.tolist() == [0, 1, 9]

    path = tmp_path / "test_32x32.mat"
    whole = path.read_bytes()
    for content in (b"", b"MATLAB 5.0" * 50, whole[:-100], whole[:100]):
        path.write_bytes(content)
        with refused(path):
            readers.read_svhn(tmp_path)
    savemat(path, {"X": x.astype(float), "y": [[1]]})
    with refused(path, "float64"):
        readers.read_svhn(tmp_path)
    savemat(path, {"y": [[1]]})
    with refused(path, "X"):
        readers.read_svhn(tmp_path)
    path.unlink()
    with refused(path, "missing"):
        readers.read_svhn(tmp_path)


def one_that_crashes_scipy(path: Path) -> None:
    """Its samples are of type 514, which SciPy looks up in a table of 20."""
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.zeros((2, 1), np.uint8)})
    content = bytearray(path.read_bytes())
    assert content[184:186] == b"\2\0"
    content[185] = 2
    path.write_bytes(content)


def test_a_file_that_crashes_its_reader_does_not_crash_feddag(tmp_path: Path) -> None:
    path = tmp_path / "train_32x32.mat"
    one_that_crashes_scipy(path)
    with refused(path, "SIGSEGV"):
        readers.read_svhn(tmp_path)


def test_a_file_that_keeps_its_reader_busy_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = tmp_path / "busy.py"
    busy.write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setattr(apart, "CHILD", busy)
    monkeypatch.setattr(apart, "SECONDS", 0.5)
    path = tmp_path / "train_32x32.mat"
    path.write_bytes(b"MATLAB")
    with refused(path, "more than 0.5 seconds"):
        readers.read_svhn(tmp_path)


def test_the_reader_of_its_own_is_limited_in_seconds() -> None:
    program = f"import sys; sys.path.insert(0, {str(apart.CHILD.parent)!r}); import child; child.limit(2**30, 1)"
    done = subprocess.run([sys.executable, "-P", "-c", f"{program}\nwhile True: pass"], capture_output=True, timeout=60)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)
