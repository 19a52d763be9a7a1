"""GPUs as their partition backend observes them, and changes of their MIG layouts."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tangram.fleet.shape import WHOLE_GPU, ShapeKey, resource_name

HASH_DIGITS = 12
ANY_NUMBER = 1_000_000  # of replicas
_BY_INDEX = "index-"


@dataclass(frozen=True, slots=True, order=True)
class MIGSlice:
    """One GPU instance: a profile at its first memory slice."""

    start: int
    profile: str

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


@dataclass(frozen=True, slots=True, order=True)
class MIGLayout:
    """How one GPU is cut: not at all, or into slices."""

    mig_enabled: bool = False
    slices: tuple[MIGSlice, ...] = ()  # sorted

    def __str__(self) -> str:
        if not self.mig_enabled:
            return WHOLE_GPU
        return " ".join(map(str, self.slices)) or "empty"

    def without(self, profiles: frozenset[str]) -> "MIGLayout":
        """Return the layout without its slices of some profiles."""
        return MIGLayout(
            self.mig_enabled, tuple(part for part in self.slices if part.profile not in profiles)
        )

    @property
    def devices(self) -> Counter[str]:
        """How many devices it offers, by resource."""
        return Counter(self.resources)

    @property
    def resources(self) -> tuple[str, ...]:
        """The resource of each device that it offers."""
        if not self.mig_enabled:
            return (resource_name(WHOLE_GPU),)
        return tuple(resource_name(part.profile) for part in self.slices)


def fleet_wide_id(node: str, gpu_id: str) -> str:
    """Return the id of a GPU in the whole fleet. `gpu_id`: as its GPUNode has it, a UUID or index-N."""
    return f"{node}/{gpu_id}" if gpu_id.startswith(_BY_INDEX) else gpu_id


def id_on_node(gpu_id: str) -> str:
    """Return the id of a GPU as its GPUNode has it."""
    return gpu_id.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class PartitionedGPU:
    """One GPU of a node, as its backend observes it."""

    id: str  # UUID, or NODE/index-N where the backend knows GPUs by index alone
    layout: MIGLayout
    sku: str | None = None  # catalog key
    # MIG can cut it, its mode does not wait for a reset, it is not in quarantine, and nothing failed last
    is_cuttable: bool = True
    changes_mode: bool = True  # its MIG mode changes without a reset
    # (start, pod as NAMESPACE/NAME, empty where it is not known) in use; start None: the GPU as a whole
    held: tuple[tuple[int | None, str], ...] = ()
    failure: str = ""  # of the last attempt to change it
    quarantine: str = ""  # why nothing is changed on it
    is_known: bool = True  # its layout is; that of a GPU which mig-manager cuts is not before the end

    @property
    def held_starts(self) -> frozenset[int | None]:
        """The starts of the slices that are in use; None among them: the GPU as a whole is."""
        return frozenset(start for start, _ in self.held)


@dataclass(frozen=True, slots=True)
class NodePartition:
    """The layouts of the GPUs of one node: observed, and wanted. Read from its GPUNode."""

    node: str
    backend: Literal["nvml", "mig-manager"] | None = None  # None: none has reported yet
    problem: str = ""  # why the backend changes nothing; empty: it runs
    is_applied: bool = False  # every GPU is as wanted, and the node offers its devices
    is_current: bool = False  # the status is about the present spec, Node and boot
    gpus: tuple[PartitionedGPU, ...] = ()  # by index
    wanted: tuple[tuple[str, MIGLayout], ...] = ()  # (GPU, layout), by GPU

    @property
    def knows_holders(self) -> bool:
        """Whether it is known which pod holds which slice; mig-manager knows counts alone."""
        return self.backend == "nvml"

    @property
    def devices(self) -> Counter[str] | None:
        """The devices of its GPUs, by resource, on offer or not; None where they are not known."""
        if self.problem or not self.gpus or not all(gpu.is_known for gpu in self.gpus):
            return None
        return offered_devices({gpu.id: gpu.layout for gpu in self.gpus})

    def gpu(self, gpu_id: str) -> PartitionedGPU | None:
        """Return the GPU with this id."""
        return next((gpu for gpu in self.gpus if gpu.id == gpu_id), None)


@dataclass(frozen=True, slots=True, order=True)
class LayoutChange:
    """A GPU that is cut anew, or one that keeps its layout and that replicas leave."""

    node: str
    gpu: str
    before: MIGLayout
    after: MIGLayout

    @property
    def keeps_layout(self) -> bool:
        """Whether replicas leave the GPU, and it is not cut."""
        return self.before == self.after

    @property
    def closed(self) -> frozenset[str]:
        """The resources of the devices that it takes away: no new pod may get one of them."""
        if self.before.mig_enabled != self.after.mig_enabled:
            return frozenset(self.before.devices)
        return frozenset(resource_name(s.profile) for s in self.before.slices if s not in self.after.slices)


@dataclass(frozen=True, slots=True, order=True)
class LayoutChanges:
    """Changes that depend on each other: they are consented to, and carried out, together."""

    changes: tuple[LayoutChange, ...]  # sorted by node and GPU
    # (LLMDeployment as NAMESPACE/NAME, shape that its replicas are to have) of those that move for it; sorted
    moves: tuple[tuple[str, ShapeKey], ...] = ()
    pool: str = ""  # the GPUPool of its GPUs
    # LLMDeployments of `moves` whose replicas stop before others serve: downtime, with consent; sorted
    restarts: tuple[str, ...] = ()
    # What it is for. Neither is part of its name: a consent is not outdated by a changed price.
    cost: tuple[float, float] | None = None  # USD per hour of the GPUs that it touches, before and after
    serves: tuple[str, ...] = ()  # LLMDeployments that get more replicas by it, as NAMESPACE/NAME; sorted

    @property
    def disturbed(self) -> tuple[str, ...]:
        """The LLMDeployments whose replicas move for it, sorted."""
        return tuple(sorted({owner for owner, _ in self.moves}))

    @property
    def name(self) -> str:
        """Hash of GPUs, layouts before and after, and of replicas that move and restart: equal changes have
        one name.
        """
        parts = [[c.node, c.gpu, str(c.before), str(c.after)] for c in self.changes]
        moves = [[owner, *shape] for owner, shape in self.moves]
        named = [parts, moves, *([list(self.restarts)] if self.restarts else [])]
        text = json.dumps(named, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_DIGITS]


@dataclass(frozen=True, slots=True, order=True)
class ComingDevices:
    """Devices that a node is to offer once its GPUs are cut."""

    node: str
    resource: str
    count: int
    plan: str = ""  # name of the FleetPlan; empty: the GPUNode has wanted them before
    until: float | None = None  # epoch seconds: then they are no longer waited for; None: as GPUNodes say


@dataclass(frozen=True, slots=True, order=True)
class ReplicaMove:
    """An LLMDeployment of which replicas leave GPUs that are cut anew."""

    owner_uid: str
    shape: ShapeKey  # that its replicas are to have
    surge: int = 0  # replicas of the shape beside the desired ones: they take over from those that leave
    # Replicas of other shapes that may go on. Where that is fewer than there are, the others stop now, before
    # replicas of the shape serve: a person has consented to it.
    most_on_others: int = ANY_NUMBER


@dataclass(frozen=True, slots=True, order=True)
class FailedChanges:
    """A plan of changes that failed lately: for a while the same is not tried again."""

    plan: str  # name of the FleetPlan
    pool: str  # its GPUPool
    message: str  # why


@dataclass(frozen=True, slots=True, order=True)
class PromisedSlices:
    """Slices that foreign quota grants: they stay, in use or not."""

    nodes: tuple[str, ...]  # on any of these, sorted
    resource: str
    count: int


@dataclass(frozen=True, slots=True)
class PartitionView:
    """What is known of the MIG layouts of the fleet, and what is being changed."""

    nodes: tuple[NodePartition, ...] = ()  # by name
    coming: tuple[ComingDevices, ...] = ()  # sorted
    going: tuple[tuple[str, str, int], ...] = ()  # (node, resource, count) that no new replica gets; sorted
    targets: tuple[tuple[str, MIGLayout], ...] = ()  # (GPU, layout that it is being given), sorted
    failed: tuple[FailedChanges, ...] = ()  # sorted
    promised: tuple[PromisedSlices, ...] = ()  # sorted
    moves: tuple[ReplicaMove, ...] = ()  # that are underway, by owner
    arriving: tuple[str, ...] = ()  # nodes that have just come and wait for a plan that knows them, sorted
    # (LLMDeployment as NAMESPACE/NAME, FleetPlan that serves it once a person consents), sorted
    waiting: tuple[tuple[str, str], ...] = ()
    # LLMDeployment uid -> epoch seconds until which it waits for a plan of the fleet before it takes a device
    unplanned: tuple[tuple[str, float], ...] = ()

    @property
    def by_node(self) -> dict[str, NodePartition]:
        """The partitions by node."""
        return {partition.node: partition for partition in self.nodes}


NO_PARTITION = PartitionView()


def offered_devices(layouts: Mapping[str, MIGLayout]) -> Counter[str]:
    """Return the devices that a node with these layouts, by GPU, offers."""
    return Counter(resource for layout in layouts.values() for resource in layout.resources)
