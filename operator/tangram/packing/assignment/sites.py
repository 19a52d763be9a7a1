"""What the assignment of GPUs works on: free sites, and the sites that replicas have so far."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from tangram.fleet import ShapeKey
from tangram.packing.assignment.counts import SolutionCounts
from tangram.packing.model.gpu_classes import GPUKind, PreparedFleet
from tangram.packing.model.targets import Target
from tangram.packing.problem.prepared import PreparedDemand
from tangram.packing.problem.statement import GPUState


@dataclass(frozen=True, slots=True)
class VacantSite:
    """Room for one replica."""

    shape: ShapeKey
    gpus: tuple[str, ...]
    start: int
    node: str
    place: str
    zone: str
    exists: bool  # the slice is there already


@dataclass(frozen=True, slots=True)
class InstanceOwner:
    """The demand, or foreign pod, of an instance."""

    name: str
    profile: str
    gang: str | None


@dataclass(slots=True)
class Unit:
    """A node's GPUs that are free for gangs."""

    kind: GPUKind
    free: list[str]

    def takes(self, size: int) -> bool:
        """Whether there is room for a gang."""
        return self.kind.gangs_that_fit(size, len(self.free)) > 0

    def take(self, size: int) -> tuple[str, ...]:
        """Return the GPUs of a gang that are taken now."""
        gpus, self.free = tuple(self.free[:size]), self.free[size:]
        return gpus


@dataclass(slots=True)
class AssignmentState:
    """What is decided so far."""

    fleet: PreparedFleet
    gpus: dict[str, GPUState]
    targets: dict[str, Target] = field(default_factory=dict)  # GPUs in MIG mode, or given to it
    stays: set[tuple[tuple[str, ...], int]] = field(default_factory=set)  # sites of replicas that may stay
    free: dict[ShapeKey, list[VacantSite]] = field(default_factory=dict)
    owner: dict[tuple[str, int], InstanceOwner] = field(default_factory=dict)  # by GPU and start
    sites: dict[str, list[VacantSite]] = field(default_factory=dict)  # by demand, in the order of giving
    kept: set[tuple[ShapeKey, tuple[str, ...], int]] = field(default_factory=set)
    short: Counter[tuple[str, ShapeKey]] = field(default_factory=Counter)  # what spread left no room for
    units: list[Unit] = field(default_factory=list)
    quotas: Mapping[str, Mapping[ShapeKey, Counter[str]]] = field(default_factory=dict)


def shapes_at(sites: Iterable[VacantSite]) -> Counter[ShapeKey]:
    """Return the replicas that have their place on `sites`, by shape."""
    return Counter(spot.shape for spot in sites)


def quotas(counts: SolutionCounts) -> dict[str, dict[ShapeKey, Counter[str]]]:
    """Return how many replicas the model has in each place, by demand to be spread and shape."""
    by_demand: dict[str, dict[ShapeKey, Counter[str]]] = {}
    for (demand, shape, place), n in counts.spots.items():
        by_demand.setdefault(demand, {}).setdefault(shape, Counter())[place] = n
    return by_demand


def spot_of(
    work: AssignmentState, shape: ShapeKey, gpus: tuple[str, ...], start: int, *, exists: bool
) -> VacantSite:
    """Return room for one replica on these GPUs."""
    gpu = work.gpus[gpus[0]]
    place = work.fleet.places.get(gpu.id, f"+{gpu.pool}")
    return VacantSite(shape, gpus, start, gpu.node, place, gpu.zone, exists)


def gang_of(demand: str, spot: VacantSite) -> str | None:
    """Return the name of the gang that a demand has on a spot; None: it is one GPU, or a slice."""
    return f"{demand}/{spot.gpus[0]}" if len(spot.gpus) > 1 else None


def give(work: AssignmentState, demand: str, spot: VacantSite, gang: str | None) -> None:
    """Let a demand have a spot."""
    work.sites.setdefault(demand, []).append(spot)
    for gpu in spot.gpus:
        work.owner[gpu, spot.start] = InstanceOwner(demand, spot.shape.profile, gang)


def room_by_place(work: AssignmentState, demand: PreparedDemand, shape: ShapeKey) -> Counter[str] | None:
    """Return how many replicas may stand in each place; None: anywhere."""
    quotas = work.quotas.get(demand.id)
    return None if quotas is None else Counter(quotas.get(shape, {}))


def pinned_at(work: AssignmentState, demand: PreparedDemand, place: Literal["node", "zone"]) -> Counter[str]:
    """Return how many replicas run in each place that must not move: spread allows as many there."""
    places = (getattr(work.gpus[held.gpus[0]], place) for held in demand.held if held.pinned)
    return Counter(places)
