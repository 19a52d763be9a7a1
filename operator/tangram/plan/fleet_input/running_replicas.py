"""Replicas that run, on any node: those that serve, and pods that hold a device of a node that is ready.

A cordon, a taint or a label leaves devices out of plans, but ends no replica. So what runs is counted apart
from the devices that new replicas may be given.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tangram.eligibility.devices.node_devices import holds_replicas, is_lost, left_out_of
from tangram.fleet import Node, Shape, Workload
from tangram.plan.fleet_input.fleet import Fleet


@dataclass(frozen=True, slots=True)
class RunningReplicas:
    """Replicas of one shape that run."""

    replicas: int = 0
    nodes: tuple[Node, ...] = ()  # on which it holds devices that no new replica is given, one for each
    held: int = 0  # of those devices, the ones that a plan counts as held


NOT_RUNNING = RunningReplicas()
RunningByShape = Mapping[Shape, RunningReplicas]


def observe_running_replicas(fleet: Fleet) -> Mapping[str, RunningByShape]:
    """Return the replicas that run, by the uid of their LLMDeployment. A terminating pod is none of them."""
    nodes = {place.name: place.node for place in fleet.nodes}
    # By uid, resource and number of devices; None: unknown
    holders: dict[tuple[str, str, int], list[Node | None]] = defaultdict(list)
    for claim in fleet.snapshot.claims:
        if claim.owner_uid is not None and claim.leaves_at is None:
            holders[claim.owner_uid, claim.resource, claim.count].append(nodes.get(claim.node))
    return {
        uid: {w.shape: _running(w, own, holders.get((uid, *w.shape.devices[1:]), ())) for w in own}
        for uid, own in fleet.workloads.items()
    }


def _running(workload: Workload, own: Sequence[Workload], holders: Iterable[Node | None]) -> RunningReplicas:
    """Count the replicas of one Deployment; `own`: all of its LLMDeployment, `holders`: nodes of its pods.

    A pod does not name its Deployment: pods of other formats on the same devices count for theirs first. A
    node that has lost its labels counts for every SKU, a lost node only for replicas that serve.
    """
    shape = workload.shape
    on_sku = [node for node in holders if node is None or node.sku in {shape.sku, None}]
    lost = [node for node in on_sku if node is not None and is_lost(node)]
    alike = sum(w.total for w in own if w is not workload and w.shape.devices == shape.devices)
    on_ready_nodes = min(workload.total, len(on_sku) - len(lost) - alike)
    replicas = max(workload.available, on_ready_nodes)
    left_out = [n for n in on_sku if n is not None and not is_lost(n) and left_out_of(n, shape.resource)]
    left_out = [*left_out, *lost[: replicas - max(0, on_ready_nodes)]][:replicas]
    held = sum(node.sku is not None and holds_replicas(node) for node in left_out)
    return RunningReplicas(replicas, tuple(left_out), held)
