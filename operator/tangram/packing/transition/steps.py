"""Steps: what has to be done, in which order, from the fleet as it is to the layout that is wanted.

A step names one effect. It is idempotent: where `done_when` holds already, there is nothing to do. A step may
begin as soon as every step in `after` is done and its `precondition` holds in the world; steps that do not
depend on each other may run side by side, in any order: the rules hold in every order that respects `after`.
"""

from dataclasses import dataclass
from typing import Literal

from tangram.fleet import WHOLE_GPU
from tangram.packing.geometry.layouts import Placement

Kind = Literal[
    "add-node",  # a growable pool gets one node
    "set-mode",  # MIG mode of an empty GPU on or off
    "create-slice",  # NVML
    "destroy-slice",  # NVML
    "set-geometry",  # mig-manager: pauses the node's device plugin, clears the GPU, creates slices by counts
    "start-replica",
    "wait-available",
    "drain-replica",  # until its pod is gone
]


@dataclass(frozen=True, slots=True, order=True)
class Step:
    """One effect. Which fields hold something depends on `kind`."""

    number: int
    kind: Kind
    node: str
    gpus: tuple[str, ...] = ()  # more than one: a gang of whole GPUs
    profile: str = ""
    start: int = 0
    owner: str = ""  # of a replica
    layout: tuple[Placement, ...] = ()  # set-geometry: where the driver puts the slices
    mig_enabled: bool = False  # set-mode
    pool: str = ""  # add-node
    temporary: bool = False  # part of a detour
    restart: bool = False  # drain-replica: before its replacement serves, as the minimum permits
    after: tuple[int, ...] = ()  # numbers of steps that come first

    @property
    def precondition(self) -> str:
        """What must hold in the world, besides `after`, before this step may begin."""
        return _PRECONDITION[self.kind].format(self=self, at=self.at)

    @property
    def done_when(self) -> str:
        """What holds once this step is done: where it holds already, the step is skipped."""
        return _DONE[self.kind].format(self=self, at=self.at, geometry=" ".join(map(str, self.layout)))

    @property
    def at(self) -> str:
        """Where it happens, for people."""
        gpus = " ".join(self.gpus)
        return gpus if self.profile in {"", WHOLE_GPU} else f"{self.profile}@{self.start} of {gpus}"

    def __str__(self) -> str:
        owner = f" {self.owner}" if self.owner else ""
        more = " ".join(map(str, self.layout)) or ("on" if self.mig_enabled else "off") * (
            self.kind == "set-mode"
        )
        marks = " (temporary)" * self.temporary + " (restart)" * self.restart
        return f"{self.number}. {self.kind}{owner} {self.at or self.node} {more}".rstrip() + marks


_PRECONDITION: dict[str, str] = {
    "add-node": "pool {self.pool} may grow",
    "set-mode": "nothing runs on {at} and no process holds a handle to it",
    "create-slice": "{at}: MIG mode is on, no instance overlaps it",
    "destroy-slice": "no pod runs on {at}",
    "set-geometry": "no pod runs on {at}, no replica is starting on {self.node}",
    "start-replica": "{at} exists and is free",
    "wait-available": "the replica of {self.owner} on {at} has been started",
    "drain-replica": "available replicas of {self.owner} stay at or above their minimum without it",
}
_DONE: dict[str, str] = {
    "add-node": "node {self.node} is ready",
    "set-mode": "MIG mode of {at} is as wanted",
    "create-slice": "{at} exists",
    "destroy-slice": "{at} does not exist",
    "set-geometry": "{at} holds {geometry}",
    "start-replica": "a pod of {self.owner} holds {at}",
    "wait-available": "the replica of {self.owner} on {at} is available",
    "drain-replica": "no pod of {self.owner} holds {at}",
}


@dataclass(frozen=True, slots=True)
class Pace:
    """How much may happen at once, and how many replicas stay available."""

    min_available: tuple[tuple[str, int], ...] = ()  # (demand, replicas); absent: as many as run and stay
    per_demand: int = 1  # replicas of one demand that start at once, above what it has anyway
    per_node: int = 2  # replicas that start at once on one node


@dataclass(frozen=True, slots=True, order=True)
class Spare:
    """Free places that are missing."""

    sku: str
    profile: str
    count: int

    def __str__(self) -> str:
        name = self.sku if self.profile == WHOLE_GPU else f"{self.profile} on {self.sku}"
        return f"{'one' if self.count == 1 else self.count} free {name}"


@dataclass(frozen=True, slots=True, order=True)
class Missing:
    """Why some replicas cannot get where they are wanted. Either remedy was tried and suffices."""

    blocked: tuple[str, ...]  # what cannot be reached
    spares: tuple[Spare, ...] = ()  # free places that suffice; none: more room does not help
    min_available: tuple[tuple[str, int], ...] = ()  # lower minima that suffice; none: they do not help
    reasons: tuple[str, ...] = ()  # what neither helps against

    def __str__(self) -> str:
        lower = " and ".join(f"minAvailable {n} of {demand!r}" for demand, n in self.min_available)
        room = " and ".join(map(str, self.spares))
        return " or ".join(filter(None, (room, lower))) or "; ".join(self.reasons)


@dataclass(frozen=True, slots=True)
class Transition:
    """The steps in an order that works one by one, and what they do not reach."""

    steps: tuple[Step, ...]
    missing: Missing | None = None  # None: the steps end in the layout that is wanted

    @property
    def complete(self) -> bool:
        """Whether the steps end in the layout that is wanted."""
        return self.missing is None
