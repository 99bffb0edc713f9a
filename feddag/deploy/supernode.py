"""`feddag flower node`: Flower's SuperNode with quick answers.

Flower's own program works as well, and cold: it starts a program for every message, and looks for messages every three
seconds. This one is the same code with the same options; only what it starts are forks of a preloaded process
(`preload.py`), and it looks for the next message sooner after the last one.
"""

import argparse
import contextlib
import hashlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from feddag.deploy import shim
from feddag.deploy.preload import plain_logs
from feddag.deploy.site import Node
from feddag.engines.flower.parts import sooner
from feddag.errors import FeddagError
from feddag.system import lock

RUNTIME = "FEDDAG_RUNTIME_DIR"
PROGRAMS = ("flwr-clientapp", "flower-superexec")
START_SECONDS = 30.0
AGAIN_SECONDS = 60.0  # before a preloaded program that ended by itself is started again
ENDING_SECONDS = 3.0  # in which a node that is ended together with it is gone as well
WORKING, SHORTEST, PART = 0.1, 0.25, 20


class Pace:
    """How long a SuperNode waits before it looks again. Stands in for the module `time` in Flower's loop.

    While a job is worked on it looks for the answer every tenth of a second, and for the next message after a
    twentieth of the time since the last one: soon where rounds are quick, and never later than Flower itself would.

    >>> Pace(clock=lambda: 100.0).wait(3.0), Pace(clock=lambda: 100.0).wait(0.5)
    (0.25, 0.1)
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._clock, self._pause = clock, pause
        self._last = clock()

    def wait(self, usual: float) -> float:
        """Seconds to wait where Flower would wait `usual` ones: under one while it works, more while it is idle."""
        now = self._clock()
        if usual < 1:
            self._last = now
            return min(usual, WORKING)
        return min(usual, max(SHORTEST, (now - self._last) / PART))

    def sleep(self, usual: float) -> None:
        """Wait so long."""
        self._pause(self.wait(usual))


def run(arguments: Sequence[str]) -> None:
    """Be a SuperNode with Flower's own options, until it is ended."""
    try:
        from flwr.supernode import start_client_internal as loop
        from flwr.supernode.cli import flower_supernode
    except ImportError:
        raise FeddagError("Flower is not installed: pip install 'feddag[flower]'") from None
    if not {"-h", "--help", "--version"} & set(arguments):
        check_config(arguments)
    plain_logs()
    if getattr(loop, "time", None) is time and sooner(loop):
        loop.time = Pace()
    else:
        say("this version of Flower is not known; the node looks for messages as often as Flower itself does")
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", str(WORKING))
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    try:
        folder = runtime_folder()
        write_shims(folder)
        lease = take_lease(folder)
    except (OSError, FeddagError) as error:
        say(f"no preloaded program ({error}); every message starts a program, which takes seconds")
    else:
        os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        threading.Thread(target=_keep, args=(folder, lease), daemon=True).start()
    sys.argv = ["flower-supernode", *arguments]
    flower_supernode()


def check_config(arguments: Sequence[str]) -> None:
    """Refuse a configuration that cannot be used now, not when the first message comes."""
    from click import ClickException
    from flwr.common.config import parse_config_args

    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--node-config", default="")
    told = options.parse_known_args(list(arguments))[0].node_config
    try:
        config = parse_config_args([told]) if told else {}
    except (ClickException, ValueError, OSError) as error:  # a file that cannot be read among them
        raise FeddagError(f"--node-config cannot be read: {type(error).__name__}; allowed is key=value ...") from None
    Node.of(config, {})


def runtime_folder() -> Path:
    """Where the nodes of this user meet: one for each installation, Flower home and control group.

    A process of another control group would be counted, limited and ended with that one's.
    """
    if not sys.platform.startswith("linux"):
        raise FeddagError("it needs Linux")
    group = Path("/proc/self/cgroup").read_text()
    alike = "\n".join((sys.prefix, os.environ.get("FLWR_HOME", ""), group))
    key = hashlib.sha256(alike.encode()).hexdigest()[:12]
    parent = os.environ.get(RUNTIME) or os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(parent) / f"feddag-{os.getuid()}-{key}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if folder.is_symlink() or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FeddagError(f"'{folder}' can be written to by others")
    return folder


def write_shims(folder: Path) -> None:
    """Programs under the names that Flower calls, which ask for a fork."""
    programs = folder / "bin"
    programs.mkdir(mode=0o700, exist_ok=True)
    for name in PROGRAMS:
        cold = shutil.which(name)
        if cold is None:
            raise FeddagError(f"'{name}' is not on the PATH")
        if Path(cold).parent == programs:
            continue
        command = shlex.join([sys.executable, "-IS", shim.__file__, str(folder), cold, name])
        path = programs / name
        draft = path.with_name(f"{name}.{os.getpid()}")
        draft.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        draft.chmod(0o700)
        draft.rename(path)


def take_lease(folder: Path) -> socket.socket:
    """A connection that keeps the preloaded program alive; it is started if there is none."""
    with _locked(folder):
        with contextlib.suppress(OSError):
            return _lease(folder)
        process = subprocess.Popen(
            [sys.executable, "-m", "feddag.deploy.preload", str(folder)],
            stdin=subprocess.DEVNULL,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # threads that are there before a fork are not after it
            start_new_session=True,  # it serves other nodes too, and must not end with this one
        )
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError):
                return _lease(folder)
            time.sleep(0.05)
    raise FeddagError("it did not start")


def _lease(folder: Path) -> socket.socket:
    link = shim.connect(str(folder))
    link.sendall(b"L")
    link.settimeout(None)
    return link


def _keep(folder: Path, lease: socket.socket) -> None:
    """Start the preloaded program again if it ends by itself; meanwhile messages start programs the slow way."""
    while True:
        began = time.monotonic()
        with contextlib.suppress(OSError):
            lease.recv(1)
        time.sleep(ENDING_SECONDS)  # a node that is being ended, too, has nothing to say about it
        say("the preloaded program has ended; another one is started")
        time.sleep(max(0.0, began + AGAIN_SECONDS - time.monotonic()))
        with contextlib.suppress(OSError, FeddagError):
            lease = take_lease(folder)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        lock(file.fileno(), wait=True)
        yield


def say(text: str) -> None:
    """A line in the node's log, as Flower's own are."""
    print(f"WARNING {time.strftime('%Y-%m-%d %H:%M:%S')} feddag: {text}", file=sys.stderr, flush=True)
