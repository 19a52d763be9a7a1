"""Values of JSON: where msgspec found one of another type or out of bounds, and whole numbers as integers."""

import re
from typing import Any

import msgspec

_MESSAGE_LIMIT = 300  # characters; msgspec repeats a string that is none of a Literal's
_EXACT = 1 << 53  # floats of this size and more have gaps between whole numbers
_AT, _IN_KEY = " - at `$", " - at `key` in `$"  # of a value, and of a key of an object
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def locate(error: msgspec.ValidationError) -> tuple[str, str]:
    """Path and message: ("messages.0.role", "is missing"). The path is empty for the value as a whole."""
    message, _, path = str(error).replace(_IN_KEY, _AT).partition(_AT)
    path = path.rstrip("`").replace("[", ".").replace("]", "")
    if missing := _MISSING.fullmatch(message):
        path, message = f"{path}.{missing[1]}", "is missing"
    return path.lstrip("."), message[:_MESSAGE_LIMIT]


def whole_numbers_as_integers(value: Any) -> Any:
    """2.0 as 2, itself or in a list: some writers of JSON know one kind of number."""
    if isinstance(value, list):
        return [whole_numbers_as_integers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT:
        return int(value)
    return value
