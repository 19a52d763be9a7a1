"""What the feed-forward part of the law knows beside a reading, and what it concludes."""

from dataclasses import dataclass
from enum import StrEnum

from tangram.scaling.outlook.forecast import Forecast
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.mixture import Mixture
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity


@dataclass(frozen=True, slots=True)
class LoadOutlook:
    """What is known about the load and about one replica, beside the present reading."""

    history: LoadHistory
    capacity: ReplicaCapacity  # of the present shape, for the present mixture of lengths
    start_s: float | None = None  # P90 of measured start times of the present shape
    bins: int = 1  # of the history over which replicas average the load, because requests run for so long
    mixture: Mixture | None = None  # that `capacity` is for


class NeedLimit(StrEnum):
    """What keeps the need from being another number."""

    ERROR_BUDGET = "ErrorBudget"  # one replica fewer would exceed it
    QUEUE = "Queue"  # the error budget, and only because a queue is served beside the arrivals
    FURTHER_REPLICA = "FurtherReplica"  # one more would prevent too few misses, whatever the budget
    ONE_REPLICA = "OneReplica"  # there is no smaller number


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """What one replica fewer than the need would lead to."""

    replicas: int
    missed_share: float  # of requests that are expected to miss an objective


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """How many replicas the load needs, and from what that follows."""

    replicas: int
    lasting: int  # with half of the error budget: replicas are removed down to them, so that none saws
    load: Forecast
    replica_rate: float  # requests per second within the objectives, corrected
    missed_share: float  # of requests that are expected to miss an objective with so many replicas
    backlog_rate: float  # requests per second that drain the queue in time
    error_budget: float  # share of requests that the forecast may miss: `feed_forward.planned_budget`
    limit: NeedLimit
    runner_up: RunnerUp | None = None  # None: one replica is needed
    # Requests per second that `replicas` and `lasting` have to carry: of the last replica only the part that
    # is needed. A number of replicas of another shape follows from them.
    rate: float = 0.0
    lasting_rate: float = 0.0
    trusted_share: float = 1.0  # that `replica_rate` is of the predicted one
    # Of `replicas`, those beyond the ones that the expected load and the queue alone need: a warm spare.
    spare: int = 0

    @property
    def cause(self) -> str:
        """The calculation in words."""
        load = self.load
        text = f"{load.expected:.3g} requests/s expected in {load.horizon_s:.0f} s, up to {load.upper:.3g}"
        if self.backlog_rate:
            text += f", and {self.backlog_rate:.3g} of queue"
        text += f"; {self.replica_rate:.3g} per replica; {self._comparison}"
        if self.spare:
            spare = f"{self.spare} of {self.replicas} {'is' if self.spare == 1 else 'are'} spare"
            text += f"; {spare} for load that may come before a replica has started"
        return text

    @property
    def _comparison(self) -> str:
        """The expected misses beside those of the runner-up, and the limit that binds."""
        text = f"{_percent(self.missed_share)} expected to miss with {self.replicas}"
        if self.runner_up is not None:
            text += f", {_percent(self.runner_up.missed_share)} with {self.runner_up.replicas}"
        budget = f"the error budget of {_percent(self.error_budget)}"
        match self.limit:
            case NeedLimit.ERROR_BUDGET:
                return f"{text}, beyond {budget}"
            case NeedLimit.QUEUE:
                return f"{text}, beyond {budget} because of the queue"
            case NeedLimit.FURTHER_REPLICA:
                return f"{text}; {self.replicas + 1} would prevent too few for {budget}"
            case NeedLimit.ONE_REPLICA:
                return f"{text}, within {budget}"


def _percent(share: float) -> str:
    """Two significant digits, never in exponent form."""
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %" if percent >= 0.01 else "0 %"
