"""What the scaling law is told, and what it remembers between two ticks."""

from dataclasses import dataclass

from tangram.fleet import Objective


@dataclass(frozen=True, slots=True)
class Objectives:
    """The latency objectives of one LLMDeployment."""

    ttft: Objective | None = None
    tpot: Objective | None = None


@dataclass(frozen=True, slots=True)
class ScalingParams:
    """Windows and thresholds. A demo takes seconds, production takes minutes."""

    window_s: float  # over which Prometheus computes attainment; at least 4 scrapes
    scrape_interval_s: float
    up_after_s: float  # how long a queue must last before replicas are added for it
    down_after_s: float  # how long fresh evidence must last that one replica less would do
    min_samples: int = 20  # requests in the window below which an attainment says too little
    blind_after_s: float = 300.0  # age of the newest sample from which on we are blind
    # A replica less is tried only if each remaining one then carries less than this part of the
    # concurrency at which the objectives were last violated (or of what it may run at a time).
    down_load: float = 0.7

    def __post_init__(self) -> None:
        if min(self.window_s, self.scrape_interval_s, self.down_after_s, self.blind_after_s) <= 0:
            raise ValueError("windowSeconds, scrapeIntervalSeconds and downAfterSeconds must be positive")
        if self.up_after_s < 0 or not 0 < self.down_load <= 1 or self.min_samples < 1:
            raise ValueError("upAfterSeconds must be 0 or more, downLoad in (0, 1], minSamples 1 or more")
        if self.window_s < 4 * self.scrape_interval_s:
            raise ValueError("windowSeconds must be at least 4 scrapeIntervalSeconds, or rates have gaps")


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """What one LLMDeployment's law remembers. Empty after a restart: then nothing goes down for a window."""

    replicas: int | None = None  # last ordered
    queued_since: float | None = None  # requests wait without a break since
    spare_since: float | None = None  # fresh evidence without a break, that one replica less would do, since
    grown_at: float | None = None  # last order upwards
    complete_since: float | None = None  # all ordered replicas are ready since (after the last order upwards)
    violated_load: float | None = None  # running requests per replica when objectives were last violated
    violated_at: float | None = None


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """How many replicas are wanted now, and why."""

    at: float  # when it was decided, seconds since the epoch
    replicas: int
    previous: int
    reason: str  # SLOViolated | QueueGrowing | LoadFell | OutOfBounds; without a change: Steady | Blind | ...
    message: str
    memory: ScalingMemory
