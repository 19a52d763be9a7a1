"""The objects of one kind from events that are in order for one object only. No I/O: a model test drives it.

kopf handles each object by a worker of its own, so an event of one object says nothing about the others, and
the deletion of an object may arrive after the creation of the next one of that name. Versions are therefore
compared per object. A LIST is a state of all objects at once: what it lacks is gone, unless it is newer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tangram.kube.kinds import Key, Object, key_of
from tangram.kube.store import Store, differs, version_of

MAX_DELETED = 10_000  # deleted objects that are remembered until the next LIST, by key


@dataclass(slots=True)
class IntakeStore(Store):
    """Objects by (namespace, name), each known up to its own version; `version` is that of the last LIST."""

    behind: dict[Key, int] = field(default_factory=dict)  # listed versions that no event has shown yet
    # The version up to which each object is known, and each that was deleted since the LIST.
    _versions: dict[Key, int] = field(default_factory=dict)
    _forgotten: int = -1  # newest version of deletions that were too many to be remembered by key

    def compare(self, listed: Mapping[Key, int], version: int) -> bool:
        """Apply the names and versions of a LIST: drop what is gone, note what is `behind`; return whether an
        object was dropped.
        """
        if version < self.version:
            return False  # a newer LIST was applied already
        gone = [key for key, newest in self._versions.items() if newest <= version and key not in listed]
        for key in gone:
            del self._versions[key]
        dropped = sum(self._drop(key) for key in gone)
        behind = {key: at for key, at in listed.items() if self._versions.get(key, -1) < at}
        for key in behind.keys() - self.behind.keys():
            self._versions[key] = max(self._versions.get(key, -1), min(self.version, behind[key] - 1))
        self.behind, self.version = behind, version
        return dropped > 0

    def replace(self, items: list[Object], version: int) -> bool:
        """Apply a LIST of objects (of kept fields); objects with newer events stay as these show them."""
        listed = {key_of(item): version_of(item) for item in items}
        changed = self.compare(listed, version)
        for item in items:
            key = key_of(item)
            if self.behind.get(key) == listed[key]:
                before = self._objects.get(key)
                self._note(key, listed[key])
                self._objects[key] = item
                changed |= before is None or differs(before, item)
        return changed

    def remove(self, obj: Object) -> bool:
        """Apply a DELETED event. Beyond MAX_DELETED, the deleted objects are remembered by one version."""
        removed = Store.remove(self, obj)
        if len(self._versions) - len(self._objects) > MAX_DELETED:
            deleted = [key for key in self._versions if key not in self._objects]
            self._forgotten = max(self._forgotten, *(self._versions.pop(key) for key in deleted))
        return removed

    def clear(self) -> bool:
        """Drop all objects: their kind is no longer served."""
        return self.compare({}, max((self.version, *self._versions.values())))

    def shows(self, key: Key, version: int) -> bool:
        """Say whether the state of the object under `key` is known up to `version`."""
        newest = self._versions.get(key, -1)
        return (newest if key in self.behind else max(newest, self.version)) >= version

    def _known_version(self, key: Key) -> int:
        """Return the version up to which events of this object are replays."""
        return self._versions.get(key, max(self.version, self._forgotten))

    def _note(self, key: Key, version: int) -> None:
        self._versions[key] = max(version, self._versions.get(key, -1))
        if self.behind.get(key, version + 1) <= version:
            del self.behind[key]
