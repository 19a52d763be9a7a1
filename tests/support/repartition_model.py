"""A small fleet on which GPUs get new MIG layouts: every actor, one step at a time, in every order.

The operator decides by `next_step`, the agent by `tangram.partition.difference`. Between a decision of the
operator and each of its writes, and between the agent's look at the holders and its call of the driver,
anything else may happen. A write carries the version of its object: after a change of it, it is refused.
Time passes in ticks of half a minute, in which the scheduler and a living agent have seen what happened
before; the operator and the kubelet may be slower.

States are tuples of small numbers: equal ones are one. Layouts are numbered by `layout_number`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from tangram.fleet import (
    LayoutChange,
    LayoutChanges,
    MIGLayout,
    MIGSlice,
    NodePartition,
    PartitionedGPU,
    PoolPolicy,
    offered_devices,
    resource_name,
)
from tangram.packing.geometry.board import board
from tangram.packing.geometry.layouts import Placement, is_legal
from tangram.partition import ObservedInstance, ObservedLayout, WantedLayout, difference
from tangram.repartition import (
    Hold,
    HoldNode,
    PlanRecord,
    PlanState,
    ReleaseNode,
    RepartitionLimits,
    RepartitionStep,
    RepartitionWorld,
    SetLayouts,
    WorldNode,
    next_step,
)
from tests.support.repartition_worlds import layout

BOARD = board("A30")
POOL = "pool"
TICK_S, NOW = 30.0, 1_000_000.0
LIMITS = RepartitionLimits(settle_s=TICK_S, cut_s=2 * TICK_S)
LAST_AGE = 4  # ticks: a plan has ended, and its holds, too
QUARANTINE = 2  # failures of the driver
RESOURCES = tuple(resource_name(profile) for profile in ("gpu", "1g.6gb", "2g.12gb", "4g.24gb"))
NONE = -1  # no layout is wanted; no node; no time limit
WHOLE_START = 15  # as start of a device: the GPU as a whole
POLICIES = (PoolPolicy.IGNORE, PoolPolicy.RECOMMEND, PoolPolicy.IDLE_ONLY)
STATES = (None, *PlanState)
EXECUTING = STATES.index(PlanState.EXECUTING)
ABSENT = len(STATES)  # the FleetPlan was deleted, and is not recommended any more

_layouts: list[MIGLayout] = []
T = TypeVar("T")


def layout_number(of: MIGLayout) -> int:
    """Return the number of a layout."""
    if of not in _layouts:
        _layouts.append(of)
    return _layouts.index(of)


def numbered(text: str) -> int:
    """Return the number of the layout that a text names."""
    return layout_number(layout(text))


@cache
def devices_of(number: int) -> tuple[tuple[int, int], ...]:
    """Return (start, resource) of each device of a layout."""
    of = _layouts[number]
    if not of.mig_enabled:
        return ((WHOLE_START, 0),)
    return tuple((s.start, RESOURCES.index(resource_name(s.profile))) for s in of.slices)


class GPUState(NamedTuple):
    """One GPU."""

    actual: int  # layout
    wanted: int = NONE  # by the GPUNode's spec
    reported: int = NONE  # by its status
    held: tuple[tuple[int, int], ...] = ()  # (start, pod) by the status, sorted
    offered: int = NONE  # layout that the device plugin offers
    failures: int = 0
    backs_off: bool = False


class NodeState(NamedTuple):
    """One node with its GPUNode and its agent."""

    exists: bool = True
    is_current: bool = True  # the status is about the present spec and boot
    is_applied: bool = True
    plugin_due: bool = False  # the device plugin has to start anew
    plugin_down: bool = False  # its pod was deleted, and the next one has not started
    announced: tuple[int, int] = (NONE, 0)  # (GPU, its layout afterwards): what the agent does next
    # (resource, age in ticks, ticks left or NONE, whether the scheduler has seen a hold for it), sorted
    holds: tuple[tuple[int, int, int, bool], ...] = ()


class PodState(NamedTuple):
    """One pod that asks for one device: pending, bound, with its device, or over."""

    resource: int
    node: int = NONE
    gpu: int = NONE
    start: int = NONE
    over: bool = False


class PlanObject(NamedTuple):
    """One FleetPlan of changes."""

    state: int = 0
    age: int = 0  # in ticks, while it is carried out
    approved: int = NONE  # 0 rejected, 1 approved
    recommended: bool = True


class Write(NamedTuple):
    """A write that the operator has decided."""

    kind: str  # plan, hold, release, set
    target: int  # plan or node
    value: tuple[int, ...] | int = 0
    also: int = 0
    stale: bool = False  # its object has changed since it was decided: it is refused
    late: bool = False  # it was decided before time passed


class State(NamedTuple):
    """The whole fleet."""

    nodes: tuple[NodeState, ...]
    gpus: tuple[GPUState, ...]
    pods: tuple[PodState, ...]
    plans: tuple[PlanObject, ...]
    writes: tuple[Write, ...] = ()
    policy: int = 2
    stopped: bool = False
    tampered: bool = False  # a person took a hold or cut a GPU: what follows from it is not the operator's
    faults: int = 0  # that may still happen
    changes: int = 0  # from outside, likewise


@dataclass(frozen=True)
class Scenario:
    """Where an exploration starts."""

    name: str
    node_of: tuple[int, ...]  # by GPU
    layouts: tuple[str, ...]  # by GPU
    pods: tuple[tuple[int, int, int], ...]  # (resource, GPU or NONE where it is pending, start)
    plans: tuple[tuple[tuple[int, str], ...], ...]  # (GPU, layout afterwards) of each change
    policy: int = 2
    approved: int = NONE  # every plan
    faults: int = 1
    changes: int = 1


class LawBroken(AssertionError):
    """A state or a step that must not be."""


Moves = list[tuple[str, State]]


@dataclass
class Model:
    """The steps of one scenario."""

    scenario: Scenario
    decide: Callable[[RepartitionWorld], RepartitionStep] = next_step
    _plans: tuple[LayoutChanges, ...] = ()
    _after: tuple[dict[int, int], ...] = ()  # of each plan: layout by GPU
    _decided: dict[tuple[object, ...], tuple[Write, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of = self.scenario
        self._after = tuple({gpu: numbered(text) for gpu, text in plan} for plan in of.plans)
        self._plans = tuple(
            LayoutChanges(
                tuple(
                    sorted(
                        LayoutChange(
                            f"n{of.node_of[gpu]}", f"g{gpu}", layout(of.layouts[gpu]), _layouts[after]
                        )
                        for gpu, after in plan.items()
                    )
                ),
                (),
                POOL,
            )
            for plan in self._after
        )

    def initial(self) -> State:
        """Return the state at which the scenario starts."""
        of = self.scenario
        pods = tuple(
            PodState(resource, of.node_of[gpu] if gpu != NONE else NONE, gpu, start)
            for resource, gpu, start in of.pods
        )
        gpus = []
        for index, text in enumerate(of.layouts):
            number = numbered(text)
            held = tuple(sorted((pod.start, at) for at, pod in enumerate(pods) if pod.gpu == index))
            gpus.append(GPUState(number, NONE, number, held, number))
        nodes = tuple(NodeState() for _ in range(max(of.node_of) + 1))
        plans = tuple(PlanObject(approved=of.approved) for _ in of.plans)
        return State(nodes, tuple(gpus), pods, plans, policy=of.policy, faults=of.faults, changes=of.changes)

    # ---- moves --------------------------------------------------------------------------------------

    def moves(self, state: State) -> Moves:
        """Return every step that may follow, with its name."""
        found: Moves = []
        self._operator(state, found)
        for node in range(len(state.nodes)):
            self._agent(state, node, found)
        self._pods(state, found)
        if not self._agents_are_due(state):
            found.append(("time passes", _tick(state)))
        if state.changes:
            less = state._replace(changes=state.changes - 1)
            found.extend(self._foreign(less))
        for node, item in enumerate(state.nodes):
            if not item.exists:
                found.append((f"node {node} returns", self._return(state, node, kept=True)))
                found.append(
                    (f"node {node} returns without its GPUNode", self._return(state, node, kept=False))
                )
        return [(name, after) for name, after in found if after != state]

    def fair_move(self, state: State) -> tuple[str, State] | None:
        """Return the step that follows if nothing goes wrong any more; None: nothing is left to be done."""
        if state.writes:
            return self._write(state)
        decided = self._decide(state)
        if decided:
            return "the operator decides", state._replace(writes=decided)
        for node in range(len(state.nodes)):
            if not state.nodes[node].exists:
                return f"node {node} returns", self._return(state, node, kept=True)
            found: Moves = []
            self._agent(state._replace(faults=0), node, found)
            if found:
                return found[0]
        for index, pod in enumerate(state.pods):
            if pod.node != NONE and pod.gpu == NONE and not pod.over:
                return next(iter(self._allocations(state, index)))
        after = _tick(state)
        return ("time passes", after) if after != state else None

    def check_end(self, state: State) -> None:
        """Raise where something is left in a state from which nothing follows."""
        for node, item in enumerate(state.nodes):
            if any(left != NONE for _, _, left, _ in item.holds):
                raise LawBroken(f"node {node} stays held")
        for index, plan in enumerate(state.plans):
            current = STATES[plan.state] if plan.state < ABSENT else None
            waits = current is PlanState.RECOMMENDED and plan.approved == NONE
            begins = plan.state or plan.recommended
            if plan.state < ABSENT and begins and not waits and (current is None or not current.is_final):
                raise LawBroken(f"plan {index} never ends: {current}")
        for index, gpu in enumerate(state.gpus):
            as_wanted = gpu.wanted in (NONE, gpu.actual)
            if not as_wanted and gpu.failures < QUARANTINE and not self._in_use(state, index):
                raise LawBroken(f"GPU {index} never gets its layout")
            if gpu.offered != gpu.actual and not state.tampered:
                raise LawBroken(f"the devices of GPU {index} are never offered")

    def _in_use(self, state: State, gpu: int) -> bool:
        return any(pod.gpu == gpu and not pod.over for pod in state.pods)

    # ---- the operator -------------------------------------------------------------------------------

    def _operator(self, state: State, found: Moves) -> None:
        if not state.writes:
            decided = self._decide(state)
            if decided:
                found.append(("the operator decides", state._replace(writes=decided)))
            return
        found.append(self._write(state))
        found.append(("the operator ends", state._replace(writes=())))
        if state.faults and not state.writes[0].stale:
            refused = state._replace(writes=state.writes[1:], faults=state.faults - 1)
            found.append((f"refused: {state.writes[0].kind} {state.writes[0].target}", refused))

    def world(self, state: State) -> RepartitionWorld:
        """Return what the API server shows."""
        nodes = []
        for index, node in enumerate(state.nodes):
            if not node.exists:
                continue
            own = [g for g, owner in enumerate(self.scenario.node_of) if owner == index]
            gpus = tuple(
                PartitionedGPU(
                    f"g{g}",
                    _layouts[state.gpus[g].reported],
                    "A30",
                    held=tuple(
                        (None if start == WHOLE_START else start, f"a/{pod}")
                        for start, pod in state.gpus[g].held
                    ),
                    failure="failed" if state.gpus[g].failures else "",
                    quarantine="failed twice" if state.gpus[g].failures >= QUARANTINE else "",
                )
                for g in own
                if state.gpus[g].reported != NONE
            )
            wanted = tuple(
                (f"g{g}", _layouts[state.gpus[g].wanted]) for g in own if state.gpus[g].wanted != NONE
            )
            partition = NodePartition(f"n{index}", "nvml", "", node.is_applied, node.is_current, gpus, wanted)
            holds = tuple(
                Hold(RESOURCES[r], 0.0, None)
                if left == NONE
                else Hold(RESOURCES[r], NOW - age * TICK_S, NOW + left * TICK_S)
                for r, age, left, _ in node.holds
            )
            offered = offered_devices({str(g): _layouts[state.gpus[g].offered] for g in own})
            claimed = sorted(
                (RESOURCES[pod.resource], f"a/{at}", 1)
                for at, pod in enumerate(state.pods)
                if pod.node == index and not pod.over
            )
            nodes.append(
                WorldNode(
                    f"n{index}",
                    partition,
                    holds,
                    tuple(sorted(offered.items())),
                    tuple(claimed),
                )
            )
        plans = tuple(
            PlanRecord(
                f"p{index}",
                self._plans[index],
                plan.recommended,
                None if plan.approved == NONE else bool(plan.approved),
                STATES[plan.state],
                NOW - plan.age * TICK_S,
            )
            for index, plan in self._live(state)
        )
        limits = RepartitionLimits(LIMITS.settle_s, LIMITS.cut_s, stopped=state.stopped)
        return RepartitionWorld(NOW, tuple(nodes), plans, {POOL: POLICIES[state.policy]}, limits)

    @staticmethod
    def _live(state: State) -> list[tuple[int, PlanObject]]:
        found = []
        for index, plan in enumerate(state.plans):
            if plan.state == ABSENT or (plan.state == 0 and not plan.recommended):
                continue
            current = STATES[plan.state]
            if current is None or not current.is_final:
                found.append((index, plan))
        return found

    def _decide(self, state: State) -> tuple[Write, ...]:
        """Return the writes of the next step, in the order in which the executor makes them."""
        claims = tuple(
            (at, pod.node) for at, pod in enumerate(state.pods) if pod.node != NONE and not pod.over
        )
        shown = tuple((g.wanted, g.reported, g.held, g.offered, g.failures) for g in state.gpus)
        nodes = tuple((n.exists, n.is_current, n.is_applied, n.holds) for n in state.nodes)
        key = (nodes, shown, claims, state.plans, state.policy, state.stopped, state.tampered)
        found = self._decided.get(key)
        if found is None:
            world = self.world(state)
            step = self.decide(world)
            self._check_decision(world, step, tampered=state.tampered)
            found = self._decided[key] = self._writes(state, step)
        return found

    def _writes(self, state: State, step: RepartitionStep) -> tuple[Write, ...]:
        writes = []
        for progress in step.progress:
            index = int(progress.name[1:])
            number = STATES.index(progress.state)
            if state.plans[index].state != number:
                writes.append(Write("plan", index, number))
        for action in step.actions:
            node = int(action.node[1:])
            match action:
                case HoldNode():
                    left = min(LAST_AGE, round((action.until - NOW) / TICK_S))
                    writes.append(Write("hold", node, RESOURCES.index(action.resource), left))
                case ReleaseNode():
                    writes.append(Write("release", node, RESOURCES.index(action.resource)))
                case SetLayouts():
                    flat: list[int] = []
                    for gpu, of in action.layouts:
                        flat += [int(gpu[1:]), NONE if of is None else layout_number(of)]
                    writes.append(Write("set", node, tuple(flat)))
        return tuple(writes)

    def _check_decision(self, world: RepartitionWorld, step: RepartitionStep, *, tampered: bool) -> None:
        """Raise where the step itself breaks a law, whatever happens afterwards."""
        plans = {plan.name: plan for plan in world.plans}
        hashes = {plan.changes.name: plan for plan in world.plans}
        held = {(action.node, action.resource) for action in step.actions if isinstance(action, HoldNode)}
        for progress in step.progress:
            if not progress.state.is_final:
                continue
            for change in plans[progress.name].changes.changes:
                node = world.node(change.node)
                gpu = node.partition.gpu(change.gpu) if node is not None else None
                began = plans[progress.name].state is PlanState.EXECUTING
                if node is None or gpu is None or not began:
                    continue
                wanted = dict(node.partition.wanted).get(change.gpu)
                if wanted == change.after and gpu.layout != change.after:
                    raise LawBroken(
                        f"{progress.name} is {progress.state}, and {change.gpu} is still to be cut"
                    )
        for action in step.actions:
            if isinstance(action, ReleaseNode) and (action.node, action.resource) in held:
                raise LawBroken(f"{action.node} is held and released in one step")
            if isinstance(action, SetLayouts):
                self._check_consent(world, hashes.get(action.plan))
                if not tampered:
                    self._check_kept(world, action)
        _check_devices(world, step)

    @staticmethod
    def _check_consent(world: RepartitionWorld, plan: PlanRecord | None) -> None:
        """Raise where a plan is written that may not be."""
        if plan is None:
            return
        if plan.state is not PlanState.EXECUTING:
            raise LawBroken(f"{plan.name} is written before it is carried out")
        wanted = {gpu: of for item in world.nodes for gpu, of in item.partition.wanted}
        written = any(wanted.get(change.gpu) == change.after for change in plan.changes.changes)
        policy = world.policies[POOL]
        allowed = policy is PoolPolicy.IDLE_ONLY or (policy is PoolPolicy.RECOMMEND and plan.approved is True)
        if not written and (not allowed or plan.approved is False or world.limits.stopped):
            raise LawBroken(f"{plan.name} is written without consent")

    @staticmethod
    def _check_kept(world: RepartitionWorld, action: SetLayouts) -> None:
        """Raise where a slice that is known to be held is not in the layout that is written."""
        node = world.node(action.node)
        assert node is not None
        for name, target in action.layouts:
            gpu = node.partition.gpu(name)
            if target is None or gpu is None:
                continue
            for start in gpu.held_starts:
                stays = target.mig_enabled == gpu.layout.mig_enabled
                kept = start is None or any(s in target.slices for s in gpu.layout.slices if s.start == start)
                if not (stays and kept):
                    raise LawBroken(f"{name} is to lose a slice that is known to be held")

    def _write(self, state: State) -> tuple[str, State]:
        """Make the first write; the API server refuses it where its object has changed."""
        write, rest = state.writes[0], state.writes[1:]
        name = f"write: {write.kind} {write.target} {write.value}"
        state = state._replace(writes=rest)
        if write.kind == "plan":
            plan = state.plans[write.target]
            if plan.state == ABSENT:
                return f"{name} finds nothing", state
            assert isinstance(write.value, int)
            changed = plan._replace(state=write.value, age=0)
            return name, state._replace(plans=_put(state.plans, write.target, changed))
        node = state.nodes[write.target]
        if write.stale or not node.exists:
            return f"{name} is refused", state
        if write.kind == "set":
            return name, self._set(state, write)
        holds = tuple(hold for hold in node.holds if hold[0] != write.value)
        if write.kind == "hold":
            assert isinstance(write.value, int)
            seen = any(hold[3] for hold in node.holds if hold[0] == write.value)
            holds = tuple(sorted((*holds, (write.value, 0, max(0, write.also), seen))))
        return name, state._replace(nodes=_put(state.nodes, write.target, node._replace(holds=holds)))

    def _set(self, state: State, write: Write) -> State:
        assert isinstance(write.value, tuple)
        gpus = state.gpus
        for gpu, wanted in zip(write.value[::2], write.value[1::2], strict=True):
            if wanted != NONE and not state.tampered:
                kept = set(devices_of(wanted))
                held = {(p.start, p.resource) for p in state.pods if p.gpu == gpu and not p.over}
                if not held <= kept:
                    raise LawBroken(f"GPU {gpu} is to lose a slice under a pod")
            gpus = _put(gpus, gpu, gpus[gpu]._replace(wanted=wanted))
        state = _gpunode_changed(state._replace(gpus=gpus), write.target)
        node = state.nodes[write.target]._replace(is_current=False, is_applied=False)
        return state._replace(nodes=_put(state.nodes, write.target, node))

    # ---- agent, device plugin, kubelet, scheduler -----------------------------------------------------

    def _own(self, node: int) -> list[int]:
        return [gpu for gpu, owner in enumerate(self.scenario.node_of) if owner == node]

    def _next_operation(self, state: State, node: int) -> tuple[int, int] | None:
        for gpu in self._own(node):
            item = state.gpus[gpu]
            if item.wanted != NONE and item.failures < QUARANTINE and not item.backs_off:
                held = frozenset(start for start, _ in _held(state, gpu))
                after = _operation(item.actual, item.wanted, held)
                if after != NONE:
                    return gpu, after
        return None

    def _agent(self, state: State, node: int, found: Moves) -> None:
        """Add what the agent of a node may do next: announce, perform, restart the plugin, report."""
        item = state.nodes[node]
        if not item.exists:
            return
        if item.announced[0] != NONE:
            self._perform(state, node, found)
            return
        operation = self._next_operation(state, node)
        if operation is not None:
            reported = self._report(state, node, is_applied=False)
            announced = reported.nodes[node]._replace(announced=operation)
            found.append(
                (f"agent {node} announces", reported._replace(nodes=_put(reported.nodes, node, announced)))
            )
        elif item.plugin_due:
            found.append((f"agent {node} deletes the device plugin", self._end_plugin(state, node)))
        elif item.plugin_down and not item.holds:  # it tolerates no hold
            found.append((f"the device plugin of node {node} starts", self._start_plugin(state, node)))
        else:
            is_applied = not item.plugin_down and all(
                state.gpus[gpu].wanted in (NONE, state.gpus[gpu].actual) for gpu in self._own(node)
            )
            reported = self._report(state, node, is_applied=is_applied)
            if reported != state:
                found.append((f"agent {node} reports", reported))

    def _agents_are_due(self, state: State) -> bool:
        found: Moves = []
        for node in range(len(state.nodes)):
            self._agent(state, node, found)
        return bool(found)

    def _perform(self, state: State, node: int, found: Moves) -> None:
        gpu, after = state.nodes[node].announced
        item = state.gpus[gpu]
        done = state._replace(
            nodes=_put(state.nodes, node, state.nodes[node]._replace(announced=(NONE, 0), plugin_due=True))
        )
        if not state.tampered:
            gone = set(devices_of(item.actual)) - set(devices_of(after))
            for pod in state.pods:
                if pod.gpu == gpu and not pod.over and (pod.start, pod.resource) in gone:
                    raise LawBroken(f"agent {node} destroys a slice under a pod")
        of = _layouts[after]
        if not is_legal(BOARD, tuple(Placement(s.start, s.profile) for s in of.slices)):
            raise LawBroken(f"GPU {gpu} gets an illegal layout")
        cut = done._replace(
            gpus=_put(state.gpus, gpu, item._replace(actual=after, failures=0, backs_off=False))
        )
        found.append((f"agent {node} cuts GPU {gpu}", self._report(cut, node, is_applied=False)))
        if state.faults:
            less = state._replace(faults=state.faults - 1)
            failed = item._replace(failures=item.failures + 1, backs_off=True)
            idle = state.nodes[node]._replace(announced=(NONE, 0), plugin_due=True)
            broken = less._replace(gpus=_put(state.gpus, gpu, failed), nodes=_put(state.nodes, node, idle))
            found.append((f"agent {node} fails", self._report(broken, node, is_applied=False)))
            lost = item._replace(failures=QUARANTINE, backs_off=True)
            gone_gpu = broken._replace(gpus=_put(state.gpus, gpu, lost))
            found.append(
                (f"agent {node} quarantines GPU {gpu}", self._report(gone_gpu, node, is_applied=False))
            )
            found.append((f"agent {node} cuts GPU {gpu} and ends", cut._replace(faults=state.faults - 1)))
            ends = state.nodes[node]._replace(announced=(NONE, 0), plugin_due=True)
            found.append((f"agent {node} ends", less._replace(nodes=_put(state.nodes, node, ends))))

    def _report(self, state: State, node: int, *, is_applied: bool) -> State:
        gpus = state.gpus
        for gpu in self._own(node):
            item = gpus[gpu]
            gpus = _put(gpus, gpu, item._replace(reported=item.actual, held=_held(state, gpu)))
        item = state.nodes[node]._replace(is_current=True, is_applied=is_applied)
        after = state._replace(gpus=gpus, nodes=_put(state.nodes, node, item))
        return _gpunode_changed(after, node) if after != state else state

    def _end_plugin(self, state: State, node: int) -> State:
        return self._offer(state, node, is_down=True)

    def _start_plugin(self, state: State, node: int) -> State:
        return self._offer(state, node, is_down=False)

    def _offer(self, state: State, node: int, *, is_down: bool) -> State:
        """Let a node offer what its GPUs hold, or nothing while its device plugin is down."""
        gpus, nothing = state.gpus, numbered("empty")
        for gpu in self._own(node):
            gpus = _put(gpus, gpu, gpus[gpu]._replace(offered=nothing if is_down else gpus[gpu].actual))
        item = state.nodes[node]._replace(plugin_due=False, plugin_down=is_down)
        after = state._replace(gpus=gpus, nodes=_put(state.nodes, node, item))
        return _node_changed(after, node) if gpus != state.gpus else after

    def _pods(self, state: State, found: Moves) -> None:
        for index, pod in enumerate(state.pods):
            if pod.over:
                continue
            if pod.node == NONE:
                for node in range(len(state.nodes)):
                    if self._has_room(state, node, pod.resource):
                        bound = pod._replace(node=node)
                        found.append(
                            (
                                f"pod {index} goes to node {node}",
                                state._replace(pods=_put(state.pods, index, bound)),
                            )
                        )
                continue
            if pod.gpu == NONE:
                found.extend(self._allocations(state, index))
            found.append((f"pod {index} ends", self._end_pod(state, index)))

    def _has_room(self, state: State, node: int, resource: int) -> bool:
        """Whether the scheduler, which may not have seen a hold that is new, places a pod on a node."""
        item = state.nodes[node]
        if not item.exists or any(r == resource and seen for r, _, _, seen in item.holds):
            return False
        offered = sum(
            r == resource for gpu in self._own(node) for _, r in devices_of(state.gpus[gpu].offered)
        )
        used = sum(pod.node == node and pod.resource == resource and not pod.over for pod in state.pods)
        return offered > used

    def _allocations(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        """Yield each choice of the kubelet among the devices that the plugin offers; without one, it ends."""
        pod = state.pods[index]
        taken = {(p.gpu, p.start) for p in state.pods if not p.over}
        free = [
            (gpu, start)
            for gpu in self._own(pod.node)
            for start, resource in devices_of(state.gpus[gpu].offered)
            if resource == pod.resource and (gpu, start) not in taken
        ]
        if not free:
            yield f"pod {index} finds no device", self._end_pod(state, index)
        for gpu, start in free:
            if (start, pod.resource) not in devices_of(state.gpus[gpu].actual):
                if state.tampered:
                    yield f"pod {index} fails on GPU {gpu}", self._end_pod(state, index)
                    continue
                raise LawBroken(f"pod {index} gets a slice of GPU {gpu} that is gone")
            chosen = pod._replace(gpu=gpu, start=start)
            yield (
                f"pod {index} gets {start} of GPU {gpu}",
                state._replace(pods=_put(state.pods, index, chosen)),
            )

    @staticmethod
    def _end_pod(state: State, index: int) -> State:
        return state._replace(pods=_put(state.pods, index, PodState(state.pods[index].resource, over=True)))

    # ---- changes from outside ---------------------------------------------------------------------------

    def _foreign(self, state: State) -> Iterator[tuple[str, State]]:
        for index, plan in enumerate(state.plans):
            if plan.state == ABSENT:
                continue
            if plan.state:
                for verdict in (0, 1):
                    decided = plan._replace(approved=verdict)
                    yield (
                        f"plan {index}: approved={verdict}",
                        state._replace(plans=_put(state.plans, index, decided)),
                    )
                gone = PlanObject(ABSENT, recommended=False)
                # What it has written is cut even so; the agent may still be at it when the hold ends.
                tampered = state.tampered or plan.state == EXECUTING
                after = state._replace(plans=_put(state.plans, index, gone), tampered=tampered)
                yield f"plan {index} is deleted", after
            if plan.recommended:
                other = plan._replace(recommended=False)
                yield (
                    f"plan {index} is not recommended",
                    state._replace(plans=_put(state.plans, index, other)),
                )
        for policy in range(len(POLICIES)):
            yield f"policy {POLICIES[policy]}", state._replace(policy=policy)
        yield "full stop", state._replace(stopped=not state.stopped)
        for node, item in enumerate(state.nodes):
            if item.exists:
                yield f"node {node} reboots", self._reboot(state, node)
                yield f"node {node} vanishes", self._vanish(state, node)
                yield f"the device plugin of node {node} ends", self._end_plugin(state, node)
                yield from self._by_hand(state, node)

    def _by_hand(self, state: State, node: int) -> Iterator[tuple[str, State]]:
        item = state.nodes[node]
        for hold in item.holds:
            rest = item._replace(holds=tuple(other for other in item.holds if other != hold))
            after = state._replace(nodes=_put(state.nodes, node, rest), tampered=True)
            yield f"hold {hold[0]} of node {node} is lifted", _node_changed(after, node)
        for resource in (0, 2):
            others = tuple(hold for hold in item.holds if hold[0] != resource)
            placed = item._replace(holds=tuple(sorted((*others, (resource, 0, NONE, False)))))
            after = state._replace(nodes=_put(state.nodes, node, placed), tampered=True)
            yield f"hold {resource} of node {node} is placed", _node_changed(after, node)
        for gpu in self._own(node):
            for text in ("empty", "4g.24gb@0"):
                edited = state.gpus[gpu]._replace(wanted=numbered(text))
                after = state._replace(gpus=_put(state.gpus, gpu, edited), tampered=True)
                changed = item._replace(is_current=False, is_applied=False)
                after = after._replace(nodes=_put(state.nodes, node, changed))
                yield f"GPUNode {node} wants {text} of GPU {gpu}", _gpunode_changed(after, node)
                if not self._in_use(state, gpu) and item.announced[0] != gpu:
                    cut = state.gpus[gpu]._replace(actual=numbered(text))
                    after = state._replace(gpus=_put(state.gpus, gpu, cut), tampered=True)
                    yield f"GPU {gpu} is cut by hand: {text}", after

    def _reboot(self, state: State, node: int) -> State:
        pods = tuple(PodState(p.resource, over=True) if p.node == node else p for p in state.pods)
        gpus = state.gpus
        empty = numbered("empty")
        for gpu in self._own(node):
            item = gpus[gpu]
            actual = empty if _layouts[item.actual].mig_enabled else item.actual
            offered = item.offered if state.nodes[node].plugin_down else actual
            gpus = _put(gpus, gpu, item._replace(actual=actual, offered=offered))
        item = state.nodes[node]._replace(
            is_current=False, is_applied=False, announced=(NONE, 0), plugin_due=False
        )
        after = state._replace(pods=pods, gpus=gpus, nodes=_put(state.nodes, node, item))
        return _node_changed(after, node)

    def _vanish(self, state: State, node: int) -> State:
        after = self._reboot(state, node)
        after = self._start_plugin(after, node)
        item = after.nodes[node]._replace(exists=False, holds=())
        return after._replace(nodes=_put(after.nodes, node, item))

    def _return(self, state: State, node: int, *, kept: bool) -> State:
        gpus = state.gpus
        if not kept:
            for gpu in self._own(node):
                gpus = _put(gpus, gpu, gpus[gpu]._replace(wanted=NONE, reported=NONE, held=(), failures=0))
        item = state.nodes[node]._replace(exists=True)
        # A Node that is created anew has no hold, and its agent may act before the operator places one.
        tampered = state.tampered or any(gpus[gpu].wanted != NONE for gpu in self._own(node))
        after = state._replace(gpus=gpus, nodes=_put(state.nodes, node, item), tampered=tampered)
        return _gpunode_changed(_node_changed(after, node), node)


# ---- parts of states ------------------------------------------------------------------------------------


def _put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def _held(state: State, gpu: int) -> tuple[tuple[int, int], ...]:
    """Return (start, pod) of the devices of a GPU that pods have."""
    return tuple(
        sorted((pod.start, at) for at, pod in enumerate(state.pods) if pod.gpu == gpu and not pod.over)
    )


def _stale(state: State, node: int, kinds: tuple[str, ...]) -> State:
    if not state.writes:
        return state
    writes = tuple(
        write._replace(stale=True) if write.target == node and write.kind in kinds else write
        for write in state.writes
    )
    return state._replace(writes=writes)


def _node_changed(state: State, node: int) -> State:
    return _stale(state, node, ("hold", "release"))


def _gpunode_changed(state: State, node: int) -> State:
    return _stale(state, node, ("set",))


def _tick(state: State) -> State:
    """Let half a minute pass: holds and plans grow older, back-offs end."""
    nodes = tuple(
        node._replace(
            holds=tuple(
                (r, 1, left if left == NONE else max(0, left - 1), True) for r, _, left, _ in node.holds
            )
        )
        if node.holds
        else node
        for node in state.nodes
    )
    plans = tuple(
        plan._replace(age=min(LAST_AGE, plan.age + 1)) if plan.state == EXECUTING else plan
        for plan in state.plans
    )
    gpus = tuple(gpu._replace(backs_off=False) if gpu.backs_off else gpu for gpu in state.gpus)
    writes = tuple(
        write._replace(also=max(0, write.also - 1) if write.kind == "hold" else write.also, late=True)
        for write in state.writes
        if write.kind == "plan" or not write.late
    )
    return state._replace(nodes=nodes, plans=plans, gpus=gpus, writes=writes)


@cache
def _operation(actual: int, wanted: int, held: frozenset[int]) -> int:
    """Return the layout after the next operation of the agent; NONE: there is none that may be done now."""
    of, target = _layouts[actual], _layouts[wanted]
    instances = tuple(ObservedInstance(Placement(s.start, s.profile), (f"MIG-{s.start}",)) for s in of.slices)
    observed = ObservedLayout("GPU", 0, "A30", BOARD, of.mig_enabled, of.mig_enabled, instances)
    holders = {"GPU" if start == WHOLE_START else f"MIG-{start}" for start in held}
    placements = tuple(Placement(s.start, s.profile) for s in target.slices)
    left = difference(observed, WantedLayout("GPU", target.mig_enabled, placements), holders)
    if not left.operations:
        return NONE
    first = left.operations[0]
    slices = set(of.slices)
    if first.kind == "set-mode":
        return layout_number(MIGLayout(first.mig_enabled))
    assert first.placement is not None
    part = MIGSlice(first.placement.start, first.placement.profile)
    slices = slices | {part} if first.kind == "create-instance" else slices - {part}
    return layout_number(MIGLayout(True, tuple(sorted(slices))))


def _check_devices(world: RepartitionWorld, step: RepartitionStep) -> None:
    """Raise where what the planner is told is not what the GPUs will offer: offered + coming - going."""
    targets = dict(step.targets)
    for node in world.nodes:
        if not any(gpu.id in targets for gpu in node.partition.gpus):
            continue
        then = dict(node.allocatable)
        for device in step.coming:
            if device.node == node.name:
                then[device.resource] = then.get(device.resource, 0) + device.count
        for name, resource, count in step.going:
            if name == node.name:
                then[resource] = then.get(resource, 0) - count
        layouts = {gpu.id: targets.get(gpu.id, gpu.layout) for gpu in node.partition.gpus}
        if {r: count for r, count in then.items() if count} != dict(offered_devices(layouts)):
            raise LawBroken(f"the planner is told of {then} on {node.name}")


# ---- the exploration ------------------------------------------------------------------------------------


@dataclass
class Exploration:
    """What was explored, and what was found."""

    states: int = 0
    steps: int = 0
    ends: int = 0
    depth: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass
class Explorer:
    """Explores a scenario from its undisturbed run outwards, each state once."""

    model: Model
    most_broken: int = 1
    result: Exploration = field(default_factory=Exploration)
    _before: dict[State, tuple[State | None, str]] = field(default_factory=dict)  # and the step from there
    _ending: set[State] = field(default_factory=set)  # states from which an end is reached

    def explore(self, depth: int, spent: Callable[[], bool] = lambda: False) -> Exploration:
        """Visit every state within `depth` steps of the undisturbed run, until `spent`."""
        frontier = self._undisturbed()
        for level in range(depth + 1):
            following: list[State] = []
            for state in frontier:
                self._visit(state, following if level < depth else None)
                if len(self.result.broken) >= self.most_broken or spent():
                    return self.result
            self.result.depth = level
            frontier = following
        return self.result

    def _undisturbed(self) -> list[State]:
        before, name, state = None, "", self.model.initial()
        frontier: list[State] = []
        while True:
            self._before[state] = (before, name)
            frontier.append(state)
            try:
                move = self.model.fair_move(state)
            except LawBroken:  # it is recorded when the state is visited
                return frontier
            if move is None or move[1] in self._before:
                return frontier
            before, (name, state) = state, move

    def _visit(self, state: State, following: list[State] | None) -> None:
        """Check that a state can end, and add those that follow from it."""
        self.result.states += 1
        names: list[str] = []
        try:
            self._reach_end(state, names)
            names = []
            if following is None:
                return
            for name, after in self.model.moves(state):
                self.result.steps += 1
                if after not in self._before:
                    self._before[after] = (state, name)
                    following.append(after)
        except LawBroken as error:
            self._record(state, error, names)

    def _reach_end(self, state: State, names: list[str]) -> None:
        """Go on without disturbance until nothing is left to be done; raise where that never is."""
        path: dict[State, None] = {}
        while state not in self._ending:
            if state in path:
                raise LawBroken("it goes round in circles")
            path[state] = None
            move = self.model.fair_move(state)
            if move is None:
                self.model.check_end(state)
                self.result.ends += 1
                break
            names.append(move[0])
            state = move[1]
        self._ending.update(path)

    def _record(self, state: State, error: LawBroken, names: list[str]) -> None:
        trace, at = ["", *reversed(names)] if names else [], state
        if names:
            trace.append("-- then, undisturbed --")
        while (found := self._before[at])[0] is not None:
            trace.append(found[1])
            at = found[0]
        steps = "\n  ".join(reversed(trace))
        self.result.broken.append(f"{self.model.scenario.name}: {error}:\n  {steps}")


def explore(
    scenario: Scenario,
    depth: int,
    decide: Callable[[RepartitionWorld], RepartitionStep] = next_step,
    most_broken: int = 1,
    spent: Callable[[], bool] = lambda: False,
) -> Exploration:
    """Explore every state within `depth` steps of the undisturbed run; `decide`: the step function."""
    return Explorer(Model(scenario, decide), most_broken).explore(depth, spent)


def undisturbed(scenario: Scenario) -> list[str]:
    """Return the names of the steps when nothing goes wrong."""
    model, names = Model(scenario), []
    state = model.initial()
    while (move := model.fair_move(state)) is not None:
        names.append(move[0])
        state = move[1]
    return names
