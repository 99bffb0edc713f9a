"""feddag: clustered federated learning for clients whose data differ.

>>> import feddag
>>> finished = feddag.run(feddag.Experiment(rounds=1, clients=5, epochs=1, workers=1))
>>> 0 <= finished.accuracy.mean <= 1
True

Importing the package loads none of its parts: a name is looked up when it is first used (PEP 562). PyTorch alone takes
seconds to load, and `feddag --help` or a misspelt command must not wait for it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from feddag._version import __version__

if TYPE_CHECKING:  # for type checkers and editors; `_HOME` says the same at run time
    from feddag.client.signature import Signature, signature
    from feddag.data.python import dataset
    from feddag.errors import FeddagError
    from feddag.estimator import ClientClustering
    from feddag.experiment import Experiment
    from feddag.methods import Method, MethodSettings
    from feddag.methods.clustered import ClusteredMethod, ClusteredSettings
    from feddag.report.compared import Comparison, compare
    from feddag.report.presented import Run, load, run
    from feddag.runner.export import export, load_model
    from feddag.server.grouping import Grouping, group

__all__ = [
    "ClientClustering",
    "ClusteredMethod",
    "ClusteredSettings",
    "Comparison",
    "Experiment",
    "FeddagError",
    "Grouping",
    "Method",
    "MethodSettings",
    "Run",
    "Signature",
    "__version__",
    "compare",
    "dataset",
    "export",
    "group",
    "load",
    "load_model",
    "run",
    "signature",
]

_HOME = {
    "ClientClustering": "feddag.estimator",
    "ClusteredMethod": "feddag.methods.clustered",
    "ClusteredSettings": "feddag.methods.clustered",
    "Comparison": "feddag.report.compared",
    "Experiment": "feddag.experiment",
    "FeddagError": "feddag.errors",
    "Grouping": "feddag.server.grouping",
    "Method": "feddag.methods",
    "MethodSettings": "feddag.methods",
    "Run": "feddag.report.presented",
    "Signature": "feddag.client.signature",
    "compare": "feddag.report.compared",
    "dataset": "feddag.data.python",
    "export": "feddag.runner.export",
    "group": "feddag.server.grouping",
    "load": "feddag.report.presented",
    "load_model": "feddag.runner.export",
    "run": "feddag.report.presented",
    "signature": "feddag.client.signature",
}


def __getattr__(name: str) -> Any:
    """A public name, or a part of the package such as `feddag.native`, at its first use."""
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value  # found without this function from now on
        return value
    if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
