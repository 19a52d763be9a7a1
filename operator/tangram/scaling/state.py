"""Parameters, memory and decision of the scaling law."""

from dataclasses import dataclass, field

from tangram.fleet import Objectives, ProvisionedLoad
from tangram.scaling.outlook.load_history import LEAST_HISTORY_S, MOST_HISTORY_S, STEP_S
from tangram.scaling.outlook.load_misses import LoadMisses, MissedRequests
from tangram.scaling.outlook.load_outlook import ReplicaNeed
from tangram.scaling.outlook.recommendations import Recommendations
from tangram.scaling.outlook.replica_capacity import AS_PREDICTED, CapacityCorrection


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


@dataclass(frozen=True, slots=True)
class SupplyMemory:
    """Which of the ordered replicas became ready (`ordered_replicas`)."""

    grown_at: float | None = None  # last order of more replicas
    complete_since: float | None = None  # all expected replicas are ready since
    incomplete_since: float | None = None  # some are missing since, or were for less than a window
    ready: int | None = None  # replicas that were ready last
    stable_since: float | None = None  # that number is unchanged, and rates are known, since
    settled_ready: int = 0  # the last number of ready replicas that lasted for a window
    ordered_from: int | None = None  # settled_ready at an order of more replicas whose outcome is open
    written_off: int = 0  # replicas that did not become ready by their deadline
    failed_orders: int = 0  # orders in a row of which no replica became ready
    start_s: float | None = None  # measured time from an order to ready replicas, smoothed


@dataclass(frozen=True, slots=True)
class EvidenceMemory:
    """What one replica of the present shape was seen to carry within the present objectives (`limits`)."""

    violated_rate: float | None = None  # requests per second per replica at which objectives were missed
    violated_load: float | None = None  # running requests per replica at which objectives were missed
    episode_ready: int = 0  # ready replicas during the present violation; 0: there is none
    episode_rate: float = 0.0  # the most requests per second per replica while it lasts
    episode_load: float = 0.0  # the most running requests per replica while it lasts
    ttft_reachable: bool | None = None  # measured: requests alone on a replica meet the TTFT objective
    idle_ttft_ms: float | None = None  # predicted at its percentile, for the present lengths
    tpot_reachable: bool | None = None  # measured: requests alone on a replica meet the TPOT objective
    idle_tpot_ms: float | None = None  # predicted by the capacity model for a nearly idle replica


@dataclass(frozen=True, slots=True)
class CapacityMemory:
    """The correction of the predicted capacity, and the misses behind it (`capacity_correction`)."""

    correction: CapacityCorrection = AS_PREDICTED
    prior: CapacityCorrection = AS_PREDICTED  # as recorded, before any request of `load_misses`
    corrected_for: Objectives | None = None  # whose misses it explains
    corrected_at: float | None = None  # percentile in whose highest load `load_misses` has its loads
    load_misses: LoadMisses = field(default_factory=LoadMisses)  # from which it follows
    # Of either objective, those that came at an unknown load among them.
    missed: MissedRequests = field(default_factory=MissedRequests)
    loads: tuple[float, ...] = ()  # per replica over the predicted one, of the last minutes
    queued_load: float = 0.0  # at which their misses count: the highest since requests wait
    serving: tuple[tuple[float, int], ...] = ()  # time and ready replicas of each round of the last minute
    is_queued: bool = False  # requests waited in a round since the last comparison
    compared_at: float | None = None  # when they were last compared with a reading


@dataclass(frozen=True, slots=True)
class ScalingMemory:
    """What the law remembers of one LLMDeployment. Timers restart with the operator, so no replica is removed
    for a window. What a violation or a late replica taught is recorded in the status (`record`).
    """

    replicas: int | None = None  # last ordered
    subject: str = ""  # model and objectives of `evidence` and `capacity`
    supply: SupplyMemory = field(default_factory=SupplyMemory)
    evidence: EvidenceMemory = field(default_factory=EvidenceMemory)
    capacity: CapacityMemory = field(default_factory=CapacityMemory)

    queued_since: float | None = None  # requests wait without a break since
    spare_since: float | None = None  # fresh evidence without a break, that one replica less would do, since
    recommendations: Recommendations = ()
    # The load that the replicas are ordered for; None: not known. It holds for any shape.
    provisioned: ProvisionedLoad | None = None
    rate_steps: Recommendations = ()  # of its rate, as `recommendations` are of replicas


@dataclass(frozen=True, slots=True)
class ScalingDecision:
    """The desired replicas of one LLMDeployment, and why."""

    at: float  # when it was decided, seconds since the epoch
    replicas: int
    previous: int
    reason: str  # SLOViolated | QueueGrowing | LoadFell | ...; without a change: Steady | Blind | ...
    message: str
    memory: ScalingMemory
    ttft_unreachable: str = ""  # why no number of replicas meets it; "": as far as is known, one does
    tpot_unreachable: str = ""
    warning: str = ""  # why replicas do not follow the load as they should; "": they do
    need: ReplicaNeed | None = None  # of the forecast load; None: without metrics or a capacity
    # The most that was recommended of late: what would be ordered if spec.replicas were not set.
    recommended: int | None = None

    @property
    def provisioned(self) -> ProvisionedLoad | None:
        """The load that the replicas are to carry; None: without a forecast it is not known."""
        return self.memory.provisioned

    @property
    def unreachable(self) -> str:
        """Why no number of replicas meets an objective; "": as far as is known, one meets each."""
        return "; ".join(filter(None, (self.ttft_unreachable, self.tpot_unreachable)))
