"""Workers side by side: in this thread, in threads, or in processes. The same bytes for any number of them."""

import contextlib
import io
import multiprocessing
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from feddag import system
from feddag.data.clients import ClientData
from feddag.engines.worker import Done, Score, Work, Worker, WorkerConfig
from feddag.weights import Ref, Weights

TRIES = 3  # how often a job is tried if its worker dies each time
SHARED_FOLDER = "feddag-shared-memory-"
REMEMBERED = 8  # sets of weights a worker keeps at hand


class Pool(Protocol):
    """Workers that share the same samples."""

    def put(self, ref: Ref, weights: Weights) -> None:
        """Make weights available to the workers."""

    def forget_weights(self) -> None:
        """Drop all weights that were put."""

    def do(self, works: Sequence[Work | Score], small: bool) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        """Do all of these, in any order; `small` says that they are not worth handing to threads."""

    def close(self) -> None:
        """End the workers."""


def make_pool(data: ClientData, config: WorkerConfig, workers: int) -> Pool:
    """Workers for these samples: threads where the native trainer works, else processes of one thread each."""
    if workers == 1:
        return SerialPool(data, config)
    return (ThreadPool if config.releases_gil else ProcessPool)(data, config, workers)


class SerialPool(Pool):
    """One worker, in this thread."""

    def __init__(self, data: ClientData, config: WorkerConfig) -> None:
        self._weights: dict[str, Weights] = {}
        self._worker = Worker(data, config, self._fetch)

    def put(self, ref: Ref, weights: Weights) -> None:
        self._weights[ref.digest] = weights

    def forget_weights(self) -> None:
        self._weights.clear()

    def do(self, works: Sequence[Work | Score], small: bool) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        return ((work, self._worker.do(work)) for work in works)

    def close(self) -> None:
        """Nothing to end."""

    def _fetch(self, ref: Ref) -> Weights:
        return self._weights[ref.digest]


class ThreadPool(SerialPool):
    """Workers in threads of this process, each with a network of its own for steps that use PyTorch."""

    def __init__(self, data: ClientData, config: WorkerConfig, workers: int) -> None:
        super().__init__(data, config)
        self._mine, self._workers = threading.local(), workers
        self._executor = ThreadPoolExecutor(
            workers, initializer=lambda: setattr(self._mine, "worker", Worker(data, config, self._fetch))
        )

    def do(self, works: Sequence[Work | Score], small: bool) -> Iterator[tuple[Work | Score, Done | Tensor]]:
        if small:
            yield from super().do(works, small)
            return
        waiting = deque(works)
        finished: SimpleQueue[tuple[Work | Score, Done | Tensor | BaseException]] = SimpleQueue()
        for _ in range(min(self._workers, len(works))):  # a task for each thread: one for each work would cost more
            self._executor.submit(self._run_waiting, waiting, finished)
        try:
            for _ in works:
                work, outcome = finished.get()
                if isinstance(outcome, BaseException):
                    raise outcome
                yield work, outcome
        finally:
            waiting.clear()  # nobody is waiting for the rest

    def _run_waiting(self, waiting: deque[Work | Score], finished: "SimpleQueue[Any]") -> None:
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
        self._executor.shutdown(wait=False, cancel_futures=True)


class ProcessPool(Pool):
    """Worker processes of one thread each, fed one piece of work at a time.

    They map the samples and read the weights from files in a temporary folder: shared, never copied per client. One
    that dies is replaced and its work done again.
    """

    def __init__(self, data: ClientData, config: WorkerConfig, workers: int) -> None:
        _sweep_abandoned()
        self._folder = Path(tempfile.mkdtemp(prefix=SHARED_FOLDER))
        self._lock = (self._folder / "lock").open("w")
        system.lock(self._lock.fileno(), wait=True)
        data.write(self._folder)
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            self._context.set_forkserver_preload([__name__])
        self._config = config
        self._processes: dict[Connection[Any, Any], Any] = {}
        for _ in range(workers):
            self._start_process()

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
                    with contextlib.suppress(OSError):  # it died while idle, which is noticed below
                        _send(connection, work)
            for connection in cast("list[Connection[Any, Any]]", wait(list(busy))):
                work, attempt = busy.pop(connection)
                try:
                    outcome = connection.recv()
                except (EOFError, OSError):
                    self._replace(connection)
                    if attempt == TRIES:
                        raise RuntimeError(f"a worker died {TRIES} times on the same job; is memory short?") from None
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

    def _start_process(self) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work_on, args=(theirs, self._folder, self._config), daemon=True)
        with _main_not_imported():
            process.start()
        theirs.close()
        self._processes[ours] = process

    def _replace(self, connection: Any) -> None:
        process = self._processes.pop(connection)
        connection.close()
        process.kill()
        process.join()
        self._start_process()


def _work_on(connection: Any, folder: Path, config: WorkerConfig) -> None:
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

    worker = Worker(ClientData.map_from(folder), config, fetch)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        while True:
            packed = connection.recv_bytes()
            try:
                outcome: Done | Tensor | str = worker.do(ForkingPickler.loads(packed))
            except Exception:  # whatever goes wrong in a step, the parent must be told
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
    """Remove what killed runs left behind: folders with a lock that nobody holds."""
    for lock in Path(tempfile.gettempdir()).glob(f"{SHARED_FOLDER}*/lock"):
        with contextlib.suppress(OSError), lock.open("r+") as file:
            system.lock(file.fileno())
            shutil.rmtree(lock.parent, ignore_errors=True)
