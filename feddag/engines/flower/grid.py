"""Flower's own types: messages as its records, its grid as our transport. Flower is an extra: it is imported late."""

import json
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from feddag.engines.flower.transport import Delivery, MessageId, NodeId
from feddag.engines.flower.wire import Message, WireError, checked, raw_array, write_greeting
from feddag.packing import Arrays

HELLO = "query.hello"
WORK = "train.work"
RECORD, LAYOUT, CONTENT = "feddag", "layout", "content"
ONE_PIECE = 3  # the protocol since which arrays travel together
SMALL = 2**20  # bytes that travel beside the text
LOST = {3: "its answer was lost", 4: "its answer was lost", 5: "its node was lost", 8: "its program ended unexpectedly"}


def to_record(message: Message) -> Any:
    """A message as a Flower RecordDict: arrays as raw bytes, all of them one piece.

    Flower sends every part of a record in a request of its own, and an array is two parts: a model of ten arrays would
    take twenty requests at each hop. Large pieces are an array of Flower's, which it cuts into chunks.
    """
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    def raw(data: bytes, dtype: str, shape: tuple[int, ...]) -> Any:
        return Array(dtype=dtype, shape=shape, stype="raw", data=data)

    arrays = message.arrays
    if message.protocol < ONE_PIECE:
        separate = {name: raw(array.tobytes(), str(array.dtype), array.shape) for name, array in arrays.items()}
        return RecordDict({"text": ConfigRecord({RECORD: message.text}), "arrays": ArrayRecord(separate)})
    layout = json.dumps([[name, str(array.dtype), array.shape] for name, array in arrays.items()])
    content = b"".join(array.tobytes() for array in arrays.values())
    text = {RECORD: message.text, LAYOUT: layout}
    if len(content) <= SMALL:
        return RecordDict({"text": ConfigRecord({**text, CONTENT: content})})
    whole = ArrayRecord({CONTENT: raw(content, "uint8", (len(content),))})
    return RecordDict({"text": ConfigRecord(text), "arrays": whole})


def from_record(record: Any) -> Message:
    """The message in a Flower RecordDict; an empty one, which reads as malformed, if there is none."""
    try:
        fields = record.config_records["text"]
        text = fields[RECORD]
        if LAYOUT in fields:
            content = fields[CONTENT] if CONTENT in fields else record.array_records["arrays"][CONTENT].data
            held = _cut(content, json.loads(fields[LAYOUT]))
        else:
            arrays = dict(record.array_records["arrays"].items())
            held = {str(name): raw_array(array.data, array.dtype, array.shape) for name, array in arrays.items()}
    except Exception:  # a stranger made it: it can be wrong in any way, and the round goes on without it
        return Message("")
    return Message(text if isinstance(text, str) else "", held)


def _cut(content: bytes, layout: list[tuple[str, str, list[int]]]) -> Arrays:
    """The arrays that lie one after the other in these bytes."""
    held, start = {}, 0
    for name, dtype, shape in layout:
        end = start + math.prod(shape) * np.dtype(checked(dtype)).itemsize
        held[str(name)] = raw_array(content[start:end], dtype, shape)
        start = end
    if start != len(content):
        raise WireError("the bytes of a message do not match its layout")
    return held


def size_of(record: Any) -> int:
    """Bytes of a Flower RecordDict, before anything in it is decoded; more than any limit if that cannot be told."""
    try:
        texts = [value for config in record.config_records.values() for value in config.values()]
        arrays = [array for table in record.array_records.values() for array in table.values()]
        return sum(len(text) for text in texts if isinstance(text, str | bytes)) + sum(len(a.data) for a in arrays)
    except Exception:  # as above
        return 2**63


def reply(message: Message, flower_message: Any) -> Any:
    """The Flower message that answers another with this content."""
    from flwr.app import Message as FlowerMessage

    return FlowerMessage(to_record(message), reply_to=flower_message)


class GridTransport:
    """Flower's grid. Replies are matched by the message they answer: a lost node's comes from another source."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._keys: dict[NodeId, bytes] = {}

    def nodes(self) -> set[NodeId]:
        """A restarted node counts as a new one: what was sent to it before is lost."""
        self._keys = {f"{node.node_id}@{node.last_activated_at}": node.public_key for node in self._grid.get_nodes()}
        return set(self._keys)

    def key(self, node: NodeId) -> bytes:
        return self._keys.get(node, b"")

    def greet(self, node: NodeId) -> MessageId:
        return self._push(node, HELLO, write_greeting())

    def send(self, node: NodeId, message: Message) -> MessageId:
        return self._push(node, WORK, message)

    def receive(self, message_ids: Iterable[MessageId], largest: int) -> list[Delivery]:
        waiting = list(message_ids)
        return [_delivery(answer, largest) for answer in self._grid.pull_messages(waiting)] if waiting else []

    def _push(self, node: NodeId, kind: str, message: Message) -> MessageId:
        from flwr.app import Message as FlowerMessage

        number = int(node.partition("@")[0])
        [message_id] = self._grid.push_messages([FlowerMessage(to_record(message), number, kind)])
        return str(message_id)


def _delivery(answer: Any, largest: int) -> Delivery:
    message_id = answer.metadata.reply_to_message_id
    if answer.has_error():
        return Delivery(message_id, None, LOST.get(answer.error.code, f"Flower error {answer.error.code}"))
    if (size := size_of(answer.content)) > largest:
        return Delivery(message_id, None, unread=f"answered with {size} bytes, and largest_reply = {largest}")
    return Delivery(message_id, from_record(answer.content))
