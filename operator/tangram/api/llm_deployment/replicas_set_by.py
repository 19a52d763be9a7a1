"""Read which client set spec.replicas, from metadata.managedFields."""

import re
from collections.abc import Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

from tangram.fleet import FieldManager

# What the mirror keeps instead of managedFields, the larger half of many objects.
REDUCED = "replicasSetBy"
_MOST_ENTRIES = 1000  # the API server merges all but ten of those that no server-side apply wrote
_MOST_CHARACTERS = 128  # of a manager's name, as the API server bounds it
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def replicas_set_by(obj: Mapping[str, Any]) -> FieldManager | None:
    """Return which client wrote spec.replicas last, None if unknown. Never raises, whatever
    managedFields holds.

    `obj` is an object as the API server shows it, or as the mirror keeps it. Where several clients own the
    field, the one that wrote last counts.
    """
    if REDUCED in obj:
        return _entry(obj[REDUCED])
    meta = obj.get("metadata")
    entries = meta.get("managedFields") if isinstance(meta, Mapping) else None
    first = entries[:_MOST_ENTRIES] if isinstance(entries, list) else ()
    managers = [_entry(entry) for entry in first if _owns_replicas(entry)]
    readable = [manager for manager in managers if manager is not None]
    return max(readable, key=attrgetter("time", "subresource", "manager"), default=None)


def reduced(obj: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the part of a reduced object that `replicas_set_by` reads; {} if the client is unknown."""
    by = replicas_set_by(obj)
    if by is None:
        return {}
    return {REDUCED: {"manager": by.manager, "subresource": by.subresource, "time": by.time}}


def _owns_replicas(entry: object) -> bool:
    inner = entry
    for key in ("fieldsV1", "f:spec", "f:replicas"):
        if not isinstance(inner, Mapping) or key not in inner:
            return False
        inner = inner[key]
    return True


def _entry(entry: object) -> FieldManager | None:
    if not isinstance(entry, Mapping):
        return None
    if not (manager := _plain(entry.get("manager"))):
        return None
    return FieldManager(manager, _plain(entry.get("subresource")), _time(entry.get("time")))


def _plain(text: object) -> str:
    """Return printable characters, bounded: a client chooses its name."""
    if not isinstance(text, str):
        return ""
    return "".join(c for c in text[:_MOST_CHARACTERS] if c.isprintable()).strip()


def _time(text: object) -> str:
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return ""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return ""
    return text
