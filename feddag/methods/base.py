"""What every method is: a start, a round, and an answer to "which model does this client use?"."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from feddag.federation import Federation
from feddag.records import Diagnostics
from feddag.stateful import Stateful
from feddag.weights import ClientId, Served, Weights


class MethodSettings(BaseModel):
    """A method's own fields of the experiment; a method with any subclasses this inside its class."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Method(Stateful, ABC):
    """One federated algorithm.

    Everything a method remembers is an attribute that does not start with an underscore (see `Stateful`): that is what
    a checkpoint saves and a resumed run gets back. What starts with one is
    made in `setup`, which both a new and a resumed run call. Models of single clients that the server holds belong into
    `held`: each is a file of its own, written only when it changes.
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1
    """Raised when the method's behaviour changes, so that kept results of the old one are not taken for the new."""
    needs_truth: ClassVar[bool] = False
    """A baseline that must be told the true groups; refused where the partition has none."""
    encoders: ClassVar[int] = 1
    """Two for a method that trains a dual-encoder model."""
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings) -> None:
        self._settings = settings
        self.held: dict[ClientId, Weights] = {}

    def setup(self, federation: Federation) -> None:
        """Make what is not remembered. Called before `start`, and again before a stopped run goes on."""

    @abstractmethod
    def start(self, federation: Federation) -> None:
        """Before the first round: first weights, warm-up, grouping."""

    @abstractmethod
    def round(self, federation: Federation, sampled: Sequence[ClientId]) -> None:
        """One communication round with the sampled clients."""

    @abstractmethod
    def model_of(self, client: ClientId) -> Served:
        """What this client would use now: weights known here, its own, the best of several, or several together."""

    def sample(self, federation: Federation) -> list[ClientId]:
        """Who takes part in this round: a share of all clients, at least one, drawn without replacement."""
        clients = federation.clients
        count = max(1, round(federation.participation * len(clients)))
        drawn = federation.rng("sample").choice(len(clients), count, replace=False)
        return sorted(clients[number] for number in drawn)

    def join(self, federation: Federation, newcomers: Sequence[ClientId]) -> None:
        """Clients that were not there before take part from now on."""

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        """Clients have left for good."""

    def clusters(self) -> dict[ClientId, int] | None:
        """The group of each client; None for a method that makes no groups."""
        return None

    def diagnostics(self) -> Diagnostics:
        """What led to the groups, for a report; every part is optional."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """All that the method remembers but for `held`, which has files of its own."""
        return {name: value for name, value in super().state_dict().items() if name != "held"}
