"""Put the parts of the operator together, and start and stop them in order."""

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import UTC, datetime
from typing import Any

import tangram
from tangram.fleet import Intent
from tangram.kube.client import ApiClient
from tangram.kube.credentials import Credentials
from tangram.kube.kinds import ENGINE_RUNTIMES, FLEET_PLANS, GPU_NODES, GPU_POOLS, LLM_DEPLOYMENTS
from tangram.kube.mirror import Mirror, MirrorSource
from tangram.kube.retry_delays import RetrySchedule
from tangram.partition.mig_manager.decision import MIGManagerTimes
from tangram.plan.repartition import RepartitionLimits
from tangram.shell.admission.certificate import WebhookCertificate
from tangram.shell.admission.placements import Placements
from tangram.shell.admission.reviewed_cluster import ReviewedCluster
from tangram.shell.admission.webhook import admission_of
from tangram.shell.decide.placement_worker import PlacementWorker
from tangram.shell.decide.plan_worker import PlanWorker
from tangram.shell.decide.recommendation_worker import RecommendationWorker
from tangram.shell.decide.worker import LONGEST_START_S
from tangram.shell.intake.mirror import IntakeMirror
from tangram.shell.intake.supervision import KopfSupervisor, intake_of
from tangram.shell.lead.lease import Elector, LeaseTimes, TermGuard
from tangram.shell.measure.engine_scraper import EngineScraper, FleetPods
from tangram.shell.measure.fault_log import FaultLog
from tangram.shell.measure.metrics import OperatorMetrics
from tangram.shell.measure.metrics_reader import MetricsReader
from tangram.shell.measure.scaler import Scaler, params_of
from tangram.shell.mig_manager.managed_layouts import ManagedLayouts
from tangram.shell.process.observation import Observer
from tangram.shell.process.recommendation_loop import Debounce, RecommendationLoop
from tangram.shell.process.reconcile_loop import LoopHeartbeat, Reconciler
from tangram.shell.process.reviewed_fleets import ReviewedFleets
from tangram.shell.process.round_report import RoundReporter
from tangram.shell.repartition.executor import Executor
from tangram.shell.report import http_endpoints
from tangram.shell.report.events import EventRecorder
from tangram.shell.report.fleet_plans import FleetPlans, operator_label
from tangram.shell.report.status_writer import StatusWriter
from tangram.shell.settings import Settings
from tangram.shell.snapshot.workloads import dialects_of, engine_pods
from tangram.shell.watch import kept_fields
from tangram.shell.watch.expectations import Expectations
from tangram.shell.watch.mirrors import Mirrors
from tangram.shell.write.action_writer import ActionWriter
from tangram.shell.write.alert_rules import AlertRules, rule_sources
from tangram_http.pages import PageServer, serve_pages
from tangram_http.sockets import listening_socket

log = logging.getLogger(__name__)

WATCH_DEAD_S = 600.0  # a restart cures a stuck mirror, but not an API server that is down this long
SLOWEST_WRITE_S = 45.0  # a request, and the wait until the mirrors show the own writes
FIRST_ELECTION_S = 2.0  # how long the mirrors wait for the first try to take the Lease
INTAKE_KINDS = (
    LLM_DEPLOYMENTS,
    GPU_POOLS,
    ENGINE_RUNTIMES,
    GPU_NODES,
    FLEET_PLANS,
)  # whose events kopf delivers
REVIEWED_KINDS = (LLM_DEPLOYMENTS, GPU_POOLS, ENGINE_RUNTIMES, FLEET_PLANS)  # that people write


def loop_dead_s(settings: Settings) -> float:
    """Return after how many seconds without a heartbeat the loop counts as stuck: more than a tick, the start
    of the planner with its deadline, and the slowest single write together.
    """
    return max(
        120.0,
        settings.operator.tick_seconds
        + LONGEST_START_S
        + settings.operator.plan_deadline_seconds
        + SLOWEST_WRITE_S,
    )


def boot_time() -> float:
    """Return seconds since boot, suspended time included: a Lease also expires while the machine sleeps."""
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
        self._servers: list[PageServer] = []
        lease = settings.leader_election
        self.elector = Elector(
            self.client,
            namespace=lease.namespace,
            name=lease.name,
            identity=self.identity,
            times=LeaseTimes(lease.lease_seconds, lease.renew_seconds, lease.retry_seconds),
            clock=boot_time,
            changed=self._leadership,
        )
        new_mirror = self._new_mirror
        is_enabled = settings.partition.enabled
        self.mirrors = Mirrors(
            settings.watch_namespaces,
            new_mirror,
            partition=is_enabled,
            model_claims=settings.models.volume_claims,
        )
        self.reader = self._make_reader()
        self.plan_worker = PlanWorker(settings.operator.plan_deadline_seconds)
        self.recommendation_worker = RecommendationWorker(settings.advice.deadline_seconds)
        self.fleet_plan_mirror = new_mirror(
            MirrorSource(FLEET_PLANS, kept_fields.fleet_plan, optional=True),
            changed=self._fleet_plans_changed,
        )
        self.rule_mirrors = tuple(
            new_mirror(source, changed=self._rules_changed)
            for source in rule_sources(settings.watch_namespaces, settings.prometheus_rule)
        )
        of_kopf = [m for m in (*self.mirrors.all, self.fleet_plan_mirror) if isinstance(m, IntakeMirror)]
        self.intake = KopfSupervisor(
            intake_of(credentials, of_kopf),
            of_kopf,
            check_s=settings.operator.tick_seconds,
            clock=boot_time,
            restarted=self.metrics.intake_restarts.inc,
        )
        self.loop = self._make_loop()
        self.placement_worker = PlacementWorker()
        self.placements = self._make_placements()
        self.admission = self._make_admission(credentials, of_kopf)

    async def start(self) -> None:
        """Start all tasks and HTTP endpoints."""
        host = self.settings.listen_host
        for app, port in (
            (http_endpoints.probes(self.live, self.ready), self.settings.probe_port),
            (http_endpoints.metrics(self.metrics.registry, self.refresh_ages), self.settings.metrics_port),
        ):
            self._servers.append(await serve_pages(app, listening_socket(host, port)))
        self._spawn("lease", self.elector.run())
        self._spawn("mirrors", self._run_mirrors())
        self._spawn("loop", self.loop.run())
        self._spawn("events", self.loop.reporter.events.run())
        self._spawn("mirror of fleetplans", self.fleet_plan_mirror.run())
        self._spawn("intake", self.intake.run())
        self._spawn("recommendations", self.loop.recommendations.run())
        if self.admission is not None:
            self._spawn("admission", self.admission.run())
        if self.placements is not None:
            self._spawn("placements", self.placements.run())
        if self.loop.alert_rules is not None:
            self._spawn("alert rules", self.loop.alert_rules.run())
        if isinstance(self.reader, MetricsReader):
            self._spawn("metrics reader", self._read_metrics(self.reader))
            self._spawn("load histories", self.reader.histories.run(self._led_llm_deployments))
        elif self.reader is not None:
            scrapes = self.reader.run(self._fleet_pods, lambda: self.elector.leading, self.loop.mark_dirty)
            self._spawn("engine scraper", scrapes)

    async def stop(self) -> None:
        """Stop all tasks, then release the Lease, then free everything else."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.elector.release()
        for server in self._servers:
            await server.close()
        await asyncio.to_thread(self.plan_worker.stop)
        await asyncio.to_thread(self.recommendation_worker.stop)
        await asyncio.to_thread(self.placement_worker.stop)
        if self.reader is not None:
            await self.reader.close()
        await self.client.close()
        await self.intake.end()
        if self.admission is not None:
            await self.admission.end()

    def live(self) -> str:
        """Return the problem that a restart would cure, empty if there is none."""
        if self.failed.is_set():
            return "a task of the operator has died"
        silent = boot_time() - self.loop.heartbeat.at
        if silent > loop_dead_s(self.settings):
            return f"the loop has not turned for {silent:.0f} s"
        if self.mirrors.synced and self.mirrors.stalled_s > WATCH_DEAD_S:
            return f"a mirror received nothing for {self.mirrors.stalled_s:.0f} s"
        return ""

    def ready(self) -> str:
        """Return why this operator could not take over now, empty if it could."""
        waiting = [str(mirror.source) for mirror in self.mirrors.all if not mirror.synced]
        return f"not synced yet: {', '.join(waiting)}" if waiting else ""

    def refresh_ages(self) -> None:
        """Set the gauges that depend on the time."""
        metrics, planned = self.metrics, self.loop.heartbeat.planned_at
        metrics.leading.set(self.elector.leading)
        metrics.last_plan.set(float("nan") if planned is None else boot_time() - planned)
        metrics.show_metric_ages(
            self.loop.observer.scaler.ages.seconds(time.time()) if self.elector.leading else {}
        )
        for mirror in (*self.mirrors.all, self.fleet_plan_mirror, *self.rule_mirrors):
            metrics.watch_age.labels(mirror.source.kind.plural).set(mirror.age_s)

    def _new_mirror(self, source: MirrorSource, changed: Callable[[], None] | None = None) -> Mirror:
        """Return the mirror of a kind: by kopf and LISTs each tick for the operator's own kinds."""
        operator = self.settings.operator
        make, relist_s = (
            (IntakeMirror, operator.tick_seconds)
            if source.kind in INTAKE_KINDS
            else (Mirror, operator.relist_seconds)
        )
        return make(
            self.client,
            source,
            changed=changed or self._changed,
            clock=boot_time,
            relist_s=relist_s,
            drift=self.metrics.count_drift,
        )

    def _changed(self) -> None:
        self.loop.mark_dirty()

    def _fleet_plans_changed(self) -> None:
        self.loop.recommendations.wake()
        if self.settings.partition.enabled:  # consent, and the operator's own writes
            self.loop.mark_dirty()

    def _rules_changed(self) -> None:
        if self.loop.alert_rules is not None:
            self.loop.alert_rules.wake()

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
        """Run the mirrors, after the first try to take the Lease: then a new leader need not repeat LISTs,
        which take long in a large cluster.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_ELECTION_S):
                await self.elector.looked.wait()
        await self.mirrors.run()

    async def _read_metrics(self, reader: MetricsReader) -> None:
        assert self.settings.prometheus is not None  # noqa: S101 - there is no reader without it
        while True:
            await asyncio.sleep(self.settings.prometheus.interval_seconds)
            observed = self.loop.observation
            if self.elector.leading and observed is not None:
                await reader.read(observed.intents, observed.pod_names, dialects_of(observed.snapshot))
                self.loop.mark_dirty()

    def _led_llm_deployments(self) -> tuple[Intent, ...]:
        """Return the LLMDeployments that this operator decides about, none while another one leads."""
        observed = self.loop.observation
        return observed.intents if self.elector.leading and observed is not None else ()

    def _fleet_pods(self) -> FleetPods | None:
        """Return the LLMDeployments with their running pods, None before the first round of a term."""
        observed = self.loop.observation
        if observed is None:
            return None
        pods = engine_pods(observed.view, observed.snapshot.runtimes)
        return FleetPods(observed.intents, pods)

    def _served_versions(self) -> Mapping[str, str]:
        """Return what replicas of EngineRuntimes say of their version, where the operator reads pods."""
        return self.reader.served_versions() if isinstance(self.reader, EngineScraper) else {}

    def _make_reader(self) -> MetricsReader | EngineScraper | None:
        prometheus, scrape = self.settings.prometheus, self.settings.scrape
        if prometheus is not None:
            return MetricsReader(prometheus, now=time.time, clock=boot_time)
        return EngineScraper(scrape, now=time.time, clock=boot_time) if scrape.enabled else None

    def _make_loop(self) -> Reconciler:
        settings, guard, heartbeat = self.settings, TermGuard(self.elector), LoopHeartbeat(boot_time())
        expectations, retries = Expectations(self.mirrors.store), RetrySchedule()
        faults = FaultLog(self.metrics)

        def beat() -> None:
            heartbeat.at = boot_time()

        events = EventRecorder(self.client, self.elector.guard, self.identity, time.time)
        recommendations = self._make_recommendation_loop(events)
        observer = Observer(settings, Scaler(params_of(settings), self.reader), faults)
        statuses = StatusWriter(
            self.client, guard, expectations, retries, boot_time, written=beat, failed=faults.record
        )
        return Reconciler(
            mirrors=self.mirrors,
            elector=self.elector,
            guard=guard,
            observer=observer,
            worker=self.plan_worker,
            writer=ActionWriter(
                self.client,
                guard,
                self.mirrors,
                settings,
                expectations,
                retries,
                boot_time,
                written=beat,
                failed=faults.record,
            ),
            reporter=RoundReporter(
                observer, recommendations, statuses, events, self.metrics, self._served_versions
            ),
            recommendations=recommendations,
            expectations=expectations,
            retries=retries,
            metrics=self.metrics,
            faults=faults,
            tick_s=settings.operator.tick_seconds,
            clock=boot_time,
            now=time.time,
            heartbeat=heartbeat,
            executor=self._make_executor(guard, expectations) if settings.partition.enabled else None,
            managed=self._make_managed_layouts(guard, faults),
            alert_rules=self._make_alert_rules(faults),
        )

    def _make_alert_rules(self, faults: FaultLog) -> AlertRules | None:
        if not self.settings.prometheus_rule.per_llm_deployment:
            return None
        return AlertRules(
            self.client,
            self.rule_mirrors,
            self.settings.prometheus_rule,
            boot_time,
            changed=self._changed,
            failed=faults.record,
        )

    def _make_managed_layouts(self, guard: TermGuard, faults: FaultLog) -> ManagedLayouts | None:
        partition = self.settings.partition
        if not (partition.enabled and partition.mig_manager.enabled):
            return None
        return ManagedLayouts(
            self.client,
            guard,
            boot_time,
            lambda: datetime.now(UTC),
            partition.mig_manager.namespace,
            tangram.__version__,
            config_map=partition.mig_manager.config_map_name,
            cluster_policy=partition.mig_manager.cluster_policy_name,
            edits_cluster_policy=partition.mig_manager.edit_cluster_policy,
            times=MIGManagerTimes(config_sync_s=partition.mig_manager.config_sync_seconds),
            failed=faults.record,
        )

    def _make_executor(self, guard: TermGuard, expectations: Expectations) -> Executor:
        partition, lease = self.settings.partition, self.settings.leader_election
        return Executor(
            self.client,
            guard,
            self.fleet_plan_mirror,
            expectations,
            operator_label(lease.namespace, lease.name),
            boot_time,
            time.time,
            RepartitionLimits(
                settle_s=partition.settle_seconds,
                cut_s=partition.deadline_seconds,
                move_s=partition.move_deadline_seconds,
                managed_s=partition.mig_manager.deadline_seconds,
                nodes=partition.nodes,
                stopped=partition.stopped,
            ),
        )

    def _make_placements(self) -> Placements | None:
        admission = self.settings.admission
        if admission is None or not admission.predictions:
            return None
        fleets = ReviewedFleets(
            self.settings, self.mirrors, self.elector, lambda: self.loop.observation, time.time
        )
        return Placements(self.placement_worker, fleets.newest)

    def _make_admission(self, credentials: Credentials, of_kopf: list[IntakeMirror]) -> KopfSupervisor | None:
        """Return the webhook. Its kopf is not the intake's, so that it stays up where a watch fails."""
        admission, metrics = self.settings.admission, self.metrics
        if admission is None:
            return None
        certificate = WebhookCertificate(
            admission.certificate_folder, time.time, metrics.admission_certificate.set
        )
        return KopfSupervisor(
            admission_of(
                credentials,
                ReviewedCluster(self.mirrors, self.settings, self.client, self.placements),
                certificate,
                (self.settings.listen_host, admission.port),
                lambda outcome: metrics.admission_reviews.labels(outcome).inc(),
            ),
            [mirror for mirror in of_kopf if mirror.source.kind in REVIEWED_KINDS],
            check_s=self.settings.operator.tick_seconds,
            clock=boot_time,
            restarted=metrics.admission_restarts.inc,
            name="kopf of admission",
        )

    def _make_recommendation_loop(self, events: EventRecorder) -> RecommendationLoop:
        advice, lease = self.settings.advice, self.settings.leader_election
        operator = operator_label(lease.namespace, lease.name)
        return RecommendationLoop(
            worker=self.recommendation_worker,
            plans=FleetPlans(self.client, self.fleet_plan_mirror, events, boot_time, time.time, operator),
            metrics=self.metrics,
            clock=boot_time,
            debounce=Debounce(advice.settle_seconds, advice.latest_seconds),
            idle_s=advice.idle_seconds,
            changed=self._changed,
            longest_wait_s=advice.latest_seconds + advice.deadline_seconds,
        )
