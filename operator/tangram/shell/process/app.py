"""The operator, put together: which part is told what, and what starts and stops in which order."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Coroutine
from typing import Any

from aiohttp import web

from tangram.shell.api_server.auth import Credentials
from tangram.shell.api_server.client import ApiClient
from tangram.shell.api_server.retry_delays import RetrySchedule
from tangram.shell.decide.plan_worker import PlanWorker
from tangram.shell.decide.recommendation_worker import RecommendationWorker
from tangram.shell.decide.worker import LONGEST_START_S
from tangram.shell.lead.lease import Elector, LeaseTimes, TermGuard
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.measure.scaler import Scaler, params_of
from tangram.shell.objects.kinds import FLEET_PLANS
from tangram.shell.process.recommendation_loop import Debounce, RecommendationLoop
from tangram.shell.process.reconcile_loop import Heart, Reconciler
from tangram.shell.report import http_endpoints as serving
from tangram.shell.report.events import EventRecorder
from tangram.shell.report.fleet_plans import FleetPlans, operator_label
from tangram.shell.report.status_writer import StatusWriter
from tangram.shell.settings import Settings
from tangram.shell.snapshot.fleet_snapshot import SnapshotSettings
from tangram.shell.watch import kept_fields
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirror import Mirror, MirrorSource
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.action_writer import ActionWriter

log = logging.getLogger(__name__)

WATCH_DEAD_S = 600.0  # an API server that is down this long is not cured by restarting us, a stuck mirror is
SLOWEST_WRITE_S = 45.0  # a request, and the own writes that are waited for
FIRST_LOOK_S = 2.0


def loop_dead_s(settings: Settings) -> float:
    """Return after how many seconds without a turn the loop is stuck: above a tick, the start of a planner
    with its deadline, and the slowest single write.
    """
    return max(
        120.0, settings.tick_seconds + LONGEST_START_S + settings.plan_deadline_seconds + SLOWEST_WRITE_S
    )


def boot_time() -> float:
    """Return seconds since boot, suspended time included: a lease runs out while a machine sleeps, too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Operator:
    """All parts of one operator process. Create it inside the running event loop."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self.settings = settings
        self.identity = f"{socket.gethostname()}_{os.getpid()}_{secrets.token_hex(4)}"
        self.metrics = OperatorMetrics()
        self.client = ApiClient(credentials, self.metrics.count_request)
        self.failed = asyncio.Event()
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._servers: list[web.AppRunner] = []
        self.elector = self._make_elector()
        self.mirrors = Mirrors(
            self.client,
            settings.watch_namespaces,
            changed=self._changed,
            clock=boot_time,
            relist_s=settings.relist_seconds,
            drift=self.metrics.count_drift,
        )
        self.reader = MetricsReader(settings.prometheus, now=time.time) if settings.prometheus else None
        self.worker = PlanWorker(settings.plan_deadline_seconds)
        self.recommendation_worker = RecommendationWorker(settings.advice.deadline_seconds)
        self.fleet_plans = Mirror(
            self.client,
            MirrorSource(FLEET_PLANS, kept_fields.fleet_plan, optional=True),
            changed=self._fleet_plans_changed,
            clock=boot_time,
            relist_s=settings.relist_seconds,
            drift=self.metrics.count_drift,
        )
        self.loop = self._make_loop()

    async def start(self) -> None:
        """Start everything."""
        host = self.settings.listen_host
        for app, port in (
            (serving.probes(self.live, self.ready), self.settings.probe_port),
            (serving.metrics(self.metrics.registry, self.refresh_ages), self.settings.metrics_port),
        ):
            self._servers.append(await serving.serve(app, host, port))
        self._spawn("lease", self.elector.run())
        self._spawn("mirrors", self._run_mirrors())
        self._spawn("loop", self.loop.run())
        self._spawn("events", self.loop.events.run())
        self._spawn("mirror of fleetplans", self.fleet_plans.run())
        self._spawn("recommendations", self.loop.recommendations.run())
        if self.reader is not None:
            self._spawn("metrics reader", self._read_metrics(self.reader))

    async def stop(self) -> None:
        """Stop everything, the right to write first; then give the lease to the next."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.elector.release()
        for server in self._servers:
            await server.cleanup()
        await asyncio.to_thread(self.worker.stop)
        await asyncio.to_thread(self.recommendation_worker.stop)
        if self.reader is not None:
            await self.reader.close()
        await self.client.close()

    def live(self) -> str:
        """Say what a restart would cure, empty when nothing."""
        if self.failed.is_set():
            return "a task of the operator has died"
        silent = boot_time() - self.loop.heart.beat
        if silent > loop_dead_s(self.settings):
            return f"the loop has not turned for {silent:.0f} s"
        if self.mirrors.synced and self.mirrors.stalled_s > WATCH_DEAD_S:
            return f"a mirror heard nothing for {self.mirrors.stalled_s:.0f} s"
        return ""

    def ready(self) -> str:
        """Say why this operator could not take over now, empty when it could."""
        waiting = [str(mirror.source) for mirror in self.mirrors.all if not mirror.synced]
        return f"not synced yet: {', '.join(waiting)}" if waiting else ""

    def refresh_ages(self) -> None:
        """Set the gauges that are ages."""
        metrics, planned = self.metrics, self.loop.heart.planned
        metrics.leading.set(self.elector.leading)
        metrics.last_plan.set(float("nan") if planned is None else boot_time() - planned)
        newest = self.reader.newest_at() if self.reader else None
        metrics.last_fresh_metric.set(float("nan") if newest is None else time.time() - newest)
        for mirror in (*self.mirrors.all, self.fleet_plans):
            metrics.watch_age.labels(mirror.source.kind.plural).set(mirror.age_s)

    def _changed(self) -> None:
        self.loop.mark_dirty()

    def _fleet_plans_changed(self) -> None:
        self.loop.recommendations.wake()

    def _leadership(self, leading: bool) -> None:
        self.loop.leadership(leading)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self._stopping:
            return
        log.critical("%s ended", task.get_name(), exc_info=task.exception())
        self.failed.set()

    async def _run_mirrors(self) -> None:
        """Run the mirrors, after the first try to take the lease: LISTs of a term's own time need not be
        repeated when it begins, and those of a large cluster take long.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.elector.looked.wait(), FIRST_LOOK_S)
        await self.mirrors.run()

    async def _read_metrics(self, reader: MetricsReader) -> None:
        assert self.settings.prometheus is not None  # noqa: S101 - there is no reader without it
        while True:
            await asyncio.sleep(self.settings.prometheus.interval_seconds)
            if self.elector.leading:
                await reader.read(self.loop.wanted, self.loop.pods)
                self.loop.mark_dirty()

    def _make_elector(self) -> Elector:
        lease = self.settings.leader_election
        return Elector(
            self.client,
            namespace=lease.namespace,
            name=lease.name,
            identity=self.identity,
            times=LeaseTimes(lease.lease_seconds, lease.renew_seconds, lease.retry_seconds),
            clock=boot_time,
            changed=self._leadership,
        )

    def _make_loop(self) -> Reconciler:
        settings, guard, heart = self.settings, TermGuard(self.elector), Heart(boot_time())
        expectations, retries = Expectations(self.mirrors.store), RetrySchedule()
        faults = FaultLog(self.metrics)

        def beat() -> None:
            heart.beat = boot_time()

        events = EventRecorder(self.client, self.elector.guard, self.identity, time.time)
        advice, lease = settings.advice, settings.leader_election
        whose = operator_label(lease.namespace, lease.name)
        recommendations = RecommendationLoop(
            worker=self.recommendation_worker,
            plans=FleetPlans(self.client, self.fleet_plans, events, boot_time, time.time, whose),
            metrics=self.metrics,
            clock=boot_time,
            debounce=Debounce(advice.settle_seconds, advice.latest_seconds),
            idle_s=advice.idle_seconds,
            changed=self._changed,
        )
        return Reconciler(
            mirrors=self.mirrors,
            elector=self.elector,
            worker=self.worker,
            guard=guard,
            writer=ActionWriter(
                self.client,
                guard,
                self.mirrors,
                settings,
                expectations,
                retries,
                boot_time,
                written=beat,
                failed=faults.met,
            ),
            statuses=StatusWriter(
                self.client, guard, expectations, retries, boot_time, written=beat, failed=faults.met
            ),
            faults=faults,
            events=events,
            recommendations=recommendations,
            scaler=Scaler(params_of(settings), self.reader),
            expectations=expectations,
            retries=retries,
            metrics=self.metrics,
            told=SnapshotSettings(
                settings.engine_image,
                settings.tolerations,
                tuple(sorted(settings.prices.items())),
                settings.pod_needs,
                settings.default_priority_class_name,
            ),
            tick_s=settings.tick_seconds,
            clock=boot_time,
            now=time.time,
            heart=heart,
        )
