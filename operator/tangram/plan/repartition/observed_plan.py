"""A plan of changes beside the fleet: each GPU that it changes, and the users of what has to go."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tangram.fleet import (
    LayoutChange,
    MIGLayout,
    MIGSlice,
    PartitionedGPU,
    PoolPolicy,
    ShapeKey,
    offered_devices,
    resource_name,
)
from tangram.fleet.shape import WHOLE_GPU
from tangram.packing import board
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.plan.repartition.fleet_state import (
    DevicePod,
    FleetState,
    PlanProgress,
    PlanRecord,
    PlanState,
    RepartitionNode,
)

WHOLE = resource_name(WHOLE_GPU)
RETREAT_S = 60.0  # after the end of a plan, until which what it has written is taken back


@dataclass(frozen=True, slots=True)
class SliceUser:
    """A pod on a slice, or on a GPU as a whole."""

    place: str  # text: the slice and its GPU
    resource: str
    pod: DevicePod | None = None  # None: it is not known


@dataclass(frozen=True, slots=True)
class ObservedChange:
    """A change beside its GPU as it is."""

    change: LayoutChange
    node: RepartitionNode
    gpu: PartitionedGPU
    shapes: tuple[tuple[str, ShapeKey], ...] = ()  # that replicas which move are to have, by LLMDeployment

    @property
    def wanted(self) -> MIGLayout | None:
        """The layout that the GPUNode wants of the GPU; None: none is."""
        return dict(self.node.partition.wanted).get(self.change.gpu)

    @property
    def is_written(self) -> bool:
        """Whether the GPUNode wants the new layout."""
        return self.wanted == self.change.after and not self.change.keeps_layout

    @property
    def is_made(self) -> bool:
        """Whether the GPU has the new layout, and its node offers the devices; or every replica that was to
        leave it has.
        """
        return not self.users if self.change.keeps_layout else self.has(self.change.after)

    @property
    def is_cut(self) -> bool:
        """Whether the GPU has the new layout."""
        return self.gpu.layout == self.change.after

    @property
    def is_at_work(self) -> bool:
        """Whether the GPUNode wants a layout of this change, the last one or one on the way, that the GPU
        does not have.
        """
        wanted = self.wanted
        is_ours = wanted is not None and wanted != self.change.before and self.is_on_the_way(wanted)
        is_ours &= not self.change.keeps_layout
        return is_ours and self.gpu.layout != wanted

    @property
    def goal(self) -> MIGLayout | None:
        """The layout that the GPU can get now; None: it has to stay as it is.

        Once what goes is not in use, it is the new one. Until then NVML makes what fits beside the slices in
        use, and takes the other ones away that have to go: replicas that leave find the new slices.
        """
        if not self.users:
            return self.change.after
        geometry = board(self.gpu.sku) if self.gpu.sku else None
        if self._changes_mode or geometry is None or not self.node.partition.knows_holders:
            return None
        target, in_use = self.change.after.slices, self.gpu.held_starts
        slices = {part for part in self.gpu.layout.slices if part.start in in_use or part in target}
        for part in target:
            extended = {*slices, part}
            if is_legal(geometry, tuple(sorted(Placement(s.start, s.profile) for s in extended))):
                slices = extended
        return MIGLayout(True, tuple(sorted(slices)))

    def has(self, layout: MIGLayout) -> bool:
        """Whether the GPU has a layout as wanted, and its node offers the devices, though the backend may not
        be done with its other GPUs.
        """
        if not self.gpu.layout == self.wanted == layout:
            return False
        if self.node.partition.is_applied:
            return True
        offered, allocatable = self._offered, dict(self.node.allocatable)
        return all(allocatable.get(resource, 0) >= offered[resource] for resource in layout.resources)

    def closed(self, layout: MIGLayout) -> frozenset[str]:
        """The resources of the devices that go with a layout of this change, or that are in its way."""
        closed = replace(self.change, after=layout).closed
        return closed | frozenset(self._offered) if self._clears_node else closed

    def holds(self, layout: MIGLayout) -> frozenset[tuple[str, str]]:
        """The holds that a layout of this change needs: (node, resource)."""
        return frozenset((self.node.name, resource) for resource in self.closed(layout))

    def is_on_the_way(self, layout: MIGLayout) -> bool:
        """Whether a layout is one of the two of this change, or one between them."""
        before, after = self.change.before, self.change.after
        is_between = not self._changes_mode and layout.mig_enabled
        is_between &= {*layout.slices} <= {*before.slices, *after.slices}
        return layout in (before, after) or is_between

    @property
    def _changes_mode(self) -> bool:
        return self.change.before.mig_enabled != self.change.after.mig_enabled

    @property
    def _clears_node(self) -> bool:
        """Whether no pod may use any GPU of the node meanwhile: mig-manager changes the mode only then."""
        return self._changes_mode and not self.node.partition.knows_holders

    @property
    def _offered(self) -> Counter[str]:
        """The devices that the layouts of its node offer, by resource."""
        return offered_devices({gpu.id: gpu.layout for gpu in self.node.partition.gpus})

    @property
    def back(self) -> "ObservedChange":
        """The change from the layout that the GPU has now to the one before the plan."""
        change = self.change
        return replace(self, change=LayoutChange(change.node, change.gpu, self.gpu.layout, change.before))

    @property
    def users(self) -> tuple[SliceUser, ...]:
        """The users of slices that have to go, or of a GPU that changes its mode or that replicas leave."""
        users: Iterable[SliceUser]
        if self.change.keeps_layout:
            users = self._users_of_other_shapes()
        elif self._clears_node:
            gpus = self.node.partition.gpus
            users = (_slice_user(self.node, gpu.id, None, pod) for gpu in gpus for _, pod in gpu.held)
        else:
            users = self._users_of_removed_devices()
        return tuple(sorted(users, key=lambda user: user.place))

    def _users_of_removed_devices(self) -> Iterable[SliceUser]:
        """Yield the users of slices that the new layout does not have, or of the GPU as a whole."""
        removed = {
            part.start: part for part in self.gpu.layout.slices if part not in self.change.after.slices
        }
        for start, pod in self.gpu.held:
            if start in removed:
                yield _slice_user(self.node, self.gpu.id, removed[start], pod)
            elif start is None and self._changes_mode:
                yield _slice_user(self.node, self.gpu.id, None, pod)

    def _users_of_other_shapes(self) -> Iterable[SliceUser]:
        """Yield the replicas that change their shape and still run on this GPU."""
        slices, shapes = {part.start: part for part in self.gpu.layout.slices}, dict(self.shapes)
        for start, name in self.gpu.held:
            pod, part = self.node.pod(name), slices.get(start) if start is not None else None
            if pod is None or pod.owner not in shapes:
                continue
            profile = WHOLE_GPU if part is None else part.profile
            if (self.gpu.sku or "", profile) != shapes[pod.owner][:2]:
                yield _slice_user(self.node, self.gpu.id, part, name)


def _slice_user(node: RepartitionNode, gpu_id: str, part: MIGSlice | None, pod: str) -> SliceUser:
    """Return the user of a slice; `part` None: of a GPU as a whole."""
    place = f"GPU {gpu_id}" if part is None else f"{part} of GPU {gpu_id}"
    return SliceUser(place, WHOLE if part is None else resource_name(part.profile), node.pod(pod))


@dataclass(frozen=True, slots=True)
class ObservedPlan:
    """One plan beside the GPUs that it changes."""

    fleet: FleetState
    record: PlanRecord
    gpu_changes: tuple[ObservedChange, ...]
    missing_changes: tuple[LayoutChange, ...] = ()  # of which the node or the GPU is not there

    @property
    def needed_holds(self) -> frozenset[tuple[str, str]]:
        """The holds that it needs at most: (node, resource)."""
        missing = {(change.node, resource) for change in self.missing_changes for resource in change.closed}
        return frozenset(missing).union(*(item.holds(item.change.after) for item in self.gpu_changes))

    @property
    def targets(self) -> tuple[tuple[str, MIGLayout], ...]:
        """The layouts that its GPUs are to have: (GPU, layout)."""
        return tuple((item.gpu.id, item.change.after) for item in self.gpu_changes)

    @property
    def policy(self) -> PoolPolicy | None:
        """Policy of the GPUPool of its GPUs; None: the pool is gone."""
        return self.fleet.policies.get(self.record.changes.pool)

    @property
    def has_begun(self) -> bool:
        """Whether its FleetPlan says that it is carried out."""
        return self.record.state is PlanState.EXECUTING

    @property
    def is_made(self) -> bool:
        """Whether every GPU has its new layout, and every replica that moves its shape.

        Where no GPU is cut, nothing of a plan can be done before it begins.
        """
        is_cut = self.has_begun or any(not item.change.keeps_layout for item in self.gpu_changes)
        is_made = is_cut and not self.missing_changes and not self.waiting_owners and not self.stopped_owners
        return is_made and all(item.is_made for item in self.gpu_changes)

    @property
    def waiting_owners(self) -> dict[str, ShapeKey]:
        """The LLMDeployments of which a replica has not the shape yet to which it moves. One that was deleted
        has no replica.
        """
        owners = self.fleet.owners
        return {
            owner: shape
            for owner, shape in self.record.changes.moves
            if owner in owners and owners[owner].shapes - {shape}
        }

    @property
    def stopped_owners(self) -> tuple[str, ...]:
        """The LLMDeployments that the plan restarts and that have no replica yet."""
        owners = self.fleet.owners
        return tuple(
            owner
            for owner in self.record.changes.restarts
            if owner in owners and owners[owner].desired and not owners[owner].shapes
        )

    @property
    def is_past_consent(self) -> bool:
        """Whether a GPUNode wants a new layout of it, and no replica has to move for the others."""
        rests = all(item.is_written or not item.users for item in self.gpu_changes)
        return self.has_begun and rests and any(item.is_written for item in self.gpu_changes)

    @property
    def until(self) -> float:
        """Its deadline, in epoch seconds."""
        began = self.record.since if self.has_begun else self.fleet.now
        return began + self.limit_s

    @property
    def limit_s(self) -> float:
        """How long it may take."""
        limits = self.fleet.limits
        is_managed = any(item.node.partition.backend == "mig-manager" for item in self.gpu_changes)
        times = (limits.cut_s, limits.move_s * bool(self.record.changes.moves), limits.managed_s * is_managed)
        return max(times)

    @property
    def held_until(self) -> float:
        """The end of its holds: later than its own, for what it has written to be taken back."""
        return self.until + RETREAT_S

    def progress(
        self, state: PlanState, reason: str, message: str, waits_for: str = "", *, waits: bool = False
    ) -> PlanProgress:
        """Return its progress; a plan that waits has a deadline."""
        done = sum(item.is_made for item in self.gpu_changes)
        until = self.until if waits or waits_for else None
        return PlanProgress(self.record.name, state, reason, message, waits_for, until, done)


def observed_plan(fleet: FleetState, record: PlanRecord) -> ObservedPlan:
    """Return a plan beside the GPUs that it changes."""
    observed, missing = [], []
    for change in record.changes.changes:
        node = fleet.node(change.node)
        gpu = node.partition.gpu(change.gpu) if node is not None else None
        if node is None or gpu is None:
            missing.append(change)
        else:
            observed.append(ObservedChange(change, node, gpu, record.changes.moves))
    return ObservedPlan(fleet, record, tuple(observed), tuple(missing))
