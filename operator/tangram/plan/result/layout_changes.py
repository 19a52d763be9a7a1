"""The changes that lead to a packing, in sets that are consented to and carried out by themselves.

Two GPUs are in one set where a replica moves from one to the other: then neither end is reached without both;
where all replicas of one LLMDeployment change their shape; and where mig-manager changes the MIG modes of
both on one node, which it does only while nothing runs there. Only GPUs of nodes with a partition backend and
of GPUPools are changed, and only where steps lead each replica to its place. Moves for which no GPU is cut
are changes where a GPUPool asks a person first (Recommend). All else is recommended.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tangram.fleet import (
    WHOLE_GPU,
    FleetSnapshot,
    LayoutChange,
    LayoutChanges,
    MIGLayout,
    MIGSlice,
    Pool,
    PoolPolicy,
    ShapeKey,
)
from tangram.packing import GPUState, Packing
from tangram.packing.problem.result import GPULayout, Move
from tangram.packing.problem.statement import Problem
from tangram.plan.explanation.steps_document import restarted_owners
from tangram.plan.place.best.packing_problem import FleetProblem
from tangram.plan.result.moved_replicas import (
    keeps_profile,
    left_gpus,
    moves_by_shape,
    unsteered_slices,
)

Steps = Iterable[Mapping[str, Any]]  # of the plan document
_LEAST_SAVING = 0.005  # USD per hour: less is shown as nothing


@dataclass(frozen=True, slots=True)
class _PackedFleet:
    """A fleet with the packing that it is to get."""

    problem: Problem
    packing: Packing
    states: Mapping[str, GPUState]  # by GPU
    pools: Mapping[str, Pool]  # by GPU, of those that plans may change or empty
    names: Mapping[str, str]  # of owners, as NAMESPACE/NAME


@dataclass(frozen=True, slots=True)
class _GPUSet:
    """GPUs that change together or not at all, with the moves that touch them."""

    gpus: frozenset[str]
    cuts: Mapping[str, GPULayout]  # of the GPUs that are cut
    moves: list[Move]

    @property
    def changed_gpus(self) -> Collection[str]:
        """The GPUs whose pools have to consent: those that are cut, else those that replicas leave."""
        return self.cuts or left_gpus(self.moves)


def layout_changes(
    fleet: FleetProblem, packing: Packing, snapshot: FleetSnapshot, steps: Steps
) -> tuple[tuple[LayoutChanges, ...], tuple[str, ...]]:
    """Return the independent sets of changes, by name, and notes on those that are not carried out.

    `steps`: those that lead to `packing`, as far as any do. A set with a GPU that may not be cut is absent,
    and one in which the move of a replica is blocked.
    """
    states = {gpu.id: gpu for gpu in fleet.problem.gpus}
    names = {d.id: f"{d.intent.namespace}/{d.intent.name}" for d in fleet.inputs.deployments}
    packed = _PackedFleet(fleet.problem, packing, states, _changeable(states, snapshot), names)
    steps = tuple(steps)
    changes, notes = list[LayoutChanges](), list[str]()
    for gpu_set in _gpu_sets(packed):
        result = _changes_or_note(packed, gpu_set, steps)
        if isinstance(result, LayoutChanges):
            changes.append(result)
        elif result:
            notes.append(result)
    return tuple(sorted(changes, key=lambda one_set: one_set.name)), tuple(sorted(notes))


def _changeable(states: Mapping[str, GPUState], snapshot: FleetSnapshot) -> dict[str, Pool]:
    """Return the pools of the GPUs that plans may change or empty, by GPU."""
    pools = {pool.name: pool for pool in snapshot.pools if pool.policy is not PoolPolicy.IGNORE}
    observed = {gpu.id for partition in snapshot.partition.nodes for gpu in partition.gpus}
    gpus = (state for state in states.values() if state.id in observed and state.pool in pools)
    return {state.id: pools[state.pool] for state in gpus}


def _gpu_sets(packed: _PackedFleet) -> Iterable[_GPUSet]:
    """Yield the sets of GPUs that are cut or that replicas leave, in a fixed order."""
    packing, states = packed.packing, packed.states
    cuts = {layout.id: layout for layout in packing.layouts if layout.recut and layout.id in states}
    touched = _touched(packed.problem, packing)
    joined = (*touched.values(), *_of_one_owner(touched), *_changing_together(states, cuts))
    for gpus in _connected({*cuts, *(move.source.gpu for move in packing.moves)}, joined):
        own_cuts = {gpu: cuts[gpu] for gpu in gpus if gpu in cuts}
        yield _GPUSet(gpus, own_cuts, [move for move, on in touched.items() if on & gpus])


def _changes_or_note(
    packed: _PackedFleet, gpu_set: _GPUSet, steps: Collection[Mapping[str, Any]]
) -> LayoutChanges | str:
    """Return the changes of one set, or why they are not carried out; empty: there is nothing to change."""
    gpus, moves = gpu_set.gpus, gpu_set.moves
    changes = _changes(packed, gpu_set)
    if isinstance(changes, str):
        return changes
    served, cost = _served_more(packed, gpus), _cost(packed.problem, packed.packing, gpus)
    if not gpu_set.cuts and not served and cost[0] - cost[1] < _LEAST_SAVING:
        return ""
    refusal = f"GPU {min(gpus)} is not cut" if gpu_set.cuts else f"GPU {min(gpus)} keeps its replicas"
    restarted = restarted_owners(step for step in steps if not gpus.isdisjoint(step.get("gpus", ())))
    if restarted and not _may_restart(restarted, moves, [packed.states[gpu] for gpu in gpus]):
        return f"GPU {min(gpus)} is not cut: replicas of {', '.join(restarted)} would be restarted"
    if blocked := _blocked(moves, gpus, steps):
        return f"{refusal}: no steps move replicas of {', '.join(blocked)}"
    return LayoutChanges(
        changes,
        _new_shapes(packed, moves),
        _consenting_pool(packed, gpu_set).name,
        tuple(sorted(packed.names.get(owner, owner) for owner in restarted)),
        cost=cost,
        serves=served,
    )


def _new_shapes(packed: _PackedFleet, moves: list[Move]) -> tuple[tuple[str, ShapeKey], ...]:
    """Return the shapes that owners of moved replicas have in the packing, by NAMESPACE/NAME."""
    owners = {move.owner for move in moves}
    choices = [choice for choice in packed.packing.choices if choice.demand in owners]
    shapes = {
        (packed.names.get(choice.demand, choice.demand), part.shape)
        for choice in choices
        for part in choice.parts
        if part.count
    }
    return tuple(sorted(shapes))


def _may_restart(owners: tuple[str, ...], moves: list[Move], gpus: list[GPUState]) -> bool:
    """Whether restarts of these owners are carried out: where NVML knows the pods of slices, and where all
    their replicas change their shape, so that one Deployment ends before the other one begins.
    """
    same_shape = {move.owner for move in moves if keeps_profile(move)}
    moved = {move.owner for move in moves}
    return (
        moved.issuperset(owners)
        and same_shape.isdisjoint(owners)
        and all(gpu.backend == "nvml" for gpu in gpus)
    )


def _changes(packed: _PackedFleet, gpu_set: _GPUSet) -> tuple[LayoutChange, ...] | str:
    """Return the GPUs of one set that are cut and those that replicas leave; or why none is changed, which
    is empty where a pool allows no change or does not ask for consent to moves alone.
    """
    cuts, moves, states, pools = gpu_set.cuts, gpu_set.moves, packed.states, packed.pools
    if not pools.keys() >= set(gpu_set.changed_gpus):
        return ""
    cleared, unsteered = unsteered_slices(states.values(), packed.packing, moves, everywhere=not cuts)
    if not cuts:
        if not any(pools[gpu].policy is PoolPolicy.RECOMMEND for gpu in gpu_set.changed_gpus):
            return ""
        if note := _unsteered_note(packed, moves, unsteered, cleared):
            return note
    cleared_only = {gpu: cleared[gpu] for gpu in cleared if gpu not in cuts and gpu in pools}
    emptied = (moves_by_shape(moves) & pools.keys()) - cuts.keys() - cleared.keys()
    changes = [_change(states[gpu], layout) for gpu, layout in cuts.items()]
    for gpu, profiles in cleared_only.items():
        before = _layout_of(states[gpu])
        changes.append(LayoutChange(states[gpu].node, gpu, before, before.without(profiles)))
    for gpu in emptied:
        layout = _layout_of(states[gpu])
        changes.append(LayoutChange(states[gpu].node, gpu, layout, layout))
    return tuple(sorted(changes)) or ""


def _unsteered_note(
    packed: _PackedFleet, moves: list[Move], unsteered: Collection[str], cleared: Mapping[str, Any]
) -> str:
    """Return why replicas do not move where no GPU is cut; empty: they start on their new slices alone."""
    prefix = f"replicas of {', '.join(sorted({move.owner for move in moves}))} do not move"
    if any(map(keeps_profile, moves)):
        return f"{prefix}: they could start on any free slice"
    if unsteered or not cleared.keys() <= packed.pools.keys():
        return f"{prefix}: they could start on GPU {min((*unsteered, *cleared))} as well"
    return ""


def _of_one_owner(touched: Mapping[Move, frozenset[str]]) -> Iterable[frozenset[str]]:
    """Yield the GPUs of each owner whose replicas change their shape: they all do, or none does."""
    gpus: dict[str, set[str]] = defaultdict(set)
    for move, on in touched.items():
        if not keeps_profile(move):
            gpus[move.owner] |= on
    return map(frozenset, gpus.values())


def _served_more(packed: _PackedFleet, gpus: frozenset[str]) -> tuple[str, ...]:
    """Return the names of the owners of more replicas than now, with one on these GPUs; sorted."""
    layouts = packed.packing.layouts
    before = Counter(placed.owner for gpu in packed.problem.gpus for placed in gpu.instances)
    after = Counter(placed.owner for layout in layouts for placed in layout.instances)
    owners = {placed.owner for layout in layouts if layout.id in gpus for placed in layout.instances}
    served = (owner for owner in owners if owner is not None and after[owner] > before[owner])
    return tuple(sorted(packed.names[owner] for owner in served if owner in packed.names))


def _cost(problem: Problem, packing: Packing, gpus: frozenset[str]) -> tuple[float, float]:
    """Return USD per hour of those of these GPUs that are in use: now, and in the packing."""
    in_use = {layout.id for layout in packing.layouts if layout.in_use}
    touched = [gpu for gpu in problem.gpus if gpu.id in gpus]
    now = sum(problem.price(gpu) for gpu in touched if any(i.owner is not None for i in gpu.instances))
    return now, sum(problem.price(gpu) for gpu in touched if gpu.id in in_use)


def _consenting_pool(packed: _PackedFleet, gpu_set: _GPUSet) -> Pool:
    """Return the pool whose consent counts where the GPUs of a set are in several: one that a person has to
    give first. An IdleOnly pool has no replicas that move: it is asked last.
    """
    order = (PoolPolicy.IGNORE, PoolPolicy.RECOMMEND, PoolPolicy.FULL, PoolPolicy.IDLE_ONLY)
    pools = (packed.pools[gpu] for gpu in gpu_set.changed_gpus)
    return min(pools, key=lambda pool: (order.index(pool.policy), pool.name))


def _touched(problem: Problem, packing: Packing) -> dict[Move, frozenset[str]]:
    """Return the GPUs of each move: those that its replica leaves, and those that it gets."""
    members: dict[tuple[str | None, str], set[str]] = defaultdict(set)  # by owner and gang
    for gpu in problem.gpus:
        for instance in gpu.instances:
            members[instance.owner, instance.gang or gpu.id].add(gpu.id)
    for layout in packing.layouts:
        for placed in layout.instances:
            members[placed.owner, placed.gang or layout.id].add(layout.id)
    return {
        move: frozenset().union(
            *(members[move.owner, site.gang or site.gpu] | {site.gpu} for site in (move.source, move.target))
        )
        for move in packing.moves
    }


def _changing_together(
    states: Mapping[str, GPUState], cuts: Mapping[str, GPULayout]
) -> Iterable[frozenset[str]]:
    """Yield the GPUs of each node whose MIG modes mig-manager changes: once one of them serves, it cannot."""
    by_node: dict[str, set[str]] = defaultdict(set)
    for gpu, layout in cuts.items():
        state = states[gpu]
        if state.backend == "mig-manager" and state.mig_enabled != _change(state, layout).after.mig_enabled:
            by_node[state.node].add(gpu)
    return map(frozenset, by_node.values())


def _blocked(moves: list[Move], gpus: frozenset[str], steps: Steps) -> list[str]:
    """Return the owners of replicas of which no step starts as many on a GPU as move there, sorted."""
    started: Counter[tuple[str, str]] = Counter()
    for step in steps:
        if step["kind"] == "start-replica" and not gpus.isdisjoint(step["gpus"]):
            started.update((step["owner"], gpu) for gpu in step["gpus"])
    needed = Counter((move.owner, move.target.gpu) for move in moves)
    return sorted({owner for owner, _ in needed - started})


def _connected(first: Iterable[str], touched: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Return the sets of GPUs that moves join, of those with one of the `first` GPUs, in a fixed order."""
    joined: dict[str, set[str]] = defaultdict(set)
    for gpus in touched:
        for gpu in gpus:
            joined[gpu] |= gpus
    sets, visited = list[frozenset[str]](), set[str]()
    for gpu in sorted(first):
        if gpu in visited:
            continue
        reached, unvisited = {gpu}, [gpu]
        while unvisited:
            new = joined[unvisited.pop()] - reached
            reached |= new
            unvisited.extend(new)
        visited |= reached
        sets.append(frozenset(reached))
    return sets


def _layout_of(state: GPUState) -> MIGLayout:
    return MIGLayout(state.mig_enabled, _slices((i.start, i.profile) for i in state.instances))


def _change(state: GPUState, layout: GPULayout) -> LayoutChange:
    before = _layout_of(state)
    is_whole = any(placed.profile == WHOLE_GPU for placed in layout.instances)
    after = MIGLayout(not is_whole, _slices((p.start, p.profile) for p in layout.instances))
    return LayoutChange(state.node, state.id, before, after)


def _slices(slices: Iterable[tuple[int, str]]) -> tuple[MIGSlice, ...]:
    return tuple(sorted(MIGSlice(start, profile) for start, profile in slices if profile != WHOLE_GPU))
