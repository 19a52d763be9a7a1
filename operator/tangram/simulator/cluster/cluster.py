"""A small Kubernetes that performs plans: Deployments make pods, which get devices, start, drain and end."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from tangram.capacity.load.replica_simulation import ReplicaSimulation
from tangram.fleet import (
    ACCEPT_AFTER_SIGTERM_S,
    Action,
    ApplyDeployment,
    Claim,
    Intent,
    Node,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
)
from tangram.simulator.cluster.deployment_state import DeploymentState
from tangram.simulator.cluster.device_supply import DeviceSupply
from tangram.simulator.cluster.event_queue import EventQueue
from tangram.simulator.cluster.faults import InjectedFaults, NodeFailure
from tangram.simulator.cluster.simulated_pod import PodPhase, SimulatedPod
from tangram.simulator.cluster.start_times import StartTimes, luck

DRAIN_POLL_S = 1.0  # a draining pod ends this much later than its last request at most


class ScaleDownOrder(StrEnum):
    """Which ready pods end first; those that are not ready always end before them."""

    NEWEST = "newest"  # as the ReplicaSet controller does
    LEAST_LOADED = "least loaded"  # as with pod deletion costs


@dataclass(frozen=True, slots=True)
class ClusterTimes:
    """Times of the control plane. The last two are the defaults of Kubernetes."""

    scale_down: ScaleDownOrder = ScaleDownOrder.NEWEST
    node_missed_after_s: float = 40.0  # node-monitor-grace-period: until then requests go to a stopped node
    pods_evicted_after_s: float = 300.0  # after that: tolerationSeconds of unreachable nodes


class PodObserver(Protocol):
    """What is called when requests may go to a pod, and when a pod's engine begins and ends."""

    def engine_started(self, pod: SimulatedPod, at: float) -> None:
        """The engine answers; it is scraped from now on."""

    def endpoint_added(self, pod: SimulatedPod, at: float) -> None:
        """Requests may go to the pod."""

    def pod_gone(self, pod: SimulatedPod, at: float) -> None:
        """The pod is gone."""


class SimulatedCluster:
    """Nodes, Deployments and pods. `version` grows with each change that the API server would show."""

    def __init__(
        self,
        nodes: Iterable[Node],
        intents: Iterable[Intent],
        events: EventQueue,
        observer: PodObserver,
        engine_of: Callable[[str, Shape], ReplicaSimulation],
        start_times: Mapping[str, StartTimes],
        seed: int,
        *,
        foreign_claims: Iterable[Claim] = (),
        faults: InjectedFaults | None = None,
        times: ClusterTimes | None = None,
    ) -> None:
        self.supply = DeviceSupply(nodes, foreign_claims)
        self.intents = {intent.uid: intent for intent in intents}
        self.events, self.observer, self.engine_of = events, observer, engine_of
        self.start_times, self.seed = start_times, seed
        self.faults, self.times = faults or InjectedFaults(), times or ClusterTimes()
        self.deployments: dict[tuple[str, Shape], DeploymentState] = {}
        self.endpoints: dict[str, list[SimulatedPod]] = {uid: [] for uid in self.intents}
        self.pods: list[SimulatedPod] = []  # all that there ever were
        self.version = 0
        self.starts_at_once = False  # pods that are created are ready at once, their nodes have the image
        self._ordinals: dict[tuple[str, Shape], int] = defaultdict(int)
        self._pending: list[SimulatedPod] = []  # in the order of creation
        for failure in self.faults.node_failures:
            events.add(failure.at_s, partial(self._fail_node, failure))
        for quota in self.faults.pod_quotas:
            for at in (quota.begin_s, quota.end_s):
                if 0 < at < float("inf"):
                    events.add(at, self._change_quota)

    # -- plans ---------------------------------------------------------------------------------------------

    def perform(self, actions: Iterable[Action], at: float) -> None:
        """Carry out what concerns Deployments; Services exist, and checkpoints are inspected."""
        for action in actions:
            if isinstance(action, ApplyDeployment):
                deployment = self._deployment(action.owner_uid, action.shape)
                deployment.products, deployment.removed = action.products, False
                deployment.node_selectors, deployment.declared = action.node_selectors, action.declared
                self._scale(deployment, action.replicas, at)
            elif isinstance(action, ScaleDeployment | RemoveDeployment):
                self._lower(action, at)

    def _lower(self, action: ScaleDeployment | RemoveDeployment, at: float) -> None:
        most = action.replicas if isinstance(action, ScaleDeployment) else 0
        for deployment in self.deployments.values():
            if deployment.uid == action.uid:
                is_removed = isinstance(action, RemoveDeployment)
                self.version += is_removed != deployment.removed
                deployment.removed = is_removed
                self._scale(deployment, min(deployment.replicas, most), at)

    def of_owner(self, owner_uid: str) -> list[DeploymentState]:
        """Return the Deployments of an LLMDeployment."""
        return [deployment for (uid, _), deployment in self.deployments.items() if uid == owner_uid]

    def pods_of(self, owner_uid: str) -> list[SimulatedPod]:
        """Return the pods of an LLMDeployment that are not gone."""
        return [pod for deployment in self.of_owner(owner_uid) for pod in deployment.pods]

    def _deployment(self, owner_uid: str, shape: Shape) -> DeploymentState:
        key = owner_uid, shape
        if key not in self.deployments:
            self.deployments[key] = DeploymentState(self.intents[owner_uid], shape)
        return self.deployments[key]

    def _scale(self, deployment: DeploymentState, replicas: int, at: float) -> None:
        if replicas != deployment.replicas:
            deployment.replicas = replicas
            self.version += 1
        self._reconcile(deployment, at)

    # -- replicas ------------------------------------------------------------------------------------------

    def _change_quota(self, at: float) -> None:
        self.version += 1  # plans know quotas: replicas may be ordered that had no room
        self._reconcile_all(at)

    def _reconcile_all(self, at: float) -> None:
        for deployment in self.deployments.values():
            self._reconcile(deployment, at)

    def _reconcile(self, deployment: DeploymentState, at: float) -> None:
        """Create missing pods, as far as the quota allows, or end the pods that are too many."""
        counted = deployment.counted
        for pod in sorted(counted, key=self._end_order)[: max(0, len(counted) - deployment.replicas)]:
            self._end(pod, deployment, at)
        refused = ""
        for _ in range(deployment.replicas - len(counted)):
            refused = self._refusal(deployment.owner.namespace, at)
            if refused:
                break
            self._create(deployment, at)
        if refused != deployment.refused:
            deployment.refused = refused
            self.version += 1

    def _end_order(self, pod: SimulatedPod) -> tuple[int, float, float]:
        """Unscheduled pods first, then those that are not ready, then ready ones; at last the newer first."""
        stage = {PodPhase.PENDING: 0, PodPhase.STARTING: 1, PodPhase.LOST: 1}.get(pod.phase, 2)
        by_load = self.times.scale_down is ScaleDownOrder.LEAST_LOADED
        return stage, float(pod.outstanding) if by_load else 0.0, -pod.ordinal

    def _refusal(self, namespace: str, at: float) -> str:
        most = self.faults.pod_quota(namespace, at)
        used = self.pods_in(namespace)
        if most is None or used < most:
            return ""
        return f"exceeded quota: simulated, requested: pods=1, used: pods={used}, limited: pods={most}"

    def pods_in(self, namespace: str) -> int:
        """Return the pods of a namespace that a quota counts."""
        return sum(len(d.pods) for d in self.deployments.values() if d.owner.namespace == namespace)

    def _create(self, deployment: DeploymentState, at: float) -> None:
        uid, shape = deployment.owner.uid, deployment.shape
        ordinal = self._ordinals[uid, shape]
        self._ordinals[uid, shape] += 1
        pod = SimulatedPod(f"{deployment.name}-{ordinal}", ordinal, uid, shape, at)
        deployment.pods.append(pod)
        self.pods.append(pod)
        self._pending.append(pod)
        self.version += 1
        if self.starts_at_once:
            self._schedule_pending(at)
        else:
            self.events.add(at + self.start_times[uid].scheduling_s, self._schedule_pending)

    # -- starts --------------------------------------------------------------------------------------------

    def _schedule_pending(self, at: float) -> None:
        for pod in tuple(self._pending):
            if not self.starts_at_once and at < pod.created_at + self.start_times[pod.owner_uid].scheduling_s:
                continue
            node = self.supply.node_for(self.deployments[pod.owner_uid, pod.shape])
            if node is not None:
                self._pending.remove(pod)
                self._start(pod, node, at)
            elif pod.unscheduled_since is None:
                pod.unscheduled_since = at
                self.version += 1

    def _start(self, pod: SimulatedPod, node: str, at: float) -> None:
        self.supply.take(node, pod.shape.resource, pod.shape.gpus)
        pod.node, pod.scheduled_at, pod.phase, pod.unscheduled_since = node, at, PodPhase.STARTING, None
        self.version += 1
        if self.starts_at_once:
            self.supply.image_at.setdefault(node, at)
            self._ready(pod, at)
            self._join(pod, at)
        elif not self.faults.crashes(pod.owner_uid, pod.shape, pod.created_at):
            self.events.add(self._ready_at(pod, node, at), partial(self._ready, pod))

    def _ready_at(self, pod: SimulatedPod, node: str, at: float) -> float:
        times, names = self.start_times[pod.owner_uid], (pod.owner_uid, pod.shape, pod.ordinal)
        image_at = self.supply.image_at.get(node)
        if image_at is None:  # pods that start there meanwhile wait for the same pull
            pull_s = times.image_pull.quantile(luck(self.seed, *names, "pull"))
            image_at = self.supply.image_at[node] = at + pull_s * self.faults.pull_factor(at)
        load_s = times.weight_load.quantile(luck(self.seed, *names, "load"))
        warm_up_s = times.warm_up.quantile(luck(self.seed, *names, "warm-up"))
        return max(at, image_at) + load_s + warm_up_s

    def _ready(self, pod: SimulatedPod, at: float) -> None:
        if pod.phase is not PodPhase.STARTING:  # it was ended or lost meanwhile
            return
        pod.phase, pod.ready_at = PodPhase.READY, at
        pod.replica = self.engine_of(pod.owner_uid, pod.shape)
        self.version += 1
        self.observer.engine_started(pod, at)
        if not self.starts_at_once:
            lag_s = self.start_times[pod.owner_uid].endpoint_lag_s
            self.events.add(at + lag_s, partial(self._join, pod))

    def _join(self, pod: SimulatedPod, at: float) -> None:
        if pod.phase is PodPhase.READY and not pod.in_endpoints:
            pod.in_endpoints = True
            self.endpoints[pod.owner_uid].append(pod)
            self.observer.endpoint_added(pod, at)

    # -- ends ----------------------------------------------------------------------------------------------

    def _end(self, pod: SimulatedPod, deployment: DeploymentState, at: float) -> None:
        self.version += 1
        if pod.phase is not PodPhase.READY:
            self._gone(pod, deployment, at)
            return
        pod.phase, pod.draining_at = PodPhase.DRAINING, at
        lag_s = self.start_times[pod.owner_uid].endpoint_lag_s
        self.events.add(at + lag_s, partial(self._leave_endpoints, pod))
        self.events.add(at + max(lag_s, ACCEPT_AFTER_SIGTERM_S), partial(self._drain, pod, deployment))

    def _drain(self, pod: SimulatedPod, deployment: DeploymentState, at: float) -> None:
        if pod.phase is not PodPhase.DRAINING or pod.replica is None:
            return
        pod.replica.advance(at)
        if pod.replica.is_idle and pod.replica.now <= at:
            self._gone(pod, deployment, at)
        elif at >= pod.draining_at + deployment.owner.termination_grace_s:
            pod.lost_at = at
            self._gone(pod, deployment, at)
        else:
            self.events.add(at + DRAIN_POLL_S, partial(self._drain, pod, deployment))

    def _leave_endpoints(self, pod: SimulatedPod, _: float) -> None:
        if pod.in_endpoints:
            pod.in_endpoints = False
            self.endpoints[pod.owner_uid].remove(pod)

    def _gone(self, pod: SimulatedPod, deployment: DeploymentState, at: float) -> None:
        if pod.holds_devices:
            self.supply.take(pod.node, pod.shape.resource, -pod.shape.gpus)
        elif pod in self._pending:
            self._pending.remove(pod)
        self._leave_endpoints(pod, at)
        pod.phase, pod.gone_at = PodPhase.GONE, at
        deployment.pods.remove(pod)
        self.version += 1
        self.observer.pod_gone(pod, at)
        if self._pending or deployment.refused:
            self.events.add(at, self._after_release)

    def _after_release(self, at: float) -> None:
        self._reconcile_all(at)
        self._schedule_pending(at)

    # -- nodes ---------------------------------------------------------------------------------------------

    def _fail_node(self, failure: NodeFailure, at: float) -> None:
        self.supply.failed.add(failure.node)
        for pod in self.pods:
            if pod.node == failure.node and pod.holds_devices:
                if pod.replica is not None:
                    pod.replica.advance(at)
                pod.lost_at = at
                if pod.phase is PodPhase.DRAINING:
                    self._gone(pod, self.deployments[pod.owner_uid, pod.shape], at)
                else:
                    pod.phase = PodPhase.LOST
        missed_at = at + self.times.node_missed_after_s
        self.events.add(missed_at, partial(self._miss_node, failure.node))
        evicted_at = missed_at + self.times.pods_evicted_after_s
        self.events.add(evicted_at, partial(self._evict, failure.node))
        if failure.back_at_s is not None:
            self.events.add(max(at, failure.back_at_s), partial(self._recover_node, failure.node))

    def _miss_node(self, node: str, at: float) -> None:
        if node not in self.supply.failed:
            return
        self.supply.missed.add(node)
        self.version += 1
        for pod in self.pods:
            if pod.node == node and pod.phase is PodPhase.LOST:
                self._leave_endpoints(pod, at)

    def _evict(self, node: str, at: float) -> None:
        """Replace the pods of a node that has stopped."""
        for deployment in tuple(self.deployments.values()):
            for pod in tuple(deployment.pods):
                if pod.node == node and pod.phase is PodPhase.LOST:
                    self._gone(pod, deployment, at)
        self._reconcile_all(at)

    def _recover_node(self, node: str, at: float) -> None:
        self.supply.failed.discard(node)
        self.supply.missed.discard(node)
        self.version += 1
        self._evict(node, at)
        self._schedule_pending(at)
