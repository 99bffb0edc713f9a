"""Clusters by signature: who founded them, who was placed since, and the search for them anew (§3, A.8)."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from feddag.client.signature import Signature
from feddag.server.grouping import Grouping, group
from feddag.stateful import Stateful
from feddag.weights import ClientId

Signed = Mapping[str, Tensor]
"""A signature as it was sent."""


class Membership(Stateful):
    """Signatures, and the clusters that follow from them. `how` is what `feddag.group` takes beside signatures."""

    def __init__(self, **how: Any) -> None:
        self._how = how
        self._grouping: Grouping | None = None
        self.signatures: dict[ClientId, Signed] = {}
        """What each client signed last."""
        self.founders: dict[ClientId, Signed] = {}
        """The signatures of those who were grouped together: one that drifts signs anew, and these stay."""
        self.placed: list[tuple[ClientId, int, Signed]] = []
        """Who came or moved since, in this order."""

    def use(self, **how: Any) -> None:
        """More of what `feddag.group` is told, known only when a run begins or goes on."""
        self._how |= how

    def search(self, clients: Iterable[ClientId] | None = None) -> tuple[Grouping, dict[ClientId, int]]:
        """The clusters of all who have signed (or of these), as they would be found now; nothing changes."""
        wanted = set(self.signatures if clients is None else clients)
        present = [client for client in self.signatures if client in wanted]
        grouping = self._group(self.signatures[client] for client in present)
        return grouping, dict(zip(present, grouping.labels_.tolist(), strict=True))

    def found(self, grouping: Grouping, cluster_of: Mapping[ClientId, int]) -> None:
        """What `search` gave is now what newcomers are compared with."""
        self.founders = {client: self.signatures[client] for client in cluster_of}
        self.placed = []
        self._grouping = grouping

    def nearest(self, client: ClientId) -> int | None:
        """The cluster for one who has signed; None if it is unlike all of them (Algorithm 4)."""
        return self.grouping.assign(Signature.from_tensors(self.signatures[client]))

    def place(self, client: ClientId, cluster: int) -> None:
        """Note that a client now belongs to a cluster: later newcomers are compared with it as well."""
        signed = self.signatures[client]
        self._grouping = self.grouping.joined_by(Signature.from_tensors(signed), cluster)
        self.placed = [*self.placed, (client, cluster, signed)]

    @property
    def grouping(self) -> Grouping:
        """The grouping of the founders with all who were placed since; made again after a resume."""
        if self._grouping is None:
            self._grouping = self._group(self.founders.values())
            for _, cluster, signed in self.placed:
                self._grouping = self._grouping.joined_by(Signature.from_tensors(signed), cluster)
        return self._grouping

    def diagnostics(self) -> dict[str, Any]:
        """What led to the clusters of the founders, and what every client says it holds."""
        arrays, founders = self.grouping.to_arrays(), list(self.founders)
        compared = arrays.pop("landmarks", range(len(founders)))  # of many clients only some are compared in pairs
        return arrays | {
            "clients": [founders[number] for number in compared],
            "labels": arrays["labels"][: len(compared)],
            "weights": {view: values[: len(compared)] for view, values in arrays["weights"].items()},
            "counts": {client: signed["counts"] for client, signed in self.signatures.items()},
        }

    def _group(self, signed: Iterable[Signed]) -> Grouping:
        return group([Signature.from_tensors(arrays) for arrays in signed], **self._how)
