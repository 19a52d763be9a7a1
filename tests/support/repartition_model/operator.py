"""The operator: the world that it reads, what it decides by the step function, the laws of its decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tangram.fleet import (
    LayoutChange,
    LayoutChanges,
    NodePartition,
    PartitionedGPU,
    ReplicaMove,
    ShapeKey,
    offered_devices,
)
from tangram.plan.repartition import (
    DevicePod,
    FleetState,
    Hold,
    HoldNode,
    MarkPod,
    PlanRecord,
    ReleaseNode,
    RepartitionLimits,
    RepartitionNode,
    RepartitionStep,
    ReplicaOwner,
    SetLayouts,
    UnmarkPod,
    next_step,
)
from tests.support.repartition_model.fleet import (
    LIMITS,
    NOW,
    POLICIES,
    POOL,
    STATES,
    TICK_S,
    Fleet,
    Scenario,
    Write,
)
from tests.support.repartition_model.laws import check_decision, lost_slice
from tests.support.repartition_model.layouts import (
    NONE,
    PROFILES,
    RESOURCES,
    WHOLE_START,
    LawBroken,
    layout_number,
    layout_of,
    numbered,
)
from tests.support.repartition_model.node import QUARANTINE, TERMINATING, NodeState, PodKind
from tests.support.repartition_model.replicas import pod_counts, replicas_asked
from tests.support.repartition_worlds import layout

Decide = Callable[[FleetState], RepartitionStep]


class Decision(NamedTuple):
    """What the operator has decided."""

    writes: tuple[Write, ...]
    lost_slice: str = ""  # a slice that is known to be held and that a layout to be written lacks


@dataclass
class Operator:
    """What the operator sees and decides in a scenario."""

    scenario: Scenario
    decide: Decide = next_step
    plans: tuple[LayoutChanges, ...] = ()
    kinds: tuple[PodKind, ...] = ()
    _hashes: tuple[str, ...] = ()  # of the plans
    _nodes: dict[tuple[int, NodeState], RepartitionNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds = self.scenario.kinds
        moved = self.scenario.moved or ((),) * len(self.scenario.plans)
        self.plans = tuple(map(self._changes, self.scenario.plans, moved))
        self._hashes = tuple(plan.name for plan in self.plans)

    def _changes(self, plan: tuple[tuple[int, str], ...], moved: tuple[int, ...]) -> LayoutChanges:
        of = self.scenario
        changes = []
        for gpu, text in plan:
            numbered(text)
            before = layout(of.layouts[gpu])
            changes.append(LayoutChange(f"n{of.node_of[gpu]}", f"g{gpu}", before, layout(text)))
        moves = tuple((f"a/o{owner}", self._shape(owner)) for owner in moved)
        return LayoutChanges(tuple(sorted(changes)), moves, POOL)

    def _shape(self, owner: int) -> ShapeKey:
        return ShapeKey("A30", PROFILES[self.kinds[owner].resource])

    # ---- the world ------------------------------------------------------------------------------------

    def visible(self, node: NodeState) -> NodeState:
        """Return a node without what the API server does not show."""
        # Of failures, it shows a text, on which nothing depends before the quarantine.
        gpus = tuple(
            gpu._replace(actual=0, backs_off=False, failures=QUARANTINE * (gpu.failures >= QUARANTINE))
            for gpu in node.gpus
        )
        holds = tuple((r, age, left, False) for r, age, left, _ in node.holds)
        pods = tuple(sorted(pod._replace(mark=min(1, pod.mark)) for pod in node.pods))
        return node._replace(
            gpus=gpus, pods=pods, holds=holds, plugin_due=False, plugin_down=False, announced=(NONE, 0)
        )

    def world(self, fleet: Fleet) -> FleetState:
        """Return what the API server shows of a fleet of which the nodes are `visible`."""
        nodes = tuple(self._node(index, node) for index, node in enumerate(fleet.nodes) if node.exists)
        plans = tuple(
            PlanRecord(
                f"p{index}",
                self.plans[index],
                plan.recommended,
                None if plan.approved == NONE else bool(plan.approved),
                STATES[plan.state],
                NOW - plan.age * TICK_S,
            )
            for index, plan in enumerate(fleet.plans)
            if plan.is_live
        )
        limits = RepartitionLimits(
            LIMITS.settle_s, LIMITS.cut_s, stopped=fleet.settings.stopped, move_s=LIMITS.move_s
        )
        owners = {
            f"a/o{owner}": ReplicaOwner(
                f"o{owner}",
                item.desired,
                min(item.available, pod_counts(fleet, owner).available),
                item.replicas,
                frozenset({self._shape(owner)}),
            )
            for owner, item in enumerate(fleet.owners)
        }
        policies = {POOL: POLICIES[fleet.settings.policy]}
        return FleetState(NOW, nodes, plans, policies, limits, owners)

    def _node(self, index: int, node: NodeState) -> RepartitionNode:
        found = self._nodes.get((index, node))
        if found is None:
            found = self._nodes[index, node] = self._world_node(index, node)
        return found

    def _world_node(self, index: int, node: NodeState) -> RepartitionNode:
        first = self.scenario.node_of.index(index)
        gpus = tuple(
            PartitionedGPU(
                f"g{first + at}",
                layout_of(gpu.reported),
                "A30",
                held=tuple(
                    (None if start == WHOLE_START else start, _pod_name(index, at, start, known=known))
                    for start, known in gpu.held
                ),
                quarantine="failed twice" if gpu.failures >= QUARANTINE else "",
            )
            for at, gpu in enumerate(node.gpus)
            if gpu.reported != NONE
        )
        wanted = tuple(
            (f"g{first + at}", layout_of(gpu.wanted))
            for at, gpu in enumerate(node.gpus)
            if gpu.wanted != NONE
        )
        partition = NodePartition(f"n{index}", "nvml", "", node.is_applied, node.is_current, gpus, wanted)
        holds = tuple(
            Hold(RESOURCES[r], 0.0, None)
            if left == NONE
            else Hold(RESOURCES[r], NOW - age * TICK_S, NOW + left * TICK_S)
            for r, age, left, _ in node.holds
        )
        offered = offered_devices({str(at): layout_of(gpu.offered) for at, gpu in enumerate(node.gpus)})
        claimed, pods = [], []
        for number, pod in enumerate(node.pods):
            name = f"a/{index}.new{number}"
            if pod.gpu != NONE:
                name = _pod_name(index, pod.gpu, pod.start, known=True)
            kind = self.kinds[pod.kind]
            claimed.append((RESOURCES[kind.resource], name, 1))
            owner = "" if kind.owner == NONE else f"a/o{kind.owner}"
            pods.append(DevicePod(name, owner, pod.phase == TERMINATING, bool(pod.mark)))
        return RepartitionNode(
            f"n{index}",
            partition,
            holds,
            tuple(sorted(offered.items())),
            tuple(sorted(claimed)),
            tuple(sorted(pods)),
        )

    # ---- the decision ---------------------------------------------------------------------------------

    def decision(self, fleet: Fleet) -> Decision:
        """Return the writes of the next step, in the order in which the operator makes them."""
        world = self.world(fleet)
        step = self.decide(world)
        hashes = {self._hashes[int(plan.name[1:])]: plan for plan in world.plans}
        check_decision(world, step, hashes)
        writes = (*self._scales(fleet, step), *self._plan_writes(fleet, step), *self._actions(step))
        return Decision(writes, lost_slice(world, step))

    def _scales(self, fleet: Fleet, step: RepartitionStep) -> list[Write]:
        if not fleet.owners:
            return []
        going = {(int(node[1:]), RESOURCES.index(r)): count for node, r, count in step.going}
        moves: dict[int, ReplicaMove] = {int(move.owner_uid[1:]): move for move in step.moves}
        asked = replicas_asked(fleet, self.kinds, going, moves)
        for owner, (item, replicas) in enumerate(zip(fleet.owners, asked, strict=True)):
            if replicas < min(item.desired, item.replicas):
                raise LawBroken(f"{replicas} replicas of {owner} are asked for, not {item.desired}")
        return [
            Write("scale", owner, replicas, int(replicas < item.replicas))
            for owner, (item, replicas) in enumerate(zip(fleet.owners, asked, strict=True))
            if replicas != item.replicas
        ]

    @staticmethod
    def _plan_writes(fleet: Fleet, step: RepartitionStep) -> list[Write]:
        writes = []
        for progress in step.progress:
            index, number = int(progress.name[1:]), STATES.index(progress.state)
            if fleet.plans[index].state != number:
                writes.append(Write("plan", index, number))
        return writes

    def _actions(self, step: RepartitionStep) -> list[Write]:
        writes = []
        for action in step.actions:
            if isinstance(action, MarkPod | UnmarkPod):
                node, gpu, start = map(int, action.pod.removeprefix("a/").split("."))
                kind = "mark" if isinstance(action, MarkPod) else "unmark"
                writes.append(Write(kind, node, (gpu, start)))
                continue
            node = int(action.node[1:])
            match action:
                case HoldNode():
                    left = min(self.scenario.last_age, round((action.until - NOW) / TICK_S))
                    writes.append(Write("hold", node, RESOURCES.index(action.resource), left))
                case ReleaseNode():
                    writes.append(Write("release", node, RESOURCES.index(action.resource)))
                case SetLayouts():
                    flat: list[int] = []
                    for gpu, of in action.layouts:
                        at = self.scenario.index_on_node(int(gpu[1:]))
                        flat += [at, NONE if of is None else layout_number(of)]
                    writes.append(Write("set", node, tuple(flat)))
        return writes


def _pod_name(node: int, gpu: int, start: int, *, known: bool) -> str:
    return f"a/{node}.{gpu}.{start}" if known else f"gone/{node}.{gpu}.{start}"
