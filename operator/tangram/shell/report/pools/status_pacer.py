"""Limit how often the status of one object is written. Pure.

Pods that come and go change the free devices of a GPUPool, and a node or device plugin that flaps changes its
conditions. The first change is written at once, later ones at most once in `pace_s`.
"""

from dataclasses import dataclass, field

from tangram.shell.objects.kinds import Object, uid_of

PACE_S = 15.0


@dataclass(slots=True)
class StatusPacer:
    """Remembers when the status of each object last changed."""

    pace_s: float = PACE_S
    _changed_at: dict[str, float] = field(default_factory=dict)  # by UID; seconds

    def paced(self, obj: Object, status: Object, now: float) -> Object:
        """Return `status`, or the present one while `now` (seconds) is too early for a change.

        The first status of a new generation is never too early.
        """
        before = obj.get("status") or {}
        if status == before:
            return status
        last = self._changed_at.get(uid_of(obj))
        is_same_generation = before.get("observedGeneration") == status.get("observedGeneration")
        if last is not None and 0 <= now - last < self.pace_s and is_same_generation:
            return before
        self._changed_at[uid_of(obj)] = now
        return status

    def forget(self, existing_uids: set[str]) -> None:
        """Forget deleted objects."""
        for uid in self._changed_at.keys() - existing_uids:
            del self._changed_at[uid]
