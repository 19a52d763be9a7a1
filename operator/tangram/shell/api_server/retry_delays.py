"""Waiting after failures: exponential, jittered, endless."""

import random
from dataclasses import dataclass, field

OBJECT_DELAYS_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Delays of one object whose writes keep failing; the last one repeats."""


@dataclass(slots=True)
class RetryDelays:
    """Delays between `first_s` and `most_s`, each drawn from the upper half of its step (never a
    thundering herd).
    """

    first_s: float = 0.5
    most_s: float = 10.0
    rng: random.Random = field(default_factory=random.SystemRandom)
    failures: int = 0

    def next_s(self) -> float:
        """Count one more failure and return how long to wait, in seconds."""
        ceiling = min(self.most_s, self.first_s * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return ceiling * float(self.rng.uniform(0.5, 1.0))

    def reset(self) -> None:
        """Forget the failures after a success."""
        self.failures = 0


@dataclass(slots=True)
class RetrySchedule:
    """Which objects failed lately and must not be tried before when, so that one broken object slows only
    itself.
    """

    delays_s: tuple[float, ...] = OBJECT_DELAYS_S
    _entries: dict[str, tuple[int, float]] = field(default_factory=dict)

    def fail(self, key: str, now: float, at_least_s: float = 0.0) -> float:
        """Note a failure of `key` at `now`; return the instant of its next try."""
        failures = self._entries.get(key, (0, 0.0))[0]
        delay = max(self.delays_s[min(failures, len(self.delays_s) - 1)], at_least_s)
        self._entries[key] = (failures + 1, now + delay)
        return now + delay

    def succeed(self, key: str) -> None:
        """Forget what `key` did before."""
        self._entries.pop(key, None)

    def blocked(self, key: str, now: float) -> bool:
        """Say whether `key` still has to wait."""
        return self._entries.get(key, (0, 0.0))[1] > now

    def next_due(self, now: float) -> float | None:
        """Return the earliest instant at which a waiting object may be tried again."""
        return min((at for _, at in self._entries.values() if at > now), default=None)

    def keep(self, keys: set[str]) -> None:
        """Forget every object that is not in `keys`."""
        for gone in self._entries.keys() - keys:
            del self._entries[gone]
