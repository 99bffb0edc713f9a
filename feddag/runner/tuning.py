"""A search for the best values of fields that never sees a test sample or a seed that results are told for.

Every candidate is run on validation samples of seeds from 100 on. What was tried and what came out is kept in a file,
which `feddag compare --tuned` takes values from: the same budget for every method, or the comparison is worth nothing.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from feddag.data.partitions import PartitionSettings
from feddag.errors import FeddagError, nearest, short
from feddag.experiment import Experiment
from feddag.files import read_plain, write_atomically
from feddag.records import ResultRecord
from feddag.rng import rng
from feddag.runner.naming import differences

FIRST_SEED = 100
VALIDATION = 0.2  # of each client's training samples
SPREAD = (1 / 30, 1 / 10, 1 / 3, 3.0, 10.0, 30.0)  # times the default
SETTING = {field.name for field in dataclasses.fields(PartitionSettings)} | {"clients", "fraction", "model"}
LARGEST_FILE = 2**24
FOLDER = Path("tuned")


class Tried(BaseModel):
    """Values of fields, and the accuracy on validation samples with each seed."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fields: dict[str, bool | int | float | str]
    accuracy: list[float]


class Tuned(BaseModel):
    """What a search tried, the best first."""

    model_config = ConfigDict(extra="forbid", strict=True)

    method: str
    setting: str
    over: list[str]
    budget: int
    seeds: list[int]
    tried: list[Tried]


@dataclass(frozen=True)
class Space:
    """The values of each field that a search draws from, the default first."""

    values: Mapping[str, Sequence[Any]]

    def candidates(self, budget: int) -> list[dict[str, Any]]:
        """The defaults, then others: all there are, or as many as the budget allows, drawn at random.

        >>> Space({"lr": [0.1, 0.3], "mu": [1]}).candidates(5)
        [{'lr': 0.1, 'mu': 1}, {'lr': 0.3, 'mu': 1}]
        """
        sizes = [len(values) for values in self.values.values()]
        total = int(np.prod(sizes))
        others = 1 + rng(FIRST_SEED, "tune").permutation(total - 1)[: budget - 1]
        chosen = [0, *sorted(others.tolist())] if total > budget else range(total)
        places = [np.unravel_index(number, sizes) for number in chosen]
        return [
            {name: values[int(at)] for (name, values), at in zip(self.values.items(), place, strict=True)}
            for place in places
        ]


def space_of(experiment: Experiment, over: Sequence[str]) -> Space:
    """What to search: a field as `name`, with values around its default, or as `name=value/value/...`."""
    known = {**type(experiment).model_fields, **experiment.method_class.Settings.model_fields}
    values: dict[str, list[Any]] = {}
    for item in over:
        name, _, given = item.partition("=")
        if name not in known:
            where = f"a field of method = '{experiment.method}'"
            raise FeddagError(f"--over: '{short(name)}' is not {where}{nearest(name, known)}")
        now = getattr(experiment.settings, name, getattr(experiment, name, None))
        tried = [_read(text) for text in given.split("/")] if given else _around(now)
        if not tried:
            raise FeddagError(f"--over {name}: say which values, {name}=.../..., because its default tells no range")
        own = [
            value for value in dict.fromkeys([now, *tried]) if value is not None and _allowed(experiment, name, value)
        ]
        if len(own) < 2:
            raise FeddagError(f"--over {name}: none of the values is allowed beside its default")
        values[name] = own
    if not values:
        raise FeddagError("--over names no field; say for example --over lr,mu")
    return Space(values)


def _around(now: Any) -> list[Any]:
    """Values around a default.

    >>> _around(True), _around(4), _around(0.01)[:2]
    ([False], [1, 2, 8, 16], [0.000333, 0.001])
    """
    if isinstance(now, bool):
        return [not now]
    if isinstance(now, int) and now > 0:
        return sorted({max(1, round(now * factor)) for factor in (0.25, 0.5, 2, 4)} - {now})
    if isinstance(now, float):
        return [float(f"{now * factor:.3g}") for factor in SPREAD] if now else [0.001, 0.01, 0.1, 0.5, 1.0]
    return []


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _allowed(experiment: Experiment, name: str, value: Any) -> bool:
    try:
        experiment.with_(**{name: value}).settings  # noqa: B018 - refused here, or it is fine
    except FeddagError:
        return False
    return True


def on_validation(experiment: Experiment, seed: int) -> Experiment:
    """The same experiment where a search may look at it."""
    held = experiment.validation or VALIDATION
    return experiment.with_(seed=seed, validation=held, evaluate="validation", finetune=False, personal="none")


def search(
    experiment: Experiment,
    over: Sequence[str],
    budget: int,
    seeds: Sequence[int],
    result_of: Callable[[Experiment], ResultRecord],
) -> Tuned:
    """Run every candidate with every seed; the best is that of the highest mean accuracy, the first of equals."""
    if budget < 2:
        raise FeddagError(f"--budget {budget} is too small: the defaults are one of the candidates")
    if min(seeds) < FIRST_SEED:
        raise FeddagError(
            f"--seeds {min(seeds)}: a search uses seeds from {FIRST_SEED} on, so that no result is told for them"
        )
    tried = []
    for fields in space_of(experiment, over).candidates(budget):
        runs = [result_of(on_validation(experiment.with_(**fields), seed)) for seed in seeds]
        tried.append(Tried(fields=fields, accuracy=[run["accuracy"]["mean"] for run in runs]))
    tried.sort(key=lambda one: -float(np.mean(one.accuracy)))
    names = [item.partition("=")[0] for item in over]
    return Tuned(
        method=experiment.method,
        setting=setting_of(experiment),
        over=names,
        budget=budget,
        seeds=list(seeds),
        tried=tried,
    )


def setting_of(experiment: Experiment) -> str:
    """What values were searched for: a dataset, how it is divided among how many clients, and the network.

    How long and with which stabilisers they train is left out: a level comparison changes both.

    >>> setting_of(Experiment(fraction=0.25, clients=40, lr=0.1, rounds=3)), setting_of(Experiment(seed=7))
    ('digits-label-skew-clients=40-fraction=0.25', 'digits-label-skew')
    """
    differing = differences(experiment.resolved())
    own = [f"{name}={value}" for name, value in sorted(differing.items()) if name in SETTING]
    return re.sub(r"[^\w.=+-]+", "_", "-".join((Path(experiment.dataset).stem, experiment.partition, *own)))


def tuned_file(experiment: Experiment, folder: Path = FOLDER) -> Path:
    """Where the search for a method in a setting leaves what it found."""
    return folder / f"{setting_of(experiment)}-{experiment.method.replace(':', '.')}.json"


def save(tuned: Tuned, path: Path) -> None:
    """Write it down, whole or not at all."""
    write_atomically(path, tuned.model_dump_json(indent=1) + "\n")


def read(path: Path) -> Tuned:
    """What a search left, or a sentence about why not."""
    try:
        return Tuned.model_validate_json(read_plain(path, LARGEST_FILE))
    except FileNotFoundError:
        raise FeddagError(f"there is no '{path}'; `feddag tune` makes it") from None
    except ValidationError:
        raise FeddagError(f"'{path}' is damaged: it is not what `feddag tune` writes") from None


def with_tuned(experiments: Sequence[Experiment], folder: Path = FOLDER) -> list[Experiment]:
    """The same experiments with the best values that were found for each method in this setting.

    All have to have been searched for, with the same budget and seeds: a rival that was not is not compared fairly.
    """
    found = {experiment.method: read(tuned_file(experiment, folder)) for experiment in experiments}
    efforts = {(one.budget, tuple(one.seeds)) for one in found.values()}
    if len(efforts) > 1:
        told = ", ".join(f"{name} {one.budget} x {len(one.seeds)} seeds" for name, one in found.items())
        raise FeddagError(f"--tuned: methods were searched for with unequal effort ({told}); tune them alike")
    return [experiment.with_(**found[experiment.method].tried[0].fields) for experiment in experiments]
