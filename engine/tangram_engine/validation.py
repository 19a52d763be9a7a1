"""Where msgspec found a value of another type or out of bounds, as the writer of the JSON would name it."""

import re

import msgspec

_MESSAGE_LIMIT = 300  # characters; msgspec repeats a string that is none of a Literal's
_MISSING = re.compile(r"Object missing required field `(\w+)`")


def locate(error: msgspec.ValidationError) -> tuple[str, str]:
    """Path and message: ("messages.0.role", "is missing"). The path is empty for the value as a whole."""
    message, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").replace("[", ".").replace("]", "")
    if missing := _MISSING.fullmatch(message):
        path, message = f"{path}.{missing[1]}", "is missing"
    return path.lstrip("."), message[:_MESSAGE_LIMIT]
