"""Clients on this machine: many jobs at once on all cores, the same bytes for any number of workers."""

import contextlib
import fcntl
import io
import itertools
import multiprocessing
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from feddag.client.evaluate import Evaluate, count_correct, count_correct_natively
from feddag.client.work import Client, LocalSettings, perform, to_tensor
from feddag.data.clients import ClientData
from feddag.federation import ClientId, Engine, Job, Own, Ref, Reply, Result, Weights, digest, kept, nbytes
from feddag.models import ModelSpec
from feddag.native import Network

TRIES = 3  # how often a job is run whose worker dies
SHARED_FOLDER = "feddag-shared-memory-"
REMEMBERED = 8  # sets of weights a worker keeps at hand
SMALL_JOB = 2e6  # samples x parameters: below, training natively takes less than two threads lose over Python's lock


@dataclass(frozen=True)
class Workplace:
    """What stays the same for all work of a run."""

    model: ModelSpec
    settings: LocalSettings
    seed: int
    network: Network | None = None
    """For the native trainer; None where PyTorch does the work."""


@dataclass(frozen=True)
class Work:
    """A job as a worker gets it: with the client's memory, and when it happens."""

    job: Job
    state: Weights
    moment: tuple[int, int]


@dataclass(frozen=True)
class Score:
    """A model to be scored on one test block."""

    model: Ref
    block: int


@dataclass
class Done:
    """A finished job, and what the client remembers now if that has changed."""

    results: list[Result]
    state: Weights | None


class Worker:
    """Does work with the samples at hand; lives in this process or in one of its own."""

    def __init__(self, data: ClientData, place: Workplace, fetch: Callable[[Ref], Weights]) -> None:
        self._data, self._place, self._fetch = data, place, fetch
        self._model = place.model.build().to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def do(self, work: Work | Score) -> Done | Tensor:
        """Finish one piece of work."""
        if isinstance(work, Score):
            return self._score(self._fetch(work.model), [work.block])
        x, y = self._data.samples(work.job.client)
        client = Client(
            id=work.job.client,
            x=self._tensor(x),
            y=torch.from_numpy(y.copy()),
            model=self._model,
            network=self._place.network,
            settings=self._place.settings,
            num_classes=int(self._data.num_classes),
            fetch=self._fetch,
            score=lambda weights: self._score(weights, self._data.blocks(work.job.client)),
            seed=self._place.seed,
            moment=work.moment,
            state=work.state,
        )
        results = perform(work.job.steps, client)
        return Done(results, None if client.state is work.state else client.state)

    def _score(self, weights: Weights, blocks: Sequence[int]) -> Tensor:
        classes = int(self._data.num_classes)
        counts = torch.zeros(classes, 3, dtype=torch.float64)
        for block in blocks:
            x, y = self._data.block(block)
            samples = self._tensor(x), torch.from_numpy(y.copy()), classes
            if self._place.network is not None:
                counts += count_correct_natively(self._place.network, weights, *samples)
            else:
                counts += count_correct(self._model, weights, *samples)
        return counts

    def _tensor(self, x: Any) -> Tensor:
        return to_tensor(x, self._data.mean, self._data.std)


class LocalEngine(Engine):
    """All clients in simulation, one client to a worker at a time.

    A single worker is this very thread. More are threads where the native trainer works (it leaves Python alone) and
    processes of one thread where PyTorch does.
    """

    def __init__(
        self, data: ClientData, place: Workplace, workers: int = 1, drift: tuple[int, ClientData] | None = None
    ) -> None:
        """With `drift` = (round, data), clients hold those data from that round on."""
        self._data, self._drift = data, drift
        self._place, self._workers = place, workers
        self._parameters = sum(weights.numel() for weights in place.model.build().state_dict().values())
        self._states: dict[ClientId, tuple[int, Weights]] = {}
        self._scores: dict[Score, Tensor] = {}
        # One thread per worker: sums then run in one order whatever the number of cores.
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(1)
        self._crew = self._hire()

    def _hire(self) -> "_Alone | _Threads | _Processes":
        if self._workers == 1:
            return _Alone(self._data, self._place)
        if self._place.network is not None:
            return _Threads(self._data, self._place, self._workers)
        return _Processes(self._data, self._place, self._workers)

    def population(self) -> tuple[ClientId, ...]:
        return tuple(range(len(self._data.offsets) - 1))

    def put(self, weights: Weights) -> Ref:
        ref = Ref(digest(weights), nbytes(weights))
        self._crew.put(ref, weights)
        return ref

    def perform(self, jobs: Sequence[Job], round: int, exchange: int) -> tuple[list[Reply], dict[ClientId, str]]:
        only_scoring = [all(isinstance(step, Evaluate) for step in job.steps) for job in jobs]
        replies = self._score(list(itertools.compress(jobs, only_scoring)))
        others = [job for job, scoring in zip(jobs, only_scoring, strict=True) if not scoring]
        works = [Work(job, self._states.get(job.client, (0, {}))[1], (round, exchange)) for job in others]
        for work, done in self._do(works, [self._data.size(job.client) for job in others]):
            assert isinstance(work, Work)
            assert isinstance(done, Done)
            client = work.job.client
            if done.state is not None:
                self._states[client] = (round, done.state)
            replies.append(Reply(client, done.results, self._data.size(client)))
        return replies, {}

    def begin_round(self, round: int) -> None:
        self._crew.forget_weights()
        if self._drift is not None and round >= self._drift[0]:
            self._data, self._drift = self._drift[1], None
            self._scores = {}
            self._crew.close()
            self._crew = self._hire()

    def states(self) -> dict[ClientId, tuple[int, Weights]]:
        return dict(self._states)

    def restore(self, states: dict[ClientId, tuple[int, Weights]]) -> None:
        self._states = dict(states)

    def close(self) -> None:
        self._crew.close()
        torch.set_num_threads(self._threads_before)

    def _score(self, jobs: Sequence[Job]) -> list[Reply]:
        """Score each distinct (weights, block) once, and put every client's counts together from its blocks."""
        # Most clients share a model and a list of blocks with many others: what they share is looked at once.
        models = [
            [self._sent(job.client, step.model) for step in job.steps if isinstance(step, Evaluate)] for job in jobs
        ]
        blocks = [self._data.blocks(job.client) for job in jobs]
        shared = dict.fromkeys((model, held) for sent, held in zip(models, blocks, strict=True) for model in sent)
        distinct = dict.fromkeys(Score(model, block) for model, held in shared for block in held)
        missing = [score for score in distinct if score not in self._scores]
        for score, table in self._do(missing, [self._data.block_size(score.block) for score in missing]):
            assert isinstance(score, Score)
            assert isinstance(table, Tensor)
            self._scores[score] = table
        if jobs:  # remember only what this evaluation used: most models change in every round
            self._scores = {score: self._scores[score] for score in distinct}
        nothing = torch.zeros(int(self._data.num_classes), 3, dtype=torch.float64)
        counts = {
            (model, held): sum((self._scores[Score(model, block)] for block in held), nothing) for model, held in shared
        }
        return [
            Reply(
                job.client,
                [Result(arrays={"counts": counts[model, held]}) for model in sent],
                self._data.size(job.client),
            )
            for job, sent, held in zip(jobs, models, blocks, strict=True)
        ]

    def _sent(self, client: ClientId, source: Ref | Own | None) -> Ref:
        if isinstance(source, Ref):
            return source
        if isinstance(source, Own):
            return self.put(kept(self._states[client][1], source.name))
        raise LookupError("the first step of a job has no step before it to take weights from")

    def _do(self, works: Sequence[Work | Score], costs: Sequence[int]) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        longest_first = sorted(range(len(works)), key=lambda number: -costs[number])
        return self._crew.do([works[number] for number in longest_first], self._is_small(works, costs))

    def _is_small(self, works: Sequence[Work | Score], costs: Sequence[int]) -> bool:
        samples: float = sum(costs) / max(1, len(costs))
        if works and isinstance(works[0], Work):
            local = self._place.settings
            samples = samples * local.epochs if local.steps is None else local.steps * local.batch_size
        return bool(samples * self._parameters < SMALL_JOB)


class _Alone:
    """One worker, in this thread."""

    def __init__(self, data: ClientData, place: Workplace) -> None:
        self._weights: dict[str, Weights] = {}
        self._worker = Worker(data, place, self._fetch)

    def put(self, ref: Ref, weights: Weights) -> None:
        self._weights[ref.digest] = weights

    def forget_weights(self) -> None:
        self._weights.clear()

    def do(self, works: Sequence[Work | Score], small: bool) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        return ((work, self._worker.do(work)) for work in works)

    def close(self) -> None:
        """Nothing to let go of."""

    def _fetch(self, ref: Ref) -> Weights:
        return self._weights[ref.digest]


class _Threads(_Alone):
    """Workers in threads of this process, each with a network of its own for steps that use PyTorch."""

    def __init__(self, data: ClientData, place: Workplace, workers: int) -> None:
        super().__init__(data, place)
        self._mine, self._workers = threading.local(), workers
        self._pool = ThreadPoolExecutor(
            workers, initializer=lambda: setattr(self._mine, "worker", Worker(data, place, self._fetch))
        )

    def do(self, works: Sequence[Work | Score], small: bool) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        if small:
            yield from super().do(works, small)
            return
        waiting = deque(works)
        finished: SimpleQueue[tuple[Work | Score, Done | Tensor | BaseException]] = SimpleQueue()
        for _ in range(min(self._workers, len(works))):  # a task for each thread: one for each work would cost more
            self._pool.submit(self._help, waiting, finished)
        try:
            for _ in works:
                work, outcome = finished.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield work, outcome
        finally:
            waiting.clear()  # nobody waits for the rest

    def _help(self, waiting: deque[Work | Score], finished: "SimpleQueue[Any]") -> None:
        while True:
            try:
                work = waiting.popleft()
            except IndexError:
                return
            try:
                finished.put((work, self._mine.worker.do(work)))
            except BaseException as error:  # whatever it is: raised again where the work was asked for
                finished.put((work, error))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class _Processes:
    """Worker processes of one thread each, fed one piece of work at a time.

    They map the samples and read the weights from files in a temporary folder: shared, never copied per client. One
    that dies is replaced and its work done again.
    """

    def __init__(self, data: ClientData, place: Workplace, workers: int) -> None:
        _sweep_abandoned()
        self._folder = Path(tempfile.mkdtemp(prefix=SHARED_FOLDER))
        self._lock = (self._folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)  # ends with this process, however that ends
        data.write(self._folder)
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload([__name__])
        self._place = place
        self._processes: dict[Connection[Any, Any], Any] = {}
        for _ in range(workers):
            self._hire()

    def put(self, ref: Ref, weights: Weights) -> None:
        path = self._folder / f"{ref.digest}.safetensors"
        if not path.exists():
            save_file({name: tensor.contiguous() for name, tensor in weights.items()}, path)

    def forget_weights(self) -> None:
        for path in self._folder.glob("*.safetensors"):
            path.unlink()

    def do(self, works: Sequence[Work | Score], small: bool) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        waiting = deque((work, 1) for work in works)
        busy: dict[Connection[Any, Any], tuple[Work | Score, int]] = {}
        while waiting or busy:
            for connection in [c for c in self._processes if c not in busy]:
                if waiting:
                    work, attempt = waiting.popleft()
                    busy[connection] = work, attempt
                    with contextlib.suppress(OSError):  # it died while idle: found out below
                        _send(connection, work)
            for connection in cast("list[Connection[Any, Any]]", wait(list(busy))):
                work, attempt = busy.pop(connection)
                try:
                    outcome = connection.recv()
                except (EOFError, OSError):
                    self._replace(connection)
                    if attempt == TRIES:
                        raise RuntimeError(f"a worker died {TRIES} times over the same job; is memory short?") from None
                    waiting.appendleft((work, attempt + 1))
                    continue
                if isinstance(outcome, str):
                    raise RuntimeError(f"a client's work failed:\n{outcome}")
                yield work, outcome

    def close(self) -> None:
        for connection, process in self._processes.items():
            connection.close()
            process.kill()
        for process in self._processes.values():
            process.join()
        self._lock.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _hire(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work_on, args=(theirs, self._folder, self._place), daemon=True)
        with _main_not_imported():
            process.start()
        theirs.close()
        self._processes[ours] = process

    def _replace(self, connection: Any) -> None:
        process = self._processes.pop(connection)
        connection.close()
        process.kill()
        process.join()
        self._hire()


def _work_on(connection: Any, folder: Path, place: Workplace) -> None:
    """The life of a worker process: it ends with the pipe, and leaves Ctrl-C to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    at_hand: dict[str, Weights] = {}

    def fetch(ref: Ref) -> Weights:
        if ref.digest not in at_hand:
            while len(at_hand) >= REMEMBERED:
                at_hand.pop(next(iter(at_hand)))
            at_hand[ref.digest] = load_file(folder / f"{ref.digest}.safetensors")
        return at_hand[ref.digest]

    worker = Worker(ClientData.map_from(folder), place, fetch)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            packed = connection.recv_bytes()
            try:
                outcome: Done | Tensor | str = worker.do(ForkingPickler.loads(packed))
            except Exception:  # whatever a step does wrong, the parent must hear of it
                outcome = traceback.format_exc()
            _send(connection, outcome)


class _Packer(ForkingPickler):
    """Tensors travel by value: torch's own way opens a file descriptor for each, and they run out."""

    def reducer_override(self, item: Any) -> Any:
        return (torch.from_numpy, (item.numpy(),)) if isinstance(item, Tensor) else NotImplemented


def _send(connection: Any, item: Any) -> None:
    buffer = io.BytesIO()
    _Packer(buffer, 5).dump(item)
    connection.send_bytes(buffer.getbuffer())


@contextlib.contextmanager
def _main_not_imported() -> Iterator[None]:
    """Workers need nothing from the user's script; importing it there would start the script's runs again."""
    main = sys.modules["__main__"]
    before: dict[str, Any] = {name: vars(main)[name] for name in ("__file__", "__spec__") if name in vars(main)}
    vars(main).pop("__file__", None)
    vars(main)["__spec__"] = None
    try:
        yield
    finally:
        vars(main).update(before)


def _sweep_abandoned() -> None:
    """Remove the folders of runs that were killed before they could: those with a lock that nobody holds."""
    for lock in Path(tempfile.gettempdir()).glob(f"{SHARED_FOLDER}*/lock"):
        with contextlib.suppress(OSError), lock.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
