"""feddag: clustered federated learning for clients whose data differ.

>>> import feddag
>>> finished = feddag.run(feddag.Experiment(rounds=1, clients=5, epochs=1, workers=1))
>>> 0 <= finished.accuracy.mean <= 1
True
"""

__version__ = "0.1.0"

from feddag.client.signature import Signature, signature
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.methods import Method, MethodSettings
from feddag.runner.run import Run, load, run
from feddag.server.grouping import Grouping, group

__all__ = [
    "Experiment",
    "FeddagError",
    "Grouping",
    "Method",
    "MethodSettings",
    "Run",
    "Signature",
    "group",
    "load",
    "run",
    "signature",
]
