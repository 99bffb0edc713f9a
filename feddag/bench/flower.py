"""What a real federation costs: the same run by the local engine, by Flower's programs and by its simulation (Ray).

Each is FedAvg on digits with every client in every round, PyTorch on one thread, evaluation included: two exchanges a
round. Nodes are `feddag flower node`, which forks for each message, and once more Flower's own program, which starts
one. They connect through a relay that counts every byte in both directions, with all that Flower adds
(polling, heartbeats, the app itself). All of them end with the same weights, which is checked.
"""

import contextlib
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from feddag.bench.common import shown
from feddag.deploy.launch import HOST, LocalFederation, processes_of, up
from feddag.errors import FeddagError
from feddag.experiment import Experiment
from feddag.runner.directory import RunDirectory
from feddag.runner.run import Run, load, run
from feddag.weights import Weights, digest

CLIENTS, ROUNDS = 4, 6
COLUMNS = (
    *("engine", "s/round", "first round s", "processor s/round"),
    *("KB up", "KB down", "of it payload", "start and end s"),
)


class Relay:
    """Passes connections on to a port of this machine and counts their bytes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.up = self.down = 0
        self._count = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                node, _ = self._listener.accept()
                link = socket.create_connection((HOST, self._target))
                for source, sink, upwards in ((node, link, True), (link, node, False)):
                    threading.Thread(target=self._pass, args=(source, sink, upwards), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                with self._count:
                    self.up, self.down = self.up + upwards * len(content), self.down + (not upwards) * len(content)
                sink.sendall(content)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def measure() -> list[dict[str, Any]]:
    """Run the same experiment in each way."""
    experiment = Experiment(
        **{"method": "fedavg", "clients": CLIENTS, "rounds": ROUNDS, "participation": 1.0, "trainer": "torch"},
        **{"groups": 2, "finetune": False, "workers": 1},
    )
    rows, ends = [], set()
    with tempfile.TemporaryDirectory(prefix="feddag-bench-") as name:
        folder = Path(name)
        began = time.perf_counter()
        for engine, finished, wire in _runs(experiment, folder):
            rows.append({"engine": engine, **_figures(finished, time.perf_counter() - began), **wire})
            ends.add(digest(_weights(finished)))
            began = time.perf_counter()
    if len(ends) > 1:
        raise FeddagError("the engines ended with different weights, so their times do not compare")
    return rows


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The rows as they are shown; bytes are per client and round."""

    def kilobytes(value: float | None) -> str:
        return "-" if value is None else f"{value / 1000:.0f}"

    return [
        [
            row["engine"],
            shown(row["seconds_per_round"], 2),
            shown(row["first_round_seconds"], 2),
            shown(row.get("processor_seconds"), 1),
            kilobytes(row.get("bytes_up")),
            kilobytes(row.get("bytes_down")),
            f"{kilobytes(row['payload_up'])} + {kilobytes(row['payload_down'])}",
            shown(row["other_seconds"], 1),
        ]
        for row in rows
    ]


def _runs(experiment: Experiment, folder: Path) -> Iterator[tuple[str, Run, dict[str, float]]]:
    yield "local engine", run(experiment, folder / "local"), {}
    for name, cold in (("Flower, 4 nodes", False), ("Flower, 4 nodes, its own node program", True)):
        yield name, *_deployed(experiment, folder / name.replace(" ", "-"), cold)
    yield "Flower, Ray", up(experiment, folder / "ray", simulation=True), {}


def _deployed(experiment: Experiment, folder: Path, cold: bool) -> tuple[Run, dict[str, float]]:
    """On real programs; processor time is that of all of them, between the first round's end and the last but one's."""
    files = RunDirectory(folder / "run")
    spent: dict[int, float] = {}
    (folder / "here").mkdir(parents=True)
    with LocalFederation(folder / "here", folder / "logs", cold=cold, durable=False) as here:
        relay = Relay(here.port)
        with contextlib.closing(relay):
            here.write_app_and_sites(experiment, files.path)
            here.start_superlink()
            for client in range(CLIENTS):
                here.add_node(client, relay.port)
            here.start_run(files.path)
            here.follow(files, lambda record: spent.update({record["round"]: processor_seconds(here.home)}))
    per_round = CLIENTS * ROUNDS
    wire = {"bytes_up": relay.up / per_round, "bytes_down": relay.down / per_round}
    return load(files.path), wire | {"processor_seconds": (spent[ROUNDS - 1] - spent[1]) / (ROUNDS - 2)}


def processor_seconds(home: Path) -> float:
    """Of all living processes of a federation, and of those they started that have ended."""
    total = 0.0
    for process in processes_of(home):
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def _figures(finished: Run, wall_seconds: float) -> dict[str, float]:
    seconds = [record["seconds"] for record in finished.history]
    result = finished.result
    return {
        "seconds_per_round": statistics.median(seconds[1:]),
        "first_round_seconds": seconds[0],
        "payload_up": result["bytes_up"] / CLIENTS / ROUNDS,
        "payload_down": result["bytes_down"] / CLIENTS / ROUNDS,
        "other_seconds": wall_seconds - sum(seconds),
    }


def _weights(finished: Run) -> Weights:
    saved = RunDirectory(finished.directory).load_checkpoint()
    assert saved is not None
    weights: Weights = saved.tree["method"]["weights"]
    return weights
