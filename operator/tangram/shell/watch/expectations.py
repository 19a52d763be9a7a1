"""Remember the operator's own writes until its mirrors show them: until then, no new plan. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tangram.kube.kinds import Key, Kind, Object, key_of, uid_of
from tangram.kube.store import Store, version_of

OWN_WRITE_TIMEOUT_S = 5.0
"""How long a mirror may lack a write. Then it lists again: the write was reverted, or the watch is stuck."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One write of the operator that the mirror does not show yet."""

    kind: Kind
    key: Key
    version: int  # of the object as written; 0 for a deletion
    deleted_uid: str  # of the deleted object, "" for a write
    since: float

    def is_met(self, store: Store) -> bool:
        """Say whether the mirror shows this write or a later state."""
        if self.deleted_uid:
            obj = store.get(self.key)
            return (
                obj is None
                or uid_of(obj) != self.deleted_uid
                or bool(obj["metadata"].get("deletionTimestamp"))
            )
        return store.shows(self.key, self.version)


@dataclass(slots=True)
class Expectations:
    """The writes of the operator that the mirrors do not show yet."""

    store_of: Callable[[Kind, str], Store]
    _open: list[Expectation] = field(default_factory=list)

    def expect_write(self, kind: Kind, result: Object, now: float) -> None:
        """Expect the mirror to show the object that a create or apply returned."""
        self._open.append(Expectation(kind, key_of(result), version_of(result), "", now))

    def expect_deletion(self, kind: Kind, key: Key, uid: str, now: float) -> None:
        """Expect the mirror to show that this object is deleted or being deleted."""
        self._open.append(Expectation(kind, key, 0, uid, now))

    def open(self) -> tuple[Expectation, ...]:
        """Return the writes that the mirrors do not show yet."""
        self._open = [e for e in self._open if not e.is_met(self.store_of(e.kind, e.key[0]))]
        return tuple(self._open)

    def overdue(self, now: float) -> tuple[Expectation, ...]:
        """Drop and return the expectations that are older than OWN_WRITE_TIMEOUT_S."""
        late = tuple(e for e in self.open() if now - e.since >= OWN_WRITE_TIMEOUT_S)
        self._open = [e for e in self._open if e not in late]
        return late

    def clear(self) -> None:
        """Drop all expectations (a new term of leadership begins with new LISTs)."""
        self._open = []
