"""What the feed-forward part of the law knows beside a reading, and what it concludes."""

from dataclasses import dataclass

from tangram.scaling.outlook.forecast import Forecast
from tangram.scaling.outlook.load_history import LoadHistory
from tangram.scaling.outlook.replica_capacity import ReplicaCapacity


@dataclass(frozen=True, slots=True)
class LoadOutlook:
    """What is known about the load and about one replica, beside the present reading."""

    history: LoadHistory
    capacity: ReplicaCapacity  # of the present shape, for the present mixture of lengths
    start_s: float | None = None  # P90 of measured start times of the present shape
    bins: int = 1  # of the history over which replicas average the load, because requests run for so long


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """How many replicas the load needs, and from what that follows."""

    replicas: int
    lasting: int  # with half of the error budget: replicas are removed down to them, so that none saws
    load: Forecast
    replica_rate: float  # requests per second within the objectives, corrected
    missed_share: float  # of requests that are expected to miss an objective with so many replicas
    backlog_rate: float  # requests per second that drain the queue in time

    @property
    def cause(self) -> str:
        """The calculation in words."""
        load = self.load
        text = f"{load.expected:.3g} requests/s expected in {load.horizon_s:.0f} s, up to {load.upper:.3g}"
        if self.backlog_rate:
            text += f", and {self.backlog_rate:.3g} of queue"
        return f"{text}; {self.replica_rate:.3g} per replica"
