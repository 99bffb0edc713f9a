"""Flower's own types: parcels as its records, its grid as our transport. Flower is an extra: it is imported late."""

from collections.abc import Iterable
from typing import Any

from feddag.engines.flower.engine import Delivery, NodeId
from feddag.engines.flower.wire import Parcel, WireError, raw_array

HELLO = "query.hello"
WORK = "train.work"
RECORD = "feddag"
LOST = {3: "its answer was lost", 4: "its answer was lost", 5: "its node was lost", 8: "its program ended unexpectedly"}


def to_record(parcel: Parcel) -> Any:
    """A parcel as a Flower RecordDict: arrays as raw bytes."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    arrays = {
        name: Array(dtype=str(array.dtype), shape=array.shape, stype="raw", data=array.tobytes())
        for name, array in parcel.arrays.items()
    }
    return RecordDict({"text": ConfigRecord({RECORD: parcel.text}), "arrays": ArrayRecord(arrays)})


def from_record(record: Any) -> Parcel:
    """The parcel in a Flower RecordDict; an empty one, which reads as malformed, if there is none."""
    try:
        text = record.config_records["text"][RECORD]
        arrays = dict(record.array_records["arrays"].items())
        held = {name: raw_array(array.data, array.dtype, array.shape) for name, array in arrays.items()}
    except (KeyError, WireError):
        return Parcel("")
    return Parcel(text if isinstance(text, str) else "", held)


def reply(parcel: Parcel, message: Any) -> Any:
    """The Flower message that answers another."""
    from flwr.app import Message

    return Message(to_record(parcel), reply_to=message)


class GridTransport:
    """Flower's grid. Replies are matched by the message they answer: a lost node's comes from another source."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> set[NodeId]:
        """A node that was started anew is another one: what was sent to it before is lost."""
        return {f"{node.node_id}@{node.last_activated_at}" for node in self._grid.get_nodes()}

    def greet(self, node: NodeId) -> str:
        return self._push(node, HELLO, Parcel(""))

    def send(self, node: NodeId, parcel: Parcel) -> str:
        return self._push(node, WORK, parcel)

    def receive(self, messages: Iterable[str]) -> list[Delivery]:
        waiting = list(messages)
        return [_delivery(message) for message in self._grid.pull_messages(waiting)] if waiting else []

    def _push(self, node: NodeId, kind: str, parcel: Parcel) -> str:
        from flwr.app import Message

        number = int(node.partition("@")[0])
        [message] = self._grid.push_messages([Message(to_record(parcel), number, kind)])
        return str(message)


def _delivery(message: Any) -> Delivery:
    answers = message.metadata.reply_to_message_id
    if message.has_error():
        return Delivery(answers, None, LOST.get(message.error.code, f"Flower error {message.error.code}"))
    return Delivery(answers, from_record(message.content))
