"""What ResourceQuotas leave for engine pods. Each LLMDeployment takes its part, in order of priority."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tangram.eligibility.host_resources import cpu_cores, memory_bytes
from tangram.fleet import FleetSnapshot, HostResources, Intent, MIGPolicy, PodNeeds, QuotaLimit, Shape
from tangram.plan.place.now.placement_demand import PlacementDemand
from tangram.plan.reasons.placement import QuotaBinds

_MIB = 2**20
_OBJECT_COUNTS = ("count/deployments.apps", "count/replicasets.apps")


def pod_amounts(requests: HostResources, shape: Shape, needs: PodNeeds) -> Mapping[str, float]:
    """Return what one engine pod of `shape` takes of each resource that a ResourceQuota may limit.

    Requests equal limits.
    """
    cpu, memory = cpu_cores(requests, shape, needs), memory_bytes(requests, shape, needs)
    return {
        "pods": 1.0,
        "count/pods": 1.0,
        **dict.fromkeys(("cpu", "requests.cpu", "limits.cpu"), cpu),
        **dict.fromkeys(("memory", "requests.memory", "limits.memory"), memory),
        f"requests.{shape.resource}": float(shape.gpus),
    }


def least_amounts(intent: Intent) -> Mapping[str, float]:
    """Return what one engine pod takes at least of each resource, whatever its shape."""
    amounts = dict.fromkeys(("pods", "count/pods"), 1.0)
    if intent.resources.cpu_milli is not None:
        cores = intent.resources.cpu_milli / 1000
        amounts |= dict.fromkeys(("cpu", "requests.cpu", "limits.cpu"), cores)
    if intent.resources.memory_mib is not None:
        amount = float(intent.resources.memory_mib * _MIB)
        amounts |= dict.fromkeys(("memory", "requests.memory", "limits.memory"), amount)
    if intent.mig is MIGPolicy.FORBIDDEN:
        amounts["requests.nvidia.com/gpu"] = float(min(intent.tensor_parallel, default=1))
    return amounts


def unreachable_minimum(
    intent: Intent, limits: Iterable[QuotaLimit], class_of_unnamed_pods: str
) -> tuple[QuotaLimit, int] | None:
    """Return the limit that never allows the fewest replicas of `intent`, were they the only pods that it
    counts, and how many it allows; None: there is none.
    """
    amounts, priority_class = least_amounts(intent), intent.priority_class_name or class_of_unnamed_pods
    for limit in sorted(limits):
        if limit.namespace != intent.namespace or not limit.counts(priority_class):
            continue
        most = _pods_within(limit.hard, amounts.get(limit.resource, 0.0))
        if most is not None and most < intent.min_replicas:
            return limit, most
    return None


def _pods_within(amount: float, per_pod: float) -> int | None:
    """Return how many pods fit into an amount; None: any number."""
    return max(0, math.floor(amount / per_pod + 1e-9)) if per_pod > 0 else None


class Quotas:
    """What ResourceQuotas leave. Changes while a plan is made."""

    def __init__(self, snapshot: FleetSnapshot) -> None:
        self._limits: dict[str, list[QuotaLimit]] = defaultdict(list)
        for limit in sorted(snapshot.quotas):
            self._limits[limit.namespace].append(limit)
        self._left = {limit: limit.hard - limit.used for limit in snapshot.quotas}
        self._needs, self._default_class = snapshot.pod_needs, snapshot.class_of_unnamed_pods

    def max_new_pods(self, demand: PlacementDemand, shape: Shape) -> tuple[int, QuotaBinds] | None:
        """Return how many more pods may be created, and the quota that binds; None: any number.

        If there is no Deployment on `shape`, a quota has to allow that object too.
        """
        counts = [
            (count, limit)
            for limit, amount in self._amounts(demand, shape)
            if (count := _pods_within(self._left[limit], amount)) is not None
        ]
        if demand.workload_on(shape) is None:
            limits = reversed(self._limits.get(demand.intent.namespace, ()))
            counts[:0] = [(0, limit) for limit in limits if self._has_no_object_left(limit)]
        fewest = min(counts, key=lambda pair: pair[0], default=None)
        return None if fewest is None else (fewest[0], QuotaBinds(fewest[1]))

    def _has_no_object_left(self, limit: QuotaLimit) -> bool:
        return limit.resource in _OBJECT_COUNTS and self._left[limit] < 1

    def take(self, demand: PlacementDemand, new_pods: Mapping[Shape, int]) -> None:
        """Take what new pods need: of each resource the most that one of the alternative shapes needs."""
        largest: dict[QuotaLimit, float] = {}
        for shape, count in new_pods.items():
            for limit, amount in self._amounts(demand, shape):
                largest[limit] = max(largest.get(limit, 0.0), amount * count)
        for limit, amount in largest.items():
            self._left[limit] -= amount

    def _amounts(self, demand: PlacementDemand, shape: Shape) -> Iterable[tuple[QuotaLimit, float]]:
        """Limits that count a pod of `shape`, each with what the pod takes of it."""
        limits = self._limits.get(demand.intent.namespace)
        if not limits:
            return ()
        amounts = pod_amounts(demand.intent.resources, shape, self._needs)
        priority_class = _priority_class(demand, shape) or self._default_class
        return [
            (limit, amounts[limit.resource])
            for limit in limits
            if amounts.get(limit.resource, 0) > 0 and limit.counts(priority_class)
        ]


def _priority_class(demand: PlacementDemand, shape: Shape) -> str:
    """Return the PriorityClass of new pods: that of an existing Deployment, until its next rollout."""
    workload = demand.workload_on(shape)
    return demand.intent.priority_class_name if workload is None else workload.priority_class_name
