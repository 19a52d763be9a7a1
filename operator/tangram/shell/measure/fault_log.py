"""What goes wrong for one object in a round: logged with its trace once, counted, kept for its condition."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tangram.fleet import Fault, describe
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.objects.kinds import Object

log = logging.getLogger(__name__)

Result = TypeVar("Result")

Failed = Callable[[str, str, str, Exception], None]
"""Takes the step, what it was about, the UID of the LLMDeployment (empty: none), and the exception."""


@dataclass(slots=True)
class FaultLog:
    """The faults of the present round, and what was logged of the last one."""

    metrics: OperatorMetrics
    _found: dict[str, Fault] = field(default_factory=dict)  # by LLMDeployment, of the present round
    _logged: set[tuple[str, str, str]] = field(default_factory=set)  # what, step, error
    _before: set[tuple[str, str, str]] = field(default_factory=set)  # the same of the last round

    def begin(self) -> None:
        """Begin a round: a fault that the last one did not meet is logged again."""
        self._found.clear()
        self._before, self._logged = self._logged, set()

    @property
    def faults(self) -> tuple[Fault, ...]:
        """LLMDeployments that stand still in this round, sorted."""
        return tuple(sorted(self._found.values()))

    def run(self, step: str, what: str, uid: str, function: Callable[[], Result]) -> Result | None:
        """Return `function()`, None where it raises: then `what`, of the LLMDeployment `uid`, has a fault."""
        try:
            return function()
        except Exception as error:  # noqa: BLE001 - costs this object alone
            self.met(step, what, uid, error)
            return None

    def met(self, step: str, what: str, uid: str, error: Exception) -> None:
        """Take an exception of one object; an empty `uid` where it belongs to no LLMDeployment."""
        fault = Fault(uid, step, f"{what}: {describe(error)}")
        if uid:
            self._found.setdefault(uid, fault)
        self._tell(what, fault, error)

    def planned(self, faults: Iterable[Fault], names: dict[str, str]) -> None:
        """Take what the planner met, which brings the trace of its own process."""
        for fault in faults:
            if fault.trace:
                self._tell(names.get(fault.owner_uid, fault.owner_uid), fault, None)

    def _tell(self, what: str, fault: Fault, error: Exception | None) -> None:
        self.metrics.loop_errors.labels(fault.step).inc()
        news = (what, fault.step, fault.error)
        if news not in self._logged | self._before:
            trace = f"\n{fault.trace}" if fault.trace else ""
            log.error("%s: step %s failed: %s%s", what, fault.step, fault.error, trace, exc_info=error)
        self._logged.add(news)


def name_of(obj: Object) -> str:
    """Return what log lines and conditions call an object, whatever is wrong with it."""
    meta = obj.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    name = "/".join(str(meta[key]) for key in ("namespace", "name") if meta.get(key))
    return f"{obj.get('kind', 'object')} {name}"
