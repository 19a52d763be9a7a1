"""How far a fetch has come: bytes, rate, time left; and whether it has come to a stop."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

STALL_S = 300.0
STALL_BYTES = 1 << 20  # that must come within STALL_S: a hub that sends a byte a second is as good as silent


@dataclass(slots=True)
class Progress:
    """Bytes that are there, of `total`. Many threads add, one reads."""

    total: int
    clock: Callable[[], float]
    stall_s: float = STALL_S
    present: int = 0  # bytes that an earlier fetch left
    fetched: int = 0
    _began_at: float = field(init=False)
    _mark: tuple[float, int] = field(init=False)  # when `fetched` was last STALL_BYTES further
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._began_at = self.clock()
        self._mark = (self._began_at, 0)

    def add_present(self, count: int) -> None:
        """Count bytes that an earlier fetch left."""
        with self._lock:
            self.present += count
            self._mark = (self.clock(), self.fetched)  # reading them again is progress, too

    def add_fetched(self, count: int) -> None:
        """Count bytes that came just now; a negative count takes back bytes that were wrong."""
        with self._lock:
            self.fetched += count

    def is_stalled(self) -> bool:
        """Say whether less than STALL_BYTES have come for `stall_s`."""
        with self._lock:
            now, (since, fetched) = self.clock(), self._mark
            if abs(self.fetched - fetched) >= STALL_BYTES:
                self._mark = (now, self.fetched)
                return False
            return now - since >= self.stall_s

    @property
    def seconds(self) -> float:
        """Seconds since the fetch began."""
        return self.clock() - self._began_at

    def __str__(self) -> str:
        """Return "12.3 of 140.0 GB, 110 MB/s, 19 min left"."""
        there = self.present + self.fetched
        rate = self.fetched / max(self.seconds, 1e-3)
        left = f", {_duration((self.total - there) / rate)} left" if rate > 0 else ""
        return f"{there / 1e9:.1f} of {self.total / 1e9:.1f} GB, {rate / 1e6:.0f} MB/s{left}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
