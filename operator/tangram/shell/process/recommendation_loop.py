"""Plan the whole fleet when it has changed; publish the result as FleetPlan, metrics and advice in statuses.

The reconcile loop offers each snapshot and does not wait. Planning starts once the fleet has not changed for
a while, or has been changing for long enough. Failures here are counted and logged, and affect nothing else.
"""

import asyncio
import contextlib
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tangram.fleet import Advice, FleetSnapshot, Intent, ParsedIntent, PoolUse, RecommendedChange
from tangram.kube.client import Guard
from tangram.kube.retry_delays import RetryDelays
from tangram.shell.decide.recommendation_worker import RecommendationResult, RecommendationWorker
from tangram.shell.decide.worker import WorkerFailed
from tangram.shell.lead.lease import NotLeader
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.repartition.fleet_state import Recommended
from tangram.shell.report.fleet_plans import FleetPlans

log = logging.getLogger(__name__)

RETRY_S = (60.0, 900.0)  # first and longest delay after a failure, unless the fleet changes before
PAUSE_FACTOR = 4.0  # pause after a long solve, in solve times: planning takes at most 20 % of a core
SHORT_SOLVE_S = 10.0  # after a shorter solve the debounce is pause enough


@dataclass(slots=True)
class Debounce:
    """When to act on changes: once there was none for `settle_s`, or `latest_s` after the first."""

    settle_s: float
    latest_s: float
    _first: float | None = None
    _last: float = 0.0

    def changed(self, now: float) -> None:
        """Note a change."""
        self._first = now if self._first is None else self._first
        self._last = now

    def due_at(self) -> float | None:
        """Return when to act; None: nothing has changed."""
        return None if self._first is None else min(self._last + self.settle_s, self._first + self.latest_s)

    def clear(self) -> None:
        """Forget the changes that are acted on now."""
        self._first = None


@dataclass(frozen=True, slots=True)
class RecommendationInput:
    """The fleet as one round of the reconcile loop sees it."""

    snapshot: FleetSnapshot
    intents: tuple[ParsedIntent, ...]
    guard: Guard  # of writes that follow from it: bound to the term of that round
    relevant: tuple[Any, ...]  # the part that the recommendation depends on


@dataclass(frozen=True, slots=True)
class LastRecommendation:
    """The recommendation for the last input. `result` is None where planning failed."""

    relevant: tuple[Any, ...]  # part of its input
    generations: Mapping[str, int]  # of its LLMDeployments, by UID
    result: RecommendationResult | None
    advice: Mapping[str, Advice]  # by UID
    nodes: frozenset[str] = frozenset()  # of which the input knows the GPUs


def relevant_part(snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...]) -> tuple[Any, ...]:
    """Return what a recommendation depends on: not the readiness of pods, nor refused writes."""
    return (
        intents,
        snapshot.nodes,
        snapshot.claims,
        tuple((w.owner_uid, w.shape, w.replicas) for w in snapshot.workloads),
        snapshot.known_facts,
        snapshot.pools,
        snapshot.partition.nodes,
        snapshot.partition.targets,
        snapshot.partition.promised,
        snapshot.desired,
        snapshot.desired_of,
        snapshot.provisioned,
        snapshot.faults,
        snapshot.engine_image,
        snapshot.prices,
    )


def advice_from_status(intent: Intent, status: Mapping[str, Any]) -> Advice | None:
    """Return the advice that a status holds for this generation of an LLMDeployment."""
    placement = status.get("placement") or {}
    if not placement.get("plan") or status.get("observedGeneration") != intent.generation:
        return None
    return Advice(
        plan=placement["plan"],
        saves_per_hour=0.0,
        because=tuple(placement.get("because") or ()),
        relaxations=tuple(
            RecommendedChange(change["dimension"], change["text"])
            for change in placement.get("relaxations") or ()
        ),
    )


def pause_s(solve_s: float) -> float:
    """Return how long to pause after a solve of `solve_s`."""
    return PAUSE_FACTOR * solve_s if solve_s > SHORT_SOLVE_S else 0.0


@dataclass(slots=True)
class RecommendationLoop:
    """Plans the whole fleet and publishes the result. `run()` until cancelled."""

    worker: RecommendationWorker
    plans: FleetPlans
    metrics: OperatorMetrics
    clock: Callable[[], float]
    debounce: Debounce
    idle_s: float
    changed: Callable[[], None] = lambda: None  # called when there is a new recommendation
    longest_wait_s: float = 0.0  # for the first recommendation about an LLMDeployment
    _input: RecommendationInput | None = None  # None: this operator does not lead
    _last: LastRecommendation | None = None
    _unplanned_since: dict[tuple[str, int], float] = field(default_factory=dict)  # by UID and generation
    _retry_at: float | None = None
    _retry_delays: RetryDelays = field(default_factory=lambda: RetryDelays(*RETRY_S))
    _logged: str = ""  # the last failure
    _solved_at: float = 0.0
    _paused_until: float = 0.0
    _awake: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, snapshot: FleetSnapshot, intents: tuple[ParsedIntent, ...], guard: Guard) -> None:
        """Take the fleet of one round. `guard` must be bound to the term of that round."""
        offered = RecommendationInput(snapshot, intents, guard, relevant_part(snapshot, intents))
        if self._input is None or offered.relevant != self._input.relevant:
            self.debounce.changed(self.clock())
        self._input = offered
        self.wake()

    def stop_leading(self) -> None:
        """Stop recommending: this operator no longer leads."""
        self._input = None
        self.debounce.clear()
        self.metrics.clear_fleet_plan()
        self.wake()

    def wake(self) -> None:
        """Check now whether there is anything to plan or to write."""
        self._awake.set()

    def advice(self, intent: Intent, status: Mapping[str, Any]) -> Advice | None:
        """Return the last advice for this generation of an LLMDeployment. Until this operator has planned the
        fleet, that is the advice in its `status`.
        """
        if self._last is None:
            return advice_from_status(intent, status)
        same = self._last.generations.get(intent.uid) == intent.generation
        return self._last.advice.get(intent.uid) if same else None

    def recommended(self) -> Recommended:
        """Return the changes of MIG layouts in the last recommendation."""
        result = self._last.result if self._last else None
        nodes = self._last.nodes if self._last else frozenset()
        if result is None:
            return Recommended(nodes=nodes, is_known=False)
        return Recommended(result.name, result.changes, nodes)

    def unplanned(
        self, intents: Iterable[Intent], now: float, waiting_gpus: frozenset[str] = frozenset()
    ) -> tuple[tuple[str, float], ...]:
        """Return the LLMDeployments that a recommendation may cut GPUs for, by UID, each with the instant
        until which that is waited for: those of which none knows yet though one is due, and those that get
        GPUs of `waiting_gpus`, whose cut waits for consent. Both instants are in epoch seconds.
        """
        last, offered = self._last, self._input
        is_due = last is None or offered is None or last.relevant != offered.relevant
        planned = last.result.planned if last is not None and last.result is not None else frozenset()
        generations = last.generations if last is not None else {}
        waiting = {
            (intent.uid, intent.generation)
            for intent in intents
            if (is_due and not (intent.uid in planned and generations.get(intent.uid) == intent.generation))
            or not waiting_gpus.isdisjoint(self._recut_gpus(intent))
        }
        since = {key: self._unplanned_since.get(key, now) for key in waiting}
        self._unplanned_since = since
        return tuple(sorted((uid, at + self.longest_wait_s) for (uid, _), at in since.items()))

    def _recut_gpus(self, intent: Intent) -> frozenset[str]:
        """Return the GPUs that the last recommendation cuts anew for an LLMDeployment."""
        advice = self.advice(intent, {})
        return frozenset() if advice is None else advice.recut_gpus

    def pool_use(self) -> Mapping[str, PoolUse] | None:
        """Return the use of GPUPools in the last recommendation, by name; None before the first attempt."""
        if self._last is None:
            return None
        return dict(self._last.result.pools) if self._last.result else {}

    async def run(self) -> None:
        """Plan and write until cancelled. No failure ends the loop."""
        while True:
            await self._wait()
            try:
                await self._turn()
            except NotLeader as refusal:
                log.info("recommendation not written: %s", refusal)
            except Exception:  # noqa: BLE001 - logged with its trace
                self.metrics.loop_errors.labels("advice").inc()
                self._log_failure(f"recommendation: {traceback.format_exc()}")

    async def _wait(self) -> None:
        now = self.clock()
        instants = [self._due_at(), self.plans.retries.next_due(now)]
        if self.worker.running:
            instants.append(self._solved_at + self.idle_s)
        due = min((at for at in instants if at is not None), default=None)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due is None else max(0.05, due - now)):
                await self._awake.wait()
        self._awake.clear()

    def _due_at(self) -> float | None:
        """Return when to plan again; None: no reason to."""
        instants = [at for at in (self.debounce.due_at(), self._retry_at) if at is not None]
        return max(min(instants), self._paused_until) if instants else None

    async def _turn(self) -> None:
        """Stop an idle worker, plan if it is due, and publish a recommendation for the present fleet."""
        offered, now = self._input, self.clock()
        if self.worker.running and (offered is None or now >= self._solved_at + self.idle_s):
            await asyncio.to_thread(self.worker.stop)
        if offered is None:
            self._retry_at = None
            return
        due = self._due_at()
        if due is not None and now >= due:
            await self._plan(offered)
        elif self._last is None or self._last.relevant != offered.relevant:
            return  # the last recommendation is about another fleet
        if self._input is None:
            return  # the Lease was lost during planning
        result = self._last.result if self._last else None
        if result is not None:
            self.metrics.show_fleet_plan(result)
            await self.plans.write(result, offered.guard)

    async def _plan(self, offered: RecommendationInput) -> None:
        self.debounce.clear()
        self._retry_at = None
        result = self._last.result if self._last else None
        try:
            with self.metrics.advice_seconds.time():
                new = await self.worker.recommend(
                    offered.snapshot, offered.intents, result.name if result else ""
                )
        except WorkerFailed as failure:
            result = None
            self.metrics.advice_failures.labels(failure.why).inc()
            self.metrics.clear_fleet_plan()
            self._retry_at = self.clock() + self._retry_delays.next_s()
            self._log_failure(f"no recommendation ({failure.why}), the fleet is served as before: {failure}")
        else:
            self._retry_delays.reset()
            self._logged = ""
            result = new or result
            log.info("recommendation %s after %.1f s", result.name if result else "", self.worker.took_s)
        self._solved_at = self.clock()
        self._paused_until = self._solved_at + pause_s(self.worker.took_s)
        self._last = LastRecommendation(
            offered.relevant,
            {intent.uid: intent.generation for intent in offered.intents},
            result,
            dict(result.advice) if result else {},
            frozenset(node.node for node in offered.snapshot.partition.nodes if node.gpus),
        )
        self.changed()

    def _log_failure(self, text: str) -> None:
        """Log a failure, unless it is the same as the last one."""
        if text != self._logged:
            self._logged = text
            log.error("%s", text)
