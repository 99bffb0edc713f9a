"""Flower's server loop and nodes in one process: real messages, no network. Needs no Flower."""

from collections.abc import Iterable
from pathlib import Path

import feddag
from feddag.data.clients import lay_out
from feddag.data.partitions import Partition
from feddag.deploy import server
from feddag.deploy.app import PACKAGE, write_app
from feddag.deploy.launch import write_site
from feddag.deploy.node import answer
from feddag.engines.flower.transport import Delivery
from feddag.engines.flower.wire import Message, write_hello
from feddag.runner.run import prepare


class InProcessTransport:
    """Flower's grid without a network: each node's own program answers at once."""

    def __init__(self, folder: Path, clients: int) -> None:
        self.folder, self.clients = folder, clients
        self.answers: list[Message] = []

    def nodes(self) -> set[str]:
        return set(map(str, range(self.clients)))

    def key(self, node: str) -> bytes:
        return b""

    def greet(self, node: str) -> str:
        return self._keep(write_hello(int(node)))

    def send(self, node: str, message: Message) -> str:
        site = {"client-id": int(node), "data": str(self.folder / f"{node}.npz"), "state": str(self.folder / "state")}
        site |= {"least-per-class": 1, "raw-inputs": True}  # as in simulation
        return self._keep(answer(message, site, {}, self.folder / "app" / PACKAGE))

    def receive(self, message_ids: Iterable[str], largest: int) -> list[Delivery]:
        return [Delivery(message_id, self.answers[int(message_id)]) for message_id in message_ids]

    def _keep(self, message: Message) -> str:
        self.answers.append(message)
        return str(len(self.answers) - 1)


def write_federation(experiment: feddag.Experiment, folder: Path) -> Partition:
    """The app, and every client's data as if its site had brought them."""
    dataset, partition, _ = prepare(experiment)
    data = lay_out(dataset, partition, experiment.seed)
    write_app(folder / "app", experiment)
    for client in range(len(partition.train)):
        write_site(folder / f"{client}.npz", data, client)
    return partition


def serve(folder: Path, clients: int, monkeypatch) -> None:
    """The loop that runs on a real server, with what `write_federation` wrote; the run directory is `r` beside it."""
    monkeypatch.setattr(server, "GridTransport", lambda grid: InProcessTransport(folder, clients))
    settings = {"deadline": 60, "minimum": 1, "patience": 3, "largest-reply": 1024}
    server.serve(None, {"out": str(folder / "r"), "resume": False, **settings}, folder / "app" / PACKAGE)


def run_on_nodes(experiment: feddag.Experiment, folder: Path, monkeypatch) -> feddag.Run:
    """The experiment on Flower's engine, where the server knows how the data were divided."""
    partition = write_federation(experiment, folder)
    (folder / "r").mkdir()
    partition.save(folder / "r" / "partition.npz")
    serve(folder, len(partition.train), monkeypatch)
    return feddag.load(folder / "r", trust=True)  # a method of the test's own
