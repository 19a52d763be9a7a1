"""The GPUs that a packing cuts anew, in sets that are consented to and carried out by themselves.

Two GPUs are in one set where a replica moves from one to the other: then neither end is reached without both.
Only GPUs of nodes with a partition backend and of GPUPools are changed, and only where each replica gets to
its place at once, and ends after its replacement serves: no detours, no restarts. All else is recommended.
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
from tangram.recommendation.problem.problem import FleetProblem

Steps = Iterable[Mapping[str, Any]]  # of the plan document


def layout_changes(
    fleet: FleetProblem, packing: Packing, snapshot: FleetSnapshot, steps: Steps
) -> tuple[tuple[LayoutChanges, ...], tuple[str, ...]]:
    """Return the independent sets of changes, by name, and notes on those that are not carried out.

    `steps`: those that lead to `packing`, as far as any do. A set with a GPU that may not be cut is absent,
    and one in which a replica would have to make a detour or to restart.
    """
    steps = tuple(steps)
    pools = {pool.name: pool for pool in snapshot.pools}
    observed = {gpu.id for partition in snapshot.partition.nodes for gpu in partition.gpus}
    states = {gpu.id: gpu for gpu in fleet.problem.gpus}
    recut = {layout.id: layout for layout in packing.layouts if layout.recut and layout.id in states}
    sets = _connected(recut, ((move.source.gpu, move.target.gpu) for move in packing.moves))
    changes, notes = list[LayoutChanges](), list[str]()
    for gpus in sets:
        used = [pools.get(states[gpu].pool) for gpu in gpus if gpu in recut]
        if not all(gpu in observed for gpu in gpus if gpu in recut) or not all(map(_may_cut, used)):
            continue
        moves = [move for move in packing.moves if move.source.gpu in gpus]
        owners = {move.owner for move in moves}
        if not _is_direct(moves, steps):
            who = ", ".join(sorted(owners))
            notes.append(f"GPU {min(gpus)} is not cut: replicas of {who} would make a detour, or restart")
            continue
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
    return tuple(sorted(changes, key=lambda one_set: one_set.name)), tuple(sorted(notes))


def _may_cut(pool: Pool | None) -> bool:
    return pool is not None and pool.policy is not PoolPolicy.IGNORE


def _is_direct(moves: list[Move], steps: Steps) -> bool:
    """Whether steps take each replica to its place at once, without a detour and without a restart."""
    gpus = {gpu for move in moves for gpu in (move.source.gpu, move.target.gpu)}
    started: Counter[tuple[str, str]] = Counter()
    for step in steps:
        if gpus.isdisjoint(step.get("gpus", ())):
            continue
        if step.get("temporary") or step.get("restart"):
            return False
        if step["kind"] == "start-replica":
            started.update((step["owner"], gpu) for gpu in step["gpus"])
    return Counter((move.owner, move.target.gpu) for move in moves) <= started


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
