"""The replicas of LLMDeployments: planner, Deployment controller, ReplicaSet controller. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from tangram.fleet import ReplicaMove
from tests.support.repartition_model.fleet import Fleet
from tests.support.repartition_model.layouts import NONE, LawBroken, devices_of
from tests.support.repartition_model.node import (
    AVAILABLE,
    MARKED,
    SEEN,
    TERMINATING,
    NodeState,
    PodKind,
    PodState,
    put,
    with_other_pod,
    without_pod,
)

Going = Mapping[tuple[int, int], int]  # devices that no new replica gets, by (node, resource)


class PodCounts(NamedTuple):
    """The pods of one LLMDeployment."""

    active: int  # that do not terminate, those without a node included
    available: int


def pod_counts(fleet: Fleet, owner: int) -> PodCounts:
    """Return the pods of an LLMDeployment, whose kind has its number."""
    pods = [pod for node in fleet.nodes for pod in node.pods if pod.kind == owner]
    active = fleet.pending[owner] + sum(pod.phase != TERMINATING for pod in pods)
    return PodCounts(active, sum(pod.phase == AVAILABLE for pod in pods))


def replicas_asked(
    fleet: Fleet, kinds: tuple[PodKind, ...], going: Going, moves: Mapping[int, ReplicaMove]
) -> list[int]:
    """Return the replicas that the planner gives each Deployment, as `tangram.plan` does for one shape.

    Devices: those that its pods have, then free ones for replicas that the Deployment has already, then free
    ones for further replicas and for the surge. Held nodes offer none.
    """
    free = Counter[int]()
    for index, node in enumerate(fleet.nodes):
        closed = {hold[0] for hold in node.holds}
        offered = Counter(r for gpu in node.gpus for _, r in devices_of(gpu.offered))
        used = Counter(kinds[pod.kind].resource for pod in node.pods)
        for resource, count in offered.items() if node.exists else ():
            if resource not in closed:
                free[resource] += max(0, count - going.get((index, resource), 0) - used[resource])
    held = [
        sum(pod.kind == owner for n in fleet.nodes for pod in n.pods) for owner in range(len(fleet.owners))
    ]

    def take(owner: int, up_to: int) -> None:
        taken = max(0, min(up_to - held[owner], free[kinds[owner].resource]))
        held[owner] += taken
        free[kinds[owner].resource] -= taken

    for owner, item in enumerate(fleet.owners):
        take(owner, min(item.replicas, item.desired))
    asked = []
    for owner, item in enumerate(fleet.owners):
        take(owner, item.desired)
        placed = min(held[owner], item.desired)
        surge = moves[owner].surge if owner in moves else 0
        take(owner, placed + surge)
        surge = min(held[owner] - placed, surge)
        asked.append(max(placed, min(item.desired, item.replicas)) + surge)
    return asked


class ReplicaStep(NamedTuple):
    """One step of a controller of Deployments."""

    name: str
    after: Fleet
    status_of: int = NONE  # the LLMDeployment of whose Deployment the status changes


def replica_steps(fleet: Fleet) -> Iterator[ReplicaStep]:
    """Yield what the ReplicaSet and Deployment controllers may do now."""
    for owner, item in enumerate(fleet.owners):
        counts = pod_counts(fleet, owner)
        if counts.active < item.replicas:
            more = fleet.pending[owner] + item.replicas - counts.active
            after = fleet._replace(pending=put(fleet.pending, owner, more))
            yield ReplicaStep(f"the ReplicaSet of {owner} makes pods", after)
        elif counts.active > item.replicas:
            yield from _scale_down(fleet, owner, counts.active - item.replicas, knows_marks=True)
        status = item._replace(available=counts.available, total=counts.active)
        if status != item:
            after = fleet._replace(owners=put(fleet.owners, owner, status))
            yield ReplicaStep(f"the Deployment of {owner} reports", after, owner)


def replica_failures(fleet: Fleet) -> Iterator[ReplicaStep]:
    """Yield what a ReplicaSet controller may do that does not know the latest marks yet."""
    for owner, item in enumerate(fleet.owners):
        surplus = pod_counts(fleet, owner).active - item.replicas
        pods = [pod for node in fleet.nodes for pod in node.pods if pod.kind == owner]
        if surplus > 0 and any(pod.mark == MARKED for pod in pods):
            yield from _scale_down(fleet, owner, surplus, knows_marks=False)


def _scale_down(fleet: Fleet, owner: int, surplus: int, *, knows_marks: bool) -> Iterator[ReplicaStep]:
    """Yield each choice of the pods that are deleted, in Kubernetes' order.

    Unassigned before assigned, not ready before ready, then those with the lower deletion cost
    (kubernetes/pkg/controller/controller_utils.go, ActivePodsWithRanks). Among equals, any.
    """

    def rank(pod: PodState) -> tuple[int, bool]:
        is_marked = pod.mark == SEEN or (pod.mark == MARKED and knows_marks)
        return (0 if pod.gpu == NONE else 1 + pod.phase), not is_marked

    unassigned = min(surplus, fleet.pending[owner])
    fleet = fleet._replace(pending=put(fleet.pending, owner, fleet.pending[owner] - unassigned))
    surplus -= unassigned
    pods = sorted(
        (rank(pod), index, pod)
        for index, node in enumerate(fleet.nodes)
        for pod in node.pods
        if pod.kind == owner and pod.phase != TERMINATING
    )
    first = [item for item in pods if item[0] < pods[surplus - 1][0]] if surplus else []
    equal = [item for item in pods if item[0] == pods[surplus - 1][0]] if surplus else []
    for rest in dict.fromkeys(combinations(equal, surplus - len(first))):
        after, names = fleet, []
        for _, index, pod in (*first, *rest):
            after = after._replace(nodes=put(after.nodes, index, _deleted(after.nodes[index], pod)))
            names.append(f"{pod.start} of GPU {pod.gpu} of node {index}")
        ended = [pod for _, _, pod in (*first, *rest) if pod.phase == AVAILABLE and pod.gpu != NONE]
        item = fleet.owners[owner]  # more may be desired since the operator has scaled it
        if ended and pod_counts(after, owner).available < min(item.desired, item.replicas):
            raise LawBroken(f"a replica of {owner} is ended before its replacement is available")
        how = "" if knows_marks else " without knowing the marks"
        text = ", ".join([f"{unassigned} unassigned"] * bool(unassigned) + names)
        yield ReplicaStep(f"the ReplicaSet of {owner} deletes{how}: {text}", after)


def _deleted(node: NodeState, pod: PodState) -> NodeState:
    if pod.gpu == NONE:
        return without_pod(node, pod)
    return with_other_pod(node, pod, pod._replace(phase=TERMINATING))
