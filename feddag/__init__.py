"""feddag: clustered federated learning for clients whose data differ.

>>> import feddag
>>> finished = feddag.run(feddag.Experiment(rounds=1, clients=5, epochs=1, workers=1))
>>> 0 <= finished.accuracy.mean <= 1
True
"""

__version__ = "0.1.0"

from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.methods import Method, MethodSettings
from feddag.run import Run, load, run

__all__ = ["Experiment", "FeddagError", "Method", "MethodSettings", "Run", "load", "run"]
