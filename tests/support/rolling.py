"""A stand-in for the Deployment controller: how it replaces pods of an old template, unit by unit."""

from dataclasses import dataclass, field


@dataclass
class Rolling:
    """One Deployment in a pool of `units`, after its template changed: nothing of the new one is there yet.

    The rules are those of Kubernetes' rolling update (pkg/controller/deployment/rolling.go): never more than
    replicas + maxSurge pods, never fewer than replicas - maxUnavailable available ones by its own doing, and
    old pods that do not serve go first.
    """

    units: int
    replicas: int
    old: int = field(init=False)  # pods of the old template that serve
    old_waiting: int = field(init=False)  # of these: pods that no unit is free for
    new: int = 0  # pods of the new template that serve
    new_waiting: int = 0

    def __post_init__(self) -> None:
        self.old = min(self.replicas, self.units)
        self.old_waiting = self.replicas - self.old

    @property
    def available(self) -> int:
        return self.old + self.new

    @property
    def updated(self) -> int:
        return self.new + self.new_waiting

    @property
    def total(self) -> int:
        return self.updated + self.old + self.old_waiting

    def step(self, max_unavailable: int) -> None:
        """One round of the controller, then of the scheduler."""
        max_surge = 0 if max_unavailable else 1
        room = min(self.replicas - self.updated, self.replicas + max_surge - self.total)
        if room > 0:
            self.new_waiting += room
        else:
            self._scale_down(self.replicas - max_unavailable)
        bound = min(self.new_waiting, self.units - self.available)
        self.new, self.new_waiting = self.new + bound, self.new_waiting - bound

    def _scale_down(self, min_available: int) -> None:
        spare = self.total - min_available - self.new_waiting
        if spare <= 0:
            return
        cleaned = min(self.old_waiting, spare)
        self.old_waiting -= cleaned
        self.old -= min(self.old, max(0, self.available - min_available))
