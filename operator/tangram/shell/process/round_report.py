"""Report one round to users: statuses of LLMDeployments and GPUPools, Events, metrics and log lines."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from tangram.api import accepted_block
from tangram.eligibility.devices.node_devices import left_out_notes
from tangram.eligibility.reasons import Reason
from tangram.fleet import Advice, Decision, Intent, ParsedIntent, Plan
from tangram.kube.kinds import ENGINE_RUNTIMES, GPU_POOLS, LLM_DEPLOYMENTS, Object, uid_of
from tangram.plan import render_status, transitions
from tangram.plan.status.status_block import unrendered_status
from tangram.shell.measure.fault_log import FaultLog, display_name
from tangram.shell.measure.metrics import OperatorMetrics, ready_replicas
from tangram.shell.process.observation import Observation, Observer
from tangram.shell.process.recommendation_loop import RecommendationLoop
from tangram.shell.report.events import EventRecorder
from tangram.shell.report.pool_status import StatusPacer, pool_statuses
from tangram.shell.report.runtime_status import runtime_statuses
from tangram.shell.report.status_writer import NewStatus, StatusWriter

log = logging.getLogger(__name__)


def llm_deployment_status(
    decision: Decision,
    intent: ParsedIntent,
    observed: Observation,
    obj: Object,
    faults: FaultLog,
    advice_of: Callable[[Intent, Mapping[str, object]], Advice | None],
) -> Object:
    """Return the status of one LLMDeployment. If its present status cannot be read, the new one is rendered
    without it; if the new one cannot be rendered, it says so.
    """
    scaling, present = observed.scaling.get(intent.uid), obj.get("status") or {}
    accepted_spec = present.get("acceptedSpec")
    if isinstance(intent, Intent) and _is_in_force(intent, decision):
        accepted_spec = accepted_block(obj, intent)

    def rendered(before: Object) -> Object:
        return render_status(
            decision,
            intent,
            observed.snapshot,
            scaling.signal if scaling else None,
            scaling.decision if scaling else None,
            before,
            observed.now,
            advice_of(intent, before) if isinstance(intent, Intent) else None,
        )

    name = f"{intent.namespace}/{intent.name}"
    status = (
        faults.run("status", name, "", lambda: rendered(present))
        or faults.run("status", name, "", lambda: rendered({}))
        or unrendered_status(intent, present, observed.now)
    )
    return status if accepted_spec is None else status | {"acceptedSpec": accepted_spec}


def _is_in_force(intent: Intent, decision: Decision) -> bool:
    """Whether the present spec is accepted, and its checkpoint known."""
    is_valid = decision.accepted_reason == Reason.VALID and intent.next_model_uri is None
    return is_valid and decision.facts is not None


@dataclass(slots=True)
class RoundReporter:
    """Reports each round. An error about one object does not keep others from being reported."""

    observer: Observer
    recommendations: RecommendationLoop
    statuses: StatusWriter
    events: EventRecorder
    metrics: OperatorMetrics
    served_versions: Callable[[], Mapping[str, str]] = dict  # of EngineRuntimes, by image
    pool_pacer: StatusPacer = field(default_factory=StatusPacer)
    _notes: frozenset[str] = frozenset()  # of the last round, as they were logged

    async def report(self, observed: Observation, plan: Plan) -> None:
        """Write the statuses that changed, then the Events about the changes. Raises NotLeader."""
        faults = self.observer.faults
        objects = {uid_of(obj): obj for obj in observed.view.llm_deployments}
        decisions = {decision.owner_uid: decision for decision in plan.decisions}
        ready = ready_replicas(observed.snapshot.workloads)
        statuses: list[NewStatus] = []
        self.metrics.clear_fleet()
        for intent in observed.parsed:
            decision = decisions.get(intent.uid)
            if decision is None:
                continue
            obj = objects[intent.uid]
            advice_of = self.recommendations.advice
            status = llm_deployment_status(decision, intent, observed, obj, faults, advice_of)
            statuses.append(NewStatus(obj, status))
            scaling = observed.scaling.get(intent.uid)
            need = scaling.decision.need if scaling else None
            show = partial(self.metrics.show, intent, decision, status, ready.get(intent.uid, 0), need)
            faults.run("metrics", f"{intent.namespace}/{intent.name}", "", show)
        faults.run("nodes", "nodes", "", partial(self._log_notes, observed))
        statuses += self._pool_statuses(observed)
        versions = self.served_versions()
        statuses += [
            NewStatus(obj, status, ENGINE_RUNTIMES)
            for obj, status in runtime_statuses(
                observed.view.engine_runtimes, observed.snapshot, observed.now, versions
            )
        ]
        for written in await self.statuses.write(statuses):
            if written.kind == LLM_DEPLOYMENTS:
                present = written.obj.get("status") or {}
                render = partial(transitions, present, written.status)
                for note in faults.run("events", display_name(written.obj), "", render) or ():
                    self.events.add(written.obj, note)

    def forget(self, deployments: set[str], pools: set[str]) -> None:
        """Forget deleted objects; the arguments are the UIDs of those that exist."""
        self.statuses.forget(deployments | pools)
        self.pool_pacer.forget(pools)

    def _log_notes(self, observed: Observation) -> None:
        """Log each note on left-out devices and each warning about a spec when it begins and when it ends."""
        nodes = observed.snapshot.nodes
        self.metrics.show_nodes(nodes)
        warnings = (text for intent in observed.intents for text in intent.warnings)
        notes = frozenset((*left_out_notes(nodes), *warnings))
        for note in sorted(notes - self._notes):
            log.warning("%s", note)
        for note in sorted(self._notes - notes):
            log.info("no longer: %s", note)
        self._notes = notes

    def _pool_statuses(self, observed: Observation) -> list[NewStatus]:
        pools = observed.view.gpu_pools
        if not pools:
            return []
        use, on_skipped = self.recommendations.pool_use(), self.observer.record_unreadable
        statuses = pool_statuses(pools, observed.snapshot, use, observed.now, on_skipped)
        return [
            NewStatus(obj, self.pool_pacer.paced(obj, status, observed.now), GPU_POOLS)
            for obj, status in statuses
        ]
