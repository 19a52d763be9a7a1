"""What the step function reads, and what it decides."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tangram.fleet import (
    ComingDevices,
    LayoutChanges,
    MIGLayout,
    NodePartition,
    PoolPolicy,
    ReplicaMove,
    ShapeKey,
)


class PlanState(StrEnum):
    """State of a FleetPlan of changes."""

    RECOMMENDED = "Recommended"  # waits for consent
    REJECTED = "Rejected"  # by spec.approved: false
    APPROVED = "Approved"  # by a person or by policy; not begun
    EXECUTING = "Executing"
    DONE = "Done"
    BLOCKED = "Blocked"  # it cannot begin or go on; nothing of it is left to be done
    FAILED = "Failed"  # the layouts could not be made; the GPUs went back to those before
    SUPERSEDED = "Superseded"  # not recommended any more, and not begun

    @property
    def is_final(self) -> bool:
        """Whether the plan is used up: the same changes need a new plan."""
        return self not in (PlanState.RECOMMENDED, PlanState.APPROVED, PlanState.EXECUTING)


@dataclass(frozen=True, slots=True, order=True)
class Hold:
    """A taint that closes a node to new pods that ask for one resource."""

    resource: str
    since: float = 0.0  # epoch seconds
    until: float | None = None  # epoch seconds; later it is lifted. None: a person placed it, and lifts it

    def lasts_beyond(self, instant: float) -> bool:
        """Whether it is not lifted until after an instant, in epoch seconds."""
        return self.until is None or self.until > instant


@dataclass(frozen=True, slots=True, order=True)
class DevicePod:
    """A scheduled pod that holds devices of a node."""

    name: str  # NAMESPACE/NAME
    owner: str = ""  # its LLMDeployment as NAMESPACE/NAME; empty: it is of none
    is_leaving: bool = False
    is_marked: bool = False  # the first to go when its Deployment is scaled down


@dataclass(frozen=True, slots=True)
class ReplicaOwner:
    """An LLMDeployment whose replicas may have to move."""

    uid: str
    desired: int  # replicas, without those that take over from others
    available: int
    replicas: int  # replicas that its Deployments ask for
    shapes: frozenset[ShapeKey] = frozenset()  # of its replicas
    immovable: str = ""  # why the planner does not move its replicas as it was told; empty: it does


@dataclass(frozen=True, slots=True)
class RepartitionNode:
    """One node."""

    name: str
    partition: NodePartition
    holds: tuple[Hold, ...] = ()
    allocatable: tuple[tuple[str, int], ...] = ()  # (resource, devices that the node offers), sorted
    # (resource, scheduled pod as NAMESPACE/NAME, devices that it asks for), sorted
    claimed: tuple[tuple[str, str, int], ...] = ()
    pods: tuple[DevicePod, ...] = ()  # by name
    # Epoch seconds until which a node that has just come waits for a plan that knows it; None: it does not.
    arriving_until: float | None = None

    def pod(self, name: str) -> DevicePod | None:
        """Return one of its pods."""
        return next((pod for pod in self.pods if pod.name == name), None)

    def hold(self, resource: str) -> Hold | None:
        """Return the hold for a resource."""
        return next((hold for hold in self.holds if hold.resource == resource), None)

    def is_closed_without_hold(self, resource: str) -> bool:
        """Whether new pods stay away without a hold: its GPUs are cut, and its device plugin is down.

        With a hold, a device plugin would stay away, too, unless it tolerates holds: NVIDIA's does not.
        """
        wanted = dict(self.partition.wanted)
        is_cut = all(gpu.layout == wanted.get(gpu.id, gpu.layout) for gpu in self.partition.gpus)
        # mig-manager's layouts are seen once the device plugin is back. While it cuts, it keeps it down.
        is_cut = is_cut or self.partition.backend == "mig-manager"
        return is_cut and not dict(self.allocatable).get(resource)


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A plan of changes as its FleetPlan records it. One that is not written yet has no state."""

    name: str
    changes: LayoutChanges
    is_recommended: bool | None  # by the last recommendation; None: there is none yet
    approved: bool | None = None  # spec.approved
    state: PlanState | None = None  # None: the FleetPlan is to be created
    since: float = 0.0  # epoch seconds: when the state began


@dataclass(frozen=True, slots=True)
class RepartitionLimits:
    """How fast layouts change."""

    settle_s: float = 2.0  # from a hold until its node is known to take no more pods
    cut_s: float = 300.0  # from the beginning of a plan until it has failed
    nodes: int = 4  # nodes that are changed at once
    stopped: bool = False  # nothing begins, and what has not cut anything ends
    move_s: float = 3600.0  # as `cut_s`, of a plan for which replicas move
    managed_s: float = 1800.0  # as `cut_s`, where mig-manager cuts


DEFAULT_LIMITS = RepartitionLimits()


@dataclass(frozen=True, slots=True)
class FleetState:
    """Everything that the next step depends on."""

    now: float  # epoch seconds
    nodes: tuple[RepartitionNode, ...] = ()  # by name
    plans: tuple[PlanRecord, ...] = ()  # those that are not final, the oldest first
    policies: Mapping[str, PoolPolicy] = field(default_factory=dict)  # by GPUPool
    limits: RepartitionLimits = DEFAULT_LIMITS
    owners: Mapping[str, ReplicaOwner] = field(default_factory=dict)  # by NAMESPACE/NAME

    def node(self, name: str) -> RepartitionNode | None:
        """Return one node."""
        return next((node for node in self.nodes if node.name == name), None)

    def next_settled(self) -> float | None:
        """Return the next instant at which a hold or the state of a plan has lasted for `limits.settle_s`.

        In epoch seconds; None where all have lasted as long. No event tells of it.
        """
        begun = [hold.since for node in self.nodes for hold in node.holds]
        begun += [plan.since for plan in self.plans]
        settled = (since + self.limits.settle_s for since in begun)
        return min((instant for instant in settled if instant > self.now), default=None)


@dataclass(frozen=True, slots=True, order=True)
class HoldNode:
    """Close a node to new pods that ask for a resource, until a deadline."""

    node: str
    resource: str
    since: float  # epoch seconds
    until: float


@dataclass(frozen=True, slots=True, order=True)
class ReleaseNode:
    """Open a node again."""

    node: str
    resource: str


@dataclass(frozen=True, slots=True, order=True)
class SetLayouts:
    """Write the layouts that some GPUs of a node are to have; None: its layout is left as it is."""

    node: str
    layouts: tuple[tuple[str, MIGLayout | None], ...]  # by GPU
    plan: str  # hash of the plan that they follow


@dataclass(frozen=True, slots=True, order=True)
class MarkPod:
    """Make a pod the first to go when its Deployment is scaled down."""

    pod: str  # NAMESPACE/NAME


@dataclass(frozen=True, slots=True, order=True)
class UnmarkPod:
    """Take the mark from a pod that stays: else a later plan would end it in place of another one."""

    pod: str  # NAMESPACE/NAME


Action = HoldNode | ReleaseNode | SetLayouts | MarkPod | UnmarkPod


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """The state of one plan."""

    name: str
    state: PlanState
    reason: str  # one word
    message: str
    waits_for: str = ""  # the one object that it waits for
    until: float | None = None  # epoch seconds until which it waits
    done: int = 0  # GPUs that have their new layout


@dataclass(frozen=True, slots=True)
class RepartitionStep:
    """What is to be done now, and what the planner has to know."""

    actions: tuple[Action, ...] = ()
    progress: tuple[PlanProgress, ...] = ()
    coming: tuple[ComingDevices, ...] = ()
    going: tuple[tuple[str, str, int], ...] = ()  # (node, resource, devices that no new replica gets)
    targets: tuple[tuple[str, MIGLayout], ...] = ()  # (GPU, layout that it is being given)
    moves: tuple[ReplicaMove, ...] = ()  # by owner
    arriving: tuple[str, ...] = ()  # nodes that wait for a plan that knows them, sorted
