"""What stands in a run directory, read with suspicion: it may be damaged, or have been handed over by anybody.

Whatever is not as feddag writes it is refused in one sentence that names the file. Nothing that is read is imported.
"""

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from feddag.errors import FeddagError, short
from feddag.files import LARGEST_TOML, parse_toml, read_plain
from feddag.records import LARGEST, Between, Count, ResultRecord, RoundRecord, Seed

LARGEST_RESULT = 2**28  # bytes


class RecordedExperiment(TypedDict):
    """What the experiment.toml of a run says in any case; other fields stand beside it."""

    method: str
    dataset: str
    partition: str
    seed: Seed
    rounds: Annotated[int, Between(1, LARGEST)]
    clients: NotRequired[Count]
    drift_round: NotRequired[Count]
    model: NotRequired[str]


def damaged(path: Path, what: str) -> FeddagError:
    """The sentence for a file that is not as feddag writes it."""
    return FeddagError(f"'{path}' is damaged: {what}")


def read_result(path: Path) -> ResultRecord | None:
    """A result.json; None if there is none."""
    try:
        content = read_plain(path, LARGEST_RESULT)
    except FileNotFoundError:
        return None
    result: ResultRecord = check(ResultRecord, from_json(content, path, "it is not JSON"), path)
    clients, taking_part = result["clients"], len(result["participants"])
    blocks = [result["accuracy"], result["accuracy_last"], result["accuracy_finetuned"], result["accuracy_best"]]
    if any(block is not None and len(block["per_client"]) != taking_part for block in blocks):
        raise damaged(path, "there is not one accuracy for each of the participants")
    late = [result.get("accuracy_unseen"), result.get("accuracy_unseen_finetuned")]
    if any(block is not None and len(block["per_client"]) != len(result["held_out"]) for block in late):
        raise damaged(path, "there is not one accuracy for each client that was held out")
    joined = result.get("accuracy_joined")
    if joined is not None and len(joined["per_client"]) != len(result.get("joined", ())):
        raise damaged(path, "there is not one accuracy for each client that joined")
    if clients < 1 or not _are_distinct([*result["participants"], *result["held_out"]], clients):
        raise damaged(path, "participants and held_out are not distinct clients of this run")
    if any(groups is not None and len(groups) != clients for groups in (result["truth"], result["clusters"])):
        raise damaged(path, "there is not one group for each client")
    if (personal := result.get("personal")) is not None:
        lengths = {len(personal["choice"]), *(len(block["per_client"]) for block in personal["accuracy"].values())}
        if lengths != {len(personal["clients"])} or "chosen" not in personal["accuracy"]:
            raise damaged(path, "personal has not one choice and one accuracy for each client")
        if not _are_distinct(personal["clients"], clients):
            raise damaged(path, "personal does not tell of distinct clients of this run")
    if not {"up", "down"} <= set(result["bytes_by_phase"]):
        raise damaged(path, "bytes_by_phase lacks a direction")
    return result


def parse_history(content: bytes, path: Path) -> list[RoundRecord]:
    """The rounds of a history.jsonl; a line without an end is still being written."""
    lines = content.split(b"\n")[:-1]
    found = [from_json(line, path, "a line of it is not JSON") for line in lines]
    records: list[RoundRecord] = check(list[RoundRecord], found, path)
    every = records[0]["round"] if len(records) > 1 else 1
    for number, record in enumerate(records, 1):
        here, groups = len(record["clients"]), record["clusters"]
        last = number == len(records) and record["round"] > (number - 1) * every  # a run may end in between
        if record["round"] != number * every and not last:
            raise damaged(path, f"line {number} is not round {number * every}")
        if here != len(record["per_client"]) or (groups is not None and len(groups) != here):
            raise damaged(path, f"round {number} has not one accuracy and one group for each client")
        if not _are_distinct(record["clients"], LARGEST):
            raise damaged(path, f"round {number} names a client twice")
        if not all(client.isascii() and client.isdigit() and len(client) < 17 for client in record["missing"]):
            raise damaged(path, f"round {number} misses somebody who is not a client")
    return records


def parse_experiment(path: Path) -> tuple[dict[str, Any], str]:
    """The fields of the experiment.toml of a run, and its text. No name in it is looked up."""
    try:
        text = read_plain(path, LARGEST_TOML).decode()
        values = parse_toml(text)
    except ValueError:
        raise damaged(path, "it is not valid TOML") from None
    check(RecordedExperiment, values, path)
    for name, value in values.items():
        if not isinstance(value, str | bool | int | float) or (isinstance(value, float) and not math.isfinite(value)):
            raise damaged(path, f"{short(name)} is neither text nor a number")
    return values, text


def check(kind: Any, value: Any, path: Path) -> Any:
    """The same value, if it is of this kind in everything that it holds.

    >>> check(list[int], [1, 2], Path("numbers.json"))
    [1, 2]
    >>> check(list[int], [1, "2"], Path("numbers.json"))
    Traceback (most recent call last):
    feddag.errors.FeddagError: 'numbers.json' is damaged: 1 should be a valid integer
    """
    try:
        _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = short(".".join(map(str, first["loc"])) or "its content")
        wanted = first["msg"].removeprefix("Input ")
        said = "is missing" if first["type"] == "missing" else wanted[:1].lower() + wanted[1:]
        raise damaged(path, f"{where} {said}") from None
    return value


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def from_json(content: bytes, path: Path, otherwise: str) -> Any:
    """What JSON says; where it is none, the file is damaged, and `otherwise` says how."""
    try:
        return json.loads(content.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # too deep, or a number of thousands of digits
        raise damaged(path, otherwise) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _are_distinct(clients: Sequence[int], below: int) -> bool:
    return len(set(clients)) == len(clients) and all(client < below for client in clients)


def own_code(values: Mapping[str, Any]) -> list[str]:
    """The fields of an experiment that name code which does not come with feddag, and would be imported.

    >>> own_code({"method": "fedavg", "model": "mine:network"})
    ["model = 'mine:network'"]
    """
    named = {name: values.get(name) for name in ("method", "model")}
    return [f"{name} = '{short(value)}'" for name, value in named.items() if isinstance(value, str) and ":" in value]
