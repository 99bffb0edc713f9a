"""The way to the nodes: what the engine asks of a network, whoever provides it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from feddag.engines.flower.wire import Message

NodeId = str
"""One connection of one node: it changes when the node restarts."""
MessageId = str


@dataclass(frozen=True)
class Delivery:
    """What came back for a message that was sent: the reply, how it got lost on the way, or why it was not read."""

    message_id: MessageId
    reply: Message | None
    lost: str = ""
    unread: str = ""


class Transport(Protocol):
    """Takes messages to nodes. Its node ids mean nothing beyond this: a client is who its node says it is, and where
    keys are bound to clients, who its key says it is."""

    def nodes(self) -> set[NodeId]:
        """The nodes that are connected."""

    def key(self, node: NodeId) -> bytes:
        """The public key that the node proved to have when it connected; empty if none is known."""

    def greet(self, node: NodeId) -> MessageId:
        """Ask a node which client it is."""

    def send(self, node: NodeId, message: Message) -> MessageId:
        """Send a job."""

    def receive(self, message_ids: Iterable[MessageId], largest: int) -> list[Delivery]:
        """What has come back for these messages; one of more than `largest` bytes is not read."""
