"""Every test of the native trainer runs with every build that this processor can run."""

import importlib
from collections.abc import Iterator

import pytest
import torch

from feddag import native

torch.set_num_threads(1)

BUILDS = importlib.import_module("feddag.native._portable").runnable() if native.available() else ["none"]


@pytest.fixture(scope="module", params=BUILDS, autouse=True)
def build(request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of the build in use; without any, the tests are skipped with the reason."""
    if not native.available():
        pytest.skip(native.reason())
    saved = native._kernels
    native._kernels = importlib.import_module(f"feddag.native._{request.param}")
    yield request.param
    native._kernels = saved
