"""Answers without what chance and time make of them. Standard library alone: clients import it, too."""

import json
from typing import Any

_IDS = {"id", "item_id", "call_id", "request_id"}
_TIMES = {"created_at", "completed_at"}


def without_chance(value: Any, ids: dict[str, int] | None = None) -> Any:
    """The same with ids by their order and without times: equal ids stay equal."""
    ids = {} if ids is None else ids
    if isinstance(value, list):
        return [without_chance(item, ids) for item in value]
    if not isinstance(value, dict):
        return value
    plain = {}
    for name, item in value.items():
        if name in _IDS and isinstance(item, str):
            plain[name] = ids.setdefault(item, len(ids))
        else:
            plain[name] = item is not None if name in _TIMES else without_chance(item, ids)
    return plain


def read_events(text: str) -> list[Any]:
    """The data of each event of a stream, all of which have the name that their type says."""
    found = []
    for event in text.strip().split("\n\n"):
        name, data = event.split("\n")
        value = json.loads(data.removeprefix("data: "))
        assert name == f"event: {value['type']}", event
        found.append(value)
    return found
