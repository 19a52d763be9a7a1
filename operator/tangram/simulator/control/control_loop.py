"""Control rounds: each scaling law decides when it is due, and the fleet is planned for what they desire."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import index

from tangram.fleet import Intent, Shape
from tangram.scaling.scrapes import MetricsView
from tangram.simulator.cluster.cluster import SimulatedCluster
from tangram.simulator.cluster.event_queue import EventQueue
from tangram.simulator.cluster.observed_fleet import DesiredReplicas, observed_workloads
from tangram.simulator.cluster.simulated_pod import SimulatedPod
from tangram.simulator.control.fleet_planner import FleetPlanner
from tangram.simulator.control.operator_law import OperatorLaw
from tangram.simulator.controllers import Controller, ControllerView
from tangram.simulator.metrics import PrometheusDown, SimulatedPrometheus

REMEMBERED_S = 3600.0  # queries reach back no further: pods that ended earlier are not asked about


@dataclass(frozen=True, slots=True)
class ShapeReplicas:
    """Replicas of one Deployment."""

    shape: Shape
    ordered: int
    ready: int


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """Replicas of one LLMDeployment after a control round."""

    at: float
    desired: int
    ordered: int  # of its Deployments
    ready: int
    shapes: tuple[ShapeReplicas, ...] = ()  # of each shape that has any, sorted

    def on(self, shape: Shape) -> ShapeReplicas:
        """Return the replicas on one shape."""
        return next(
            (replicas for replicas in self.shapes if replicas.shape == shape), ShapeReplicas(shape, 0, 0)
        )


@dataclass(slots=True, eq=False)
class ScaledDeployment:
    """One LLMDeployment under its scaling law."""

    intent: Intent
    controller: Controller
    desired: int
    due_at: float = 0.0
    counts: list[ReplicaCount] = field(default_factory=list)
    pods: list[SimulatedPod] = field(default_factory=list)  # that Prometheus may be asked about
    blind_actions: int = 0  # changes of the desired replicas during an outage of Prometheus
    blind_scale_downs: int = 0  # of these, the ones downwards

    @property
    def planned_for(self) -> DesiredReplicas:
        """What plans are made for. The operator's law alone goes on from them, and knows of shapes."""
        law = self.controller
        return law.desired(self.desired) if isinstance(law, OperatorLaw) else DesiredReplicas(self.desired)


class ControlLoop:
    """A round every `round_s`."""

    def __init__(
        self,
        scaled: Mapping[str, ScaledDeployment],
        cluster: SimulatedCluster,
        planner: FleetPlanner,
        prometheus: SimulatedPrometheus,
        events: EventQueue,
        round_s: float,
    ) -> None:
        self.scaled, self.cluster, self.planner = scaled, cluster, planner
        self.prometheus, self.events, self.round_s = prometheus, events, round_s

    def begin(self) -> None:
        """Place the first replicas, which serve at once, and let the first round follow."""
        self.cluster.starts_at_once = True
        for _ in range(len(self.scaled) + 1):  # what one round places may make room for the next
            self._plan(0.0)
        self.cluster.starts_at_once = False
        self.events.add(self.round_s, self._round)

    def _round(self, at: float) -> None:
        for scaled in self.scaled.values():
            if at >= scaled.due_at:
                scaled.due_at = at + scaled.controller.interval_s
                self._decide(scaled, at)
        self._plan(at)
        self.events.add(at + self.round_s, self._round)

    def _decide(self, scaled: ScaledDeployment, at: float) -> None:
        intent, before = scaled.intent, scaled.desired
        ordered, ready = self._replicas(intent.uid)
        scaled.pods = [pod for pod in scaled.pods if pod.gone_at > at - REMEMBERED_S]
        view = ControllerView(
            now=at,
            metrics=MetricsView(self.prometheus, [pod.name for pod in scaled.pods], at),
            replicas=before,
            ready=ready,
            starting=max(0, ordered - ready),
            min_replicas=intent.min_replicas,
            max_replicas=intent.max_replicas,
            workloads=observed_workloads(self.cluster, intent.uid),
        )
        try:
            desired = index(scaled.controller.decide(view))
        except PrometheusDown:  # a law that does not handle it holds
            desired = before
        scaled.desired = min(max(desired, intent.min_replicas), intent.max_replicas)
        if scaled.desired != before and self.prometheus.is_down(at):
            scaled.blind_actions += 1
            scaled.blind_scale_downs += scaled.desired < before

    def _plan(self, at: float) -> None:
        laws = {uid: s.controller for uid, s in self.scaled.items() if isinstance(s.controller, OperatorLaw)}
        actions = self.planner.actions(
            self.cluster,
            {uid: scaled.planned_for for uid, scaled in self.scaled.items()},
            at,
            {uid: law.state.starts for uid, law in laws.items()},
        )
        for decision in self.planner.decisions:
            uid = decision.owner_uid
            if uid in laws:
                laws[uid].adopt(decision, [w for w in self.planner.workloads if w.owner_uid == uid])
                self.scaled[uid].desired = self.scaled[uid].planned_for.replicas
        self.cluster.perform(actions, at)
        for uid, scaled in self.scaled.items():
            count = ReplicaCount(at, scaled.desired, *self._replicas(uid), self._by_shape(uid))
            if not scaled.counts or replace(scaled.counts[-1], at=at) != count:
                scaled.counts.append(count)

    def _replicas(self, uid: str) -> tuple[int, int]:
        """Return the replicas of the Deployments of an LLMDeployment, and how many are ready."""
        deployments = self.cluster.of_owner(uid)
        return sum(d.replicas for d in deployments), sum(d.ready for d in deployments)

    def _by_shape(self, uid: str) -> tuple[ShapeReplicas, ...]:
        deployments = sorted(self.cluster.of_owner(uid), key=lambda d: d.shape)
        return tuple(
            ShapeReplicas(d.shape, d.replicas, d.ready) for d in deployments if d.replicas or d.ready
        )
