"""The input of the step function that gives GPUs new layouts, from mirrored objects. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tangram.eligibility.devices.tolerations import held_resource
from tangram.fleet import (
    FailedChanges,
    FleetSnapshot,
    LayoutChanges,
    MIGLayout,
    NodePartition,
    ParsedIntent,
    Workload,
    claiming_pools,
)
from tangram.fleet.labels import OWNER_LABEL
from tangram.fleet.times import epoch_or
from tangram.kube.kinds import (
    REPLICA_SETS,
    TEMPLATE_LABEL,
    VARIANT_LABEL,
    Object,
    controller_of,
    is_controlled_by,
    key_of,
    labels_of,
)
from tangram.packing import board
from tangram.plan.repartition import (
    RETREAT_S,
    DevicePod,
    FleetState,
    Hold,
    PlanRecord,
    PlanState,
    RepartitionLimits,
    RepartitionNode,
    ReplicaOwner,
    has_ended,
)
from tangram.shell.repartition.plan_objects import SUFFIX, fits, hash_of, plan_record

RETRY_S = 900.0  # after a plan that failed or was blocked, before the same changes are tried again
MARK = "-1000"  # deletion cost of a pod that is to go first
ARRIVAL_S = 600.0  # from the creation of a node, for which it waits for a plan that knows it
SKEW_S = 60.0  # by which clocks of the API server and of two leaders may differ
ARRIVING = "arriving"  # value of a startup taint, which a node brings along
_SEPARATOR = "-"  # between the two instants of a hold


@dataclass(frozen=True, slots=True)
class Recommended:
    """What the last recommendation changes."""

    fleet_plan: str = ""  # name of the FleetPlan of the whole fleet
    changes: tuple[LayoutChanges, ...] = ()
    nodes: frozenset[str] = frozenset()  # of which it knows the GPUs
    is_known: bool = True  # whether this operator has planned the fleet


@dataclass(frozen=True, slots=True)
class FleetPlanObjects:
    """The FleetPlans of changes: those that are carried out or wait, and the others by hash."""

    live: tuple[Object, ...]
    final: Mapping[str, tuple[Object, ...]]


def failed_changes(plans: FleetPlanObjects, now: float) -> tuple[FailedChanges, ...]:
    """Return the plans of changes that failed lately."""
    failed = []
    for plan in (plan for objects in plans.final.values() for plan in objects[-1:]):
        status = plan.get("status") or {}
        if status.get("state") == PlanState.FAILED and _is_recent(status, now):
            pool = str(plan["spec"].get("pool", ""))
            failed.append(FailedChanges(key_of(plan)[1], pool, str(status.get("message", ""))))
    return tuple(sorted(failed))


def hold_value(since: float, until: float) -> str:
    """Return the value of a taint that holds a node: the instants between which it does, in epoch seconds."""
    return f"{math.ceil(since)}{_SEPARATOR}{math.ceil(until)}"


def holds(node: Object) -> tuple[Hold, ...]:
    """Return the holds of a node. One without instants is a person's: it has no end."""
    resources = ((held_resource(taint), taint) for taint in node["taints"])
    placed = (_hold(resource, taint, node) for resource, taint in resources if resource)
    return tuple(sorted(placed, key=lambda hold: hold.resource))


def _hold(resource: str, taint: Mapping[str, Any], node: Object) -> Hold:
    value = str(taint.get("value") or "")
    if value == ARRIVING:
        created = _created(node)
        return Hold(resource, created, created + ARRIVAL_S)
    since, _, until = value.partition(_SEPARATOR)
    has_instants = since.isdecimal() and until.isdecimal() and len(since + until) < 40
    return Hold(resource, float(since), float(until)) if has_instants else Hold(resource)


def _of_this_clock(hold: Hold, limits: RepartitionLimits, now: float) -> Hold:
    """Return a hold, ended by now where another clock placed it: it begins in the future, or lasts for longer
    than any plan. So it is lifted, or placed anew by the plan that needs it.
    """
    longest = max(limits.cut_s, limits.move_s, limits.managed_s, ARRIVAL_S) + RETREAT_S + SKEW_S
    is_foreign = hold.until is not None and (hold.since > now + SKEW_S or hold.until > now + longest)
    return replace(hold, since=now, until=now) if is_foreign else hold


def _created(node: Object) -> float:
    return epoch_or(node["metadata"].get("creationTimestamp"), 0.0)


def _arriving_until(
    snapshot: FleetSnapshot, nodes: Mapping[str, Object], planned: Set[str], now: float
) -> dict[str, float]:
    """Return until when nodes that have just come wait for a plan, by name: those in GPUPools that plans may
    cut before a person approves them, of which the last recommendation does not know yet.

    One that came in the future, by the clock of this operator, does not wait.
    """
    pools = {pool.name: pool for pool in snapshot.pools}
    waiting = {}
    for node in snapshot.nodes:
        place = claiming_pools(node, snapshot.pools)
        if node.sku is None or not place or node.name in planned or board(node.sku) is None:
            continue
        pool, created = pools[place[0]], _created(nodes[node.name])
        if pool.backend is not None and pool.policy.cuts_unasked and created <= now + SKEW_S:
            waiting[node.name] = created + ARRIVAL_S
    return waiting


def plan_objects(plans: Iterable[Object]) -> FleetPlanObjects:
    """Sort the FleetPlans of changes of this operator."""
    live, final = list[Object](), defaultdict[str, list[Object]](list)
    for plan in sorted(plans, key=lambda obj: (obj["metadata"].get("creationTimestamp", ""), key_of(obj))):
        if plan["metadata"].get("deletionTimestamp"):
            continue
        if has_ended(plan.get("status") or {}):
            final[hash_of(key_of(plan)[1])].append(plan)
        else:
            live.append(plan)
    return FleetPlanObjects(tuple(live), {name: tuple(objects) for name, objects in final.items()})


def waiting_for_consent(plans: Iterable[Object]) -> tuple[tuple[str, str], ...]:
    """Return the LLMDeployments, as NAMESPACE/NAME, that FleetPlans serve once a person consents, with the
    name of each plan; sorted.
    """
    waiting = [
        plan
        for plan in plans
        if (plan.get("status") or {}).get("state") == PlanState.RECOMMENDED
        and plan["spec"].get("changes")
        and plan["spec"].get("approved") is None
    ]
    return tuple(
        sorted(
            (str(owner), key_of(plan)[1]) for plan in waiting for owner in plan["spec"].get("serves") or ()
        )
    )


def fleet_state(
    snapshot: FleetSnapshot,
    intents: Iterable[ParsedIntent],
    nodes: Iterable[Object],
    pods: Collection[Object],
    plans: FleetPlanObjects,
    recommended: Recommended,
    limits: RepartitionLimits,
    now: float,
    immovable: Mapping[str, str] | None = None,
) -> FleetState:
    """Return the state of the fleet.

    `nodes`, `pods`: mirrored; `recommended`: changes of the last recommendation; `immovable`: why the last
    plan did not move replicas as it was told, by UID.
    """
    objects = {key_of(node)[1]: node for node in nodes}
    partitions = [partition for partition in snapshot.partition.nodes if partition.node in objects]
    names = {intent.uid: f"{intent.namespace}/{intent.name}" for intent in intents}
    records = tuple(_records(plans, recommended, now))
    return FleetState(
        now=now,
        nodes=tuple(
            _nodes(snapshot, objects, _devices_in_use(snapshot, pods, names), recommended, limits, now)
        ),
        plans=(*records, *_new_records(plans, records, recommended.changes, partitions, now)),
        policies={pool.name: pool.policy for pool in snapshot.pools},
        owners=_owners(snapshot, names, _serving(snapshot, pods), immovable or {}),
        limits=limits,
    )


def _unobserved(
    nodes: Mapping[str, Object], observed: Iterable[NodePartition], arriving: Container[str]
) -> Iterable[NodePartition]:
    """Yield the nodes that are held or have just come, and whose partitions no backend observes."""
    names = {partition.node for partition in observed}
    for name, node in nodes.items():
        if name not in names and (name in arriving or holds(node)):
            yield NodePartition(name)


@dataclass(frozen=True, slots=True)
class _DevicesInUse:
    """The devices that scheduled pods claim, by node."""

    claims: Mapping[str, list[tuple[str, str, int]]]  # (resource, pod as NAMESPACE/NAME, devices)
    pods: Mapping[str, list[DevicePod]]


def _devices_in_use(
    snapshot: FleetSnapshot, pods: Collection[Object], names: Mapping[str, str]
) -> _DevicesInUse:
    claims = defaultdict[str, list[tuple[str, str, int]]](list)
    for claim in snapshot.claims:
        claims[claim.node].append((claim.resource, claim.pod, claim.count))
    return _DevicesInUse(claims, _pods(snapshot, pods, names))


def _nodes(
    snapshot: FleetSnapshot,
    objects: Mapping[str, Object],
    in_use: _DevicesInUse,
    recommended: Recommended,
    limits: RepartitionLimits,
    now: float,
) -> Iterable[RepartitionNode]:
    """Yield the nodes by name: those with a partition backend, and those that are held or have just come."""
    arriving = {} if limits.stopped else _arriving_until(snapshot, objects, recommended.nodes, now)
    observed = [partition for partition in snapshot.partition.nodes if partition.node in objects]
    partitions = (*observed, *_unobserved(objects, observed, arriving))
    for partition in sorted(partitions, key=lambda partition: partition.node):
        name, node = partition.node, objects[partition.node]
        yield RepartitionNode(
            name=name,
            partition=partition,
            holds=tuple(_of_this_clock(hold, limits, now) for hold in holds(node)),
            allocatable=_counts(node["allocatable"]),
            claimed=tuple(sorted(in_use.claims.get(name, ()))),
            pods=tuple(sorted(in_use.pods.get(name, ()))),
            arriving_until=arriving.get(name),
        )


def _pods(
    snapshot: FleetSnapshot, pods: Collection[Object], names: Mapping[str, str]
) -> Mapping[str, list[DevicePod]]:
    """Return the pods with devices, by node.

    Kubernetes ends the pods of a Deployment some time after it was deleted: meanwhile they are leaving.
    """
    marked = {"/".join(key_of(pod)) for pod in pods if pod.get("deletionCost") == MARK}
    named = {"/".join(key_of(pod)): owner for pod in pods if (owner := _owner_by_name(pod)) in names.values()}
    by_node: dict[str, list[DevicePod]] = defaultdict(list)
    for claim in snapshot.claims:
        owner, is_leaving = names.get(claim.owner_uid or "", ""), claim.leaves_at is not None
        if claim.owner_uid is None and claim.pod in named:
            owner, is_leaving = named[claim.pod], True
        by_node[claim.node].append(DevicePod(claim.pod, owner, is_leaving, claim.pod in marked))
    return by_node


def _owner_by_name(pod: Object) -> str:
    """Return the LLMDeployment, as NAMESPACE/NAME, that a pod is of by its labels and the name of its
    ReplicaSet; empty for another pod. Of a Deployment that is there, `claims` know the owner.
    """
    labels, reference = labels_of(pod), controller_of(pod)
    parts = [labels.get(label, "") for label in (OWNER_LABEL, VARIANT_LABEL, TEMPLATE_LABEL)]
    if reference is None or not is_controlled_by(pod, REPLICA_SETS) or not all(parts):
        return ""
    return f"{key_of(pod)[0]}/{parts[0]}" if reference.get("name") == "-".join(parts) else ""


def _serving(snapshot: FleetSnapshot, pods: Collection[Object]) -> Counter[str]:
    """Return how many pods of each LLMDeployment are ready and do not terminate, by UID."""
    ready = {
        "/".join(key_of(pod))
        for pod in pods
        if any((c["type"], c["status"]) == ("Ready", "True") for c in pod["conditions"])
    }
    owners = {claim.pod: claim.owner_uid for claim in snapshot.claims if claim.leaves_at is None}
    return Counter(owner for pod, owner in owners.items() if owner is not None and pod in ready)


def _owners(
    snapshot: FleetSnapshot,
    names: Mapping[str, str],
    serving: Mapping[str, int],
    immovable: Mapping[str, str],
) -> Mapping[str, ReplicaOwner]:
    """Return the state of each LLMDeployment by NAMESPACE/NAME.

    The status of a Deployment that was just scaled down counts pods for a while that terminate already.
    """
    desired, own = dict(snapshot.desired), defaultdict[str, list[Workload]](list)
    for workload in snapshot.workloads:
        own[workload.owner_uid].append(workload)
    return {
        name: ReplicaOwner(
            uid,
            desired.get(uid, max((workload.replicas for workload in own[uid]), default=0)),
            min(sum(workload.available for workload in own[uid]), serving.get(uid, 0)),
            sum(workload.replicas for workload in own[uid]),
            frozenset(workload.shape.key for workload in own[uid] if workload.total or workload.replicas),
            immovable.get(uid, ""),
        )
        for uid, name in names.items()
    }


def _counts(allocatable: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    counts = ((resource, str(count)) for resource, count in allocatable.items())
    return tuple(sorted((r, int(count)) for r, count in counts if count.isdecimal() and len(count) < 8))


def _records(plans: FleetPlanObjects, recommended: Recommended, now: float) -> Iterable[PlanRecord]:
    names = frozenset(changes.name for changes in recommended.changes) if recommended.is_known else None
    for plan in plans.live:
        try:
            record = plan_record(plan, names)
        except ValidationError:
            continue  # of another version: it is not carried out
        since = min(max(0.0, record.since), now)  # the future is another clock's, or by hand
        yield replace(record, since=since)


def _new_records(
    plans: FleetPlanObjects,
    records: Iterable[PlanRecord],
    recommended: tuple[LayoutChanges, ...],
    partitions: list[NodePartition],
    now: float,
) -> Iterable[PlanRecord]:
    """Yield a plan for recommended changes that have none, where they still start from what there is.

    While replicas move, the next plan that moves them waits: it would be about where they stand in between.
    """
    moving_owners = _moving_owners(records)
    live_hashes = {hash_of(key_of(plan)[1]) for plan in plans.live}
    layouts = {gpu.id: gpu.layout for partition in partitions for gpu in partition.gpus}
    wanted = {gpu: layout for partition in partitions for gpu, layout in partition.wanted}
    for changes in recommended:
        is_moving = not moving_owners.isdisjoint(changes.disturbed)
        if changes.name in live_hashes or is_moving or not _starts(changes, layouts, wanted):
            continue
        before = plans.final.get(changes.name, ())
        if fits(changes) and not _is_refused(before, now):
            name = f"{changes.name}{SUFFIX}{len(before) + 1}" if before else changes.name
            yield PlanRecord(name, changes, is_recommended=True, since=now)


def _moving_owners(records: Iterable[PlanRecord]) -> set[str]:
    """Return the LLMDeployments of which plans that are approved or carried out move replicas."""
    underway = [record for record in records if record.state in (PlanState.APPROVED, PlanState.EXECUTING)]
    return {owner for record in underway for owner in record.changes.disturbed}


def _starts(
    changes: LayoutChanges, layouts: Mapping[str, MIGLayout], wanted: Mapping[str, MIGLayout]
) -> bool:
    """Whether changes start from the layouts that there are, and not all of them are wanted already: then the
    layouts are only to be restored.
    """
    starts = all(layouts.get(change.gpu) == change.before for change in changes.changes)
    return starts and any(c.keeps_layout or wanted.get(c.gpu) != c.after for c in changes.changes)


def _is_recent(status: Mapping[str, Any], now: float) -> bool:
    """Whether a state began lately. One of the future is another clock's: it may be far away."""
    since = epoch_or(status.get("since"), 0.0)
    return since - SKEW_S <= now < since + RETRY_S


def _is_refused(before: tuple[Object, ...], now: float) -> bool:
    """Whether a person has rejected the last plan with these changes, or it did not work a while ago."""
    if not before:
        return False
    status = before[-1].get("status") or {}
    if status.get("state") == PlanState.REJECTED:
        return True
    return _is_recent(status, now) and status.get("state") in (PlanState.FAILED, PlanState.BLOCKED)
