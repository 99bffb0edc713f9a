"""The contract between a method and whatever carries its jobs to the clients.

A method asks, clients answer. A job is plain data (what to do, with which weights, for which client); a reply is plain
data (arrays and numbers). A method never learns which engine carried the jobs and cannot reach a sample.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from feddag.answers import FAR_BEYOND, FINITE, Inspector, far_beyond, form_of
from feddag.client.step import NUMBER_BYTES, Result, Step
from feddag.errors import FeddagError
from feddag.models import ModelSpec
from feddag.records import Event, EventKind
from feddag.rng import rng
from feddag.weights import ClientId, Ref, Weights

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """Steps for one client, done in order in one exchange."""

    client: ClientId
    steps: tuple[Step, ...]

    def __init__(self, client: ClientId, steps: Step | Sequence[Step]) -> None:
        object.__setattr__(self, "client", client)
        object.__setattr__(self, "steps", (steps,) if isinstance(steps, Step) else tuple(steps))


@dataclass
class Reply:
    """One client's answer: a result per step, and how many training samples the client holds."""

    client: ClientId
    results: list[Result]
    samples: int

    @property
    def weights(self) -> Weights:
        """The weights the last sending step left."""
        for result in reversed(self.results):
            if result.weights is not None:
                return result.weights
        raise LookupError(f"client {self.client} sent no weights")

    @property
    def nbytes(self) -> int:
        """Bytes that travel back; the sample count is one number."""
        return sum(result.nbytes for result in self.results) + NUMBER_BYTES


@dataclass
class Replies:
    """The replies that arrived, in the order of client ids, and why each missing one is missing."""

    answered: list[Reply]
    missing: dict[ClientId, str]

    def __iter__(self) -> Iterator[Reply]:
        return iter(self.answered)

    def __len__(self) -> int:
        return len(self.answered)

    def by_group(self, group_of: Mapping[ClientId, int]) -> Iterator[tuple[int, list[Reply]]]:
        """The replies of each group that answered, smallest group number first."""
        for group in sorted({group_of[reply.client] for reply in self.answered}):
            yield group, [reply for reply in self.answered if group_of[reply.client] == group]


class Engine(ABC):
    """Carries jobs to clients and brings the replies back. One per place where clients live."""

    holds_states: ClassVar[bool] = True
    """Whether `states` gives what clients remember; else they keep it on their own disks."""
    watch: Callable[[int, int], None] | None = None
    """Told as answers arrive, where somebody watches: how many are there, and of how many."""

    @abstractmethod
    def population(self) -> tuple[ClientId, ...]:
        """The clients that are here now, sorted."""

    @abstractmethod
    def put(self, weights: Weights) -> Ref:
        """Make weights available to clients; equal weights get equal references."""

    @abstractmethod
    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        """Run all jobs, in any order; return what arrived and, per missing client, why it did not."""

    def counts(self, models: Sequence[Ref], which: Ints, clients: Ints) -> tuple[Tensor, Ints] | None:
        """Scores of clients' models on their own test samples where nobody has to be asked; None: ask them.

        Tables of classes x (correct, samples, loss), which many clients share, and the number of each client's;
        `which` of the distinct models is each client's.
        """
        return None

    def held(self) -> Tensor | None:
        """Which classes each client holds now (clients x classes); None where only the clients know."""
        return None

    def begin_round(self, round: int) -> None:  # noqa: B027 - most engines have something to forget, none must
        """References handed out before now are no longer needed; who is here may be looked up afresh."""

    def events(self) -> list[Event]:
        """What happened on the way since this was last asked, beside missing answers: nodes lost, found, refused."""
        return []

    @abstractmethod
    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        """What each client remembers and the round it last changed; empty where clients keep it on their own disks."""

    @abstractmethod
    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        """Give clients back what `states` returned."""

    @abstractmethod
    def close(self) -> None:
        """Let go of every process and file."""


@dataclass
class Traffic:
    """Exact counts of what travelled and what was computed, per phase of the method and per client."""

    up: Counter[str] = field(default_factory=Counter)
    down: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    """Samples that passed through training."""
    scored: Counter[str] = field(default_factory=Counter)
    """Samples that only passed forward: a method's own scoring, not the run's measurements."""
    flops: Counter[str] = field(default_factory=Counter)
    """Arithmetic of training."""
    up_by_client: Counter[ClientId] = field(default_factory=Counter)
    down_by_client: Counter[ClientId] = field(default_factory=Counter)
    samples_by_client: Counter[ClientId] = field(default_factory=Counter)
    flops_by_client: Counter[ClientId] = field(default_factory=Counter)


class Federation:
    """What a method sees of the world: clients it can ask, weights it can hand over, and named randomness."""

    def __init__(
        self,
        engine: Engine,
        model: ModelSpec,
        seed: int,
        participation: float,
        truth: Mapping[ClientId, int] | None = None,
        held_out: Iterable[ClientId] = (),
        minimum: int = 0,
        rounds: int = 0,
    ) -> None:
        self._engine = engine
        self._model = model
        self._seed = seed
        self._held_out = frozenset(held_out)
        self._minimum = minimum
        self._inspector = Inspector(model, {form_of(model.initial_weights(seed, "form"))})
        self._exchange = 0
        self._present: tuple[tuple[ClientId, ...], frozenset[ClientId], tuple[ClientId, ...]] | None = None
        self._counting = True
        self._told: list[Event] = []
        self.participation = participation
        self.truth = truth
        """The true group of each client: for a method that `needs_truth`, in simulation only."""
        self.rounds = rounds
        """How many rounds there will be; with `training_flops` in the experiment, about how many."""
        self.round = 0
        """0 while the method starts, then 1, 2, ..."""
        self.phase = "train"
        """A method may name what it is doing (\"warmup\"); traffic is counted per phase."""
        self.traffic = Traffic()
        self.missing: dict[ClientId, str] = {}
        """Clients that did not answer in this round, and why."""
        self.peaks: dict[ClientId, float] = {}
        """The largest weight that each client sent in this round."""
        self.barred: dict[ClientId, str] = {}
        """Clients that are not asked, and why."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """The clients that take part now, sorted."""
        everyone = self._engine.population()
        if self._present is None or self._present[0] is not everyone or self._present[1] is not self._held_out:
            found = tuple(client for client in everyone if client not in self._held_out) if self._held_out else everyone
            self._present = everyone, self._held_out, found
        return self._present[2]

    @property
    def seed(self) -> int:
        """What all randomness of the run comes from."""
        return self._seed

    def begin_round(self, number: int) -> None:
        """Open a round: its randomness, exchanges and absentees start afresh."""
        self._engine.begin_round(number)
        self.round, self._exchange, self.phase = number, 0, "train"
        self.peaks = {}
        if number > 1:  # the first round's record also tells who was missing at the start
            self.missing = {}

    def admit(self, clients: Iterable[ClientId]) -> None:
        """Let clients take part that were held out until now."""
        self._held_out -= frozenset(clients)

    def initial_weights(self, name: str = "model") -> Weights:
        """Fresh random weights; the same name gives the same weights."""
        return self._model.initial_weights(self._seed, name)

    def features(self) -> int:
        """How many features an encoder gives."""
        return self._model.features()

    def rng(self, *names: str | int) -> np.random.Generator:
        """Randomness for the server's own choices, by name and round."""
        return rng(self._seed, "server", *names, self.round)

    def tell(self, kind: EventKind, text: str, clients: Iterable[ClientId] = ()) -> None:
        """Say what happened to clients, for whoever reads the history."""
        self._told.append(Event(kind, tuple(clients), text))

    def events(self) -> list[Event]:
        """What the engine and the method told since this was last asked."""
        told, self._told = self._told, []
        return [*self._engine.events(), *told]

    def put(self, weights: Weights) -> Ref:
        """Hand weights over once; jobs then carry the reference."""
        self._inspector.forms.add(form_of(weights))
        return self._engine.put(weights)

    def ask(self, jobs: Iterable[Job], *, optional: bool = False) -> Replies:
        """Send jobs, at most one per client, and return the replies that arrived, in client order.

        A client that failed, left, or answered with something that is not a finite number or not of the right shape is
        missing, with its reason. What is `optional` can be asked again later: too few answers do not stop the run.
        """
        jobs = sorted(jobs, key=lambda job: job.client)
        if len({job.client for job in jobs}) < len(jobs):
            raise ValueError("a client was given two jobs in one exchange; give one job with two steps")
        self._exchange += 1
        allowed = [job for job in jobs if job.client not in self.barred]
        answered, missing = self._engine.perform(allowed, self.round, self._exchange)
        missing = {**missing, **{job.client: self.barred[job.client] for job in jobs if job.client in self.barred}}
        steps = {job.client: job.steps for job in jobs}
        sound, peaks = [], {}
        for reply in sorted(answered, key=lambda reply: reply.client):
            problem = self._inspector.problem(
                steps[reply.client], reply.results, reply.samples, measuring=not self._counting
            )
            if problem:
                missing = missing | {reply.client: problem}
            else:
                sound.append(reply)
                peaks[reply.client] = self._inspector.peak
        for client in far_beyond(peaks, FAR_BEYOND):
            missing[client] = "answered with weights far beyond those of the others"
        sound = [reply for reply in sound if reply.client not in missing]
        if self._counting:
            self.peaks |= {client: max(peak, self.peaks.get(client, 0.0)) for client, peak in peaks.items()}
            self._count(jobs, [reply for reply in answered if missing.get(reply.client) in (None, FINITE)])
            self.missing |= missing
            if not optional and len(sound) < min(self._minimum, len(jobs)):
                raise FeddagError(
                    f"round {self.round}: {len(sound)} of {len(jobs)} clients gave a usable answer, and minimum = "
                    f"{self._minimum}; the run can be resumed"
                )
        return Replies(sound, missing)

    def counts(self, models: Sequence[Ref], which: Ints, clients: Ints) -> tuple[Tensor, Ints] | None:
        """For measurements, which are not counted: see `Engine.counts`."""
        return self._engine.counts(models, which, clients)

    @contextlib.contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """What is asked inside is counted under this name."""
        before, self.phase = self.phase, name
        try:
            yield
        finally:
            self.phase = before

    @contextlib.contextmanager
    def uncounted(self) -> Iterator[None]:
        """What is asked inside is measurement, not part of the method: no traffic, no absentees, nothing refused."""
        self._counting = False
        try:
            yield
        finally:
            self._counting = True

    def _count(self, jobs: Sequence[Job], replies: Sequence[Reply]) -> None:
        traffic = self.traffic
        steps = {job.client: job.steps for job in jobs}
        known: dict[tuple[int, ...], list[int]] = {}  # by the steps themselves: clients often share them
        for job in jobs:
            these = tuple(map(id, job.steps))
            if these not in known:
                known[these] = _sizes(job.steps)
            for step, size in zip(job.steps, known[these], strict=True):
                traffic.down[step.phase or self.phase] += size
            traffic.down_by_client[job.client] += sum(known[these])
        for reply in replies:
            up = NUMBER_BYTES  # the sample count
            for step, result in zip(steps[reply.client], reply.results, strict=True):
                phase, size = step.phase or self.phase, result.nbytes
                up += size
                traffic.up[phase] += size
                traffic.samples[phase] += result.samples
                traffic.scored[phase] += result.scored
                traffic.flops[phase] += result.flops
                traffic.samples_by_client[reply.client] += result.samples
                traffic.flops_by_client[reply.client] += result.flops
            traffic.up[self.phase] += NUMBER_BYTES
            traffic.up_by_client[reply.client] += up


def _sizes(steps: Iterable[Step]) -> list[int]:
    """Bytes that travel to a client for each of its steps: weights once, for the first step that needs them."""
    sent: set[Ref] = set()
    sizes = []
    for step in steps:
        payload = [item for item in step.payload() if not isinstance(item, Ref) or item not in sent]
        sizes.append(sum(item.nbytes for item in dict.fromkeys(payload)))
        sent.update(item for item in payload if isinstance(item, Ref))
    return sizes
