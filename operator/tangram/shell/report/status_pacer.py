"""How often the status of one object is written where what it counts changes all the time. No I/O.

Pods that come and go change how much of a GPUPool is free; a node or device plugin that flaps changes its
conditions. A status that has been quiet is written at once, then at most once in `pace_s`.
"""

from dataclasses import dataclass, field

from tangram.shell.objects.kinds import Object, uid_of

PACE_S = 15.0


@dataclass(slots=True)
class StatusPacer:
    """When the status of each object was last changed."""

    pace_s: float = PACE_S
    _changed_at: dict[str, float] = field(default_factory=dict)  # by UID; seconds

    def paced(self, obj: Object, status: Object, now: float) -> Object:
        """Return the status to write at `now` (seconds): `status`, or the one there is while it is too early.

        A new generation is never too early.
        """
        before = obj.get("status") or {}
        if status == before:
            return status
        last = self._changed_at.get(uid_of(obj))
        answered = before.get("observedGeneration") == status.get("observedGeneration")
        if last is not None and 0 <= now - last < self.pace_s and answered:
            return before
        self._changed_at[uid_of(obj)] = now
        return status

    def forget(self, living: set[str]) -> None:
        """Forget objects that are gone."""
        for gone in self._changed_at.keys() - living:
            del self._changed_at[gone]
