"""One reader per file format: a file or folder in, samples out, or one sentence that says what is wrong with it."""

from feddag.data.readers.cifar import (
    read_cifar10_binary,
    read_cifar10_c,
    read_cifar10_png,
    read_cifar10_python,
    read_cifar100_binary,
    read_cifar100_python,
)
from feddag.data.readers.idx import read_idx, read_idx_folder
from feddag.data.readers.images import read_domain_folder, read_image_folder, read_tiny_imagenet_c
from feddag.data.readers.npz import read_inputs, read_npz
from feddag.data.readers.samples import Parts, Reader, Samples
from feddag.data.readers.svhn import read_svhn
from feddag.data.readers.tables import parse_columns, read_csv, read_parquet, samples_of
from feddag.data.readers.users import read_leaf, read_leaf_merged, read_user_csv

__all__ = [
    "Parts",
    "Reader",
    "Samples",
    "parse_columns",
    "read_cifar10_binary",
    "read_cifar10_c",
    "read_cifar10_png",
    "read_cifar10_python",
    "read_cifar100_binary",
    "read_cifar100_python",
    "read_csv",
    "read_domain_folder",
    "read_idx",
    "read_idx_folder",
    "read_image_folder",
    "read_inputs",
    "read_leaf",
    "read_leaf_merged",
    "read_npz",
    "read_parquet",
    "read_svhn",
    "read_tiny_imagenet_c",
    "read_user_csv",
    "samples_of",
]
