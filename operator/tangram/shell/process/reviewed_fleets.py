"""The fleet that placements for `kubectl apply` start from: of the last round, on a standby of mirrors."""

from collections.abc import Callable
from dataclasses import dataclass, field

from tangram.admission import ReviewedFleet
from tangram.shell.lead.lease import Elector
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.measure.scaler import Scaler, params_of
from tangram.shell.process.observation import Observation, Observer
from tangram.shell.settings import Settings
from tangram.shell.watch.mirrors import Mirrors


@dataclass(slots=True)
class ReviewedFleets:
    """Call `newest` in the operator's event loop. The same fleet is the same object: a worker keeps it."""

    settings: Settings
    mirrors: Mirrors
    elector: Elector
    last_round: Callable[[], Observation | None]
    now: Callable[[], float]  # seconds since the epoch
    _observation: Observation | None = None
    _fleet: ReviewedFleet | None = None
    _observer: Observer = field(init=False)

    def __post_init__(self) -> None:
        # A standby's own: it has no metrics of engines, decides nothing, and counts no faults.
        scaler = Scaler(params_of(self.settings), None)
        self._observer = Observer(self.settings, scaler, FaultLog(OperatorMetrics()))

    def newest(self) -> ReviewedFleet | None:
        """Return the fleet, None before the mirrors are synced or the leader's first round."""
        observed = self.last_round() if self.elector.leading else self._of_standby()
        if observed is not None and observed is not self._observation:
            self._observation = observed
            keys = self.settings.engine.pod_metadata_keys
            self._fleet = ReviewedFleet(observed.snapshot, observed.parsed, observed.now, keys)
        return self._fleet if observed is not None else None

    def _of_standby(self) -> Observation | None:
        """Observe the mirrors, at most once a tick: in a large cluster that takes a second."""
        last, now = self._observation, self.now()
        if last is not None and 0 <= now - last.now < self.settings.operator.tick_seconds:
            return last
        return self._observer.observe(self.mirrors.view(), now) if self.mirrors.synced else None
