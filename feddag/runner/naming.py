"""What tells an experiment apart from the usual one: names for its directory, and what to type to run it again."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddag.experiment import Experiment
from feddag.methods import method_label

LONGEST_NAME = 120  # characters; a directory's name may have twice as many
TOLD = {"method", "dataset", "partition", "seed", "workers"}  # have a place of their own, or change nothing
OPTIONS = ("clients", "rounds")  # of the command line; other fields are set by --set


def differences(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a resolved experiment that are not what they are by default, but for what it is called by.

    >>> differences(Experiment(clients=30, rounds=30, method="fedprox", mu=2.0).resolved())
    {'clients': 30, 'mu': 2.0}
    """
    usual = {name: field.default for name, field in Experiment.model_fields.items()}
    usual |= Experiment(**{name: fields[name] for name in ("method", "dataset", "partition")}).resolved()
    own = {name: value for name, value in fields.items() if name not in TOLD}
    return {name: value for name, value in own.items() if usual.get(name, ...) != value}


def directory_name(experiment: Experiment) -> str:
    """What the directory of a single run is called.

    >>> directory_name(Experiment(clients=30, lr=0.1)), directory_name(Experiment(clients=20))
    ('digits-label-skew-feddag-clients=30-lr=0.1-s0', 'digits-label-skew-feddag-s0')
    """
    differing = [f"{name}={value}" for name, value in differences(experiment.resolved()).items()]
    parts = [Path(experiment.dataset).stem, experiment.partition, method_label(experiment.method), *differing]
    name = re.sub(r"[^\w.=+-]+", "_", "-".join(parts))
    return f"{name[:LONGEST_NAME].rstrip('-=._')}-s{experiment.seed}"


def compare_command(fields: Mapping[str, Any], methods: Sequence[str], runs: Path) -> str:
    """What to type to run methods on the partition of this experiment, with run directories in this folder.

    >>> compare_command(Experiment(seed=3, lr=0.1, rounds=5).resolved(), ["local", "feddag"], Path("runs"))
    'feddag compare --methods local,feddag --rounds 5 --set lr=0.1 --seeds 3'
    """
    words = ["feddag", "compare", "--methods", ",".join(methods)]
    for name in ("dataset", "partition"):
        if fields[name] != Experiment.model_fields[name].default:
            words += [f"--{name}", fields[name]]
    for name, value in differences(fields).items():
        said = str(value).lower() if isinstance(value, bool) else str(value)
        words += [f"--{name}", said] if name in OPTIONS else ["--set", f"{name}={said}"]
    words += ["--seeds", str(fields["seed"])] if fields["seed"] else []
    words += ["--runs", str(runs)] if runs != Path("runs") else []
    return shlex.join(words)
