"""Owners that no demand names are interchangeable: one owner for the solver, their own names after.

Hundreds of owners would tell GPUs apart that are alike; what each costs to move is kept, so nothing is lost.
"""

from dataclasses import replace

from tangram.packing import GPULayout, GPUState, Instance, Move, Packing, Placed, Problem

MERGED_FOREIGN_OWNER = "\0strangers"  # in a problem only: no document can hold this name


def merged(problem: Problem) -> Problem:
    """Return the same problem with one owner for all movable instances that belong to no demand."""
    demands = {demand.id for demand in problem.demands}

    def merge(instance: Instance) -> Instance:
        keeps_owner = instance.owner is None or instance.owner in demands or not instance.movable
        return instance if keeps_owner else replace(instance, owner=MERGED_FOREIGN_OWNER)

    def state(gpu: GPUState) -> GPUState:
        return replace(gpu, instances=tuple(map(merge, gpu.instances))) if gpu.instances else gpu

    return replace(problem, gpus=tuple(map(state, problem.gpus)))


def named(packing: Packing, problem: Problem) -> Packing:
    """Return the packing of `merged(problem)` with the owners that `problem` names."""
    was = {(gpu.id, i.profile, i.start): i.owner for gpu in problem.gpus for i in gpu.instances}

    def with_owner(move: Move) -> Move:
        source = (move.source.gpu, move.source.profile, move.source.start)
        return replace(move, owner=was[source] or "") if move.owner == MERGED_FOREIGN_OWNER else move

    moves = tuple(sorted(map(with_owner, packing.moves), key=lambda m: (m.owner, m.source, m.target)))
    came = {(m.target.gpu, m.target.profile, m.target.start): m.owner for m in moves}
    by_gang = {m.target.gang: m.owner for m in moves if m.target.gang is not None}

    def owner(gpu: str, placed: Placed) -> str | None:
        if placed.owner != MERGED_FOREIGN_OWNER:
            return placed.owner
        site = (gpu, placed.profile, placed.start)
        return by_gang.get(placed.gang or "") or came.get(site) or was.get(site)

    def with_owners(layout: GPULayout) -> GPULayout:
        instances = tuple(replace(p, owner=owner(layout.id, p)) for p in layout.instances)
        return replace(layout, instances=instances)

    return replace(packing, layouts=tuple(map(with_owners, packing.layouts)), moves=moves)
