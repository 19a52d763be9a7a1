"""The reconcile loop: dirty or tick -> settled view -> snapshot -> plan -> actions -> statuses -> events.

Level-triggered: a round looks at everything and remembers nothing that it could not see again. It runs
only while we lead, every mirror is synced and recent, and our own writes have come back.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.fleet import BackOff, Decision, FleetSnapshot, Intent, ParsedIntent, Plan
from tangram.planner import render_status, transitions
from tangram.planner.status.status_block import unrendered_status
from tangram.shell.api_server.client import ApiError
from tangram.shell.api_server.retry_delays import RetryDelays, RetrySchedule
from tangram.shell.decide.plan_worker import PlanWorker
from tangram.shell.decide.worker import WorkerFailed
from tangram.shell.lead.lease import Elector, NotLeader, TermGuard
from tangram.shell.measure.fault_log import FaultLog, name_of
from tangram.shell.measure.metrics import OperatorMetrics, ready_replicas
from tangram.shell.measure.scaler import Scaled, Scaler
from tangram.shell.objects.kinds import GPU_POOLS, LLM_DEPLOYMENTS, Object, uid_of
from tangram.shell.process.recommendation_loop import RecommendationLoop
from tangram.shell.report.events import EventRecorder
from tangram.shell.report.pool_status import pool_statuses
from tangram.shell.report.status_pacer import StatusPacer
from tangram.shell.report.status_writer import NewStatus, StatusWriter
from tangram.shell.snapshot.broken_objects import without_broken_objects
from tangram.shell.snapshot.fleet_snapshot import SnapshotSettings, fleet_snapshot
from tangram.shell.snapshot.intents import DuplicateUID, parsed_intents, unreadable_intents
from tangram.shell.snapshot.offered_devices import OfferedDevices
from tangram.shell.snapshot.ownership import llm_deployment_uid
from tangram.shell.snapshot.recorded_status import (
    recorded_back_offs,
    recorded_replicas,
    recorded_scaling,
    recorded_variants,
)
from tangram.shell.snapshot.workloads import engine_pod_names
from tangram.shell.watch.expectations import OWN_WRITE_TIMEOUT_S, Expectations
from tangram.shell.watch.mirror_view import MirrorView
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.action_writer import ActionWriter, evaluation_retry_key

log = logging.getLogger(__name__)

T = TypeVar("T")

DEBOUNCE_S = 0.1  # a `kubectl apply` of many files becomes one plan
MAX_VIEW_AGE_S = 90.0  # bookmarks come each minute: an older view is one of a lost connection
RETRY_S = (1.0, 30.0)  # from, to: after rounds that could not be finished


@dataclass(slots=True)
class Heart:
    """When the loop last did what, in seconds of the monotonic clock; read by probes and metrics."""

    beat: float  # last time the loop turned or a write of a round was answered
    planned: float | None = None


@dataclass(slots=True)
class Reconciler:
    """Everything one round needs. `run()` until cancelled."""

    mirrors: Mirrors
    elector: Elector
    guard: TermGuard  # of the writes that a round decides
    worker: PlanWorker
    writer: ActionWriter
    statuses: StatusWriter
    events: EventRecorder
    scaler: Scaler
    recommendations: RecommendationLoop
    expectations: Expectations
    retries: RetrySchedule
    metrics: OperatorMetrics
    faults: FaultLog
    told: SnapshotSettings
    tick_s: float
    clock: Callable[[], float]
    now: Callable[[], float]
    heart: Heart
    devices: OfferedDevices = field(default_factory=OfferedDevices)
    pool_pacer: StatusPacer = field(default_factory=StatusPacer)
    wanted: tuple[Intent, ...] = ()  # valid intents of the last round: whom to ask Prometheus about
    pods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # names of their pods, by UID
    _dirty: asyncio.Event = field(default_factory=asyncio.Event)
    _back_offs: dict[str, tuple[BackOff, ...]] = field(
        default_factory=dict
    )  # by uid; statuses may lag behind
    _begun: int = 0  # term that the memory is of; 0: none yet
    _backoff: RetryDelays = field(default_factory=lambda: RetryDelays(*RETRY_S))
    _last_failure: str = ""
    _left_out: frozenset[str] = frozenset()  # sentences that were logged

    def mark_dirty(self) -> None:
        """Something changed: look again soon."""
        self._dirty.set()

    def leadership(self, leading: bool) -> None:
        """Note that a term begins or ended."""
        if not leading:
            self.metrics.clear_fleet()
            self.recommendations.stop_leading()
        self.mark_dirty()

    async def run(self) -> None:
        """Turn until cancelled. No error of one round ends the loop."""
        for mirror in self.mirrors.all:
            await self._alive(mirror.wait_synced())
        while True:
            await self._wait()
            self.heart.beat = self.clock()
            if not self.elector.leading:
                continue
            await self._turn()

    async def _turn(self) -> None:
        """Try one round; after one that could not be finished, another comes, ever later."""
        try:
            finished = await self._round()
        except NotLeader as refusal:
            log.warning("round given up: %s", refusal)
            return
        except ApiError as error:
            log.warning("round given up: %s", error)
            finished = False
        except WorkerFailed as failure:
            self._tell_failure(f"no plan ({failure.why}), the last one stands", str(failure))
            self.metrics.plan_failures.labels(failure.why).inc()
            finished = False
        except Exception:  # noqa: BLE001 - told whole, with its trace
            self._tell_failure("round failed", traceback.format_exc())
            self.metrics.loop_errors.labels("round").inc()
            finished = False
        if finished:
            self._backoff.reset()
            self._last_failure = ""
        else:
            asyncio.get_running_loop().call_later(self._backoff.next_s(), self.mark_dirty)

    def _tell_failure(self, what: str, details: str) -> None:
        """Log a failure whole the first time, and in one line as long as it stays the same."""
        if details == self._last_failure:
            log.error("%s, as before: %s", what, details.strip().splitlines()[-1])
        else:
            log.error("%s: %s", what, details)
        self._last_failure = details

    async def _alive(self, waiting: Any) -> None:
        """Await something that may take long, with the heart beating."""
        task = asyncio.ensure_future(waiting)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=1.0)
                self.heart.beat = self.clock()
            await task
        finally:
            task.cancel()

    async def _wait(self) -> None:
        due = self.retries.next_due(self.clock())
        patience = self.tick_s if due is None else max(0.05, min(self.tick_s, due - self.clock()))
        try:
            await asyncio.wait_for(self._dirty.wait(), patience)
            await asyncio.sleep(DEBOUNCE_S)
        except TimeoutError:
            pass
        self._dirty.clear()

    async def _round(self) -> bool:
        """Look, plan, write; say whether that could be done."""
        term = self.guard.begin()
        if term != self._begun:
            await self._begin_term(term)
        if not await self._settled():
            return False
        self.faults.begin()
        view, now = without_broken_objects(self.mirrors.view(), self._skipped), self.now()
        read = parsed_intents(view, self._skipped, self.told.default_priority_class)
        everyone = (*read, *unreadable_intents(view, read, self.faults.faults))
        valid = tuple(intent for intent in everyone if isinstance(intent, Intent))
        self._forget({intent.uid for intent in everyone}, {uid_of(obj) for obj in view.gpu_pools})
        self.wanted, self.pods = valid, engine_pod_names(view)
        scaled, seen = self._observe(view, valid, now)
        self.recommendations.offer(seen, everyone, self.guard.bound())
        plan = await self._plan(seen, everyone, now)
        self.faults.planned(plan.faults, {i.uid: f"{i.namespace}/{i.name}" for i in everyone})
        self.scaler.adopt(plan.decisions, seen.workloads)
        self._back_offs = {decision.owner_uid: decision.back_offs for decision in plan.decisions}
        problems = dict(self.writer.problems)
        with self.metrics.apply_seconds.time():
            await self.writer.perform(plan.actions, {intent.uid: intent for intent in valid}, seen.workloads)
        await self._tell(view, seen, everyone, plan, scaled, now)
        if self.writer.problems != problems or self.writer.unfinished or self.statuses.unfinished:
            self.mark_dirty()  # conditions say what was refused; what was left is written
        return True

    async def _begin_term(self, term: int) -> None:
        """Start from what is true now: another operator may have written since we last looked."""
        await self._alive(self.mirrors.refresh(self.elector.election.term_began))
        self.guard()  # LISTs of a large cluster may outlast the term
        self.expectations.clear()
        self.scaler.clear()
        if self.scaler.reader is not None:
            self.scaler.reader.clear()
        self.statuses.clear()
        self._back_offs.clear()
        self.writer.problems.clear()
        self.writer.evaluation_problems.clear()
        self._begun = term

    async def _settled(self) -> bool:
        """Wait until the mirrors show our own writes; say whether the view may be decided upon."""
        if self.mirrors.age_s > MAX_VIEW_AGE_S:
            log.warning("the view is %.0f s old: nothing is decided on it", self.mirrors.age_s)
            return False
        deadline = self.clock() + OWN_WRITE_TIMEOUT_S
        for expectation in self.expectations.open():
            mirror = self.mirrors.of(expectation.kind, expectation.key[0])
            await mirror.wait_for(expectation.is_met, max(0.01, deadline - self.clock()))
        late = self.expectations.overdue(self.clock())
        for expectation in late:
            log.warning("own write of %s %s not seen: listing again", expectation.kind.kind, expectation.key)
            self.metrics.overdue.inc()
            self.mirrors.of(expectation.kind, expectation.key[0]).request_relist()
        return not late and not self.expectations.open()

    def _forget(self, living: set[str], pools: set[str]) -> None:
        self.writer.forget(living)
        self.statuses.forget(living | pools)
        self.pool_pacer.forget(pools)
        kept = {f"status {uid}" for uid in living | pools} | set(map(evaluation_retry_key, living))
        self.retries.retain(living | kept | {""})

    def _observe(
        self, view: MirrorView, valid: tuple[Intent, ...], now: float
    ) -> tuple[Mapping[str, Scaled], FleetSnapshot]:
        bare = fleet_snapshot(view, self.told, now, self._skipped)
        bare = replace(bare, nodes=self.devices.remember(bare.nodes, now))
        recorded, variants = recorded_replicas(view), recorded_variants(view)
        memories = recorded_scaling(view)
        scaled = self.scaler.decide(valid, bare.workloads, recorded, now, variants, self.faults, memories)
        desired = tuple(sorted((uid, one.decision.replicas) for uid, one in scaled.items()))
        problems = tuple(sorted(self.writer.problems.values(), key=lambda p: p.owner_uid))
        known = recorded_back_offs(view, self._skipped) | self._back_offs
        owners = {intent.uid for intent in valid}
        return scaled, replace(
            bare,
            desired=desired,
            desired_of=self.scaler.counted(),
            problems=problems,
            evaluation_problems=tuple(
                sorted(self.writer.evaluation_problems.values(), key=lambda p: p.owner_uid)
            ),
            back_offs=tuple(sorted(each for uid in owners for each in known.get(uid, ()))),
            faults=self.faults.faults,
        )

    def _skipped(self, obj: Object, error: Exception) -> None:
        """Take an object that could not be understood: the LLMDeployment that it concerns stands still."""
        uid = "" if isinstance(error, DuplicateUID) else llm_deployment_uid(obj)
        self.faults.met("read", name_of(obj), uid, error)

    async def _plan(self, seen: FleetSnapshot, everyone: tuple[ParsedIntent, ...], now: float) -> Plan:
        """Return the plan (raises WorkerFailed: then what is there stays as it is)."""
        with self.metrics.plan_seconds.time():
            plan = await self.worker.plan(seen, everyone, now)
        self.heart.planned = self.heart.beat = self.clock()
        return plan

    async def _tell(
        self,
        view: MirrorView,
        seen: FleetSnapshot,
        everyone: tuple[ParsedIntent, ...],
        plan: Plan,
        scaled: Mapping[str, Scaled],
        now: float,
    ) -> None:
        """Write statuses that changed, then the events about what changed in them."""
        objects = {uid_of(obj): obj for obj in view.llm_deployments}
        decisions = {decision.owner_uid: decision for decision in plan.decisions}
        new: list[NewStatus] = []
        self.metrics.clear_fleet()
        ready = ready_replicas(seen.workloads)
        for intent in everyone:
            decision = decisions.get(intent.uid)
            if decision is None:
                continue
            status = self._status_of(decision, intent, seen, scaled, objects[intent.uid], now)
            new.append(NewStatus(objects[intent.uid], status))
            if isinstance(intent, Intent):
                self._isolated(
                    "metrics",
                    intent,
                    partial(self.metrics.show, intent, decision, status, ready.get(intent.uid, 0)),
                )
        self.faults.run("nodes", "nodes", "", partial(self._tell_left_out, seen))
        new += self._pool_statuses(view, seen, now)
        for written in await self.statuses.write(new):
            if written.kind == LLM_DEPLOYMENTS:
                obj, before = written.obj, written.obj.get("status") or {}
                notes = self.faults.run(
                    "events", name_of(obj), "", partial(transitions, before, written.status)
                )
                for note in notes or ():
                    self.events.tell(obj, note)

    def _isolated(self, step: str, intent: ParsedIntent, function: Callable[[], T]) -> T | None:
        return self.faults.run(step, f"{intent.namespace}/{intent.name}", "", function)

    def _tell_left_out(self, seen: FleetSnapshot) -> None:
        """Count the nodes whose devices are left out, and log each sentence about them, and about the default
        PriorityClass, when it becomes true or ends.
        """
        self.metrics.show_nodes(seen.nodes)
        warnings = (text for intent in self.wanted for text in intent.warnings)
        notes = frozenset((*left_out_notes(seen.nodes), *warnings))
        for note in sorted(notes - self._left_out):
            log.warning("%s", note)
        for note in sorted(self._left_out - notes):
            log.info("no longer: %s", note)
        self._left_out = notes

    def _pool_statuses(self, view: MirrorView, seen: FleetSnapshot, now: float) -> list[NewStatus]:
        """Return the statuses of GPUPools; one that cannot be rendered silences no other."""
        if not view.gpu_pools:
            return []
        used = self.recommendations.pool_use() if self.recommendations.ready else None
        found = pool_statuses(view.gpu_pools, seen, used, now, self._skipped)
        paced = ((obj, self.pool_pacer.paced(obj, status, now)) for obj, status in found)
        return [NewStatus(obj, status, GPU_POOLS) for obj, status in paced]

    def _status_of(
        self,
        decision: Decision,
        intent: ParsedIntent,
        seen: FleetSnapshot,
        scaled: Mapping[str, Scaled],
        obj: Object,
        now: float,
    ) -> Object:
        """Return one status. One of which the status before cannot be read is rendered without it; one that
        cannot be rendered at all says so.
        """
        mine, before = scaled.get(intent.uid), obj.get("status") or {}

        def rendered(known: Object) -> Object:
            advice = self.recommendations.advice(intent, known) if isinstance(intent, Intent) else None
            signal, decided = (mine.signal, mine.decision) if mine else (None, None)
            return render_status(decision, intent, seen, signal, decided, known, now, advice)

        return (
            self._isolated("status", intent, lambda: rendered(before))
            or self._isolated("status", intent, lambda: rendered({}))
            or unrendered_status(intent, before, now)
        )
