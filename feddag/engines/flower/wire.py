"""What a message holds: one JSON text and raw arrays. Reading one imports nothing and runs nothing.

A step travels as the name of its class and its plain fields; the reader looks the class up in a table of steps that it
already knows. Weights travel once per message, under their digest.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from feddag._version import __version__
from feddag.answers import MOST_FLOPS
from feddag.client.step import Result, Step
from feddag.federation import Job, Reply
from feddag.packing import Arrays, pack, unpack
from feddag.weights import ClientId, Own, Ref, Weights, digest

PROTOCOL = 3  # raised when a message changes so that an older version could not read it
OLDEST = 2  # the oldest that is still spoken: nodes and servers may be one apart while an upgrade is under way
MOST_AXES, LARGEST_SIDE = 16, 2**31  # of an array; NumPy itself gives up at 64 axes, and at sizes beyond its integers
DTYPES = frozenset(("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"))

Steps = Mapping[str, type[Step]]


class WireError(Exception):
    """A message that cannot be read as what it should be. The text is safe to send and to log: it holds no values."""


@dataclass(frozen=True)
class Message:
    """What travels: one text and raw arrays."""

    text: str
    arrays: Arrays = field(default_factory=dict)
    protocol: int = PROTOCOL
    """That of the reader, which also says how the arrays travel (`grid.py`)."""

    @property
    def nbytes(self) -> int:
        """Bytes of the text and the arrays."""
        return len(self.text.encode()) + sum(array.nbytes for array in self.arrays.values())


@dataclass(frozen=True)
class JobId:
    """Which job of which run a message belongs to; a reply repeats that of its job."""

    run: str
    client: ClientId
    round: int
    exchange: int


@dataclass(frozen=True)
class ReceivedJob:
    """A job as a node reads it, with the weights it refers to."""

    id: JobId
    steps: tuple[Step, ...]
    weights: dict[str, Weights]
    protocol: int = PROTOCOL
    """That of its message; the answer must follow the same."""


@dataclass(frozen=True)
class Hello:
    """What a node says about itself."""

    client: ClientId
    protocol: int
    version: str
    """Of feddag; empty if it is too old to say."""


def raw_array(data: bytes, dtype: str, shape: Sequence[int]) -> NDArray[Any]:
    """An array from bytes that came over the wire; only plain numbers are accepted.

    >>> raw_array(bytes(8), "float32", (2,))
    array([0., 0.], dtype=float32)
    """
    checked(dtype)
    sizes = [size if isinstance(size, int) and 0 <= size <= LARGEST_SIDE else -1 for size in shape]
    if len(sizes) > MOST_AXES or -1 in sizes or len(data) != np.dtype(dtype).itemsize * math.prod(sizes):
        raise WireError("the bytes of an array do not match its shape")
    array = np.frombuffer(bytearray(data), dtype)  # a bytearray: torch wants writable arrays
    if dtype == "bool" and (array.view(np.uint8) > 1).any():
        raise WireError("an array of truth values holds other ones")
    return array.reshape(sizes)


def checked(dtype: str) -> str:
    """The type of an array that came over the wire, if it is one of plain numbers."""
    if dtype not in DTYPES:
        raise WireError("an array does not hold plain numbers")
    return dtype


def write_job(job_id: JobId, job: Job, fetch: Callable[[Ref], Weights], protocol: int = PROTOCOL) -> Message:
    """The message that carries a job to its client, which follows this protocol."""
    refs = {item for step in job.steps for item in step.payload() if isinstance(item, Ref)}
    weights = {ref.digest: fetch(ref) for ref in sorted(refs, key=lambda ref: ref.digest)}
    content = _headed(job_id, protocol) | {"steps": list(job.steps), "weights": weights}
    return Message(*pack(content, _special), protocol)


def read_job(message: Message, steps: Steps) -> ReceivedJob:
    """The job in a message, if it is one."""

    def build(content: Any) -> Step:
        path, fields = content
        if path not in steps:
            raise WireError("this node does not know the class of a step")
        return steps[path](**fields)

    content = _read(message, {"step": build, "ref": lambda content: Ref(*content), "own": Own})
    if not isinstance(content.get("steps"), list) or not all(isinstance(step, Step) for step in content["steps"]):
        raise WireError("the job is not a list of steps")
    for name, weights in _table(content.get("weights")).items():
        _tensors(weights)
        if digest(weights) != name:
            raise WireError("weights do not match their digest")
    return ReceivedJob(_job_id(content), tuple(content["steps"]), content["weights"], content["protocol"])


def write_reply(job_id: JobId, reply: Reply, protocol: int = PROTOCOL) -> Message:
    """The message that brings a client's answer back."""
    results = [dict(vars(result)) for result in reply.results]
    return Message(*pack(_headed(job_id, protocol) | {"samples": reply.samples, "results": results}), protocol)


def write_refusal(job_id: JobId | None, reason: str, protocol: int = PROTOCOL) -> Message:
    """The message that says why there is no answer. The reason must not hold a sample, a label or a secret."""
    head = _headed(job_id, protocol) if job_id else {"protocol": protocol}
    return Message(*pack(head | {"refused": reason}), protocol)


def read_reply(message: Message, job_id: JobId, steps: int) -> Reply:
    """The answer in a message, if it is one to this very job."""
    content = _read(message)
    if "refused" in content:
        raise WireError(f"said: {_printable(content['refused'])}")
    if _job_id(content) != job_id:
        raise WireError("answered for another round, client or run")
    results = content.get("results")
    if not isinstance(results, list) or len(results) != steps:
        raise WireError("answered with a different number of results than steps")
    return Reply(job_id.client, [_result(result) for result in results], _count(content.get("samples")))


def write_greeting() -> Message:
    """The server's question which client a node is; it says which protocol the server follows."""
    return Message(*pack({"protocol": PROTOCOL}))


def spoken(message: Message) -> int:
    """The protocol in which to answer a message that may come from a version before or after this one.

    >>> spoken(write_greeting()) == PROTOCOL, spoken(Message("")) == OLDEST  # greetings were empty before they said it
    (True, True)
    """
    try:
        protocol = dict(json.loads(message.text)["$dict"])["protocol"]  # no more is needed, and steps need a table
    except Exception:  # a forged message can fail in any way
        return OLDEST
    return min(max(protocol, OLDEST), PROTOCOL) if type(protocol) is int else OLDEST


def write_hello(client: ClientId, protocol: int = PROTOCOL) -> Message:
    """A node's introduction."""
    return Message(*pack({"protocol": protocol, "client": client, "feddag": __version__}), protocol)


def read_hello(message: Message) -> Hello:
    """Which client a node says it is, and how it speaks."""
    content = _read(message)
    if "refused" in content:
        raise WireError(f"said: {_printable(content['refused'])}")
    version = content.get("feddag", "")
    if not isinstance(version, str):
        raise WireError("an entry should be a text")
    return Hello(_count(content.get("client")), content["protocol"], _printable(version)[:20])


def class_path(kind: type[Step]) -> str:
    """The name under which a step travels."""
    return f"{kind.__module__}:{kind.__qualname__}"


def _special(item: Any) -> tuple[str, Any] | None:
    if isinstance(item, Ref):
        return "ref", (item.digest, item.nbytes)
    if isinstance(item, Own):
        return "own", item.name
    if isinstance(item, Step) and dataclasses.is_dataclass(item):
        fields = {part.name: getattr(item, part.name) for part in dataclasses.fields(item)}
        return "step", (class_path(type(item)), fields)
    return None


def _headed(job_id: JobId, protocol: int) -> dict[str, Any]:
    return {"protocol": protocol, **vars(job_id)}


def _read(message: Message, special: Mapping[str, Callable[[Any], Any]] | None = None) -> dict[Any, Any]:
    try:
        content = unpack(message.text, message.arrays, special)
    except WireError:
        raise
    except Exception as error:  # a forged message can fail in any way
        raise WireError("a malformed message") from error
    if not isinstance(content, dict):
        raise WireError("a malformed message")
    protocol = content.get("protocol")
    if type(protocol) is not int:  # an array in its place would compare as one
        raise WireError("a message does not say its protocol")
    if not OLDEST <= protocol <= PROTOCOL:
        which = "older" if protocol < OLDEST else "newer"
        raise WireError(
            f"a message of protocol {str(protocol)[:9]} comes from a feddag much {which} than {__version__}, "
            f"which follows protocols {OLDEST} to {PROTOCOL}; install the same version everywhere"
        )
    return content


def _job_id(content: Mapping[Any, Any]) -> JobId:
    run = content.get("run")
    if not isinstance(run, str) or not run.isalnum() or len(run) > 64:  # it becomes the name of a folder
        raise WireError("a message does not name its run")
    return JobId(run, *(_count(content.get(name)) for name in ("client", "round", "exchange")))


def _result(content: Any) -> Result:
    content = _table(content)
    if set(content) != set(Result.__dataclass_fields__):
        raise WireError("a result has unknown or missing fields")
    if content["weights"] is not None:
        _tensors(content["weights"])
    _tensors(content["arrays"])
    for weights in _table(content["more"]).values():
        _tensors(weights)
    numbers = _table(content["numbers"]).values()
    if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
        raise WireError("an entry should be a number")
    _count(content["samples"])
    _count(content["scored"])
    _count(content["flops"], MOST_FLOPS)
    return Result(**content)


def _tensors(content: Any) -> None:
    if not all(isinstance(tensor, Tensor) for tensor in _table(content).values()):
        raise WireError("an entry should be an array")


def _table(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise WireError("an entry should be a table")
    try:
        "".join(content).encode()
    except UnicodeEncodeError:  # JSON can hold half a character
        raise WireError("a name holds half a character") from None
    return content


def _count(value: Any, most: int = 2**53 - 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise WireError("an entry should be a count")
    return value


def _printable(reason: Any) -> str:
    """A short line of plain characters: what a stranger sends ends up in logs."""
    if not isinstance(reason, str):
        return "no reason that could be read"
    return "".join(character if character.isprintable() else "?" for character in reason[:200])
