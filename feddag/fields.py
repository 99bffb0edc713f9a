"""Fields as a person writes and reads them: `--set key=value`, a line of TOML, and the sentence where one is wrong."""

import json
import tomllib
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from feddag.errors import FeddagError, nearest, one_line, short
from feddag.files import LARGEST_TOML, parse_toml

RENAMED = {  # what fields were called in version 0.1
    "labels": "label_fraction",
    "quantity": "concentration",
    "against": "secondary_beside",
    "several": "source_updates",
    "combined": "learner_encoders",
}


def parse_setting(text: str) -> tuple[str, Any]:
    """A `--set key=value` as a name and a typed value; a value that is not TOML is taken as text.

    >>> parse_setting("lr=0.1"), parse_setting("model=lenet5")
    (('lr', 0.1), ('model', 'lenet5'))
    """
    name, equals, value = text.partition("=")
    if len(text.splitlines()) > 1 or len(text) > LARGEST_TOML:
        raise FeddagError(f"--set '{short(one_line(name.strip()))}=...' is not one line of a sane length")
    if not equals or not name.strip():
        raise FeddagError(f"--set '{short(one_line(text))}' is not of the form key=value")
    try:
        return name.strip(), parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), value.strip()
    except ValueError as error:
        raise FeddagError(f"--set {short(name.strip())}=... cannot be read: {short(error)}") from None


def refusal(error: ValidationError, fields: Mapping[str, FieldInfo]) -> str:
    """What is wrong with the first field that is, in one sentence."""
    first = error.errors()[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return f"'{short(name)}' is not a field of this method{nearest(name, fields)}"
    given = short(first["input"])
    wanted = first["msg"].removeprefix("Input should be ").split(", got")[0].split(", unable")[0]
    if first["type"] == "string_pattern_mismatch":
        wanted = fields[name].description or wanted  # a person reads words more easily than a pattern
    hint = nearest(given, _choices(first)) if first["type"] == "literal_error" else ""
    shown = repr(given) if isinstance(first["input"], str) else given
    return f"{name} = {shown} is not allowed: it should be {wanted}{hint}"


def _choices(error: Any) -> list[str]:
    return [word.strip(" '") for word in str(error["ctx"]["expected"]).replace(" or ", ",").split(",")]


def toml_value(value: Any) -> str:
    """The value as TOML.

    >>> toml_value("a"), toml_value(0.1), toml_value(True)
    ('"a"', '0.1', 'true')
    """
    return json.dumps(value, ensure_ascii=False) if not isinstance(value, float) else repr(value)
