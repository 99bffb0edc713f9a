"""A federation of real Flower programs that can be killed, stopped and slowed, and are restarted as systemd would."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import feddag
from feddag.deploy.launch import LocalFederation
from feddag.deploy.supernode import RUNTIME
from feddag.runner.directory import RunDirectory

PART = "FEDDAG_CHAOS_PART"
LONGEST_ROUND = 900.0  # seconds without a new round, after which a run counts as stuck
RESTART_SECONDS = 2.0

Log = Callable[[str], None]


class ChaosFederation(LocalFederation):
    """Programs are known by the part that they play (node-0, superlink), with all that they started."""

    def __init__(self, folder: Path, log: Log, tls: bool = False) -> None:
        folder.mkdir(parents=True)
        super().__init__(folder / "here", folder / "logs", tls)
        self.folder.mkdir()
        self._environment |= {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "1"}  # ten looks a second cost more than the work
        self.log = log
        self.files = RunDirectory(folder / "run")
        self.environment: dict[str, dict[str, str]] = {}
        """What some parts' programs are told beside the usual."""
        self.configs: dict[int, dict[str, str]] = {}
        """What some nodes' configurations say instead of the usual."""
        self.resumed = 0
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self._may_resume = 0
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, experiment: feddag.Experiment, **run_config: float) -> None:
        """Start everything, with somebody who restarts nodes that end."""
        clients = self.write_app_and_sites(experiment, self.files.path)
        self._run_config = run_config
        self.start_superlink()
        self._nodes = {client: self.add_node(client) for client in range(clients)}
        self.start_run(self.files.path, **run_config)
        self.in_background(self._supervise)

    def start(self, name: str, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        apart = {
            RUNTIME: str(self.folder / f"runtime-{name}")
        }  # as on machines of their own: no preloaded program is shared
        told = {PART: name, **apart, **self.environment.get(name, {})}
        return super().start(name, ["env", *(f"{key}={value}" for key, value in told.items()), *command])

    def node_config(self, client: int) -> dict[str, str]:
        return super().node_config(client) | self.configs.get(client, {})

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self.signal_all(signal.SIGCONT)
        super().__exit__(*error)  # type: ignore[arg-type]

    def in_background(self, work: Callable[[], None]) -> None:
        """Do this beside the run, until its end."""
        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def wait(self, seconds: float) -> bool:
        """Wait; whether the run is over."""
        return self._ended.wait(seconds)

    # What is done to it

    def kill(self, client: int) -> None:
        """Take a node's programs away; they are restarted."""
        self._kill(f"node-{client}")
        self.log(f"node {client} killed")

    def pause(self, client: int, seconds: float) -> None:
        """Stop a node's programs for a while."""
        self.log(f"node {client} paused for {seconds:.0f} s")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.wait(0.2):
            self._signal(f"node-{client}", signal.SIGSTOP)
        self._signal(f"node-{client}", signal.SIGCONT)
        self.log(f"node {client} goes on")

    def slow(self, client: int, share: float, seconds: float = 1e9) -> None:
        """Let a node's programs work only for a share of the time."""
        self.log(f"node {client} slowed to {share:.0%} of the time")
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.wait(0.0):
            self._signal(f"node-{client}", signal.SIGSTOP)
            self.wait(1 - share)
            self._signal(f"node-{client}", signal.SIGCONT)
            self.wait(share)

    def kill_superlink(self) -> None:
        """Take the server's programs away, the run with them; both come back, and the run is resumed."""
        self._may_resume += 1
        self._kill("superlink")
        self._kill("run")
        self.log("SuperLink killed, the run with it")

    # What becomes of it

    def round(self) -> int:
        """How many rounds are done, with their checkpoints."""
        done = [path.stem for path in (self.files.path / "checkpoints").glob("round-*.safetensors")]
        return max((int(name.removeprefix("round-")) for name in done), default=-1)

    def await_round(self, number: int) -> None:
        """Until this round is done."""
        self._follow(lambda: self.round() >= number)

    def finish(self) -> None:
        """Until there is a result; a run that was killed is resumed, one that ended by itself is an error."""
        self._follow(lambda: self.files.read_result() is not None)
        self._ended.set()
        self.log(f"result after {self.resumed} resumes")

    def _follow(self, over: Callable[[], bool]) -> None:
        seen, since = self.round(), time.monotonic()
        while not over():
            assert self._run is not None
            if self._run.poll() is not None and not over():
                assert self._may_resume > 0, f"the run ended by itself: {self.last_error()}"
                self._may_resume -= 1
                self._resume()
            if self.round() != seen:
                seen, since = self.round(), time.monotonic()
                self.log(f"round {seen} is done")
            assert time.monotonic() < since + LONGEST_ROUND, "the run is stuck"
            time.sleep(0.2)

    def _resume(self) -> None:
        self.resumed += 1
        end = time.monotonic() + 120
        while not self._is_free():
            assert time.monotonic() < end, "the old run does not let go of its directory"
            time.sleep(0.2)
        if self.superlink.poll() is not None:
            self.start_superlink()
        self.start_run(self.files.path, resume=True, **self._run_config)
        self.log("SuperLink restarted, the run resumed")

    def _is_free(self) -> bool:
        with contextlib.suppress(feddag.FeddagError), self.files.locked():
            return True
        return False

    def _supervise(self) -> None:
        """What systemd does on a real machine: Flower refuses a node until it has missed the old one's heartbeats."""
        while not self.wait(RESTART_SECONDS):
            for client, process in list(self._nodes.items()):
                if process.poll() is not None:
                    with contextlib.suppress(feddag.FeddagError):  # the SuperLink may be down: the key is registered
                        self._nodes[client] = self.add_node(client)

    def _kill(self, part: str) -> None:
        for _ in range(3):  # what one of them has just started is seen the next time
            self._signal(part, signal.SIGKILL)
            time.sleep(0.1)

    def _signal(self, part: str, number: int) -> None:
        for pid in processes_with(f"{PART}={part}", f"FLWR_HOME={self.home}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def signal_all(self, number: int) -> None:
        """To every program of this federation."""
        for pid in processes_with(f"FLWR_HOME={self.home}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def processes_with(*marks: str) -> Iterator[int]:
    """The living processes whose environment holds all of this."""
    wanted = {mark.encode() for mark in marks}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted <= set((path / "environ").read_bytes().split(b"\0")):
                yield int(path.name)
