"""What the feed-forward part of the law knows beside a reading, and what it concludes."""

from dataclasses import dataclass

from tangram.scaling.forecast import Forecast
from tangram.scaling.load_history import LoadHistory


@dataclass(frozen=True, slots=True)
class LoadOutlook:
    """What is known about the load and about one replica, beside the present reading."""

    history: LoadHistory
    # Requests per second that one replica of the present shape carries within the objectives, for the
    # present mixture of lengths, by the capacity model.
    replica_rate: float
    start_s: float | None = None  # P90 of measured start times of the present shape


@dataclass(frozen=True, slots=True)
class ReplicaNeed:
    """How many replicas the load needs, and from what that follows."""

    replicas: int
    load: Forecast
    replica_rate: float  # requests per second, corrected
    backlog_rate: float  # requests per second that drain the queue in time

    @property
    def cause(self) -> str:
        """The calculation in words."""
        text = (
            f"{self.load.upper:.3g} requests/s in {self.load.horizon_s:.0f} s (now {self.load.expected:.3g})"
        )
        if self.backlog_rate:
            text += f" and {self.backlog_rate:.3g} requests/s of queue"
        return f"{text}, {self.replica_rate:.3g} per replica"
