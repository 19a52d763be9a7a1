"""Worlds of the step function that repartitions GPUs, in few words: a layout is a text."""

from collections import Counter
from dataclasses import replace

from tangram.fleet import (
    LayoutChange,
    LayoutChanges,
    MIGLayout,
    MIGSlice,
    NodePartition,
    PartitionedGPU,
    PoolPolicy,
    ShapeKey,
    offered_devices,
    resource_name,
)
from tangram.plan.repartition import (
    FleetState,
    Hold,
    PlanRecord,
    PlanState,
    RepartitionLimits,
    RepartitionNode,
    RepartitionStep,
    next_step,
)

NOW = 10_000.0
POOL = "pool"
LIMITS = RepartitionLimits()
HALF, QUARTER, WHOLE = "nvidia.com/mig-2g.12gb", "nvidia.com/mig-1g.6gb", "nvidia.com/gpu"


def layout(text: str) -> MIGLayout:
    """Return the layout that a text names: `gpu`, `empty`, or `2g.12gb@0 2g.12gb@2`."""
    if text == "gpu":
        return MIGLayout()
    parts = [part.partition("@") for part in text.split()] if text != "empty" else []
    return MIGLayout(True, tuple(sorted(MIGSlice(int(start), profile) for profile, _, start in parts)))


def gpu(name: str, text: str, *held: int | None, **fields: object) -> PartitionedGPU:
    """Return a GPU; `held`: starts of the slices that a pod has, None for the GPU as a whole."""
    own = {"held": tuple((start, "other/pod") for start in held)} | fields
    return PartitionedGPU(name, layout(text), "A30", **own)  # type: ignore[arg-type]


def node(
    name: str,
    *gpus: PartitionedGPU,
    wanted: dict[str, str] | None = None,
    holds: tuple[Hold, ...] = (),
    claimed: dict[str, str] | None = None,
    allocatable: dict[str, int] | None = None,
    **fields: object,
) -> RepartitionNode:
    """Return a node that offers what its GPUs hold; applied if they are as wanted.

    `claimed`: resources by the pods that ask for a device of them.
    """
    targets = {gpu_id: layout(text) for gpu_id, text in (wanted or {}).items()}
    is_applied = all(item.layout == targets.get(item.id, item.layout) for item in gpus)
    partition = NodePartition(
        name,
        **{"backend": "nvml", "is_applied": is_applied, "is_current": True} | fields,  # type: ignore[arg-type]
        gpus=gpus,
        wanted=tuple(sorted(targets.items())),
    )
    counts = offered_devices({item.id: item.layout for item in gpus}) if allocatable is None else allocatable
    claims = tuple(sorted((resource, pod, 1) for pod, resource in (claimed or {}).items()))
    return RepartitionNode(name, partition, holds, tuple(sorted(counts.items())), claims)


def changes(*parts: tuple[str, str, str, str], disturbed: tuple[str, ...] = ()) -> LayoutChanges:
    """Return changes from (node, GPU, layout before, layout after)."""
    found = tuple(sorted(LayoutChange(n, g, layout(before), layout(after)) for n, g, before, after in parts))
    return LayoutChanges(found, tuple((owner, ShapeKey("A30", "1g.6gb")) for owner in disturbed), POOL)


def plan(
    of: LayoutChanges, state: PlanState | None = PlanState.EXECUTING, name: str = "plan", **fields: object
) -> PlanRecord:
    """Return a recommended plan; one that is carried out has been for ten seconds."""
    return PlanRecord(
        name,
        of,
        **{"is_recommended": True, "since": NOW - 10.0} | fields,  # type: ignore[arg-type]
        state=state,
    )


def hold(resource: str, age_s: float = 10.0, left_s: float | None = None) -> Hold:
    """Return a hold that a plan placed after it had begun ten seconds ago, or one with `left_s` to go."""
    until = NOW - 10.0 + LIMITS.cut_s + 60.0 if left_s is None else NOW + left_s
    return Hold(resource, NOW - age_s, until)


def world(
    *nodes: RepartitionNode,
    plans: tuple[PlanRecord, ...] = (),
    policy: PoolPolicy | None = PoolPolicy.IDLE_ONLY,
    **limits: object,
) -> FleetState:
    """Return a world with one GPUPool."""
    policies = {} if policy is None else {POOL: policy}
    return FleetState(NOW, nodes, plans, policies, replace(LIMITS, **limits))  # type: ignore[arg-type]


def step(*nodes: RepartitionNode, **fields: object) -> RepartitionStep:
    """Return the next step of a world."""
    return next_step(world(*nodes, **fields))  # type: ignore[arg-type]


def told_devices(of: RepartitionNode, result: RepartitionStep) -> Counter[str]:
    """Return what the planner is told that a node offers: what it does, and comes, less what goes."""
    told = Counter(dict(of.allocatable))
    told.update({device.resource: device.count for device in result.coming if device.node == of.name})
    told.subtract({resource: count for name, resource, count in result.going if name == of.name})
    return told


def devices_to_tell(of: RepartitionNode, targets: dict[str, MIGLayout]) -> Counter[str]:
    """Return what is to be told: what the targets offer, and devices that go and are in use until then."""
    then = offered_devices({item.id: targets.get(item.id, item.layout) for item in of.partition.gpus})
    used: Counter[str] = Counter()
    for item in of.partition.gpus:
        target, names = targets.get(item.id, item.layout), {part.start: part for part in item.layout.slices}
        for start in {start for start, _ in item.held}:
            if start in names and names[start] not in target.slices:
                used[resource_name(names[start].profile)] += 1
            elif start is None and not item.layout.mig_enabled and target.mig_enabled:
                used[WHOLE] += 1
    offered = dict(of.allocatable)
    stays = {resource: min(n, offered.get(resource, 0) - then[resource]) for resource, n in used.items()}
    return then + Counter({resource: count for resource, count in stays.items() if count > 0})


def verdicts(result: RepartitionStep) -> dict[str, tuple[str, str]]:
    """Return (state, reason) by plan."""
    return {item.name: (str(item.state), item.reason) for item in result.progress}
