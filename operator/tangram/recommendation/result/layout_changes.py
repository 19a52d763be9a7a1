"""The changes that lead to a packing, in sets that are consented to and carried out by themselves.

Two GPUs are in one set where a replica moves from one to the other: then neither end is reached without both;
where all replicas of one LLMDeployment change their shape; and where mig-manager changes the MIG modes of
both on one node, which it does only while nothing runs there. Only GPUs of nodes with a partition backend and
of GPUPools are changed, and only where steps lead each replica to its place. Moves for which no GPU is cut
are changes where a GPUPool asks a person first (Recommend). All else is recommended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
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
)
from tangram.packing import GPUState, Packing
from tangram.packing.problem.result import GPULayout, Move
from tangram.packing.problem.statement import Problem
from tangram.recommendation.explanation.steps_document import restarted_owners
from tangram.recommendation.problem.packing_problem import FleetProblem
from tangram.recommendation.result.moved_replicas import left_gpus, moves_by_shape, unsteered_slices

Steps = Iterable[Mapping[str, Any]]  # of the plan document
_LEAST_SAVING = 0.005  # USD per hour: less is shown as nothing


@dataclass(frozen=True, slots=True)
class _ChangeSet:
    """Changes of one set, or why there are none."""

    changes: tuple[LayoutChange, ...] = ()
    pool: str = ""
    note: str = ""


def layout_changes(
    fleet: FleetProblem, packing: Packing, snapshot: FleetSnapshot, steps: Steps
) -> tuple[tuple[LayoutChanges, ...], tuple[str, ...]]:
    """Return the independent sets of changes, by name, and notes on those that are not carried out.

    `steps`: those that lead to `packing`, as far as any do. A set with a GPU that may not be cut is absent,
    and one in which the move of a replica is blocked.
    """
    steps, problem = tuple(steps), fleet.problem
    states = {gpu.id: gpu for gpu in problem.gpus}
    recut = {layout.id: layout for layout in packing.layouts if layout.recut and layout.id in states}
    touched = _touched(problem, packing)
    joined = (*touched.values(), *_of_one_owner(touched), *_changing_together(states, recut))
    names = {d.id: f"{d.intent.namespace}/{d.intent.name}" for d in fleet.inputs.deployments}
    changes, notes = list[LayoutChanges](), list[str]()
    for gpus in _connected({*recut, *(move.source.gpu for move in packing.moves)}, joined):
        moves = [move for move, on in touched.items() if on & gpus]
        owners = {move.owner for move in moves}
        own_cuts = {gpu: recut[gpu] for gpu in gpus if gpu in recut}
        change_set = _change_set(states, packing, snapshot, own_cuts, moves)
        served = sorted(names[owner] for owner in _served_more(problem, packing, gpus) if owner in names)
        cost = _cost(problem, packing, gpus)
        if not change_set.changes or (not own_cuts and not served and cost[0] - cost[1] < _LEAST_SAVING):
            notes += [change_set.note] if change_set.note else []
            continue
        restarted = restarted_owners(step for step in steps if not gpus.isdisjoint(step.get("gpus", ())))
        if restarted and not _may_restart(restarted, moves, [states[gpu] for gpu in gpus]):
            notes.append(f"GPU {min(gpus)} is not cut: replicas of {', '.join(restarted)} would be restarted")
            continue
        if blocked := _blocked(moves, gpus, steps):
            verb = f"GPU {min(gpus)} is not cut" if own_cuts else f"GPU {min(gpus)} keeps its replicas"
            notes.append(f"{verb}: no steps move replicas of {', '.join(blocked)}")
            continue
        shapes = {
            (names.get(choice.demand, choice.demand), part.shape)
            for choice in packing.choices
            for part in choice.parts
            if choice.demand in owners and part.count
        }
        changes.append(
            LayoutChanges(
                change_set.changes,
                tuple(sorted(shapes)),
                change_set.pool,
                tuple(sorted(names.get(owner, owner) for owner in restarted)),
                cost=cost,
                serves=tuple(served),
            )
        )
    return tuple(sorted(changes, key=lambda one_set: one_set.name)), tuple(sorted(notes))


def _may_restart(owners: tuple[str, ...], moves: list[Move], gpus: list[GPUState]) -> bool:
    """Whether restarts of these owners are carried out: where NVML knows the pods of slices, and where all
    their replicas change their shape, so that one Deployment ends before the other one begins.
    """
    same_shape = {move.owner for move in moves if move.source.profile == move.target.profile}
    moved = {move.owner for move in moves}
    return (
        moved.issuperset(owners)
        and same_shape.isdisjoint(owners)
        and all(gpu.backend == "nvml" for gpu in gpus)
    )


def _change_set(
    states: Mapping[str, GPUState],
    packing: Packing,
    snapshot: FleetSnapshot,
    recut: Mapping[str, GPULayout],
    moves: list[Move],
) -> _ChangeSet:
    """Return the GPUs of one set that are cut, those that replicas leave, and whose consent it takes."""
    pools = {pool.name: pool for pool in snapshot.pools}
    observed = {gpu.id for partition in snapshot.partition.nodes for gpu in partition.gpus}

    def pool_of(gpu: str) -> Pool | None:
        """Return the pool of a GPU that a plan may change or empty; None: there is none."""
        pool = pools.get(states[gpu].pool)
        return pool if gpu in observed and pool is not None and pool.policy is not PoolPolicy.IGNORE else None

    left = left_gpus(moves).difference(recut)
    cleared, unsteered = unsteered_slices(states.values(), packing, moves, everywhere=not recut)
    own_pools = [pool for gpu in (recut or left_gpus(moves)) if (pool := pool_of(gpu)) is not None]
    if len(own_pools) < len(recut or left_gpus(moves)):
        return _ChangeSet()
    if not recut:
        if not any(pool.policy is PoolPolicy.RECOMMEND for pool in own_pools):
            return _ChangeSet()
        owners = ", ".join(sorted({move.owner for move in moves}))
        if any(move.source.profile == move.target.profile for move in moves):
            return _ChangeSet(note=f"replicas of {owners} do not move: they could start on any free slice")
        if unsteered or not all(map(pool_of, cleared)):
            where = min((*unsteered, *cleared))
            return _ChangeSet(
                note=f"replicas of {owners} do not move: they could start on GPU {where} as well"
            )
    changes = [_change(states[gpu], layout) for gpu, layout in recut.items()]
    changes += [
        LayoutChange(states[gpu].node, gpu, before := _layout_of(states[gpu]), before.without(profiles))
        for gpu, profiles in cleared.items()
        if gpu not in recut and pool_of(gpu) is not None
    ]
    changes += [
        LayoutChange(states[gpu].node, gpu, _layout_of(states[gpu]), _layout_of(states[gpu]))
        for gpu in moves_by_shape(moves) & left
        if gpu not in cleared and pool_of(gpu) is not None
    ]
    return _ChangeSet(tuple(sorted(changes)), min(own_pools, key=_strictness).name)


def _of_one_owner(touched: Mapping[Move, frozenset[str]]) -> Iterable[frozenset[str]]:
    """Yield the GPUs of each owner whose replicas change their shape: they all do, or none does."""
    gpus: dict[str, set[str]] = defaultdict(set)
    for move, on in touched.items():
        if move.source.profile != move.target.profile:
            gpus[move.owner] |= on
    return map(frozenset, gpus.values())


def _served_more(problem: Problem, packing: Packing, gpus: frozenset[str]) -> Iterable[str]:
    """Return the owners of more replicas than now, with one on these GPUs."""
    now = Counter(i.owner for gpu in problem.gpus for i in gpu.instances)
    then = Counter(i.owner for layout in packing.layouts for i in layout.instances)
    here = {i.owner for layout in packing.layouts if layout.id in gpus for i in layout.instances}
    return (owner for owner in here if owner is not None and then[owner] > now[owner])


def _cost(problem: Problem, packing: Packing, gpus: frozenset[str]) -> tuple[float, float]:
    """Return USD per hour of those of these GPUs that are in use: now, and in the packing."""
    in_use = {layout.id for layout in packing.layouts if layout.in_use}
    touched = [gpu for gpu in problem.gpus if gpu.id in gpus]
    now = sum(problem.price(gpu) for gpu in touched if any(i.owner is not None for i in gpu.instances))
    return now, sum(problem.price(gpu) for gpu in touched if gpu.id in in_use)


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
