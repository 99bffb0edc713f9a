"""What a node's own configuration says. It is read before anything large is loaded, so nothing large is imported."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from feddag.deploy.policy import NodePolicy
from feddag.errors import FeddagError, nearest, short

KNOWN = (
    *("client-id", "data", "state", "threads"),
    *(item.name.replace("_", "-") for item in fields(NodePolicy)),
    *("partition-id", "num-partitions"),  # of Flower's simulation
)


@dataclass(frozen=True)
class Node:
    """A node's own configuration: which client it is and where its files are. It never comes from the server."""

    client: int
    data: str
    """An .npz file, a folder of images, or `module:function` that returns x_train, y_train, x_test, y_test."""
    state: Path
    """Where the client's memory is kept."""
    threads: int = 1
    """Of PyTorch; with one, sums run in the same order everywhere."""
    policy: NodePolicy = field(default_factory=NodePolicy)
    """What a server may ask for."""

    @classmethod
    def of(cls, node: Mapping[str, Any], run: Mapping[str, Any]) -> "Node":
        """From Flower's node config. In Flower's simulation a node has only a number, and the run says where data are.

        >>> Node.of({"client-id": 2, "data": "site.npz", "state": "/var/lib/feddag"}, {}).client
        2
        """
        for name in node:
            if name not in KNOWN:  # a misspelt limit would protect nothing, and nobody would notice
                raise FeddagError(f"node config {short(name)} is not known{nearest(name, KNOWN)}")
        simulated = "partition-id" in node and "client-id" not in node
        client = node.get("partition-id" if simulated else "client-id")
        if not isinstance(client, int) or isinstance(client, bool) or client < 0:
            raise FeddagError(
                f"node config client-id = {short(repr(client))} is not allowed: it should be 0, 1, 2, ..."
            )
        settings = {name: str(run.get(name, "")).replace("{client}", str(client)) for name in ("data", "state")}
        settings = settings if simulated else {name: str(node.get(name, "")) for name in settings}
        if not settings["data"]:
            raise FeddagError("node config data is missing: an .npz file, a folder of images or module:function")
        state = Path(settings["state"]) if settings["state"] else Path.home() / ".feddag" / "state"
        threads = node.get("threads", 1)
        if not isinstance(threads, int) or threads < 1:
            raise FeddagError(f"node config threads = {short(repr(threads))} is not allowed: it should be 1, 2, ...")
        return cls(client, settings["data"], state, threads, NodePolicy(1, True) if simulated else NodePolicy.of(node))

    def memory(self, run: str) -> Path:
        """The folder of this client's memory in a run."""
        return self.state / run / f"client-{self.client:06d}"
