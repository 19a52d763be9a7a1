"""Write FleetPlans: create the current one, mark older ones as superseded, keep no more than twenty.

Level-triggered: each call compares the existing FleetPlans with the desired ones and writes the difference.
The spec of a FleetPlan never changes, so it is created once, and later only its status is written; a
superseded plan keeps its last figures. FleetPlans without the labels of this operator are never changed.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tangram.api.common.labels import LONGEST_LABEL
from tangram.fleet import EventNote
from tangram.fleet.labels import MANAGED_BY, MANAGED_BY_LABEL
from tangram.fleet.times import rfc3339
from tangram.kube.client import ApiClient, ApiError, Guard
from tangram.kube.kinds import FLEET_PLANS, OPERATOR_LABEL, Object, key_of, uid_of
from tangram.kube.mirror import Mirror
from tangram.kube.retry_delays import RetrySchedule
from tangram.shell.decide.recommendation_worker import RecommendationResult
from tangram.shell.report.events import EventRecorder
from tangram.shell.report.status_writer import apply_status
from tangram.shell.watch.expectations import Expectations

log = logging.getLogger(__name__)

MANAGER = "tangram-fleet-plans"
KEPT = 20
SUPERSEDED = "Superseded"
FIGURES = ("currentCostPerHour", "savesPerHour", "solveSeconds")  # of the status
_COMPARED = FIGURES[:2]  # another solve time alone is no reason to write
DELAYS_S = (1.0, 5.0, 30.0, 120.0, 600.0)  # after refusals
_WRITES = "fleet plans"  # key of the penalty


@dataclass(slots=True)
class FleetPlans:
    """Keeps the FleetPlans of the cluster up to date."""

    client: ApiClient
    mirror: Mirror
    events: EventRecorder
    clock: Callable[[], float]
    now: Callable[[], float]  # seconds since the epoch
    operator: str  # label value of this operator, of several in the cluster
    retries: RetrySchedule = field(default_factory=lambda: RetrySchedule(DELAYS_S))
    _expectations: Expectations = field(init=False)
    _logged: str = ""  # the last refusal
    _completed: str = ""  # UID of the plan whose missing figures were last written

    def __post_init__(self) -> None:
        self._expectations = Expectations(lambda _kind, _namespace: self.mirror.store)

    async def write(self, result: RecommendationResult, guard: Guard) -> None:
        """Make `result` the current FleetPlan; with an empty one, none is current. Raises NotLeader; other
        refusals are logged once and retried later.
        """
        if not self._may_write():
            return
        try:
            await self._write(result, guard)
        except ApiError as error:
            self.retries.record_failure(_WRITES, self.clock(), error.retry_after_s)
            self._log(f"not written: {error}")
        else:
            self.retries.record_success(_WRITES)

    def _may_write(self) -> bool:
        """Whether the back-off is over and the mirror shows the operator's last writes."""
        if not self.mirror.synced or self.mirror.unavailable:
            return False
        if self._expectations.overdue(self.clock()):
            self.mirror.request_relist()
        return not self._expectations.open() and not self.retries.blocked(_WRITES, self.clock())

    async def _write(self, result: RecommendationResult, guard: Guard) -> None:
        if not result.empty:
            current = await self._ensure(result, guard)
            if current is None:
                return
            if await self._write_status(current, result.state, result.figures, guard) and result.better:
                self.events.add(current, _note(result), FLEET_PLANS)
        name = "" if result.empty else result.name
        others = [
            p
            for p in self.mirror.store
            if self._ours(p) and p["metadata"]["name"] != name and not is_of_changes(p)
        ]
        for plan in others:
            await self._write_status(plan, SUPERSEDED, {}, guard)
        for plan in sorted(others, key=_state_time, reverse=True)[KEPT - 1 :]:
            await self._delete(plan, guard)

    async def _ensure(self, result: RecommendationResult, guard: Guard) -> Object | None:
        """Return the FleetPlan of this name, created now if needed; None if it is not of this operator."""
        live = self.mirror.store.get(("", result.name))
        if live is None:
            live = await self._create(result, guard)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return None
        if not self._ours(live):
            self._log(f"{result.name} exists and was not written by this operator: not changed")
            return None
        return live

    async def _create(self, result: RecommendationResult, guard: Guard) -> Object | None:
        plan = {
            "apiVersion": FLEET_PLANS.api_version,
            "kind": FLEET_PLANS.kind,
            "metadata": {"name": result.name, "labels": self._labels()},
            "spec": result.spec,
        }
        try:
            created = await self.client.create(FLEET_PLANS, plan, manager=MANAGER, guard=guard)
        except ApiError as error:
            if error.status != 409:
                raise
            return await self.client.get(FLEET_PLANS, "", result.name)
        self._expectations.expect_write(FLEET_PLANS, created, self.clock())
        return created

    async def _write_status(self, plan: Object, state: str, figures: Object, guard: Guard) -> bool:
        """Write the status of a plan if it differs; say whether the state changed. Figures that `figures`
        lacks stay as they are.
        """
        before = plan.get("status") or {}
        changes_state = before.get("state") != state
        if plan["metadata"].get("deletionTimestamp") or not (changes_state or self._outdated(plan, figures)):
            return False
        now = rfc3339(self.now())
        since = now if changes_state else before.get("since", now)
        status = {"state": state, "since": since} | {k: before[k] for k in FIGURES if k in before} | figures
        stored = await apply_status(self.client, guard, FLEET_PLANS, plan, status, MANAGER)
        if stored is None:
            return False
        self._expectations.expect_write(FLEET_PLANS, stored, self.clock())
        if figures:
            self._completed = uid_of(plan)
        return changes_state

    def _outdated(self, plan: Object, figures: Object) -> bool:
        """Say whether figures of a plan differ. Missing ones are written once: an older CRD drops them."""
        before = plan.get("status") or {}
        if any(before.get(key, figures[key]) != figures[key] for key in _COMPARED if key in figures):
            return True
        return bool(figures.keys() - before.keys()) and self._completed != uid_of(plan)

    async def _delete(self, plan: Object, guard: Guard) -> None:
        if plan["metadata"].get("deletionTimestamp"):
            return
        try:
            await self.client.delete(FLEET_PLANS, *key_of(plan), uid=uid_of(plan), guard=guard)
        except ApiError as error:
            if error.status != 409:
                raise
            return  # the name now belongs to another object
        self._expectations.expect_deletion(FLEET_PLANS, key_of(plan), uid_of(plan), self.clock())

    def _labels(self) -> dict[str, str]:
        return {MANAGED_BY_LABEL: MANAGED_BY, OPERATOR_LABEL: self.operator}

    def _ours(self, plan: Object) -> bool:
        return self._labels().items() <= (plan["metadata"].get("labels") or {}).items()

    def _log(self, text: str) -> None:
        if text != self._logged:
            self._logged = text
            log.warning("FleetPlans: %s", text)


def is_of_changes(plan: Object) -> bool:
    """Whether a FleetPlan is one of changes, not of the whole fleet."""
    return bool((plan.get("spec") or {}).get("changes"))


def operator_label(namespace: str, lease: str) -> str:
    """Return the label value of the operator with this Lease. Operators that share a cluster do not change
    each other's FleetPlans.
    """
    name = f"{namespace}.{lease}"
    return name if len(name) <= LONGEST_LABEL else hashlib.sha256(name.encode()).hexdigest()[:16]


def _state_time(plan: Object) -> tuple[str, str]:
    """Return a key that sorts plans by the time of their state, the latest last."""
    since = (plan.get("status") or {}).get("since") or plan["metadata"].get("creationTimestamp", "")
    return str(since), plan["metadata"]["name"]


def _note(result: RecommendationResult) -> EventNote:
    """Return the Event of a plan that is better than the fleet as it is: what it costs, serves and moves."""
    spec, current = result.spec, result.figures["currentCostPerHour"]
    cost = f"The fleet would cost {spec['costPerHour']} $/h"
    cost += f" instead of {current} $/h" if current != spec["costPerHour"] else ", as it does now"
    cost += ", because it would serve more" if float(spec["costPerHour"]) > float(current) else ""
    cost += f" (gap {spec['gap']})" if spec["gap"] != "0.00%" else ""
    unmet, moves = spec["unmet"], spec["totalMoves"]
    parts = [cost]
    parts += [f"{_counted(unmet, 'LLMDeployment')} would have unmet demand"] if unmet else []
    parts += [f"{_counted(moves, 'replica')} would move"] if moves else []
    return EventNote("Normal", "PlanRecommended", "; ".join(parts))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
