"""Which kept results belong to which experiment, by key: a row can only show what that experiment has produced."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feddag.experiment import read_experiments
from feddag.methods.feddag.settings import SecondarySettings, SharingSettings
from feddag.runner.level import stabilisers

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))  # where `experiments` are found, wherever this is run

from experiments.ingredients import BEFORE  # noqa: E402

MOMENTUM = "experiments.server_momentum:Momentum"
REVISIONS: Sequence[Mapping[str, int]] = ({}, {"feddag-star": 2, "feddag-dagger": 3, "feddag": 4, MOMENTUM: 2})
"""Today's, and those before clients told how their samples look: rows that were not run again since say so."""
FORMS = {"pacs": "pacs48.npz", "office-caltech10": "office_caltech48.npz"}
"""The files that unverified datasets were found in: here they may not be found at all."""
VISITING = {*SecondarySettings.__annotations__, *SharingSettings.__annotations__} - {"sharing"}
"""Fields that FedDAG has for visiting encoders only."""


def kept(file: str, method: str, seeds: Sequence[int], age: int = 0, **fields: Any) -> dict[int, Path]:
    """The kept results of experiments/<file>.toml, by seed; seeds that were not run are left out."""
    found = {}
    revision = REVISIONS[age].get(method)
    if revision:
        fields = {**BEFORE, **fields}
        if method != "feddag":
            del fields["sharing"]
    elif method == "feddag" and VISITING & set(fields):
        fields |= {"sharing": "encoder"}
    for one in read_experiments(ROOT / "experiments" / f"{file}.toml", fields, [method], seeds):
        path = ROOT / "results" / f"{one.title()}-{one.key(revision, FORMS.get(one.dataset))[:8]}.json"
        if path.exists():
            found[one.seed] = path
    return found


def kept_level(file: str, method: str, costliest: str, seeds: Sequence[int], **fields: Any) -> dict[int, Path]:
    """The kept results of a level comparison in which this method, without further fields, was the costliest."""
    most = kept(file, costliest, seeds, **stabilisers())
    if method == costliest and not fields:
        return most
    equal = {**stabilisers(), **fields}
    found: dict[int, Path] = {}
    for seed, path in most.items():
        found |= kept(file, method, [seed], **equal, training_flops=read(path)["training_flops"])
    return found


def read(path: Path) -> Mapping[str, Any]:
    result: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


@dataclass(frozen=True)
class Row:
    """An experiment in a table, and what the paper prints for it."""

    file: str
    method: str
    label: str = ""
    paper: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = (0, 1, 2)
    costliest: str = ""
    """Of a level comparison: the method whose training FLOPs all others were given."""

    @property
    def files(self) -> dict[int, Path]:
        """Its kept results, by seed: of this code, or else of the latest revision that has any."""
        return self._found(self._age)

    @property
    def revision(self) -> int | None:
        """That revision, where it is one that did something else."""
        return REVISIONS[self._age].get(self.method) if self._age else None

    @property
    def _age(self) -> int:
        return next((age for age in range(len(REVISIONS)) if self._found(age)), 0)

    def _found(self, age: int) -> dict[int, Path]:
        if self.costliest:
            return {} if age else kept_level(self.file, self.method, self.costliest, self.seeds, **self.fields)
        return kept(self.file, self.method, self.seeds, age, **self.fields)
