"""What one GPU holds, as its driver reports it, and what it is to hold."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from tangram.packing.geometry.board import Board
from tangram.packing.geometry.layouts import Layout, Placement


@dataclass(frozen=True, slots=True, order=True)
class ObservedInstance:
    """One GPU instance that exists."""

    placement: Placement
    devices: tuple[str, ...] = ()  # UUIDs of its MIG devices: one for each compute instance
    # Whether one compute instance takes all of it. Else it is half made, or was cut further by someone else.
    whole: bool = True
    processes: tuple[int, ...] = ()
    memory_mib: int | None = None

    def is_held(self, held: AbstractSet[str]) -> bool:
        """Whether a process uses it, or a pod holds one of its devices."""
        return bool(self.processes) or not held.isdisjoint(self.devices)


@dataclass(frozen=True, slots=True)
class ObservedLayout:
    """One GPU at one moment. UUIDs identify it; its index may change with a reset."""

    gpu: str  # UUID
    index: int
    product: str  # as the driver names it: NVIDIA H100 80GB HBM3
    board: Board | None  # profiles and placements by the driver; None: MIG cannot cut it, as far as is known
    mig_enabled: bool = False
    pending_mig_enabled: bool = False  # after the next reset
    instances: tuple[ObservedInstance, ...] = ()  # by start
    processes: tuple[int, ...] = ()  # on the GPU as a whole

    @property
    def placements(self) -> Layout:
        """The placements of its instances, sorted."""
        return tuple(sorted(instance.placement for instance in self.instances))

    def is_held(self, held: AbstractSet[str]) -> bool:
        """Whether a process or a pod uses the GPU as a whole."""
        return bool(self.processes) or self.gpu in held


@dataclass(frozen=True, slots=True)
class WantedLayout:
    """The layout that one GPU is to have: each instance with one compute instance that takes all of it."""

    gpu: str
    mig_enabled: bool
    placements: Layout = ()

    def is_applied(self, observed: ObservedLayout) -> bool:
        """Whether the GPU is as wanted, whatever runs on it."""
        return (
            observed.mig_enabled == observed.pending_mig_enabled == self.mig_enabled
            and observed.placements == tuple(sorted(self.placements))
            and all(instance.whole for instance in observed.instances)
        )
