"""A stand-in for Kubernetes that is as wilful as the real one: pods go anywhere they may, late, in any order.

It performs plans, and shows what an operator would see. All whims come from one `random.Random`.
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
    refused: bool = False  # the quota allowed no pod more when one was to be created
    pods: list[Pod] = field(default_factory=list)

    @property
    def living(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.leaving]

    @property
    def available(self) -> int:
        return sum(pod.ready for pod in self.living)


class Kubernetes:
    """What there is. `desired` is the memory of the scaling law."""

    def __init__(
        self, nodes: list[Node], pools: tuple[Pool, ...], intents: list[Intent], rng: Random
    ) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.down: set[str] = set()
        self.pools, self.rng = pools, rng
        self.intents = {intent.uid: intent for intent in intents}
        self.deployments: dict[tuple[str, Shape], Deployment] = {}
        self.orphans: list[tuple[Shape, Pod]] = []  # pods of Deployments that are gone
        self.strangers: list[tuple[str, str]] = []  # (node, resource)
        self.desired: dict[str, int] = {}
        self.counted: dict[str, Shape] = {}  # of which shape
        self.services: set[tuple[str, str]] = set()
        self.quota: int | None = None  # pods in the namespace, those that are leaving counted
        self.shows_quota = True
        self._uids = count()

    # --- what an operator sees

    def seen(self) -> FleetSnapshot:
        claims = [Claim(node, resource, 1, None) for node, resource in self.strangers]
        claims += [Claim(pod.node, shape.resource, 1, None) for shape, pod in self.orphans if pod.node]
        workloads = []
        for each in self.deployments.values():
            claims += [
                Claim(pod.node, each.shape.resource, 1, each.owner.uid) for pod in each.pods if pod.node
            ]
            workloads.append(self._workload(each))
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
        return len(self.orphans) + sum(len(each.pods) for each in self.deployments.values())

    def _quotas(self) -> tuple[QuotaLimit, ...]:
        if self.quota is None or not self.shows_quota:
            return ()
        return (QuotaLimit("ns", "pods", "pods", float(self.quota), float(self.used())),)

    @staticmethod
    def _workload(each: Deployment) -> Workload:
        living = each.living
        return Workload(
            uid=each.uid,
            name=f"{each.owner.name}-{each.shape.variant}",
            namespace=each.owner.namespace,
            owner_uid=each.owner.uid,
            shape=each.shape,
            replicas=each.replicas,
            ready=each.available,
            available=each.available,
            updated=sum(pod.template == each.template for pod in living),
            settled=each.settled,
            total=len(living),
            owner_generation=each.generation,
            in_place=each.max_unavailable > 0,
            products=each.template[0],
            declared=each.template[4],
            refused="FailedCreate: exceeded quota: pods" if each.refused else "",
        )

    def state(self) -> Any:
        """Everything that may differ between two instants."""
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
        """Go on from decided numbers, as the operator's scaler does."""
        for decision in plan.decisions:
            uid, shape = decision.owner_uid, decision.shape
            there = running.get(uid, set())
            if shape is None or uid not in self.desired:
                continue
            if self.counted.get(uid) == shape or there == {shape} or (not there and decision.placed):
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
        for each in self.deployments.values():
            if each.uid == action.uid and each.replicas > action.replicas:
                each.replicas, each.settled = action.replicas, False

    def _remove(self, gone: Callable[[Deployment], bool]) -> None:
        for key, each in list(self.deployments.items()):
            if gone(each):
                del self.deployments[key]
                self.orphans += [(each.shape, pod) for pod in each.pods if pod.node]
                for pod in each.pods:
                    pod.leaving = True

    # --- people

    def change(self, intent: Intent) -> None:
        self.intents[intent.uid] = intent
        for each in self.deployments.values():
            if each.owner.uid == intent.uid:
                each.owner = intent
        self.desired.setdefault(intent.uid, intent.min_replicas)
        low, high = intent.min_replicas, intent.max_replicas
        self.desired[intent.uid] = min(max(self.desired[intent.uid], low), high)

    def delete(self, uid: str) -> None:
        owner = self.intents.pop(uid)
        self.desired.pop(uid, None)
        self.counted.pop(uid, None)
        self.services.discard((owner.namespace, owner.name))
        self._remove(lambda d: d.owner.uid == uid)

    # --- nodes and strangers

    def free(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for node in self.nodes.values():
            for resource, number in node.allocatable:
                found[node.name, resource] += number
        for place in self.strangers:
            found[place] -= 1
        for shape, pod in self.orphans:
            found[pod.node, shape.resource] -= 1
        for each in self.deployments.values():
            for pod in each.pods:
                if pod.node:
                    found[pod.node, each.shape.resource] -= 1
        return found

    def cordon(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], usable=False)

    def lose(self, name: str) -> None:
        """The node does not answer: its pods serve no more, and are thrown off it at some time."""
        self.cordon(name)
        self.down.add(name)
        for each in self.deployments.values():
            for pod in each.pods:
                pod.ready = pod.ready and pod.node != name

    def regain(self, name: str) -> None:
        self.nodes[name] = replace(self.nodes[name], usable=True)
        self.down.discard(name)

    def stranger_comes(self) -> None:
        free = self.free()
        places = [place for place in sorted(free) if free[place] > 0 and self.nodes[place[0]].usable]
        if places:
            self.strangers.append(self.rng.choice(places))

    def stranger_goes(self) -> None:
        if self.strangers:
            self.strangers.pop(self.rng.randrange(len(self.strangers)))

    # --- time

    def pass_time(self, *, promptly: bool = False) -> None:
        """Let controllers, the scheduler and kubelets do something of what they have to do, or all of it."""

        def happens(share: float = 0.6) -> bool:
            return promptly or self.rng.random() < share

        for each in self.deployments.values():
            if happens(0.8):
                self._control(each)
        self._schedule(happens)
        for each in self.deployments.values():
            for pod in list(each.pods):
                self._kubelet(each, pod, happens)
        self.orphans = [(shape, pod) for shape, pod in self.orphans if not happens()]
        if promptly:
            for each in self.deployments.values():
                self._control(each)

    def _kubelet(self, each: Deployment, pod: Pod, happens: Callable[[], bool]) -> None:
        if pod.leaving or pod.node in self.down:
            if happens() or pod.node is None:
                each.pods.remove(pod)
        elif pod.node and not pod.ready:
            pod.ready = happens()

    def _schedule(self, happens: Callable[[], bool]) -> None:
        free = self.free()
        waiting = [(d, pod) for d in self.deployments.values() for pod in d.living if pod.node is None]
        self.rng.shuffle(waiting)
        for each, pod in waiting:
            products, _, _, selectors, declared = pod.template
            places = [
                node.name
                for node in sorted(self.nodes.values(), key=lambda n: n.name)
                if node.usable
                and free[node.name, each.shape.resource] > 0
                and any(
                    set(s) <= set(node.labels)
                    for s in ((selectors or ((),)) if node.product in products else declared)
                    if node.product in products or not node.product
                )
            ]
            if places and happens():
                pod.node = self.rng.choice(places)
                free[pod.node, each.shape.resource] -= 1

    def _control(self, each: Deployment) -> None:
        """One pass of the Deployment controller: RollingUpdate, one more first, or in place."""
        each.settled = True
        surge = 0 if each.max_unavailable else 1
        old = [pod for pod in each.living if pod.template != each.template]
        limit = each.replicas + (surge if old else 0)
        for pod in sorted(old, key=lambda p: (p.ready, p.node is not None)):
            if not pod.ready and pod.node is None:
                pod.leaving = True  # unhealthy old pods go first
        new = [pod for pod in each.living if pod.template == each.template]
        for pod in sorted(new, key=lambda p: (p.ready, p.node is not None))[
            : max(0, len(new) - each.replicas)
        ]:
            pod.leaving = True
        if len(each.living) > limit:
            for pod in sorted(each.living, key=lambda p: (p.template == each.template, p.ready)):
                if len(each.living) <= limit:
                    break
                pod.leaving = True
        old = [pod for pod in each.living if pod.template != each.template]
        for pod in sorted(old, key=lambda p: p.ready):
            left = each.available - pod.ready
            spare = len(each.living) > each.replicas - each.max_unavailable
            if left >= each.replicas - each.max_unavailable if pod.ready else spare:
                pod.leaving = True
        while (
            len(each.living) < limit and sum(p.template == each.template for p in each.living) < each.replicas
        ):
            each.refused = self.quota is not None and self.used() >= self.quota
            if each.refused:
                break
            each.pods.append(Pod(each.template))
        else:
            each.refused = False
        each.pods = [pod for pod in each.pods if pod.node or not pod.leaving]
