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
    "stop-replica",  # the same before a replacement serves: downtime, only with consent
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
        mode = ("on" if self.mig_enabled else "off") * (self.kind == "set-mode")
        more = " ".join(map(str, self.layout)) or mode
        return f"{self.number}. {self.kind}{owner} {self.at or self.node} {more}".rstrip()


_PRECONDITION: dict[str, str] = {
    "add-node": "pool {self.pool} may grow",
    "set-mode": "nothing runs on {at} and no process holds a handle to it",
    "create-slice": "{at}: MIG mode is on, no instance overlaps it",
    "destroy-slice": "no pod runs on {at}",
    "set-geometry": "no pod runs on {at}, no replica is starting on {self.node}",
    "start-replica": "{at} exists and is free",
    "wait-available": "the replica of {self.owner} on {at} has been started",
    "drain-replica": "available replicas of {self.owner} stay at or above their minimum without it",
    "stop-replica": "a person has consented that this replica of {self.owner} does not serve for a while",
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
    "stop-replica": "no pod of {self.owner} holds {at}",
}
_MOST_REASONS = 3  # in the text for people


@dataclass(frozen=True, slots=True)
class BlockedMoves:
    """The replicas that no order of direct moves brings to their place, and what is in their way."""

    replicas: tuple[str, ...]  # with the places that they should get
    reasons: tuple[str, ...]  # for each of them, which replicas hold what it needs

    def __str__(self) -> str:
        more = len(self.reasons) - _MOST_REASONS
        return "; ".join(self.reasons[:_MOST_REASONS]) + (f"; and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Transition:
    """The steps in an order that works one by one, and the moves that they do not contain."""

    steps: tuple[Step, ...]
    blocked: BlockedMoves | None = None  # None: the steps end in the layout that is wanted
    restarted: tuple[str, ...] = ()  # replicas that stop before a replacement serves, with their places

    @property
    def complete(self) -> bool:
        """Whether the steps end in the layout that is wanted."""
        return self.blocked is None
