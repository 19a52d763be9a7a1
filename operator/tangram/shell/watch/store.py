"""What one mirror holds: the last known objects of a kind. No I/O, so that a model test can drive it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tangram.shell.objects.kinds import Key, Object, key_of, uid_of

KeepFields = Callable[[Object], Object | None]
"""Keeps the needed fields of an object; None when nothing of it is needed."""


def version_of(obj: Object) -> int:
    """Return the resourceVersion as a number (KEP-5504 makes them comparable), -1 when it is none."""
    return as_version(obj.get("metadata", {}).get("resourceVersion", ""))


def as_version(text: str) -> int:
    """Return a resourceVersion as a number, -1 when it is none."""
    return int(text) if text.isdecimal() else -1


@dataclass(slots=True)
class Store:
    """Objects by (namespace, name), and the version of the collection up to which they are true."""

    keep: KeepFields
    version: int = -1
    _objects: dict[Key, Object] = field(default_factory=dict)

    @property
    def listed(self) -> bool:
        """Whether a whole LIST has ever been taken."""
        return self.version >= 0

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self._objects.values())

    def get(self, key: Key) -> Object | None:
        """Return one object."""
        return self._objects.get(key)

    def replace(self, items: list[Object], version: int) -> bool:
        """Take a whole LIST of reduced objects as the truth. Say whether anything that matters changed."""
        fresh = {key_of(item): item for item in items}
        changed = fresh.keys() != self._objects.keys() or any(
            _differs(self._objects[key], item) for key, item in fresh.items()
        )
        self._objects = fresh
        self.version = version
        return changed

    def upsert(self, obj: Object) -> bool:
        """Take an ADDED or MODIFIED event. A watch is ordered: what is not newer than the store is a
        replay.
        """
        key, version = key_of(obj), version_of(obj)
        if -1 < version <= self.version:
            return False
        known = self._objects.get(key)
        self.version = max(self.version, version)
        reduced = self.keep(obj)
        if reduced is None:
            return self._drop(key)
        self._objects[key] = reduced
        return known is None or _differs(known, reduced)

    def remove(self, obj: Object) -> bool:
        """Take a DELETED event (its version is that of the deletion). Replays are ignored."""
        version = version_of(obj)
        if -1 < version <= self.version:
            return False
        self.version = max(self.version, version)
        return self._drop(key_of(obj))

    def advance(self, version: int) -> None:
        """Take a bookmark: everything up to `version` has been seen."""
        self.version = max(self.version, version)

    def mismatches(self, items: list[Object]) -> dict[Key, tuple[str, int]]:
        """Compare with a LIST: the keys that differ, with the (uid, version) this store has for them ("",
        -1: none).
        """
        fresh = {key_of(item): item for item in items}
        found: dict[Key, tuple[str, int]] = {}
        for key in fresh.keys() | self._objects.keys():
            listed, known = fresh.get(key), self._objects.get(key)
            if listed is None or known is None or version_of(listed) != version_of(known):
                found[key] = self.identity(key)
        return found

    def identity(self, key: Key) -> tuple[str, int]:
        """Return (uid, version) of what is known under `key`."""
        known = self._objects.get(key)
        return ("", -1) if known is None else (uid_of(known), version_of(known))

    def _drop(self, key: Key) -> bool:
        return self._objects.pop(key, None) is not None


def _differs(one: Object, other: Object) -> bool:
    """Compare all but the resourceVersion: reduced objects that only got a new version need no new plan."""
    return _without_version(one) != _without_version(other)


def _without_version(obj: Object) -> Object:
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return {**obj, "metadata": meta}
