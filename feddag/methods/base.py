"""What every method is: a start, a round, and an answer to "which model does this client use?"."""

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, create_model

from feddag.client.classes import TellClasses, classes_told
from feddag.federation import Federation, Job, Reply
from feddag.heads import check_linear, sharpened
from feddag.records import Diagnostics
from feddag.server.robust import FEWEST, Robust, lengths, robust_mean
from feddag.stateful import Stateful
from feddag.weights import ClientId, Served, Weights

SUSPICIOUS = 5.0  # times the median length of an update


class MethodSettings(BaseModel):
    """A method's own fields of the experiment; a method with any subclasses this inside its class.

    The stabilisers are switched off unless the method's own paper has them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    robust: Robust = Field("none", description="how answers are averaged, so that a few liars cannot pull the mean")
    sampling: Literal["clusters", "all"] = Field(
        "all", description="participants: a share of each cluster, or of all; the same where there are no clusters"
    )
    balanced: bool = Field(False, description="local batches hold a client's classes in equal parts")
    smoothing: float = Field(0.0, ge=0, lt=1, description="share of the rounds before in the models that clients use")
    head: Literal["random", "sharp"] = Field(
        "random", description="first head: random, or a long direction for each class, at right angles"
    )
    softmax: Literal["all", "held", "own"] = Field(
        "all",
        description="classes that the loss tells apart: all, those that the cluster (or client) holds, or the client's",
    )

    came_later: ClassVar[Mapping[str, Any]] = {
        **{"sampling": "all", "balanced": False, "smoothing": 0.0},
        **{"head": "random", "softmax": "all"},
    }
    """Fields that such a method did not always have, with what it did before: so the keys of kept results stay."""


Settings = TypeVar("Settings", bound=MethodSettings)


def with_defaults(settings: type[Settings], defaults: Mapping[str, Any]) -> type[Settings]:
    """The same fields, some of them with other defaults.

    >>> with_defaults(MethodSettings, {"smoothing": 0.5})().smoothing
    0.5
    """
    changed = {}
    for name, value in defaults.items():
        field = copy(settings.model_fields[name])
        field.default = value
        changed[name] = (field.annotation, field)
    made: type[Settings] = create_model(settings.__name__, __base__=settings, **changed)  # type: ignore[call-overload]
    made()  # defaults that contradict each other are refused here
    return made


class Method(Stateful, ABC):
    """One federated algorithm.

    Everything a method remembers is an attribute that does not start with an underscore (see `Stateful`): that is what
    a checkpoint saves and a resumed run gets back. What starts with one is made in `setup`, which both a new and a
    resumed run call. Models of single clients that the server holds belong into `held`: each is a file of its own,
    written only when it changes.
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1
    """Raised when the method's behaviour changes, so that kept results of the old one are not taken for the new."""
    needs_truth: ClassVar[bool] = False
    """A baseline that must be told the true groups; refused where the partition has none."""
    encoders: ClassVar[int] = 1
    """Two for a method that trains a dual-encoder model."""
    smooths: ClassVar[bool] = False
    """Whether `model_of` follows the field `smoothing`; else it is refused."""
    family: ClassVar[str] = "one model"
    """What kind of method it is, to compare like with like: "one model", "clustered", "personalised" or "baseline"."""
    needs: ClassVar[str] = "nothing"
    """What must be known in advance (\"k\", the number of clusters)."""
    sends: ClassVar[str] = "model"
    """What clients send in a round, beside the number of their samples."""
    cost: ClassVar[float] = 1.0
    """Training FLOPs of a round as a multiple of FedAvg's: its own fields at their defaults, LeNet-5, batches of 32."""
    paper: ClassVar[str] = ""
    """Who published it, where and when."""
    Settings: ClassVar[type[MethodSettings]] = MethodSettings

    def __init__(self, settings: MethodSettings) -> None:
        self._settings = settings
        self.held: dict[ClientId, Weights] = {}
        self.classes: dict[ClientId, list[int]] = {}
        """What each client holds, where the softmax does not run over all classes."""
        self._suspects: dict[ClientId, float] = {}

    @classmethod
    def encoders_for(cls, settings: MethodSettings) -> int:
        """How many encoders the model has under these settings."""
        return cls.encoders

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

    def initial_weights(self, federation: Federation, name: str = "model") -> Weights:
        """Random weights that belong to a name, with the head that the field `head` asks for."""
        weights = federation.initial_weights(name)
        if self._settings.softmax != "all":
            check_linear(weights)
        return sharpened(weights, federation.seed) if self._settings.head == "sharp" else weights

    def learn_classes(self, federation: Federation) -> None:
        """Ask those who have not told which classes they hold, where that matters."""
        if self._settings.softmax == "all":
            return
        if unknown := [client for client in federation.clients if client not in self.classes]:
            with federation.in_phase("classes"):
                replies = federation.ask((Job(client, TellClasses()) for client in unknown), optional=True)
            self.classes |= {reply.client: classes_told(reply.results[0].arrays["held"]) for reply in replies}

    def held_by(self, client: ClientId) -> Sequence[int]:
        """The classes that a client is known to hold."""
        return self.classes.get(client, ())

    def held_around(self, client: ClientId) -> Sequence[int]:
        """The classes that somebody is known to hold who shares a model with this client."""
        return sorted({label for held in self.classes.values() for label in held})

    def sample(self, federation: Federation) -> list[ClientId]:
        """Who takes part in this round: a share of all clients, at least one, drawn without replacement.

        With `sampling` in clusters, so many of each, and of those that belong to none yet.
        """
        strata = self.strata() if self._settings.sampling == "clusters" else None
        if strata is None:
            return _drawn(federation.clients, federation.participation, federation.rng("sample"))
        generator = federation.rng("sample in clusters")
        sampled: list[ClientId] = []
        for stratum in [*sorted(set(strata.values())), None]:
            if members := [client for client in federation.clients if strata.get(client) == stratum]:
                sampled += _drawn(members, federation.participation, generator)
        return sorted(sampled)

    def join(self, federation: Federation, newcomers: Sequence[ClientId]) -> None:
        """Clients that were not there before take part from now on."""
        self.learn_classes(federation)

    def leave(self, federation: Federation, gone: Sequence[ClientId]) -> None:
        """Clients have left for good: whoever comes back may hold other classes."""
        for client in gone:
            self.classes.pop(client, None)

    def clusters(self) -> dict[ClientId, int] | None:
        """The group of each client; None for a method that makes no groups."""
        return None

    def strata(self) -> dict[ClientId, int] | None:
        """Groups of which each gets its share of the participants, where `sampling` is by clusters: the clusters."""
        return self.clusters()

    def diagnostics(self) -> Diagnostics:
        """What led to the groups, for a report; every part is optional."""
        return {}

    def mean(
        self, replies: Sequence[Reply], start: Weights, *, by_samples: bool = True, step: int | None = None
    ) -> Weights:
        """The mean of what clients trained from `start`, by the rule that the field `robust` names.

        `step` is the step of the job whose weights are meant: the last that sent any, if it is not named.
        """
        sent = [reply.weights if step is None else reply.results[step].weights or {} for reply in replies]
        shares = [reply.samples if by_samples else 1 for reply in replies]
        rule = self._settings.robust
        if rule != "none" and len(replies) >= FEWEST:
            long = lengths(sent, start)
            usual = statistics.median(long) or math.inf
            suspects = {r.client: length / usual for r, length in zip(replies, long, strict=True)}
            self._suspects |= {client: ratio for client, ratio in suspects.items() if ratio > SUSPICIOUS}
        return robust_mean(sent, shares, start, rule)

    def suspects(self) -> dict[ClientId, float]:
        """Clients whose updates were many times as long as the usual one since this was last asked, and how many."""
        found, self._suspects = self._suspects, {}
        return found

    def state_dict(self) -> dict[str, Any]:
        """All that the method remembers but for `held`, which has files of its own."""
        return {name: value for name, value in super().state_dict().items() if name != "held"}


def _drawn(clients: Sequence[ClientId], share: float, generator: np.random.Generator) -> list[ClientId]:
    """A share of these clients, at least one."""
    count = max(1, round(share * len(clients)))
    return sorted(clients[number] for number in generator.choice(len(clients), count, replace=False))
