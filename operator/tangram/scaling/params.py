"""Parameters of the scaling law."""

from dataclasses import dataclass

from tangram.scaling.outlook.load_history import LEAST_HISTORY_S, MOST_HISTORY_S, STEP_S


@dataclass(frozen=True, slots=True)
class ScalingParams:
    """Windows and thresholds. A demo takes seconds, production takes minutes."""

    window_s: float  # over which Prometheus computes attainment; at least 4 scrapes
    scrape_interval_s: float
    up_after_s: float  # how long a queue must last before replicas are added for it
    down_after_s: float  # how long fresh evidence must last that one replica less would do
    min_samples: int = 20  # requests in the window below which an attainment is no evidence
    blind_after_s: float = 300.0  # age of the newest sample from which on the signal is BLIND
    # A replica less is tried only if each remaining one then carries less than this part of the
    # concurrency at which the objectives were last violated (or of what it may run at a time).
    down_load: float = 0.7
    start_s: float = 200.0  # expected time from an order to a ready replica, until one was measured
    history_s: float = MOST_HISTORY_S  # how far back loads are remembered

    def __post_init__(self) -> None:
        times = (self.window_s, self.scrape_interval_s, self.down_after_s, self.blind_after_s, self.start_s)
        if min(times) <= 0:
            raise ValueError("windowSeconds, scrapeIntervalSeconds and downAfterSeconds must be positive")
        if self.up_after_s < 0 or not 0 < self.down_load <= 1 or self.min_samples < 1:
            raise ValueError("upAfterSeconds must be 0 or more, downLoad in (0, 1], minSamples 1 or more")
        if self.window_s < 4 * self.scrape_interval_s:
            raise ValueError("windowSeconds must be at least 4 scrapeIntervalSeconds, or rates have gaps")
        if not LEAST_HISTORY_S <= self.history_s <= MOST_HISTORY_S:
            raise ValueError(f"historySeconds must be from {LEAST_HISTORY_S:.0f} to {MOST_HISTORY_S:.0f}")

    @property
    def history_bins(self) -> int:
        """Bins of loads that are remembered."""
        return round(self.history_s / STEP_S)
