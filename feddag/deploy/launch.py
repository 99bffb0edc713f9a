"""A whole federation on this machine, for trying it out: a SuperLink, a SuperNode for each client, and a run.

This process starts all the others, and in the end stops them and everything they started.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from feddag.data.clients import ClientData, lay_out
from feddag.deploy.app import write_app
from feddag.deploy.keys import write_certificates, write_node_key
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.files import write_atomically
from feddag.records import RoundRecord
from feddag.runner.directory import RunDirectory
from feddag.runner.loop import Observer
from feddag.runner.run import Run, load, prepare

HOST = "127.0.0.1"
START_SECONDS = 120.0
END_SECONDS = 10.0
SUPERLINK = "loopback"
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


def up(
    experiment: Experiment,
    out: Path,
    tls: bool = False,
    simulation: bool = False,
    resume: bool = False,
    observer: Observer | None = None,
    **run_config: float,
) -> Run:
    """Run an experiment on a federation of its own on this machine, with a node for each client; else as `feddag.run`.

    With `simulation`, Flower's simulation engine (Ray) runs the same app and there are no nodes.
    """
    _need_flower()
    files = RunDirectory(out)
    if not resume and out.exists() and any(out.iterdir()):
        raise FeddagError(f"run directory '{out}' is not empty; give a new one, or go on with --resume")
    if files.read_result() is None:
        with (
            tempfile.TemporaryDirectory(prefix="feddag-flower-") as folder,
            LocalFederation(Path(folder), out / "logs", tls, simulation, durable=False) as here,
        ):
            clients = here.write_app_and_sites(experiment, out)  # what cannot work is refused before any start
            here.start_superlink()
            for client in range(0 if simulation else clients):
                here.add_node(client)
            here.start_run(out, resume, **run_config)
            here.follow(files, observer)
    return load(out, trust=True)  # the code was named by whoever called this


class LocalFederation:
    """Flower's programs on loopback; a context manager that leaves no process behind."""

    def __init__(
        self,
        folder: Path,
        logs: Path,
        tls: bool = False,
        simulation: bool = False,
        cold: bool = False,
        durable: bool = True,
    ) -> None:
        self.folder, self.logs = folder, logs
        self._cold = cold  # Flower's own program for nodes
        self._durable = durable  # a SuperLink that is started again knows its nodes
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self._tls, self._simulation = tls, simulation
        self.home = folder / "flwr"
        self._environment = os.environ | {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_HOME": str(self.home),
            "FEDDAG_RUNTIME_DIR": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        }
        if cold:
            self._environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.1"
        self._run: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LocalFederation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_all(self.processes, self.home)
        for log in self.logs.glob("*.log"):
            without_colours(log)

    def start_superlink(self) -> None:
        """Start the server's program, and wait until it listens."""
        security: list[str | Path] = ["--insecure"]
        connection = "insecure = true"
        if self._tls:
            keys = self.folder / "keys"
            if not keys.exists():
                write_certificates(keys, HOST)
            security = ["--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt"]
            security += ["--ssl-keyfile", keys / "server.key", "--enable-supernode-auth"]
            connection = f'root-certificates = "{keys / "ca.crt"}"'
        write_atomically(
            self.home / "config.toml", f'[superlink.{SUPERLINK}]\naddress = "{HOST}:{self.port}"\n{connection}\n'
        )
        options = ["--host", HOST, "--port", str(self.port), "--disable-runtime-dependency-installation"]
        options += ["--database", str(self.folder / "superlink.db")] if self._durable else []
        options += ["--simulation"] if self._simulation else []
        process = self.start("superlink", ["flower-superlink", *security, *options])
        self._await_port(self.port, process, "superlink")
        self.superlink = process

    def write_app_and_sites(self, experiment: Experiment, out: Path) -> int:
        """Write the app, and the data of each client as if its site had brought them; returns how many there are."""
        dataset, partition, _ = prepare(experiment)
        data = lay_out(dataset, partition, experiment.seed, experiment.evaluate)
        write_app(self.folder / "app", experiment, str(out.resolve()))
        out.mkdir(parents=True, exist_ok=True)
        partition.save(RunDirectory(out).partition)
        for client in range(len(partition.train)):
            write_site(self.folder / "sites" / f"{client}.npz", data, client)
        self.state = out.resolve() / "nodes"
        self.clients = len(partition.train)
        return self.clients

    def add_node(self, client: int, port: int | None = None) -> subprocess.Popen[bytes]:
        """Start the program of one client's node; with TLS it has a key of its own, registered before.

        It connects to the SuperLink's port, or to that of a relay in front of it.
        """
        security: list[str | Path] = ["--insecure"]
        if self._tls:
            key = self.folder / "keys" / f"node-{client}"
            if not key.exists():
                write_node_key(key)
                self.call(["flwr", "supernode", "register", key.with_suffix(".pub"), SUPERLINK])
            security = ["--root-certificates", self.folder / "keys" / "ca.crt", "--auth-supernode-private-key", key]
        return self.start_node(f"node-{client}", security, client, port)

    def start_node(
        self, name: str, security: Sequence[str | Path], client: int, port: int | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a node's program with these security options."""
        address = ["--superlink", f"{HOST}:{port or self.port}", "--host", HOST, "--port", str(free_port())]
        config = " ".join(f"{key}={value}" for key, value in self.node_config(client).items())
        program = ["flower-supernode"] if self._cold else ["feddag", "flower", "node"]
        return self.start(name, [*program, *security, *address, "--node-config", config])

    def node_config(self, client: int) -> dict[str, str]:
        """What a client's node is told by its owner; one person's data, on one machine: limits as in simulation."""
        files = {"data": f'"{self.folder / "sites" / f"{client}.npz"}"', "state": f'"{self.state}"'}
        return {"client-id": str(client), **files, "least-per-class": "1", "raw-inputs": "true"}

    def start_run(self, out: Path, resume: bool = False, **run_config: float) -> subprocess.Popen[bytes]:
        """Hand the app to the SuperLink; the process lasts as long as the run."""
        settings = {"out": f'"{out.resolve()}"', "resume": str(resume).lower(), **run_config}
        simulation = []
        if self._simulation:
            settings |= {"data": f'"{self.folder}/sites/{{client}}.npz"', "state": f'"{self.state}"'}
            simulation = ["--federation-config", f"num-supernodes={self.clients} client-resources-num-cpus=1"]
        elif self._tls:
            settings |= {"keys": f'"{self.folder / "keys"}"'}
        config = " ".join(f"{name}={value}" for name, value in settings.items())
        run: list[str | Path] = ["flwr", "run", self.folder / "app", SUPERLINK, "--stream", "--run-config", config]
        run += simulation
        self._run = self.start("run", run)
        return self._run

    def follow(self, files: RunDirectory, observer: Observer | None = None) -> None:
        """Report each round as it is recorded, until the run has ended."""
        assert self._run is not None
        seen = len(files.read_history()) if files.path.exists() else 0
        ended = False
        while not ended:
            # Asked first, so that the last rounds are reported too. Flower's client may lose its stream of log lines
            # and end while the run goes on, which then holds its directory.
            ended = self._run.poll() is not None and not files.is_running()
            rounds = _whole_rounds(files)
            for record in rounds[seen:]:
                if observer:
                    observer(record)
            seen = max(seen, len(rounds))
            time.sleep(0 if ended else 0.2)
        if files.read_result() is None:
            raise FeddagError(f"the run on Flower ended early, see '{self.logs}': {self.last_error()}")

    def last_error(self) -> str:
        """The last error in the run's log."""
        lines = (self.logs / "run.log").read_text(errors="replace").splitlines()
        said = [line.partition("FeddagError: ")[2] or line for line in lines if "Error" in line]
        return said[-1].strip()[-300:] if said else "its log names no error"

    def start(self, name: str, command: Sequence[str | Path]) -> subprocess.Popen[bytes]:
        """Start a program, in a process group of its own, with its output in a log."""
        self.logs.mkdir(parents=True, exist_ok=True)
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends them in order
            )
        self.processes.append(process)
        return process

    def call(self, command: Sequence[str | Path]) -> str:
        """Run a program to its end; returns what it said."""
        done = subprocess.run(
            [str(part) for part in command], env=self._environment, cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise FeddagError(f"'{command[0]} {command[1]}' failed: {(done.stderr or done.stdout).strip()[-300:]}")
        return done.stdout

    def _await_port(self, port: int, process: subprocess.Popen[bytes], name: str) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
                return
            time.sleep(0.1)
        log = (self.logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        raise FeddagError(f"Flower's {name} did not start: {log[-1] if log else 'its log is empty'}")


def without_colours(log: Path) -> None:
    """Take the colour codes out of a log that is complete: Flower's programs colour their lines in files, too."""
    content = log.read_bytes()
    if (plain := COLOUR.sub(b"", content)) != content:
        write_atomically(log, plain)


def write_site(path: Path, data: ClientData, client: int) -> None:
    """One client's samples as a site would hold them."""
    x, y = data.samples(client)
    blocks = [data.block(number) for number in data.blocks(client)]
    if not blocks:
        raise FeddagError(f"client {client} has no test samples, and a node needs some")
    path.parent.mkdir(parents=True, exist_ok=True)
    test_x, test_y = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    np.savez(path, x_train=x, y_train=y, x_test=test_x, y_test=test_y)


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def processes_of(home: Path) -> set[int]:
    """The living processes whose environment names this Flower home: those started here, and all that they started."""
    mark = f"FLWR_HOME={home}".encode()
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and mark in (path / "environ").read_bytes().split(b"\0"):
                found.add(int(path.name))
    return found


def end_all(processes: Sequence[subprocess.Popen[bytes]], home: Path) -> None:
    """End processes and all that they started: with SIGTERM, and after a while with SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        end = time.monotonic() + END_SECONDS
        signalled: set[int] = set()
        while time.monotonic() < end:
            living = {process.pid for process in processes if process.poll() is None} | processes_of(home)
            if not living:
                return
            for pid in living - signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            signalled |= living
            time.sleep(0.05)


def _whole_rounds(files: RunDirectory) -> list[RoundRecord]:
    """The history so far; its last line may be half written."""
    if not files.history.exists():
        return []
    try:
        return files.read_history()
    except ValueError:
        return []


def _need_flower() -> None:
    if shutil.which("flower-superlink", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}") is None:
        raise FeddagError("Flower is not installed: pip install 'feddag[flower]'")
