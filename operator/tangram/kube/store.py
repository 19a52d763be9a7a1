"""The objects of one mirror, changed by LISTs and watch events. No I/O, so that a model test can drive it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tangram.kube.kinds import Key, Object, key_of, uid_of

KeepFields = Callable[[Object], Object | None]
"""Returns an object with the needed fields only, None where the object is not needed."""


def version_of(obj: Object) -> int:
    """Return the resourceVersion as a number (KEP-5504 makes them comparable), -1 when it is none."""
    return as_version(obj.get("metadata", {}).get("resourceVersion", ""))


def as_version(text: str) -> int:
    """Return a resourceVersion as a number, -1 when it is none."""
    return int(text) if text.isdecimal() else -1


@dataclass(slots=True)
class Store:
    """Objects by (namespace, name), and the resource version up to which they are current."""

    keep: KeepFields
    version: int = -1
    _objects: dict[Key, Object] = field(default_factory=dict)

    @property
    def listed(self) -> bool:
        """Whether a LIST was ever completed."""
        return self.version >= 0

    def __len__(self) -> int:
        return len(self._objects)

    def __iter__(self) -> Iterator[Object]:
        return iter(self._objects.values())

    def get(self, key: Key) -> Object | None:
        """Return one object."""
        return self._objects.get(key)

    def shows(self, key: Key, version: int) -> bool:
        """Say whether the state of the object under `key` is known up to `version`."""
        return self._known_version(key) >= version

    def replace(self, items: list[Object], version: int) -> bool:
        """Replace all objects by a LIST (of kept fields). Say whether anything but versions changed."""
        fresh = {key_of(item): item for item in items}
        changed = fresh.keys() != self._objects.keys() or any(
            differs(self._objects[key], item) for key, item in fresh.items()
        )
        self._objects = fresh
        self.version = version
        return changed

    def upsert(self, obj: Object) -> bool:
        """Apply an ADDED or MODIFIED event; in an ordered watch, one not newer than the store is a replay."""
        key, version = key_of(obj), version_of(obj)
        if -1 < version <= self._known_version(key):
            return False
        before = self._objects.get(key)
        self._note(key, version)
        kept = self.keep(obj)
        if kept is None:
            return self._drop(key)
        self._objects[key] = kept
        return before is None or differs(before, kept)

    def remove(self, obj: Object) -> bool:
        """Apply a DELETED event (its version is that of the deletion). Replays are ignored."""
        key, version = key_of(obj), version_of(obj)
        if -1 < version <= self._known_version(key):
            return False
        self._note(key, version)
        return self._drop(key)

    def clear(self) -> bool:
        """Drop all objects: their kind is no longer served."""
        return self.replace([], self.version)

    def advance(self, version: int) -> None:
        """Apply a bookmark: the store is current up to `version`."""
        self.version = max(self.version, version)

    def mismatches(self, items: list[Object]) -> dict[Key, tuple[str, int]]:
        """Return the keys that differ from a LIST, with the (uid, version) in this store ("", -1: none)."""
        fresh = {key_of(item): item for item in items}
        mismatches: dict[Key, tuple[str, int]] = {}
        for key in fresh.keys() | self._objects.keys():
            listed, stored = fresh.get(key), self._objects.get(key)
            if listed is None or stored is None or version_of(listed) != version_of(stored):
                mismatches[key] = self.identity(key)
        return mismatches

    def identity(self, key: Key) -> tuple[str, int]:
        """Return (uid, version) of the object under `key`, ("", -1) where there is none."""
        obj = self._objects.get(key)
        return ("", -1) if obj is None else (uid_of(obj), version_of(obj))

    def _known_version(self, _key: Key) -> int:
        """Return the version up to which the state of one object is known: here that of every object."""
        return self.version

    def _note(self, _key: Key, version: int) -> None:
        """Note the version of an event."""
        self.version = max(self.version, version)

    def _drop(self, key: Key) -> bool:
        return self._objects.pop(key, None) is not None


def differs(before: Object, after: Object) -> bool:
    """Compare all but the resourceVersion: a new version of the same kept fields needs no new plan."""
    return _without_version(before) != _without_version(after)


def _without_version(obj: Object) -> Object:
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    return {**obj, "metadata": meta}
