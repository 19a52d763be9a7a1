"""The GPUs that a packing cuts anew, in sets that are consented to and carried out by themselves.

Two GPUs are in one set where a replica moves from one to the other: then neither end is reached without both;
and where mig-manager changes the MIG modes of both on one node, which it does only while nothing runs there.
Only GPUs of nodes with a partition backend and of GPUPools are changed, and only where steps lead each
replica to its place. All else is recommended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
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
)
from tangram.packing import GPUState, Packing
from tangram.packing.problem.result import GPULayout, Move
from tangram.packing.problem.statement import Problem
from tangram.recommendation.problem.packing_problem import FleetProblem

Steps = Iterable[Mapping[str, Any]]  # of the plan document


def layout_changes(
    fleet: FleetProblem, packing: Packing, snapshot: FleetSnapshot, steps: Steps
) -> tuple[tuple[LayoutChanges, ...], tuple[str, ...]]:
    """Return the independent sets of changes, by name, and notes on those that are not carried out.

    `steps`: those that lead to `packing`, as far as any do. A set with a GPU that may not be cut is absent,
    and one in which the move of a replica is blocked.
    """
    steps = tuple(steps)
    pools = {pool.name: pool for pool in snapshot.pools}
    observed = {gpu.id for partition in snapshot.partition.nodes for gpu in partition.gpus}
    states = {gpu.id: gpu for gpu in fleet.problem.gpus}
    recut = {layout.id: layout for layout in packing.layouts if layout.recut and layout.id in states}
    touched = _touched(fleet.problem, packing)
    names = {d.id: f"{d.intent.namespace}/{d.intent.name}" for d in fleet.inputs.deployments}
    sets = _connected(recut, (*touched.values(), *_changing_together(states, recut)))
    changes, notes = list[LayoutChanges](), list[str]()
    for gpus in sets:
        used = [pools.get(states[gpu].pool) for gpu in gpus if gpu in recut]
        if not all(gpu in observed for gpu in gpus if gpu in recut) or not all(map(_may_cut, used)):
            continue
        moves = [move for move, on in touched.items() if on & gpus]
        owners = {move.owner for move in moves}
        if blocked := _blocked(moves, gpus, steps):
            notes.append(f"GPU {min(gpus)} is not cut: no steps move replicas of {', '.join(blocked)}")
            continue
        shapes = {
            (names.get(choice.demand, choice.demand), part.shape)
            for choice in packing.choices
            for part in choice.parts
            if choice.demand in owners and part.count
        }
        changes.append(
            LayoutChanges(
                tuple(sorted(_change(states[gpu], recut[gpu]) for gpu in gpus if gpu in recut)),
                tuple(sorted(shapes)),
                min((pool for pool in used if pool is not None), key=_strictness).name,
            )
        )
    return tuple(sorted(changes, key=lambda one_set: one_set.name)), tuple(sorted(notes))


def _may_cut(pool: Pool | None) -> bool:
    return pool is not None and pool.policy is not PoolPolicy.IGNORE


def _strictness(pool: Pool) -> tuple[int, str]:
    """Whose consent counts where the GPUs of a set are in several pools: one that a person has to give first.

    An IdleOnly pool has no replicas that move: it is asked last.
    """
    order = (PoolPolicy.IGNORE, PoolPolicy.RECOMMEND, PoolPolicy.FULL, PoolPolicy.IDLE_ONLY)
    return order.index(pool.policy), pool.name


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
    states: Mapping[str, GPUState], recut: Mapping[str, GPULayout]
) -> Iterable[frozenset[str]]:
    """Yield the GPUs of each node whose MIG modes mig-manager changes: once one of them serves, it cannot."""
    by_node: dict[str, set[str]] = defaultdict(set)
    for gpu, layout in recut.items():
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


def _connected(recut: Iterable[str], touched: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Return the sets of GPUs that moves join, of those with a GPU that is cut anew, in a fixed order."""
    joined: dict[str, set[str]] = defaultdict(set)
    for gpus in touched:
        for gpu in gpus:
            joined[gpu] |= gpus
    sets, visited = list[frozenset[str]](), set[str]()
    for gpu in sorted(recut):
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


def _change(state: GPUState, layout: GPULayout) -> LayoutChange:
    before = MIGLayout(state.mig_enabled, _slices((i.start, i.profile) for i in state.instances))
    is_whole = any(placed.profile == WHOLE_GPU for placed in layout.instances)
    after = MIGLayout(not is_whole, _slices((p.start, p.profile) for p in layout.instances))
    return LayoutChange(state.node, state.id, before, after)


def _slices(slices: Iterable[tuple[int, str]]) -> tuple[MIGSlice, ...]:
    return tuple(sorted(MIGSlice(start, profile) for start, profile in slices if profile != WHOLE_GPU))
