"""What a node lets a server ask of it. It comes from the node's own configuration, never from the server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddag.errors import FeddagError, short
from feddag.files import write_atomically

if TYPE_CHECKING:  # large: a node's configuration is checked before they are needed
    from feddag.client.step import Step
    from feddag.client.trainer import LocalSettings
    from feddag.client.warmup import MakeSignature

SIGNATURES = "signatures-made"


@dataclass(frozen=True)
class NodePolicy:
    """Limits of what is released and of what is computed. A job beyond one of them is refused with the reason."""

    least_per_class: int = 6
    """Classes of fewer samples are left out of signatures and counts: of one or two, they would show the samples."""
    raw_inputs: bool = False
    """Whether signatures may be made of samples as they are, and means of a few sent; else signatures are made only of
    samples standardised one by one."""
    most_vectors: int = 5
    """Principal vectors of a class in a signature: as many as samples would give the samples away together."""
    most_signatures: int = 20
    """Signatures in one run: many of them, each of another drift, tell more than one."""
    most_epochs: int = 1000
    most_steps: int = 1_000_000
    """Of local training in one step of a job."""
    most_seconds: int = 86_400
    """Of work on one job; the node's program then ends, and says why in its own log."""
    steps: str = ""
    """Names of the steps that may be asked for, separated by commas; all that the app knows, if empty."""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "NodePolicy":
        """From Flower's node config, where names are written with dashes.

        >>> NodePolicy.of({"least-per-class": 3, "data": "site.npz"}).least_per_class
        3
        """
        given: dict[str, Any] = {}
        for item in fields(cls):
            name = item.name.replace("_", "-")
            if name not in node:
                continue
            value, usual = node[name], item.default
            if type(value) is not type(usual) or (isinstance(value, int) and value < 0):
                kind = {bool: "true or false", int: "a whole number from 0", str: "text"}[type(usual)]
                raise FeddagError(f"node config {name} = {short(repr(value))} is not allowed: it should be {kind}")
            given[item.name] = value
        return cls(**given)

    def check(self, steps: "Sequence[Step]", usual: "LocalSettings", folder: Path) -> None:
        """Refuse a job that asks for more than is allowed; `folder` is where the client's memory is kept."""
        from feddag.client.personal import Personalise
        from feddag.client.train import Train
        from feddag.client.warmup import MakeSignature
        from feddag.engines.flower.wire import WireError

        allowed = {name.strip() for name in self.steps.split(",") if name.strip()}
        for step in steps:
            if allowed and type(step).__name__ not in allowed:
                raise WireError("refused: its policy does not allow this kind of step")
            if step.tells_samples and not self.raw_inputs:
                raise WireError("refused: its policy does not allow means of raw samples")
            if isinstance(step, Train):
                self._check_training(step.settings(usual))
            if isinstance(step, Personalise):
                for name in step.tried:
                    self._check_training(step.training(name, usual).settings(usual))
            if isinstance(step, MakeSignature):
                self._check_signature(step, folder)

    def _check_training(self, settings: "LocalSettings") -> None:
        from feddag.engines.flower.wire import WireError

        if settings.steps is None and settings.epochs > self.most_epochs:
            raise WireError(f"refused: its policy allows {self.most_epochs} epochs")
        if settings.steps is not None and settings.steps > self.most_steps:
            raise WireError(f"refused: its policy allows {self.most_steps} steps")

    def _check_signature(self, step: "MakeSignature", folder: Path) -> None:
        from feddag.engines.flower.wire import WireError

        if step.inputs != "standardised" and not self.raw_inputs:  # features may be the samples: the server's encoder
            raise WireError("refused: its policy does not allow signatures of raw samples")
        if step.vectors > self.most_vectors:
            raise WireError(f"refused: its policy allows {self.most_vectors} vectors of a class")
        if step.rounds * max(step.steps, 1) > self.most_steps:
            raise WireError(f"refused: its policy allows {self.most_steps} steps")
        if step.rounds * step.epochs > self.most_epochs:
            raise WireError(f"refused: its policy allows {self.most_epochs} epochs")
        made = folder / SIGNATURES
        count = len(made.read_text().splitlines()) if made.exists() else 0
        if count >= self.most_signatures:
            raise WireError(f"refused: its policy allows {self.most_signatures} signatures in a run")

    def note(self, steps: "Sequence[Step]", folder: Path, moment: tuple[int, int]) -> None:
        """Count the signatures of a job; one that is asked for twice is the same one, and counts once."""
        from feddag.client.warmup import MakeSignature

        if any(isinstance(step, MakeSignature) for step in steps):
            made = folder / SIGNATURES
            known = made.read_text().splitlines() if made.exists() else []
            if (line := f"{moment[0]} {moment[1]}") not in known:
                write_atomically(made, "".join(f"{entry}\n" for entry in [*known, line]))  # a full disk forgets nothing
