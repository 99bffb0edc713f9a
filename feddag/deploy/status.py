"""How a federation is, from its run directory on the server: for a person, for a monitor, and for Prometheus."""

import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from feddag._version import __version__
from feddag.engines.flower.status import FILE
from feddag.errors import FeddagError, counted
from feddag.experiment import read_experiment
from feddag.files import read_plain
from feddag.records import Amount, Count, RoundRecord
from feddag.runner.checked import check, from_json
from feddag.runner.directory import RunDirectory

HOST = "127.0.0.1"
LARGEST_STATUS = 2**26
GRACE_SECONDS = 60.0  # in which clients may connect before their absence is worth a warning
STALE_SECONDS = 60.0  # without a word from a server that waits for answers, and says so every second
LEVELS = {"OK": 0, "WARNING": 1, "CRITICAL": 2}
"""As monitors such as Nagios know them, with the exit code of each."""


class ClientTold(TypedDict):
    """A client in status.json."""

    here: bool
    version: str
    answered: Amount
    reason: str


class StatusRecord(TypedDict):
    """status.json."""

    written: Amount
    phase: str
    round: Count
    seconds: dict[str, Amount]
    clients: dict[str, ClientTold]
    expected: NotRequired[Count]
    refused: NotRequired[list[str]]


@dataclass(frozen=True)
class FederationStatus:
    """What the files of a run say about its federation."""

    state: Literal["running", "finished", "stopped"]
    rounds: int
    told: StatusRecord
    history: list[RoundRecord]

    @property
    def here(self) -> list[int]:
        """The clients that are connected."""
        return [int(client) for client, known in self.told["clients"].items() if known["here"]]

    @property
    def missing(self) -> dict[int, str]:
        """The clients that are not connected or whose last answer is missing, with the reason."""
        clients = self.told["clients"].items()
        never = set(range(self.told.get("expected", 0))) - {int(client) for client, _ in clients}
        told = {int(client): known["reason"] or ("" if known["here"] else "out of reach") for client, known in clients}
        told |= dict.fromkeys(sorted(never), "has not connected")
        return {client: reason for client, reason in sorted(told.items()) if reason}

    @property
    def round(self) -> int:
        """The round under way, or the last one: a round's number also counts exchanges after the last round."""
        last = self.history[-1]["round"] if self.history else 0
        return last if self.state == "finished" else min(self.told["round"], max(self.rounds, last))

    @property
    def gathering(self) -> float | None:
        """Seconds for which the first round has waited for clients to connect, or None."""
        waits = self.state == "running" and self.told["phase"] == "gathering"
        return self.told["seconds"].get("gathering", 0.0) if waits else None

    def silent(self, now: float) -> float | None:
        """Seconds for which a server that waits for clients has written nothing, if it hangs."""
        waits = self.state == "running" and self.told["phase"] != "server"
        age = now - self.told["written"]
        return age if waits and age > STALE_SECONDS else None

    def last_answer(self, now: float) -> float | None:
        """Seconds since the last answer of any client."""
        moments = [known["answered"] for known in self.told["clients"].values() if known["answered"]]
        return max(0.0, now - max(moments)) if moments else None


def read_status(directory: Path) -> FederationStatus:
    """The status of the federation whose run directory this is."""
    files = RunDirectory(directory)
    try:
        content = read_plain(directory / FILE, LARGEST_STATUS)
    except FileNotFoundError:
        raise FeddagError(f"'{directory}' has no {FILE}: it is not the run directory of a federation") from None
    told = check(StatusRecord, from_json(content, directory / FILE, "it is not JSON"), directory / FILE)
    experiment = read_experiment(files.experiment, {})
    history = files.read_history() if files.history.exists() else []
    state = "finished" if files.result.exists() else "running" if files.is_running() else "stopped"
    return FederationStatus(state, experiment.rounds, told, history)  # type: ignore[arg-type]


def health(status: FederationStatus, now: float | None = None) -> tuple[str, str]:
    """A level and one line: absent clients are a warning; nobody here, or a run that ended early, is critical.

    While clients are expected to connect, nobody is missed for a minute, unless a node was refused. A server that has
    been waiting and said nothing for a minute hangs: a warning.
    """
    now = time.time() if now is None else now
    age, silent = status.last_answer(now), status.silent(now)
    last = "no answer yet" if age is None else f"last answer {duration(age)} ago"
    here = f"{counted(len(status.here), 'client')} {'here' if status.state == 'running' else 'at the end'}"
    parts = [f"round {status.round} of {max(status.rounds, status.round)}", here, last]
    if (waited := status.gathering) is not None:
        parts[0] = f"waiting for clients to connect since {duration(waited)}"
    if status.history:
        parts.append(f"accuracy {status.history[-1]['accuracy']['mean']:.3f}")
    if status.missing:
        parts.append("missing " + ", ".join(f"{client} ({reason})" for client, reason in status.missing.items()))
    refused = status.told.get("refused", []) if status.state != "finished" else []
    parts += [f"refused a node that {reason}" for reason in refused]
    if silent:
        parts.append(f"no word from the server for {duration(silent)}")
    level = "OK"
    if status.state == "stopped":
        level, parts = "CRITICAL", ["the run has stopped and can be resumed", *parts]
    elif status.state == "finished":
        level, parts = "WARNING" if status.missing else "OK", ["finished", *parts]
    elif (waited or GRACE_SECONDS) < GRACE_SECONDS and not refused:
        level = "OK"
    elif not status.here:
        level = "CRITICAL"
    elif status.missing or silent:
        level = "WARNING"
    return level, f"{level}: {'; '.join(parts)}"


def duration(seconds: float) -> str:
    """Roughly how long, for a person.

    >>> duration(7.2), duration(250), duration(7200)
    ('7 s', '4 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def table(status: FederationStatus, now: float | None = None) -> list[list[str]]:
    """A row for each client: whether it is here, its version, the age of its last answer, and what is wrong."""
    moment = time.time() if now is None else now
    rows = []
    for client, known in status.told["clients"].items():
        age = duration(max(0.0, moment - known["answered"])) if known["answered"] else "-"
        version = known["version"] or "older"
        told = version if version == __version__ else f"{version} (server {__version__})"
        rows.append([client, "here" if known["here"] else "away", told, age, known["reason"]])
    return rows


def metrics(status: FederationStatus) -> str:
    """The same as Prometheus reads it."""
    history = status.history
    lines: list[str] = []

    def add(name: str, kind: str, help: str, values: dict[str, float]) -> None:
        lines.extend([f"# HELP feddag_{name} {help}", f"# TYPE feddag_{name} {kind}"])
        lines.extend(f"feddag_{name}{labels} {value:.15g}" for labels, value in values.items())

    def label(name: str, value: object) -> str:
        text = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
        return f'{name}="{text}"'

    clients = status.told["clients"]
    add("running", "gauge", "whether the run is under way", {"": status.state == "running"})
    add("rounds_total", "counter", "rounds that are done", {"": len(history)})
    add("clients_here", "gauge", "clients that are connected", {"": len(status.here)})
    gone = {f"{{{label('client', client)},{label('reason', why)}}}": 1.0 for client, why in status.missing.items()}
    add("client_missing", "gauge", "clients without an answer, with the reason", gone)
    answered = {f"{{{label('client', client)}}}": known["answered"] for client, known in clients.items()}
    add("last_answer_timestamp_seconds", "gauge", "when a client's last answer came", answered)
    for way in ("up", "down"):
        total = history[-1][f"bytes_{way}"] if history else 0  # type: ignore[literal-required]
        add(f"payload_{way}_bytes_total", "counter", f"payload of all clients, {way}", {"": total})
    phases = {f"{{{label('phase', phase)}}}": spent for phase, spent in status.told["seconds"].items()}
    add("phase_seconds_total", "counter", "where the time of the server went", phases)
    if history:
        add("accuracy", "gauge", "mean balanced accuracy after the last round", {"": history[-1]["accuracy"]["mean"]})
    return "\n".join(lines) + "\n"


class StatusServer(ThreadingHTTPServer):
    """`/metrics` and `/health` on loopback, for a Prometheus or a monitor on this machine."""

    daemon_threads = True

    def __init__(self, directory: Path, port: int) -> None:
        try:
            super().__init__((HOST, port), _handler(directory))
        except OSError as error:
            raise FeddagError(
                f"--port {port} cannot be used: {error.strerror}; allowed is any free port, or 0"
            ) from None


def _handler(directory: Path) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
                return self.send_error(403)  # another site's name that was pointed at this machine
            try:
                status = read_status(directory)
            except FeddagError:
                return self.send_error(503)
            level, line = health(status)
            found = {"/metrics": (200, metrics(status)), "/health": (200 if level != "CRITICAL" else 503, line + "\n")}
            if self.path not in found:
                return self.send_error(404)
            code, text = found[self.path]
            self.send_response(code)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())
            return None

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the terminal belongs to the person."""

    return Handler
