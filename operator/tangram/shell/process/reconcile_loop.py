"""The reconcile loop: wait for a change or a tick, observe the fleet, plan, write the actions, report.

Level-triggered: each round starts from the whole observed state, not from events. It runs only while this
operator leads, every mirror is synced and recent, and the mirrors show the operator's own writes.
"""

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from tangram.fleet import BackOff, Plan, claiming_pools
from tangram.kube.client import ApiError
from tangram.kube.kinds import uid_of
from tangram.kube.retry_delays import RetryDelays, RetrySchedule
from tangram.shell.decide.plan_worker import PlanWorker
from tangram.shell.decide.worker import WorkerFailed
from tangram.shell.lead.lease import Elector, NotLeader, TermGuard
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.mig_manager.managed_layouts import ManagedLayouts
from tangram.shell.process.observation import NO_WARNINGS, Observation, Observer, with_unplanned
from tangram.shell.process.recommendation_loop import RecommendationLoop
from tangram.shell.process.round_report import RoundReporter
from tangram.shell.repartition.executor import Executor
from tangram.shell.report.status_writer import status_retry_key
from tangram.shell.watch.expectations import OWN_WRITE_TIMEOUT_S, Expectations
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.action_writer import ActionWriter, evaluation_retry_key
from tangram.shell.write.alert_rules import AlertRules

log = logging.getLogger(__name__)

DEBOUNCE_S = 0.1  # so that a `kubectl apply` of many files leads to one plan
MAX_VIEW_AGE_S = 90.0  # bookmarks arrive each minute: an older view means a lost connection
RETRY_S = (1.0, 30.0)  # first and longest delay after rounds that could not be finished


@dataclass(slots=True)
class LoopHeartbeat:
    """Signs of life of the loop, in seconds of the monotonic clock; read by probes and metrics."""

    at: float  # when the loop last turned, or the API server last answered a write of a round
    planned_at: float | None = None


@dataclass(slots=True)
class Reconciler:
    """Runs rounds, one at a time. `run()` until cancelled."""

    mirrors: Mirrors
    elector: Elector
    guard: TermGuard  # of the writes that a round decides
    observer: Observer
    worker: PlanWorker
    writer: ActionWriter
    reporter: RoundReporter
    recommendations: RecommendationLoop
    expectations: Expectations
    retries: RetrySchedule
    metrics: OperatorMetrics
    faults: FaultLog
    tick_s: float
    clock: Callable[[], float]  # seconds of the monotonic clock
    now: Callable[[], float]  # seconds since the epoch
    heartbeat: LoopHeartbeat
    executor: Executor | None = None  # None: MIG layouts are only recommended
    managed: ManagedLayouts | None = None  # None: none are changed through mig-manager
    alert_rules: AlertRules | None = None  # None: no PrometheusRule is written
    observation: Observation | None = None  # of the last round
    _dirty: asyncio.Event = field(default_factory=asyncio.Event)
    _back_offs: dict[str, tuple[BackOff, ...]] = field(default_factory=dict)  # by UID; statuses may lag
    _term: int = 0  # the term of leadership that this state belongs to; 0: none yet
    _retry_delays: RetryDelays = field(default_factory=lambda: RetryDelays(*RETRY_S))
    _logged: str = ""  # details of the last failure

    def mark_dirty(self) -> None:
        """Request a round soon: something has changed."""
        self._dirty.set()

    def leadership(self, leading: bool) -> None:
        """Take a change of leadership."""
        if not leading:
            self.metrics.clear_fleet()
            self.recommendations.stop_leading()
            if self.alert_rules is not None:
                self.alert_rules.stop_leading()
        self.mark_dirty()

    async def run(self) -> None:
        """Run rounds until cancelled. No error of one round ends the loop."""
        for mirror in self.mirrors.all:
            await self._await_alive(mirror.wait_synced())
        while True:
            await self._wait()
            self.heartbeat.at = self.clock()
            if not self.elector.leading:
                continue
            await self._turn()

    async def _turn(self) -> None:
        """Run one round. After one that could not be finished, retry with growing delays."""
        try:
            finished = await self._round()
        except NotLeader as refusal:
            log.warning("round stopped: %s", refusal)
            return
        except ApiError as error:
            log.warning("round stopped: %s", error)
            finished = False
        except WorkerFailed as failure:
            self._log_failure(f"no plan ({failure.why}), the last one stays in force", str(failure))
            self.metrics.plan_failures.labels(failure.why).inc()
            finished = False
        except Exception:  # noqa: BLE001 - logged with its trace
            self._log_failure("round failed", traceback.format_exc())
            self.metrics.loop_errors.labels("round").inc()
            finished = False
        if finished:
            self._retry_delays.reset()
            self._logged = ""
        else:
            asyncio.get_running_loop().call_later(self._retry_delays.next_s(), self.mark_dirty)

    def _log_failure(self, summary: str, details: str) -> None:
        """Log a failure with its details, and in one line if it is the same as the last one."""
        if details == self._logged:
            log.error("%s, as before: %s", summary, details.strip().splitlines()[-1])
        else:
            log.error("%s: %s", summary, details)
        self._logged = details

    async def _await_alive(self, awaitable: Awaitable[object]) -> None:
        """Await something that may take long, with a heartbeat each second."""
        task = asyncio.ensure_future(awaitable)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=1.0)
                self.heartbeat.at = self.clock()
            await task
        finally:
            task.cancel()

    async def _wait(self) -> None:
        now = self.clock()
        layouts_due = self.executor.next_due() if self.executor is not None else None
        due = min((at for at in (self.retries.next_due(now), layouts_due) if at is not None), default=None)
        timeout = self.tick_s if due is None else max(0.05, min(self.tick_s, due - now))
        try:
            async with asyncio.timeout(timeout):
                await self._dirty.wait()
            await asyncio.sleep(DEBOUNCE_S)
        except TimeoutError:
            pass
        self._dirty.clear()

    async def _round(self) -> bool:
        """Observe, plan, write and report; say whether that was possible."""
        term = self.guard.begin()
        if term != self._term:
            await self._begin_term(term)
        if not await self._settled():
            return False
        self.faults.begin()
        observed = self.observer.observe(
            self.mirrors.view(),
            self.now(),
            self.writer.problems.values(),
            self.writer.evaluation_problems.values(),
            self._back_offs,
            self.alert_rules.problems if self.alert_rules is not None else NO_WARNINGS,
        )
        self._forget_deleted(observed)
        repartition = None
        if self.executor is not None:
            recommended = self.recommendations.recommended()
            repartition = self.executor.observe(
                observed.snapshot, observed.parsed, observed.view, recommended, observed.now
            )
            observed = replace(observed, snapshot=repartition.snapshot)
        self.recommendations.offer(observed.snapshot, observed.parsed, self.guard.bound())
        if repartition is not None:
            waiting_gpus = repartition.waiting_gpus
            unplanned = self.recommendations.unplanned(observed.intents, observed.now, waiting_gpus)
            observed = with_unplanned(observed, unplanned)
        self.observation = observed
        plan = await self._plan(observed)
        if self.executor is not None:
            self.executor.immovable = dict(plan.immovable)
        problems = dict(self.writer.problems)
        with self.metrics.apply_seconds.time():
            intents = {intent.uid: intent for intent in observed.intents}
            await self.writer.perform(plan.actions, intents, observed.snapshot.workloads)
        if self.executor is not None and repartition is not None:
            await self.executor.perform(repartition)
            await self._change_managed(observed)
        await self.reporter.report(observed, plan)
        if self.alert_rules is not None:
            self.alert_rules.offer(observed.intents, self.guard.bound())
        if self.writer.problems != problems or self.writer.unfinished or self.reporter.statuses.unfinished:
            self.mark_dirty()  # the next round reports refusals and writes what is left
        return True

    async def _change_managed(self, observed: Observation) -> None:
        """Do a step for each node of which mig-manager changes the layouts."""
        if self.managed is None:
            return
        snapshot, view = observed.snapshot, observed.view
        backends = {pool.name: pool.backend for pool in snapshot.pools}
        names = {
            node.name
            for node in snapshot.nodes
            if (place := claiming_pools(node, snapshot.pools)) and backends[place[0]] == "mig-manager"
        }
        await self.managed.round(view.gpu_nodes, view.nodes, view.pods, names)
        if self.managed.unfinished:
            self.mark_dirty()

    async def _begin_term(self, term: int) -> None:
        """List everything anew: another operator may have written since the last term."""
        await self._await_alive(self.mirrors.refresh(self.elector.election.term_began))
        self.guard()  # LISTs of a large cluster may outlast the term
        self.expectations.clear()
        self.observer.scaler.clear()
        self.reporter.statuses.clear()
        self._back_offs.clear()
        self.writer.problems.clear()
        self.writer.evaluation_problems.clear()
        self._term = term

    async def _settled(self) -> bool:
        """Wait until the mirrors show our own writes; say whether the view is fit to plan on."""
        if self.mirrors.age_s > MAX_VIEW_AGE_S:
            log.warning("no plan: the view of the cluster is %.0f s old", self.mirrors.age_s)
            return False
        deadline = self.clock() + OWN_WRITE_TIMEOUT_S
        for expectation in self.expectations.open():
            mirror = self.mirrors.of(expectation.kind, expectation.key[0])
            await mirror.wait_for(expectation.is_met, max(0.01, deadline - self.clock()))
        overdue = self.expectations.overdue(self.clock())
        for expectation in overdue:
            log.warning(
                "own write of %s %s does not appear in the watch: listing again",
                expectation.kind.kind,
                expectation.key,
            )
            self.metrics.overdue.inc()
            self.mirrors.of(expectation.kind, expectation.key[0]).request_relist()
        return not overdue and not self.expectations.open()

    def _forget_deleted(self, observed: Observation) -> None:
        """Forget what is remembered about objects of Tangram that no longer exist."""
        deployments = {intent.uid for intent in observed.parsed}
        pools = {uid_of(obj) for obj in (*observed.view.gpu_pools, *observed.view.engine_runtimes)}
        self.writer.forget(deployments)
        self.reporter.forget(deployments, pools)
        keys = {"", *deployments}  # "": actions that name no LLMDeployment
        keys |= set(map(evaluation_retry_key, deployments)) | set(map(status_retry_key, deployments | pools))
        self.retries.retain(keys)

    async def _plan(self, observed: Observation) -> Plan:
        """Return the plan (raises WorkerFailed: then everything stays as it is)."""
        with self.metrics.plan_seconds.time():
            plan = await self.worker.plan(observed.snapshot, observed.parsed, observed.now)
        self.heartbeat.planned_at = self.heartbeat.at = self.clock()
        names = {intent.uid: f"{intent.namespace}/{intent.name}" for intent in observed.parsed}
        self.faults.record_planned(plan.faults, names)
        self.observer.scaler.adopt(plan.decisions, observed.snapshot.workloads)
        self._back_offs = {decision.owner_uid: decision.back_offs for decision in plan.decisions}
        return plan
