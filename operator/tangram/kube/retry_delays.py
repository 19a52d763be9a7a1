"""Delays before retries, exponential and jittered: of one operation, and of each object on its own."""

import random
from dataclasses import dataclass, field

OBJECT_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays of one object after consecutive failures; the last one repeats."""


@dataclass(slots=True)
class RetryDelays:
    """Delays from `first_s` to `max_s`, doubled after each failure. Each is drawn from the upper half of its
    step, so that clients do not retry at the same time.
    """

    first_s: float = 0.5
    max_s: float = 10.0
    rng: random.Random = field(default_factory=random.SystemRandom)
    failures: int = 0

    def next_s(self) -> float:
        """Count a failure and return the delay before the next attempt, in seconds."""
        ceiling = min(self.max_s, self.first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return ceiling * float(self.rng.uniform(0.5, 1.0))

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0


@dataclass(slots=True)
class RetrySchedule:
    """When each object that failed may be retried, so that one broken object delays only itself."""

    delays_s: tuple[float, ...] = OBJECT_DELAYS_S
    _entries: dict[str, tuple[int, float]] = field(default_factory=dict)

    def record_failure(self, key: str, now: float, at_least_s: float = 0.0) -> float:
        """Record a failure of `key` at `now`; return the time of its next attempt."""
        failures = self._entries.get(key, (0, 0.0))[0]
        delay = max(self.delays_s[min(failures, len(self.delays_s) - 1)], at_least_s)
        self._entries[key] = (failures + 1, now + delay)
        return now + delay

    def record_success(self, key: str) -> None:
        """Forget the failures of `key`."""
        self._entries.pop(key, None)

    def blocked(self, key: str, now: float) -> bool:
        """Say whether `key` must not be tried yet."""
        return self._entries.get(key, (0, 0.0))[1] > now

    def next_due(self, now: float) -> float | None:
        """Return the earliest time at which a blocked object may be retried, None where there is none."""
        return min((at for _, at in self._entries.values() if at > now), default=None)

    def retain(self, keys: set[str]) -> None:
        """Forget every object that is not in `keys`."""
        for key in self._entries.keys() - keys:
            del self._entries[key]
