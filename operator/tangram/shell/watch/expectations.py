"""Expectations: do not decide again from a view that is older than our own writes. No I/O."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tangram.shell.objects.kinds import Key, Kind, Object, key_of, uid_of
from tangram.shell.watch.store import Store, version_of

OWN_WRITE_TIMEOUT_S = 5.0
"""How long a write may stay unseen. Beyond, the mirror lists again: the write was undone, or the watch is
stuck.
"""


@dataclass(frozen=True, slots=True)
class Expectation:
    """One write of ours that the mirror has yet to show."""

    kind: Kind
    key: Key
    version: int  # of the object as written; 0 for a deletion
    gone_uid: str  # of the object deleted, "" for a write
    since: float

    def met(self, store: Store) -> bool:
        """Say whether the mirror has seen it (or anything later)."""
        if self.gone_uid:
            known = store.get(self.key)
            return (
                known is None
                or uid_of(known) != self.gone_uid
                or bool(known["metadata"].get("deletionTimestamp"))
            )
        return store.version >= self.version


@dataclass(slots=True)
class Expectations:
    """The writes of ours that have not come back yet."""

    store_of: Callable[[Kind, str], Store]
    _open: list[Expectation] = field(default_factory=list)

    def written(self, kind: Kind, result: Object, now: float) -> None:
        """Expect to see what the API server returned for a create or apply."""
        self._open.append(Expectation(kind, key_of(result), version_of(result), "", now))

    def deleted(self, kind: Kind, key: Key, uid: str, now: float) -> None:
        """Expect to see that this object is gone or going."""
        self._open.append(Expectation(kind, key, 0, uid, now))

    def open(self) -> tuple[Expectation, ...]:
        """Return the writes that the mirrors do not show yet."""
        self._open = [e for e in self._open if not e.met(self.store_of(e.kind, e.key[0]))]
        return tuple(self._open)

    def overdue(self, now: float) -> tuple[Expectation, ...]:
        """Forget and return the writes that were waited for long enough."""
        late = tuple(e for e in self.open() if now - e.since >= OWN_WRITE_TIMEOUT_S)
        self._open = [e for e in self._open if e not in late]
        return late

    def clear(self) -> None:
        """Forget everything (a new term of leadership begins with fresh lists)."""
        self._open = []
