"""A simulated Kubernetes: pods start on any node that fits, late, in any order, as on a real one.

It performs plans and returns the snapshot that an operator would observe. One `random.Random` chooses.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

from tangram.fleet import (
    ApplyDeployment,
    ApplyService,
    Claim,
    FleetSnapshot,
    Intent,
    Node,
    Plan,
    Pool,
    QuotaLimit,
    RemoveDeployment,
    ScaleDeployment,
    Shape,
    Workload,
)
from tests.support.fleet import snapshot


@dataclass
class Pod:
    template: tuple[Any, ...]
    node: str | None = None
    ready: bool = False
    leaving: bool = False


@dataclass
class Deployment:
    uid: str
    owner: Intent
    shape: Shape
    replicas: int
    template: tuple[Any, ...]
    max_unavailable: int
    generation: int
    settled: bool = False
    refused: bool = False  # the quota rejected the creation of a pod
    pods: list[Pod] = field(default_factory=list)

    @property
    def living(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.leaving]

    @property
    def updated(self) -> list[Pod]:
        return [pod for pod in self.living if pod.template == self.template]

    @property
    def available(self) -> int:
        return sum(pod.ready for pod in self.living)


class Kubernetes:
    """Nodes, Deployments and pods. `desired` are the replicas that the scaling law recorded."""

    def __init__(
        self, nodes: list[Node], pools: tuple[Pool, ...], intents: list[Intent], rng: Random
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.down: set[str] = set()
        self.pools, self.rng = pools, rng
        self.intents = {intent.uid: intent for intent in intents}
        self.deployments: dict[tuple[str, Shape], Deployment] = {}
        self.orphans: list[tuple[Shape, Pod]] = []  # pods of deleted Deployments
        self.foreign_pods: list[tuple[str, str]] = []  # (node, resource)
        self.desired: dict[str, int] = {}
        self.counted: dict[str, Shape] = {}  # the shape in whose replicas `desired` counts
        self.services: set[tuple[str, str]] = set()
        self.quota: int | None = None  # pods in the namespace, terminating ones included
        self.shows_quota = True
        self._uids = count()

    # --- observation

    def seen(self) -> FleetSnapshot:
        claims = [Claim(node, resource, 1, None) for node, resource in self.foreign_pods]
        claims += [Claim(pod.node, shape.resource, 1, None) for shape, pod in self.orphans if pod.node]
        workloads = []
        for deployment in self.deployments.values():
            resource, owner = deployment.shape.resource, deployment.owner.uid
            claims += [Claim(pod.node, resource, 1, owner) for pod in deployment.pods if pod.node]
            workloads.append(self._workload(deployment))
        return snapshot(
            *self.nodes.values(),
            claims=tuple(claims),
            workloads=tuple(workloads),
            pools=self.pools,
            desired=tuple(sorted(self.desired.items())),
            desired_of=tuple(sorted(self.counted.items())),
            services=tuple(sorted(self.services)),
            quotas=self._quotas(),
        )

    def used(self) -> int:
        """Pods that the quota counts."""
        return len(self.orphans) + sum(len(deployment.pods) for deployment in self.deployments.values())

    def _quotas(self) -> tuple[QuotaLimit, ...]:
        if self.quota is None or not self.shows_quota:
            return ()
        return (QuotaLimit("ns", "pods", "pods", float(self.quota), float(self.used())),)

    @staticmethod
    def _workload(deployment: Deployment) -> Workload:
        living = deployment.living
        return Workload(
            uid=deployment.uid,
            name=f"{deployment.owner.name}-{deployment.shape.variant}",
            namespace=deployment.owner.namespace,
            owner_uid=deployment.owner.uid,
            shape=deployment.shape,
            replicas=deployment.replicas,
            ready=deployment.available,
            available=deployment.available,
            updated=len(deployment.updated),
            settled=deployment.settled,
            total=len(living),
            owner_generation=deployment.generation,
            in_place=deployment.max_unavailable > 0,
            products=deployment.template[0],
            declared=deployment.template[4],
            refused="FailedCreate: exceeded quota: pods" if deployment.refused else "",
        )

    def state(self) -> Any:
        """Return all state that may differ between two instants."""
        return (
            {
                key: (
                    d.replicas,
                    d.template,
                    d.max_unavailable,
                    sorted((p.node or "", p.ready) for p in d.pods),
                )
                for key, d in self.deployments.items()
            },
            dict(self.desired),
            dict(self.counted),
            len(self.orphans),
        )

    # --- the operator's writes

    def perform(self, plan: Plan) -> None:
        running: dict[str, set[Shape]] = {}
        for uid, shape in self.deployments:
            running.setdefault(uid, set()).add(shape)
        for action in plan.actions:
            match action:
                case ApplyDeployment():
                    self._apply(action)
                case RemoveDeployment():
                    self._remove(lambda d, uid=action.uid: d.uid == uid)
                case ScaleDeployment():
                    self._scale(action)
                case ApplyService():
                    owner = self.intents[action.owner_uid]
                    self.services.add((owner.namespace, owner.name))
        self._adopt(plan, running)

    def _adopt(self, plan: Plan, running: Mapping[str, set[Shape]]) -> None:
        """Adopt the decided replicas, as the operator's scaler does."""
        for decision in plan.decisions:
            uid, shape = decision.owner_uid, decision.shape
            shapes = running.get(uid, set())
            if shape is None or uid not in self.desired:
                continue
            if self.counted.get(uid) == shape or shapes == {shape} or (not shapes and decision.placed):
                self.counted[uid], self.desired[uid] = shape, decision.desired

    def _apply(self, action: ApplyDeployment) -> None:
        owner = self.intents[action.owner_uid]
        template = (
            *(action.products, action.max_model_len, action.spread, action.node_selectors),
            action.declared,
        )
        key = (action.owner_uid, action.shape)
        was = self.deployments.get(key)
        if was is None:
            uid = f"dep-{next(self._uids)}"
            self.deployments[key] = Deployment(
                uid, owner, action.shape, action.replicas, template, action.max_unavailable, owner.generation
            )
            return
        new = (action.replicas, template, action.max_unavailable, owner.generation)
        if new != (was.replicas, was.template, was.max_unavailable, was.generation):
            was.replicas, was.template, was.max_unavailable, was.generation = new
            was.settled = False

    def _scale(self, action: ScaleDeployment) -> None:
        for deployment in self.deployments.values():
            if deployment.uid == action.uid and deployment.replicas > action.replicas:
                deployment.replicas, deployment.settled = action.replicas, False

    def _remove(self, is_removed: Callable[[Deployment], bool]) -> None:
        for key, deployment in list(self.deployments.items()):
            if is_removed(deployment):
                del self.deployments[key]
                self.orphans += [(deployment.shape, pod) for pod in deployment.pods if pod.node]
                for pod in deployment.pods:
                    pod.leaving = True

    # --- edits by users

    def change(self, intent: Intent) -> None:
        self.intents[intent.uid] = intent
        for deployment in self.deployments.values():
            if deployment.owner.uid == intent.uid:
                deployment.owner = intent
        self.desired.setdefault(intent.uid, intent.min_replicas)
        low, high = intent.min_replicas, intent.max_replicas
        self.desired[intent.uid] = min(max(self.desired[intent.uid], low), high)

    def delete(self, uid: str) -> None:
        owner = self.intents.pop(uid)
        self.desired.pop(uid, None)
        self.counted.pop(uid, None)
        self.services.discard((owner.namespace, owner.name))
        self._remove(lambda d: d.owner.uid == uid)

    # --- nodes and foreign pods

    def free(self) -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        for node in self.nodes.values():
            for resource, number in node.allocatable:
                counts[node.name, resource] += number
        for device in self.foreign_pods:
            counts[device] -= 1
        for shape, pod in self.orphans:
            counts[pod.node, shape.resource] -= 1
        for deployment in self.deployments.values():
            for pod in deployment.pods:
                if pod.node:
                    counts[pod.node, deployment.shape.resource] -= 1
        return counts

    def cordon(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], usable=False)

    def lose(self, name: str) -> None:
        """Make the node unreachable: its pods become unready and are evicted later."""
        self.cordon(name)
        self.down.add(name)
        for deployment in self.deployments.values():
            for pod in deployment.pods:
                pod.ready = pod.ready and pod.node != name

    def regain(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], usable=True)
        self.down.discard(name)

    def foreign_pod_starts(self) -> None:
        free = self.free()
        places = [place for place in sorted(free) if free[place] > 0 and self.nodes[place[0]].usable]
        if places:
            self.foreign_pods.append(self.rng.choice(places))

    def foreign_pod_ends(self) -> None:
        if self.foreign_pods:
            self.foreign_pods.pop(self.rng.randrange(len(self.foreign_pods)))

    # --- time

    def pass_time(self, *, promptly: bool = False) -> None:
        """Let controllers, the scheduler and kubelets do a part of their work, or all of it."""

        def happens(share: float = 0.6) -> bool:
            return promptly or self.rng.random() < share

        for deployment in self.deployments.values():
            if happens(0.8):
                self._control(deployment)
        self._schedule(happens)
        for deployment in self.deployments.values():
            for pod in list(deployment.pods):
                self._kubelet(deployment, pod, happens)
        self.orphans = [(shape, pod) for shape, pod in self.orphans if not happens()]
        if promptly:
            for deployment in self.deployments.values():
                self._control(deployment)

    def _kubelet(self, deployment: Deployment, pod: Pod, happens: Callable[[], bool]) -> None:
        if pod.leaving or pod.node in self.down:
            if happens() or pod.node is None:
                deployment.pods.remove(pod)
        elif pod.node and not pod.ready:
            pod.ready = happens()

    def _schedule(self, happens: Callable[[], bool]) -> None:
        free = self.free()
        waiting = [(d, pod) for d in self.deployments.values() for pod in d.living if pod.node is None]
        self.rng.shuffle(waiting)
        for deployment, pod in waiting:
            products, _, _, selectors, declared = pod.template
            places = [
                node.name
                for node in sorted(self.nodes.values(), key=lambda n: n.name)
                if node.usable
                and free[node.name, deployment.shape.resource] > 0
                and any(
                    set(s) <= set(node.labels)
                    for s in ((selectors or ((),)) if node.product in products else declared)
                    if node.product in products or not node.product
                )
            ]
            if places and happens():
                pod.node = self.rng.choice(places)
                free[pod.node, deployment.shape.resource] -= 1

    def _control(self, deployment: Deployment) -> None:
        """One pass of the Deployment controller: RollingUpdate, with a surge of one or in place."""
        deployment.settled = True
        surge = 0 if deployment.max_unavailable else 1
        old = [pod for pod in deployment.living if pod.template != deployment.template]
        limit = deployment.replicas + (surge if old else 0)
        for pod in sorted(old, key=lambda p: (p.ready, p.node is not None)):
            if not pod.ready and pod.node is None:
                pod.leaving = True  # unhealthy old pods go first
        new = deployment.updated
        for pod in sorted(new, key=lambda p: (p.ready, p.node is not None))[
            : max(0, len(new) - deployment.replicas)
        ]:
            pod.leaving = True
        if len(deployment.living) > limit:
            for pod in sorted(deployment.living, key=lambda p: (p.template == deployment.template, p.ready)):
                if len(deployment.living) <= limit:
                    break
                pod.leaving = True
        old = [pod for pod in deployment.living if pod.template != deployment.template]
        for pod in sorted(old, key=lambda p: p.ready):
            left = deployment.available - pod.ready
            spare = len(deployment.living) > deployment.replicas - deployment.max_unavailable
            if left >= deployment.replicas - deployment.max_unavailable if pod.ready else spare:
                pod.leaving = True
        while len(deployment.living) < limit and len(deployment.updated) < deployment.replicas:
            deployment.refused = self.quota is not None and self.used() >= self.quota
            if deployment.refused:
                break
            deployment.pods.append(Pod(deployment.template))
        else:
            deployment.refused = False
        deployment.pods = [pod for pod in deployment.pods if pod.node or not pod.leaving]
