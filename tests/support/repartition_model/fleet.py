"""The state of the whole fleet: its parts, the scenario at which it starts, and its packing into one integer.

Each part of a state has a number, by which what follows from it is remembered; a state is these numbers in
one integer. Equal states are equal integers, and a step adds the differences of the numbers of the parts
that it changes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from tangram.fleet import PoolPolicy
from tangram.plan.repartition import PlanState, RepartitionLimits
from tangram.plan.repartition.observed_plan import RETREAT_S
from tests.support.repartition_model.layouts import NONE, numbered
from tests.support.repartition_model.node import (
    AVAILABLE,
    SEEN,
    UNMARKED,
    GPUState,
    NodeState,
    PodKind,
    PodState,
)

POOL = "pool"
TICK_S, NOW = 30.0, 1_000_000.0
LIMITS = RepartitionLimits(settle_s=TICK_S, cut_s=2 * TICK_S, move_s=6 * TICK_S)
POLICIES = (PoolPolicy.IGNORE, PoolPolicy.RECOMMEND, PoolPolicy.IDLE_ONLY, PoolPolicy.FULL)
STATES = (None, *PlanState)
EXECUTING = STATES.index(PlanState.EXECUTING)
ABSENT = len(STATES)  # the FleetPlan was deleted, and is not recommended any more
T = TypeVar("T")


class PlanObject(NamedTuple):
    """One FleetPlan of changes."""

    state: int = 0
    age: int = 0  # in ticks, while it is carried out
    approved: int = NONE  # 0 rejected, 1 approved
    recommended: bool = True

    @property
    def is_live(self) -> bool:
        """Whether the operator reads it: it exists or is recommended, and is not final."""
        if self.state == ABSENT or (self.state == 0 and not self.recommended):
            return False
        current = STATES[self.state]
        return current is None or not current.is_final


class OwnerState(NamedTuple):
    """An LLMDeployment with its one Deployment."""

    desired: int
    replicas: int  # that the Deployment asks for
    available: int  # by its status
    total: int  # pods that do not terminate, by its status


class Write(NamedTuple):
    """A write that the operator has decided."""

    kind: str  # scale, plan, hold, release, set, mark, unmark
    target: int  # owner, plan or node
    value: tuple[int, ...] | int = 0
    also: int = 0  # of a hold: ticks left; of a scale: whether it ends replicas
    stale: bool = False  # its object has changed since it was decided: it is refused
    late: bool = False  # it was decided before time passed


class Settings(NamedTuple):
    """What people have set, and what may still happen."""

    policy: int
    stopped: bool = False
    tampered: bool = False  # a person took a hold or cut a GPU: what follows from it is not the operator's
    faults: int = 0  # that may still happen
    changes: int = 0  # from outside, likewise
    delayed: bool = False  # time has passed though something was left to be done


@dataclass(frozen=True)
class Scenario:
    """Where an exploration starts."""

    name: str
    node_of: tuple[int, ...]  # by GPU; the GPUs of a node are consecutive
    layouts: tuple[str, ...]  # by GPU
    pods: tuple[tuple[int, int, int], ...]  # foreign: (resource, GPU or NONE where it is pending, start)
    plans: tuple[tuple[tuple[int, str], ...], ...]  # (GPU, layout afterwards) of each change
    policy: int = 2
    approved: int = NONE  # every plan
    faults: int = 1
    changes: int = 1
    owners: tuple[tuple[int, int], ...] = ()  # (resource, desired replicas)
    replicas: tuple[tuple[int, int, int], ...] = ()  # available ones: (owner, GPU, start)
    marked: tuple[tuple[int, int], ...] = ()  # (GPU, start) of replicas that a plan has marked that has ended
    moved: tuple[tuple[int, ...], ...] = ()  # owners whose replicas a plan moves, by plan
    succeeds: bool = False  # every plan is done where nothing fails, is changed from outside, or is delayed

    @property
    def kinds(self) -> tuple[PodKind, ...]:
        """The kinds of pods: replicas by owner, and foreign ones by resource."""
        foreign = tuple(PodKind(resource) for resource in sorted({resource for resource, _, _ in self.pods}))
        return tuple(PodKind(resource, owner) for owner, (resource, _) in enumerate(self.owners)) + foreign

    @property
    def last_age(self) -> int:
        """Ticks after which a plan has ended, and its holds, too."""
        limit_s = LIMITS.move_s if self.owners else LIMITS.cut_s
        return round((limit_s + RETREAT_S) / TICK_S)

    def index_on_node(self, gpu: int) -> int:
        """Return the index of a GPU on its node."""
        return gpu - self.node_of.index(self.node_of[gpu])


class Fleet(NamedTuple):
    """A state by its parts."""

    nodes: tuple[NodeState, ...]
    pending: tuple[int, ...]  # pods without a node, by kind
    owners: tuple[OwnerState, ...]
    plans: tuple[PlanObject, ...]
    writes: tuple[Write, ...]
    settings: Settings


def initial(of: Scenario) -> Fleet:
    """Return the state at which a scenario starts."""
    kinds = of.kinds
    placed = [(kinds.index(PodKind(resource)), gpu, start, 0) for resource, gpu, start in of.pods]
    placed += [(owner, gpu, start, AVAILABLE) for owner, gpu, start in of.replicas]
    nodes = []
    for node in range(max(of.node_of) + 1):
        gpus, pods = [], []
        for gpu, text in enumerate(of.layouts):
            if of.node_of[gpu] != node:
                continue
            number, index = numbered(text), of.index_on_node(gpu)
            own = [
                PodState(kind, index, start, phase, SEEN if (gpu, start) in of.marked else UNMARKED)
                for kind, at, start, phase in placed
                if at == gpu
            ]
            held = tuple(sorted((pod.start, True) for pod in own))
            gpus.append(GPUState(number, NONE, number, held, number))
            pods += own
        nodes.append(NodeState(tuple(gpus), tuple(sorted(pods))))
    pending = [0] * len(kinds)
    for kind, gpu, _, _ in placed:
        pending[kind] += gpu == NONE
    counts = [sum(owner == index for owner, _, _ in of.replicas) for index in range(len(of.owners))]
    owners = tuple(OwnerState(n, n, count, count) for (_, n), count in zip(of.owners, counts, strict=True))
    plans = tuple(PlanObject(approved=of.approved) for _ in of.plans)
    settings = Settings(of.policy, faults=of.faults, changes=of.changes)
    return Fleet(tuple(nodes), tuple(pending), owners, plans, (), settings)


@dataclass
class Table(Generic[T]):
    """The parts of one kind, by number."""

    shift: int = 0  # in bits: where the number is in a state
    bits: int = 20
    items: list[T] = field(default_factory=list)
    numbers: dict[T, int] = field(default_factory=dict)

    def number(self, item: T) -> int:
        """Return the number of a part."""
        found = self.numbers.get(item)
        if found is None:
            found = self.numbers[item] = len(self.items)
            self.items.append(item)
            if found >> self.bits:
                raise OverflowError(f"more than 2^{self.bits} parts: {item}")
        return found

    def of(self, state: int) -> int:
        """Return the number of the part of a state."""
        return (state >> self.shift) & ((1 << self.bits) - 1)

    def difference(self, number: int, item: T) -> int:
        """Return what a state changes by if its part becomes another one."""
        return (self.number(item) - number) << self.shift


@dataclass
class Packing:
    """The numbers of the parts, and the states made of them."""

    nodes: tuple[Table[NodeState], ...]
    pending: Table[tuple[int, ...]] = field(default_factory=Table)
    owners: Table[tuple[OwnerState, ...]] = field(default_factory=Table)
    plans: Table[tuple[PlanObject, ...]] = field(default_factory=Table)
    writes: Table[tuple[Write, ...]] = field(default_factory=Table)
    settings: Table[Settings] = field(default_factory=Table)

    def __post_init__(self) -> None:
        # The writes are empty in the state 0.
        shift = 0
        for table in (self.settings, self.plans, self.pending, self.owners, self.writes, *self.nodes):
            table.shift, shift = shift, shift + table.bits
        self.writes.number(())

    def pack(self, fleet: Fleet) -> int:
        """Return a state as an integer."""
        state = 0
        for table, node in zip(self.nodes, fleet.nodes, strict=True):
            state |= table.number(node) << table.shift
        state |= self.pending.number(fleet.pending) << self.pending.shift
        state |= self.owners.number(fleet.owners) << self.owners.shift
        state |= self.plans.number(fleet.plans) << self.plans.shift
        state |= self.writes.number(fleet.writes) << self.writes.shift
        return state | self.settings.number(fleet.settings) << self.settings.shift

    def unpack(self, state: int) -> Fleet:
        """Return the parts of a state."""
        nodes = tuple(table.items[table.of(state)] for table in self.nodes)
        rest = (self.pending, self.owners, self.plans, self.writes, self.settings)
        pending, owners, plans, writes, settings = (table.items[table.of(state)] for table in rest)
        return Fleet(nodes, pending, owners, plans, writes, settings)
