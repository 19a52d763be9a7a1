"""The GPUs that a packing cuts anew, in sets that are consented to and carried out by themselves.

Two GPUs are in one set where a replica moves from one to the other: then neither end is reached without both.
Only GPUs of nodes with a partition backend and of GPUPools are changed; all others are merely recommended.
"""

from collections import defaultdict
from collections.abc import Iterable

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
from tangram.packing.problem.result import GPULayout
from tangram.recommendation.problem.problem import FleetProblem


def layout_changes(
    fleet: FleetProblem, packing: Packing, snapshot: FleetSnapshot
) -> tuple[LayoutChanges, ...]:
    """Return the independent sets of changes, by name. One with a GPU that may not be cut is absent."""
    pools = {pool.name: pool for pool in snapshot.pools}
    observed = {gpu.id for partition in snapshot.partition.nodes for gpu in partition.gpus}
    states = {gpu.id: gpu for gpu in fleet.problem.gpus}
    recut = {layout.id: layout for layout in packing.layouts if layout.recut and layout.id in states}
    sets = _connected(recut, ((move.source.gpu, move.target.gpu) for move in packing.moves))
    changes = []
    for gpus in sets:
        used = [pools.get(states[gpu].pool) for gpu in gpus if gpu in recut]
        if not all(gpu in observed for gpu in gpus if gpu in recut) or not all(map(_may_cut, used)):
            continue
        owners = {move.owner for move in packing.moves if move.source.gpu in gpus}
        shapes = {
            (choice.demand, part.shape)
            for choice in packing.choices
            for part in choice.parts
            if choice.demand in owners and part.count
        }
        changes.append(
            LayoutChanges(
                tuple(sorted(_change(states[gpu], recut[gpu]) for gpu in gpus if gpu in recut)),
                tuple(sorted(shapes)),
                min((pool.name for pool in used if pool is not None), default=""),
            )
        )
    return tuple(sorted(changes, key=lambda one_set: one_set.name))


def _may_cut(pool: Pool | None) -> bool:
    return pool is not None and pool.policy is not PoolPolicy.IGNORE


def _connected(recut: Iterable[str], moves: Iterable[tuple[str, str]]) -> list[frozenset[str]]:
    """Return the sets of GPUs that moves join, of those with a GPU that is cut anew, in a fixed order."""
    joined: dict[str, set[str]] = defaultdict(set)
    for source, target in moves:
        joined[source].add(target)
        joined[target].add(source)
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
