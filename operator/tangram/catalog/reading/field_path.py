"""Paths of fields in objects of the API, as Kubernetes writes them: `spec.placement.allowedSKUs[0]`."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FieldPath = tuple[str | int, ...]
"""Names of fields, keys of maps and indexes of lists, from the object down."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
ABSENT = object()


def dotted(path: Iterable[str | int]) -> str:
    """Return a path as text; keys that are no names of fields, and indexes, stand in brackets."""
    text = ""
    for part in path:
        is_name = isinstance(part, str) and _NAME.fullmatch(part)
        text += f".{part}" if is_name else f"[{part}]"
    return text.removeprefix(".")


def is_changed(path: FieldPath, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a field of `after` differs from that of `before`. An item of a list is unchanged wherever the
    list before had it.
    """
    old: Any = before
    new: Any = after
    for part in path:
        if isinstance(part, int):
            item = _at(new, part)
            is_in_both = isinstance(old, Sequence) and not isinstance(old, str) and item in old
            old, new = (item, item) if is_in_both else (_at(old, part), item)
        else:
            old, new = _at(old, part), _at(new, part)
    return bool(old != new)


def _at(value: Any, part: str | int) -> Any:
    if isinstance(part, str) and isinstance(value, Mapping):
        return value.get(part, ABSENT)
    if isinstance(part, int) and isinstance(value, list | tuple) and 0 <= part < len(value):
        return value[part]
    return ABSENT
