"""Every step that may follow in a fleet: what each actor does is computed once for each state of its part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from tangram.plan.repartition import next_step
from tests.support.repartition_model import node as on_node
from tests.support.repartition_model.fleet import (
    ABSENT,
    EXECUTING,
    POLICIES,
    Fleet,
    Packing,
    PlanObject,
    Scenario,
    Settings,
    Table,
    Write,
    initial,
)
from tests.support.repartition_model.laws import check_end, check_marks
from tests.support.repartition_model.layouts import NONE, LawBroken, devices_of
from tests.support.repartition_model.node import (
    MARKED,
    UNMARKED,
    Changed,
    NodeState,
    NodeStep,
    NodeSteps,
    PodState,
    put,
)
from tests.support.repartition_model.operator import Decide, Operator
from tests.support.repartition_model.parts import CHANGE, DELAY, FAULT, TAMPER, Memory, Part
from tests.support.repartition_model.people import change_desired, change_plans, change_settings
from tests.support.repartition_model.replicas import ReplicaStep, replica_failures, replica_steps

Steps = list[tuple[str, int]]
T = TypeVar("T")


@dataclass
class Model:
    """The steps of one scenario, from state to state. States are packed: `unpack` shows them."""

    scenario: Scenario
    decide: Decide = next_step
    operator: Operator = field(init=False)
    packing: Packing = field(init=False)
    _changed: Table[tuple[int, Changed, int]] = field(default_factory=Table)
    _memory: dict[str, Memory] = field(default_factory=dict)
    _node_steps: tuple[NodeSteps, NodeSteps] = field(init=False)  # by whether the fleet is tampered with
    _views: Table[NodeState] = field(default_factory=Table)  # what the operator sees of nodes

    def __post_init__(self) -> None:
        self.operator = Operator(self.scenario, self.decide)
        self.packing = Packing(tuple(Table() for _ in range(max(self.scenario.node_of) + 1)))
        self._changed.number((NONE, Changed(), NONE))
        kinds = self.scenario.kinds
        self._node_steps = NodeSteps(kinds, tampered=False), NodeSteps(kinds, tampered=True)
        names = "decided written stale used tick_node tick_plans tick_writes node agent_due faults room bound"
        names += " controllers failures people plans settings owners view agent fair_pods more"
        self._memory = {name: Memory() for name in names.split()}

    def initial(self) -> int:
        """Return the state at which the scenario starts."""
        return self.packing.pack(initial(self.scenario))

    def unpack(self, state: int) -> Fleet:
        """Return the parts of a state."""
        return self.packing.unpack(state)

    # ---- steps ----------------------------------------------------------------------------------------

    def steps(self, state: int) -> Steps:
        """Return every step that may follow, with its name."""
        settings = self._settings(state)
        found: Steps = []
        self._operator_steps(state, settings, found)
        is_due = False
        for index, table in enumerate(self.packing.nodes):
            number = table.of(state)
            key = number, settings.tampered
            node = self._get("node", (index, key), self._node_parts, index, number, settings.tampered)
            found += [(part.name, self._after(state, part)) for part in node]
            is_due = is_due or self._agent(index, number, settings.tampered) is not None
            if settings.faults:
                faults = self._get(
                    "faults", (index, key), self._fault_parts, index, number, settings.tampered
                )
                found += [(part.name, self._after(state, part)) for part in faults]
            self._scheduler_steps(state, index, found)
        if self.scenario.owners:
            controllers = self._controllers(state)
            found += [(part.name, self._after(state, part)) for part in controllers]
            is_due = is_due or bool(controllers)
            if settings.faults:
                failures = self._get("failures", self._replica_key(state), self._failures, state)
                found += [(part.name, self._after(state, part)) for part in failures]
        if not is_due:
            found.append(
                ("time passes", self._tick_early(state) if self.scenario.succeeds else self._tick(state))
            )
        if settings.changes:
            self._people_steps(state, found)
        return [step for step in found if step[1] != state]

    def fair_step(self, state: int) -> tuple[str, int] | None:
        """Return the step that follows if nothing goes wrong any more; None: nothing is left to be done."""
        if self.packing.writes.of(state):
            return self._write(state)
        decided = self._decide(state)
        if decided:
            return "the operator decides", state + decided
        tampered = self._settings(state).tampered
        for index, table in enumerate(self.packing.nodes):
            number = table.of(state)
            part = self._agent(index, number, tampered)
            if part is not None:
                return part.name, self._after(state, part)
        if self.scenario.owners:
            for part in self._controllers(state):
                return part.name, self._after(state, part)
        for index, table in enumerate(self.packing.nodes):
            number = table.of(state)
            for part in self._get(
                "fair_pods", (index, number, tampered), self._fair_pods, index, number, tampered
            ):
                return part.name, self._after(state, part)
            found: Steps = []
            self._scheduler_steps(state, index, found, replicas_only=True)
            if found:
                return found[0]
        after = self._tick(state)
        return ("time passes", after) if after != state else None

    def _get(self, memory: str, key: object, compute: Callable[..., T], *arguments: object) -> T:
        return self._memory[memory].get(key, compute, *arguments)

    def _settings(self, state: int) -> Settings:
        table = self.packing.settings
        return table.items[table.of(state)]

    def _after(self, state: int, part: Part) -> int:
        """Return the state after a step: its part, the writes that are refused then, and what it uses up."""
        _, delta, changed, uses = part
        after = state + delta
        if changed:
            writes = self.packing.writes.of(state)
            if writes:
                after += self._get("stale", (writes, changed), self._stale, writes, changed)
        if uses:
            settings = self.packing.settings.of(state)
            after += self._get("used", (settings, uses), self._used, settings, uses)
        return after

    def _used(self, number: int, uses: int) -> int:
        table = self.packing.settings
        item = table.items[number]
        after = item._replace(
            faults=item.faults - bool(uses & FAULT),
            changes=item.changes - bool(uses & CHANGE),
            tampered=item.tampered or bool(uses & TAMPER),
            delayed=item.delayed or bool(uses & DELAY),
        )
        return table.difference(number, after)

    def _stale(self, number: int, changed: int) -> int:
        """Return the difference that a change makes to the writes: those of its objects are refused."""
        table = self.packing.writes
        index, objects, owner = self._changed.items[changed]

        def is_refused(write: Write) -> bool:
            if write.kind == "scale":
                return write.target == owner and bool(write.also)
            if write.kind == "plan" or write.target != index:
                return False
            if write.kind == "set":
                return objects.gpu_node
            return write.value in objects.ended if write.kind in ("mark", "unmark") else objects.node

        after = tuple(w._replace(stale=True) if is_refused(w) else w for w in table.items[number])
        return table.difference(number, after)

    def more_may_happen(self, state: int) -> Iterator[int]:
        """Yield the states like this one in which more may still happen, and more laws hold."""
        number = self.packing.settings.of(state)
        for difference in self._get("more", number, self._more, number):
            yield state + difference

    def _more(self, number: int) -> list[int]:
        table, found = self.packing.settings, list[int]()
        item = table.items[number]
        for faults in range(item.faults, self.scenario.faults + 1):
            for changes in range(item.changes, self.scenario.changes + 1):
                for tampered, delayed in product({False, item.tampered}, {False, item.delayed}):
                    other = Settings(item.policy, item.stopped, tampered, faults, changes, delayed)
                    if other != item:
                        found.append(table.difference(number, other))
        return found

    # ---- the operator ---------------------------------------------------------------------------------

    def _operator_steps(self, state: int, settings: Settings, found: Steps) -> None:
        table = self.packing.writes
        number = table.of(state)
        if not number:
            decided = self._decide(state)
            if decided:
                found.append(("the operator decides", state + decided))
            return
        found.append(self._write(state))
        found.append(("the operator ends", state - (number << table.shift)))
        first = table.items[number][0]
        if settings.faults and not first.stale:
            refused = Part(
                "the write is refused", table.difference(number, table.items[number][1:]), 0, FAULT
            )
            found.append((refused.name, self._after(state, refused)))

    def _decide(self, state: int) -> int:
        """Return what the decision of the operator adds to a state without writes."""
        packing = self.packing
        views = tuple(
            self._get("view", (index, number := table.of(state)), self._view, index, number)
            for index, table in enumerate(packing.nodes)
        )
        settings = self._settings(state)
        key = (
            views,
            packing.plans.of(state),
            packing.owners.of(state),
            settings.policy,
            settings.stopped,
        )
        writes, lost_slice = self._get("decided", key, self._decided, state)
        if lost_slice and not settings.tampered:
            raise LawBroken(f"{lost_slice} is to lose a slice that is known to be held")
        if writes and self.scenario.owners:
            is_disturbed = (settings.faults, settings.changes) != (
                self.scenario.faults,
                self.scenario.changes,
            )
            if not is_disturbed and any(w.kind == "mark" for w in packing.writes.items[writes]):
                check_marks(self.unpack(state), packing.writes.items[writes])
        return writes << packing.writes.shift

    def _view(self, index: int, number: int) -> int:
        return self._views.number(self.operator.visible(self.packing.nodes[index].items[number]))

    def _decided(self, state: int) -> tuple[int, str]:
        """Return the number of the writes that the operator decides, and the slice that they take."""
        fleet = self.unpack(state)
        visible = fleet._replace(nodes=tuple(map(self.operator.visible, fleet.nodes)))
        decision = self.operator.decision(visible)
        return self.packing.writes.number(decision.writes), decision.lost_slice

    def _write(self, state: int) -> tuple[str, int]:
        """Make the first write; the API server refuses it where its object has changed."""
        packing = self.packing
        number = packing.writes.of(state)
        first = packing.writes.items[number][0]
        table: Table = {"plan": packing.plans, "scale": packing.owners}.get(  # type: ignore[assignment]
            first.kind, packing.nodes[first.target] if first.kind not in ("plan", "scale") else packing.plans
        )
        tampered = self._settings(state).tampered
        key = number, table.of(state), tampered
        part, rest = self._get("written", key, self._written, number, table, table.of(state), tampered)
        after = state + rest
        return part.name, self._after(after, part)

    def _written(self, number: int, table: Table, target: int, tampered: bool) -> tuple[Part, int]:
        writes = self.packing.writes
        write, others = writes.items[number][0], writes.items[number][1:]
        name, changed = f"write: {write.kind} {write.target} {write.value}", 0
        item = table.items[target]
        rest = writes.difference(number, others)
        after = item
        if write.kind == "plan":
            if item[write.target].state != ABSENT:
                plan = item[write.target]._replace(state=write.value, age=0)
                # Nothing of a plan matters that is not live any more, but for how it has ended.
                after = put(
                    item, write.target, plan if plan.is_live else PlanObject(write.value, recommended=False)
                )
        elif write.stale or (write.kind != "scale" and not item.exists):
            name += " is refused"
        elif write.kind == "scale":
            after = put(item, write.target, item[write.target]._replace(replicas=write.value))
        elif write.kind in ("mark", "unmark"):
            after = _marked(item, write)
        elif write.kind == "set":
            after = self._set(item, write, tampered=tampered)
            changed = self._changed.number((write.target, Changed(gpu_node=True), NONE))
        else:
            after = _with_hold(item, write)
        return Part(name, table.difference(target, after), changed), rest

    def _set(self, node: NodeState, write: Write, *, tampered: bool) -> NodeState:
        assert isinstance(write.value, tuple)
        layouts = tuple(zip(write.value[::2], write.value[1::2], strict=True))
        for gpu, wanted in layouts:
            if wanted == NONE or tampered:
                continue
            held = {(p.start, self.scenario.kinds[p.kind].resource) for p in on_node.on_gpu(node, gpu)}
            if not held <= set(devices_of(wanted)):
                raise LawBroken(f"GPU {gpu} is to lose a slice under a pod")
        return on_node.set_layouts(node, layouts)

    # ---- agents, kubelets, scheduler, controllers -------------------------------------------------------

    def _parts(self, index: int, number: int, steps: Iterable[NodeStep], uses: int = 0) -> list[Part]:
        table, parts = self.packing.nodes[index], []
        for name, after, changed in steps:
            objects = self._changed.number((index, changed, NONE)) if changed != Changed() else 0
            parts.append(Part(f"node {index}: {name}", table.difference(number, after), objects, uses))
        return parts

    def _agent(self, index: int, number: int, tampered: bool) -> Part | None:
        """Return what the agent of a node does next, or that the node comes back; None: nothing."""
        parts = self._get("agent", (index, number, tampered), self._agent_parts, index, number, tampered)
        return parts[0] if parts else None

    def _agent_parts(self, index: int, number: int, tampered: bool) -> list[Part]:
        node = self.packing.nodes[index].items[number]
        return self._parts(index, number, self._node_steps[tampered].agent(node))

    def _node_parts(self, index: int, number: int, tampered: bool) -> list[Part]:
        node, steps = self.packing.nodes[index].items[number], self._node_steps[tampered]
        parts = self._parts(index, number, (*steps.agent(node), *steps.pods(node)))
        return parts if node.exists else parts + self._comes_back(index, number)

    def _comes_back(self, index: int, number: int) -> list[Part]:
        """Return the ways in which a node is created anew.

        It has no hold then, and its agent may act before the operator places one.
        """
        node, parts = self.packing.nodes[index].items[number], []
        for kept, name in ((True, "it returns"), (False, "it returns without its GPUNode")):
            after = NodeSteps.comes_back(node, kept=kept)
            uses = TAMPER if any(gpu.wanted != NONE for gpu in after.gpus) else 0
            step = NodeStep(name, after, Changed(node=True, gpu_node=True))
            parts += self._parts(index, number, (step,), uses)
        return parts

    def _fair_pods(self, index: int, number: int, tampered: bool) -> list[Part]:
        """Return that a node comes back, or what its kubelet and its replicas do next."""
        node, steps = self.packing.nodes[index].items[number], self._node_steps[tampered]
        if not node.exists:
            return self._comes_back(index, number)[:1]
        for pod in node.pods:
            if pod.gpu == NONE:
                return self._parts(index, number, steps.allocations(node, pod))[:1]
        owned = (pod for pod in node.pods if self.scenario.kinds[pod.kind].owner != NONE)
        return [part for pod in owned for part in self._parts(index, number, steps.replica(node, pod))][:1]

    def _fault_parts(self, index: int, number: int, tampered: bool) -> list[Part]:
        node, steps = self.packing.nodes[index].items[number], self._node_steps[tampered]
        parts = self._parts(index, number, (*steps.agent_fails(node), *steps.crashes(node)), FAULT)
        return [part._replace(uses=FAULT | DELAY * ("quarantine" in part.name)) for part in parts]

    def _scheduler_steps(self, state: int, index: int, found: Steps, *, replicas_only: bool = False) -> None:
        pending, table = self.packing.pending, self.packing.nodes[index]
        waiting, number = pending.of(state), table.of(state)
        for kind, count in enumerate(pending.items[waiting]):
            if count and not (replicas_only and kind >= len(self.scenario.owners)):
                part = self._get(
                    "bound", (index, number, waiting, kind), self._bound, index, number, waiting, kind
                )
                if part.delta:
                    found.append((part.name, state + part.delta))

    def _bound(self, index: int, number: int, waiting: int, kind: int) -> Part:
        kinds, pending, table = self.scenario.kinds, self.packing.pending, self.packing.nodes[index]
        node, counts = table.items[number], pending.items[waiting]
        name = f"a pod of kind {kind} goes to node {index}"
        if not on_node.has_room(node, kinds, kinds[kind].resource):
            return Part(name, 0)
        bound = table.difference(number, on_node.with_pod(node, PodState(kind)))
        return Part(name, bound + pending.difference(waiting, put(counts, kind, counts[kind] - 1)))

    def _replica_key(self, state: int) -> tuple[int, ...]:
        packing = self.packing
        return (
            packing.owners.of(state),
            packing.pending.of(state),
            *(table.of(state) for table in packing.nodes),
        )

    def _controllers(self, state: int) -> list[Part]:
        return self._get("controllers", self._replica_key(state), self._controller_parts, state)

    def _controller_parts(self, state: int) -> list[Part]:
        return self._replica_parts(state, replica_steps(self.unpack(state)))

    def _failures(self, state: int) -> list[Part]:
        return self._replica_parts(state, replica_failures(self.unpack(state)), FAULT)

    def _replica_parts(self, state: int, steps: Iterable[ReplicaStep], uses: int = 0) -> list[Part]:
        parts = []
        for name, after, owner in steps:
            changed = self._changed.number((NONE, Changed(), owner)) if owner != NONE else 0
            parts.append(Part(name, self.packing.pack(after) - state, changed, uses))
        return parts

    # ---- time -----------------------------------------------------------------------------------------

    def _tick_early(self, state: int) -> int:
        """Let half a minute pass, though something may be left to be done."""
        fair, after = self.fair_step(state), self._tick(state)
        is_early = fair is not None and fair[1] != after
        return self._after(after, Part("", 0, 0, DELAY)) if is_early else after

    def _tick(self, state: int) -> int:
        """Let half a minute pass."""
        packing = self.packing
        plans, writes = packing.plans.of(state), packing.writes.of(state)
        after = state + self._get("tick_plans", plans, self._tick_plans, plans)
        if writes:
            after += self._get("tick_writes", writes, self._tick_writes, writes)
        for index, table in enumerate(packing.nodes):
            number = table.of(state)
            after += self._get("tick_node", (index, number), self._tick_node, table, number)
        return after

    @staticmethod
    def _tick_node(table: Table[NodeState], number: int) -> int:
        return table.difference(number, on_node.tick(table.items[number]))

    def _tick_plans(self, number: int) -> int:
        table = self.packing.plans
        after = tuple(
            plan._replace(age=min(self.scenario.last_age, plan.age + 1)) if plan.state == EXECUTING else plan
            for plan in table.items[number]
        )
        return table.difference(number, after)

    def _tick_writes(self, number: int) -> int:
        """What a round decided is not written any more after half a minute, but for the states of plans."""
        table = self.packing.writes
        after = tuple(
            write._replace(also=max(0, write.also - 1) if write.kind == "hold" else write.also, late=True)
            for write in table.items[number]
            if write.kind == "plan" or not write.late
        )
        return table.difference(number, after)

    # ---- people ---------------------------------------------------------------------------------------

    def _people_steps(self, state: int, found: Steps) -> None:
        packing = self.packing
        tables: tuple[tuple[Table, Callable[..., list[Part]]], ...] = (
            (packing.plans, self._people_plans),
            (packing.settings, self._people_settings),
            (packing.owners, self._people_owners),
        )
        for position, (table, parts) in enumerate(tables):
            number = table.of(state)
            for part in self._get("people", (position, number), parts, number):
                found.append((part.name, self._after(state, part)))
        for index, table in enumerate(packing.nodes):
            number = table.of(state)
            for part in self._get("people", (-1 - index, number), self._people_nodes, index, number):
                found.append((part.name, self._after(state, part)))

    def _people_plans(self, number: int) -> list[Part]:
        table = self.packing.plans
        return [
            Part(name, table.difference(number, after), 0, CHANGE | uses)
            for name, after, uses in change_plans(table.items[number])
        ]

    def _people_settings(self, number: int) -> list[Part]:
        table = self.packing.settings
        less = table.items[number]._replace(changes=table.items[number].changes - 1)
        # To plans for which no replica moves, IdleOnly and Full are one.
        policies = len(POLICIES) if self.scenario.owners else len(POLICIES) - 1
        changes = change_settings(less, policies)
        return [Part(name, table.difference(number, after)) for name, after in changes]

    def _people_owners(self, number: int) -> list[Part]:
        table = self.packing.owners
        changes = change_desired(table.items[number])
        return [Part(name, table.difference(number, after), 0, CHANGE) for name, after in changes]

    def _people_nodes(self, index: int, number: int) -> list[Part]:
        node, steps = self.packing.nodes[index].items[number], self._node_steps[0]
        if not node.exists:
            return []
        ended = tuple((pod.gpu, pod.start) for pod in node.pods if pod.gpu != NONE)
        gone = Changed(node=True, ended=ended)
        by_itself = [
            NodeStep("it reboots", steps.reboot(node), gone),
            NodeStep("it vanishes", steps.vanish(node), gone),
            NodeStep("its device plugin ends", *on_node.offer(node, is_down=True)),
        ]
        by_hand = self._parts(index, number, steps.by_hand(node), CHANGE | TAMPER)
        return self._parts(index, number, by_itself, CHANGE) + by_hand

    # ---- the end --------------------------------------------------------------------------------------

    def check_end(self, state: int) -> None:
        """Raise where something is left in a state from which nothing follows."""
        check_end(self.scenario, self.unpack(state))


def _marked(node: NodeState, write: Write) -> NodeState:
    for pod in node.pods:
        if (pod.gpu, pod.start) == write.value:
            mark = UNMARKED if write.kind == "unmark" else pod.mark or MARKED
            return on_node.with_other_pod(node, pod, pod._replace(mark=mark))
    return node


def _with_hold(node: NodeState, write: Write) -> NodeState:
    holds = tuple(hold for hold in node.holds if hold[0] != write.value)
    if write.kind == "hold":
        assert isinstance(write.value, int)
        seen = any(hold[3] for hold in node.holds if hold[0] == write.value)
        holds = tuple(sorted((*holds, (write.value, 0, max(0, write.also), seen))))
    return node._replace(holds=holds)
