"""Record errors about single objects: logged once with their trace, counted, and kept for conditions."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tangram.fleet import Fault, describe
from tangram.kube.kinds import Object
from tangram.shell.measure.metrics import OperatorMetrics

log = logging.getLogger(__name__)

Result = TypeVar("Result")

FaultHandler = Callable[[str, str, str, Exception], None]
"""Takes the step, the name of the object, the UID of the LLMDeployment (empty: none), and the exception."""


@dataclass(slots=True)
class FaultLog:
    """The faults of the present round. A fault that the last round had, too, is not logged again."""

    metrics: OperatorMetrics
    _faults: dict[str, Fault] = field(default_factory=dict)  # by UID of the LLMDeployment; the first counts
    _logged: set[tuple[str, str, str]] = field(default_factory=set)  # name, step, error
    _logged_last_round: set[tuple[str, str, str]] = field(default_factory=set)

    def begin(self) -> None:
        """Begin a round."""
        self._faults.clear()
        self._logged_last_round, self._logged = self._logged, set()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """One fault per LLMDeployment, sorted. The planner leaves these LLMDeployments as they are."""
        return tuple(sorted(self._faults.values()))

    def run(self, step: str, name: str, uid: str, function: Callable[[], Result]) -> Result | None:
        """Return `function()`. If it raises, record a fault of the object `name`, and return None."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - costs this object alone
            self.record(step, name, uid, error)
            return None

    def record(self, step: str, name: str, uid: str, error: Exception) -> None:
        """Record an exception about an object of the LLMDeployment `uid` (empty: of none)."""
        fault = Fault(uid, step, f"{name}: {describe(error)}")
        if uid:
            self._faults.setdefault(uid, fault)
        self._log(name, fault, error)

    def record_planned(self, faults: Iterable[Fault], names: dict[str, str]) -> None:
        """Record faults of the planner, which carry the trace of its process. `names` are by UID."""
        for fault in faults:
            if fault.trace:
                self._log(names.get(fault.owner_uid, fault.owner_uid), fault, None)

    def _log(self, name: str, fault: Fault, error: Exception | None) -> None:
        self.metrics.loop_errors.labels(fault.step).inc()
        entry = (name, fault.step, fault.error)
        if entry not in self._logged | self._logged_last_round:
            trace = f"\n{fault.trace}" if fault.trace else ""
            log.error("%s: step %s failed: %s%s", name, fault.step, fault.error, trace, exc_info=error)
        self._logged.add(entry)


def display_name(obj: Object) -> str:
    """Return the name of an object in log lines and conditions. Works for malformed objects, too."""
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    name = "/".join(str(meta[key]) for key in ("namespace", "name") if meta.get(key))
    return f"{obj.get('kind', 'object')} {name}"
