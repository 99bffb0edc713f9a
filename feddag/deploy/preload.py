"""One process for all nodes of a machine that has Flower, PyTorch and feddag loaded, and forks for each message.

Flower starts a program for every message, and loading takes it seconds of processor time; a fork takes a hundredth of
one and shares its memory. `shim.py` stands where Flower looks for its programs and hands over what a process inherits.

Only forking without threads is safe, so this process starts none, opens no connection but its own socket, and computes
nothing: BLAS is told to have one thread, and PyTorch's are set in the fork. It lives as long as a node has a lease, a
connection that is open for as long as the node's program lives.
"""

import atexit
import contextlib
import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from feddag.deploy.shim import user_of

PROGRAMS = {
    "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
}
USED_LATER = (  # what a job imports on its way; loaded before the first fork
    "feddag.deploy.node",
    "encodings.cp437",
    "h11",
    "httpcore",
)
LEASE_SECONDS = 60.0
READ_SECONDS = 5.0
END_SECONDS = 5.0

Main = Callable[[], Any]


def load_programs() -> dict[str, Main]:
    """Import everything that a fork will need."""
    programs = {name: pkgutil.resolve_name(entry) for name, entry in PROGRAMS.items()}
    for module in USED_LATER:
        pkgutil.resolve_name(module)
    from feddag.methods import all_methods

    all_methods()
    gc.collect()
    gc.freeze()  # the collector leaves these objects alone, so their memory stays shared with forks
    return programs


class Preloaded:
    """Serves a socket: leases of nodes, and requests for forks."""

    def __init__(self, listener: socket.socket, programs: dict[str, Main]) -> None:
        self._listener, self._programs = listener, programs
        self._events = selectors.DefaultSelector()
        self._events.register(listener, selectors.EVENT_READ)
        self._leases: set[socket.socket] = set()
        self._forks: dict[int, tuple[int, socket.socket]] = {}  # by pidfd: which process, and the shim it works for

    def serve(self) -> Main | None:
        """Until no node has a lease any more. Returns the program to run if this is a fork."""
        leased = False
        while not leased or self._leases:
            events = self._events.select(None if leased else LEASE_SECONDS)
            for key, _ in events:
                if key.fileobj is self._listener:
                    with contextlib.suppress(OSError):
                        if program := self._admit():
                            return program
                elif key.fd in self._forks:
                    self._reap(key.fd)
                else:
                    self._end_lease(key.fileobj)
            leased |= bool(self._leases)
            if not events:
                break
        for process, _ in self._forks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        return None

    def _admit(self) -> Main | None:
        link, _ = self._listener.accept()
        link.settimeout(READ_SECONDS)
        if user_of(link) != os.getuid():
            link.close()
            return None
        try:
            kind, streams, _, _ = socket.recv_fds(link, 1, 3)
        except OSError:
            link.close()
            return None
        if kind == b"L":
            self._leases.add(link)
            self._events.register(link, selectors.EVENT_READ)
            return None
        try:
            return self._fork(link, streams)
        finally:
            for stream in streams:
                os.close(stream)

    def _fork(self, link: socket.socket, streams: list[int]) -> Main | None:
        request = json.loads(_read(link, *struct.unpack("!I", _read(link, 4))))
        if child := os.fork():
            descriptor = os.pidfd_open(child)
            self._forks[descriptor] = child, link
            self._events.register(descriptor, selectors.EVENT_READ)
            return None
        self._let_go(link)
        try:
            take_over(request, streams)
            program = self._programs[request["argv"][0]]
        except (KeyError, OSError, ValueError) as error:
            link.sendall(f"-{type(error).__name__}: {error}"[:200].encode())
            os._exit(1)
        link.sendall(b"+")
        end_with(link)
        return program

    def _let_go(self, link: socket.socket) -> None:
        """In a fork: close what belongs to the preloaded program and to other forks."""
        self._events.close()
        others = [self._listener, *self._leases, *(other for _, other in self._forks.values())]
        for other in others:
            if other is not link:
                other.close()
        for descriptor in self._forks:
            os.close(descriptor)

    def _reap(self, descriptor: int) -> None:
        process, link = self._forks.pop(descriptor)
        self._events.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(process, 0)
        with contextlib.suppress(OSError):  # the shim may be gone
            link.sendall(str(os.waitstatus_to_exitcode(status) & 0xFF).encode())
        link.close()

    def _end_lease(self, lease: Any) -> None:
        self._events.unregister(lease)
        self._leases.discard(lease)
        lease.close()


def take_over(request: dict[str, Any], streams: list[int]) -> None:
    """Become what the shim would have become: its arguments, environment, folder, streams and limits."""
    import resource  # not on every system

    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.setpriority(os.PRIO_PROCESS, 0, request["nice"])
    os.sched_setaffinity(0, request["processors"])
    for name, limit in request["limits"].items():
        number = getattr(resource, name)
        if resource.getrlimit(number) != tuple(limit):
            resource.setrlimit(number, limit)
    os.umask(request["umask"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["argv"]
    Path("/proc/self/comm").write_text(sys.argv[0])  # what `ps` and `top` call it
    plain_logs()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()  # Python's own generator is seeded anew by itself


def plain_logs() -> None:
    """Flower's log lines with the time, and with colours only in a terminal; as they are where it has changed this."""
    logger = sys.modules.get("flwr.supercore.logger")
    if change := getattr(logger, "update_console_handler", None):
        change(timestamps=True, colored=os.isatty(2))


def end_with(link: socket.socket, grace: float = END_SECONDS) -> None:
    """End this process when the other end of the connection is gone: first politely, then at once."""
    link.settimeout(None)

    def watch() -> None:
        with contextlib.suppress(OSError):
            link.recv(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(grace)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def end_as(program: Main) -> NoReturn:
    """Run a program and end, as a Python program does, but without taking apart what was loaded: that takes seconds."""
    try:
        code = program()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001  waits for threads, as at any program's end
    atexit._run_exitfuncs()  # noqa: SLF001
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _read(link: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        part = link.recv(size - len(content))
        if not part:
            raise OSError("the request ended early")
        content += part
    return content


def main(folder: Path) -> None:
    """Listen first, so that requests wait, then load everything, then serve."""
    path = folder / "socket"
    path.unlink(missing_ok=True)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"/proc/self/fd/{directory}/socket")
    listener.listen(128)
    os.close(directory)
    programs = load_programs()
    threads = len(list(Path("/proc/self/task").iterdir()))
    if threads > 1:
        sys.exit(f"feddag: the preloaded program has {threads} threads and cannot fork safely")
    program = Preloaded(listener, programs).serve()
    if program is not None:
        end_as(program)
    path.unlink(missing_ok=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
