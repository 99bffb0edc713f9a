from pathlib import Path

import numpy as np
from scipy.io import savemat

from feddag.data import readers
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
