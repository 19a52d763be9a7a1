"""Writes FleetPlans: the one that counts, that older ones are superseded, and no more than the last twenty.

Level-triggered as everything else: whatever was written, lost or edited before, the next call compares what
is there with what should be, and writes the difference; nothing when there is none. The spec of a FleetPlan
never changes, so it is created once and from then on only its status is written; a superseded plan keeps the
figures that it last had. What does not carry our labels is not touched, whatever its name.
"""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from tangram.fleet import EventNote
from tangram.fleet.labels import MANAGED_BY, MANAGED_BY_LABEL
from tangram.fleet.times import rfc3339
from tangram.shell.api_server.client import ApiClient, ApiError, Guard
from tangram.shell.api_server.retry_delays import RetrySchedule
from tangram.shell.decide.recommendation_worker import RecommendationResult
from tangram.shell.objects.kinds import FLEET_PLANS, OPERATOR_LABEL, Object, key_of, uid_of
from tangram.shell.report.events import EventRecorder
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirror import Mirror

log = logging.getLogger(__name__)

MANAGER = "tangram-fleet-plans"
KEPT = 20
MAX_LABEL = 63
SUPERSEDED = "Superseded"
FIGURES = ("currentCostPerHour", "savesPerHour", "solveSeconds")  # of the status
_RENEWED = FIGURES[:2]  # each solve takes another time: that alone is no reason to write
DELAYS_S = (1.0, 5.0, 30.0, 120.0, 600.0)  # after refusals; nobody waits for a FleetPlan
_WRITES = "fleet plans"  # key of the penalty


@dataclass(slots=True)
class FleetPlans:
    """Keeps the FleetPlans of the cluster as they should be."""

    client: ApiClient
    mirror: Mirror
    events: EventRecorder
    clock: Callable[[], float]
    now: Callable[[], float]  # seconds since the epoch
    operator: str  # which one this is, of several in the cluster: a label's value
    retries: RetrySchedule = field(default_factory=lambda: RetrySchedule(DELAYS_S))
    _expectations: Expectations = field(init=False)
    _told: str = ""  # the last refusal as it was logged
    _completed: str = ""  # UID of the plan whose missing figures were last written

    def __post_init__(self) -> None:
        self._expectations = Expectations(lambda _kind, _namespace: self.mirror.store)

    async def write(self, wanted: RecommendationResult, guard: Guard) -> None:
        """Make `wanted` the plan that counts; an empty one makes that none. Raises NotLeader; other
        refusals are told once, and tried again later.
        """
        if not self._may_write():
            return
        try:
            await self._write(wanted, guard)
        except ApiError as error:
            self.retries.record_failure(_WRITES, self.clock(), error.retry_after_s)
            self._tell(f"not written: {error}")
        else:
            self.retries.record_success(_WRITES)

    def _may_write(self) -> bool:
        """Whether the mirror shows what is there, our own last writes included."""
        if not self.mirror.synced or self.mirror.unavailable:
            return False
        if self._expectations.overdue(self.clock()):
            self.mirror.request_relist()
        return not self._expectations.open() and not self.retries.blocked(_WRITES, self.clock())

    async def _write(self, wanted: RecommendationResult, guard: Guard) -> None:
        if not wanted.empty:
            current = await self._ensure(wanted, guard)
            if current is None:
                return
            if await self._status(current, wanted.state, wanted.figures, guard) and wanted.better:
                self.events.tell(current, _note(wanted), FLEET_PLANS)
        name = "" if wanted.empty else wanted.name
        others = [p for p in self.mirror.store if self._ours(p) and p["metadata"]["name"] != name]
        for plan in others:
            await self._status(plan, SUPERSEDED, {}, guard)
        for plan in sorted(others, key=_age, reverse=True)[KEPT - 1 :]:
            await self._delete(plan, guard)

    async def _ensure(self, wanted: RecommendationResult, guard: Guard) -> Object | None:
        """Return the FleetPlan of this name, made now if need be; None where it is not ours."""
        live = self.mirror.store.get(("", wanted.name))
        if live is None:
            live = await self._create(wanted, guard)
        if live is None or live["metadata"].get("deletionTimestamp"):
            return None
        if not self._ours(live):
            self._tell(f"{wanted.name} exists and was not written by this operator: left alone")
            return None
        return live

    async def _create(self, wanted: RecommendationResult, guard: Guard) -> Object | None:
        plan = {
            "apiVersion": FLEET_PLANS.api_version,
            "kind": FLEET_PLANS.kind,
            "metadata": {"name": wanted.name, "labels": self._labels()},
            "spec": wanted.spec,
        }
        try:
            made = await self.client.create(FLEET_PLANS, plan, manager=MANAGER, guard=guard)
        except ApiError as error:
            if error.status != 409:
                raise
            return await self.client.get(FLEET_PLANS, "", wanted.name)
        self._expectations.expect_write(FLEET_PLANS, made, self.clock())
        return made

    async def _status(self, plan: Object, state: str, figures: Object, guard: Guard) -> bool:
        """Write the status of a plan unless it says so already; say whether its state was changed.

        What `figures` lacks stays as it is.
        """
        meta, before = plan["metadata"], plan.get("status") or {}
        changes = before.get("state") != state
        if meta.get("deletionTimestamp") or not (changes or self._outdated(plan, figures)):
            return False
        now = rfc3339(self.now())
        kept = {key: before[key] for key in FIGURES if key in before}
        since = now if changes else before.get("since", now)
        body = {
            "apiVersion": FLEET_PLANS.api_version,
            "kind": FLEET_PLANS.kind,
            "metadata": {"name": meta["name"], "uid": meta["uid"]},
            "status": {"state": state, "since": since} | kept | figures,
        }
        try:
            result = await self.client.apply(
                FLEET_PLANS, body, manager=MANAGER, force=True, subresource="status", guard=guard
            )
        except ApiError as error:
            if error.status == 404 or (error.status == 409 and "uid" in error.message.lower()):
                return False  # deleted, or deleted and made again: the mirror will tell
            raise
        self._expectations.expect_write(FLEET_PLANS, result, self.clock())
        if figures:
            self._completed = meta["uid"]
        return changes

    def _outdated(self, plan: Object, figures: Object) -> bool:
        """Say whether the status of a plan has other figures. Those that it lacks are written once: a CRD of
        an earlier version drops them.
        """
        before = plan.get("status") or {}
        if any(before.get(key, figures[key]) != figures[key] for key in _RENEWED if key in figures):
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
            return  # another object has the name by now
        self._expectations.expect_deletion(FLEET_PLANS, key_of(plan), uid_of(plan), self.clock())

    def _labels(self) -> dict[str, str]:
        return {MANAGED_BY_LABEL: MANAGED_BY, OPERATOR_LABEL: self.operator}

    def _ours(self, plan: Object) -> bool:
        return self._labels().items() <= (plan["metadata"].get("labels") or {}).items()

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            log.warning("FleetPlans: %s", what)


def operator_label(namespace: str, lease: str) -> str:
    """Return the label's value for the operator that this Lease elects: operators that share a cluster leave
    each other's FleetPlans alone.
    """
    name = f"{namespace}.{lease}"
    return name if len(name) <= MAX_LABEL else hashlib.sha256(name.encode()).hexdigest()[:16]


def _age(plan: Object) -> tuple[str, str]:
    """Return what sorts plans by when they last counted, the latest last."""
    since = (plan.get("status") or {}).get("since") or plan["metadata"].get("creationTimestamp", "")
    return str(since), plan["metadata"]["name"]


def _note(wanted: RecommendationResult) -> EventNote:
    spec, figures = wanted.spec, wanted.figures
    return EventNote(
        "Normal",
        "PlanRecommended",
        f"The fleet would cost {spec['costPerHour']} $/h, now {figures['currentCostPerHour']} $/h"
        f" (gap {spec['gap']}); {spec['unmet']} LLMDeployments would go short;"
        f" {spec['totalMoves']} replicas would move in {spec['totalSteps']} steps",
    )
