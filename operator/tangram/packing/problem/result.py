"""What was packed: replicas by demand, slices on each GPU, moves, and what is unmet. No durations in it."""

from dataclasses import dataclass
from typing import Literal

from tangram.packing.problem.statement import Part

# OPTIMAL: every stage was proved. FEASIBLE: a limit ended one; the gap says how far it may be from best.
# FALLBACK: no stage found anything in time; what runs goes on as it is and nothing new is placed.
Status = Literal["OPTIMAL", "FEASIBLE", "FALLBACK"]


@dataclass(frozen=True, slots=True, order=True)
class Placed:
    """One instance of the layout that is wanted."""

    start: int
    profile: str
    owner: str | None = None  # id of the demand; None: free
    gang: str | None = None  # replicas of whole GPUs: those with one gang id are one replica


@dataclass(frozen=True, slots=True, order=True)
class GPULayout:
    """What one GPU is to hold."""

    id: str
    instances: tuple[Placed, ...]  # sorted by start
    in_use: bool  # a replica is on it: it is paid for
    recut: bool  # instances are destroyed or created on it, or its MIG mode ends


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """The replicas of one demand."""

    demand: str
    parts: tuple[Part, ...]
    price_per_hour: float  # USD, by dominant shares
    unmet: float  # share of the demand that is not served


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """Where one replica stands: a slice, or the first GPU of a gang."""

    gpu: str
    profile: str
    start: int
    gang: str | None = None


@dataclass(frozen=True, slots=True, order=True)
class Move:
    """One replica that is started elsewhere and stopped where it was."""

    owner: str
    source: Site
    target: Site
    cost: float  # USD


@dataclass(frozen=True, slots=True, order=True)
class Unmet:
    """A demand, or a part of one, that nothing serves."""

    demand: str
    priority: int
    share: float  # 0..1
    reason: str


DOLLARS = "dollars"


def unmet_stage(priority: int) -> str:
    """Return the name of the stage of a priority's unmet demand."""
    return f"unmet[{priority}]"


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of the lexicographic objective, smaller is better."""

    name: str  # unmet[PRIORITY] | dollars | share | disruption | stranded | headroom
    value: float
    bound: float  # nothing better exists; of what follows the share: for the replicas that were chosen
    proved: bool

    @property
    def is_dollars(self) -> bool:
        """Whether its value is the objective of the packing."""
        return self.name == DOLLARS

    @property
    def is_unmet(self) -> bool:
        """Whether its value is the unmet demand of a priority."""
        return self.name.startswith("unmet[")


@dataclass(frozen=True, slots=True)
class Packing:
    """One decision about the whole fleet."""

    status: Status
    objective: float  # USD over the horizon: GPUs in use, new nodes, moves, and costs of allotments
    bound: float  # USD: no packing that leaves as little unmet costs less
    gap: float  # (objective - bound) / objective
    cost_per_hour: float  # USD: GPUs in use and new nodes
    idle_per_hour: float  # USD: the part of that which no replica stands on
    move_cost: float  # USD
    stages: tuple[Stage, ...]
    choices: tuple[Choice, ...]  # sorted by demand
    layouts: tuple[GPULayout, ...]  # sorted by id; GPUs of new nodes are named POOL/new-N/M
    moves: tuple[Move, ...] = ()
    unmet: tuple[Unmet, ...] = ()
    grown: tuple[tuple[str, int], ...] = ()  # (pool, new nodes)

    @property
    def dollars(self) -> Stage:
        """The stage of the dollars, which each packing has."""
        return next(stage for stage in self.stages if stage.is_dollars)

    @property
    def gpus_in_use(self) -> int:
        """How many GPUs are paid for because a replica is on them."""
        return sum(layout.in_use for layout in self.layouts)
