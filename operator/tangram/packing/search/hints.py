"""Where the search starts: what runs goes on as it is. Usually near the best."""

from collections import Counter
from collections.abc import Iterable
from itertools import chain, repeat

from tangram.fleet import ShapeKey
from tangram.packing.model import cp_model
from tangram.packing.model.gpu_classes import GPUClasses, GPUKind, StateClass
from tangram.packing.model.targets import Origin, Target
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import PreparedDemand


def stays(demand: PreparedDemand) -> bool:
    """Whether what runs now may go on, and leaves as little unmet as any mix."""
    running, least, limits = demand.running, demand.least_unmet, demand.limits
    if limits is not None:
        return bool(running) and limits.unmet(running) == least and limits.allows(running, running)
    return any(column.unmet == least and dict(column.parts) == running for column in demand.columns)


def as_it_is(group: StateClass) -> int:
    """Return the target that changes nothing: every replica stays, none is added."""
    return 0 if group.is_node else _unchanged(group.targets)


def converted_as_they_are(classes: GPUClasses) -> list[tuple[int, ...]]:
    """Return how many GPUs of each converted class become what if nothing changes: those in use stay, the
    others are idle.
    """
    now: Counter[tuple[GPUKind, Origin]] = Counter()
    for group in classes.existing:
        for origin, n in group.targets[as_it_is(group)].in_mig:
            now[group.kind.one_gpu, origin] += n * len(group.members)
    return [
        tuple(now[c.kind, c.origin] * (t == _unchanged(c.targets)) for t in range(len(c.targets)))
        for c in classes.converted
    ]


def _unchanged(targets: tuple[Target, ...]) -> int:
    """Return the target of a GPU in MIG mode under which its replicas stay; without any, it is idle."""
    kinds = [target.kind for target in targets]
    held = any(target.kept for target in targets)
    return kinds.index("same") if held or "idle" not in kinds else kinds.index("idle")


def first_guess(model: Model) -> dict[int, int]:
    """Return values of variables, by index: GPUs and replicas as they are."""
    if not any(demand.held if demand.is_request else stays(demand) for demand in model.demands):
        return {}
    guess: dict[int, int] = {}
    for group, counts in zip(model.classes.existing, model.counts, strict=True):
        same = as_it_is(group)
        guess |= {v.index: len(group.members) * (t == same) for t, v in enumerate(counts)}
    for counts, numbers in zip(model.converted, converted_as_they_are(model.classes), strict=True):
        guess |= {v.index: n for v, n in zip(counts, numbers, strict=True)}
    for demand in model.demands:
        if demand.is_request:
            pieces = pieces_as_they_run(demand)
            guess |= {model.pieces[demand.id, *key].index: n for key, n in pieces.items()}
        elif stays(demand) and demand.limits is not None:
            running, count_variables = demand.running, model.mixes[demand.id].counts
            guess |= {v.index: running.get(shape, 0) for shape, v in count_variables.items()}
        elif stays(demand):
            pairs = zip(model.chosen[demand.id], demand.columns, strict=True)
            guess |= {v.index: int(dict(column.parts) == demand.running) for v, column in pairs}
    return guess


def pieces_as_they_run(demand: PreparedDemand) -> dict[tuple[int, ShapeKey], int]:
    """Return how many of each part of a request run now and go on, by its number and shape."""
    pieces: dict[tuple[int, ShapeKey], int] = {}
    left = demand.running
    for number, (shapes, count) in enumerate(demand.slices):
        for shape in shapes:
            n = min(count, left.get(shape, 0))
            left[shape] = left.get(shape, 0) - n
            count -= n  # noqa: PLW2901 - what is still wanted of this part
            pieces[number, shape] = n
    return pieces


def carried(old: Model, solution: list[int], new: Model) -> dict[int, int]:
    """Return the same solution for a model of the same fleet, as far as that has its mixes and targets."""
    pairs = list[tuple[cp_model.IntVar, cp_model.IntVar]]()
    for before, after in zip(old.grown, new.grown, strict=True):
        pairs += zip((before.nodes, *before.counts), (after.nodes, *after.counts), strict=True)
    pairs += [(old.gangs[key], variable) for key, variable in new.gangs.items() if key in old.gangs]
    pairs += [(old.pieces[key], variable) for key, variable in new.pieces.items() if key in old.pieces]
    pairs += [(old.spots[key], variable) for key, variable in new.spots.items() if key in old.spots]
    guess = {after.index: solution[before.index] for before, after in pairs}
    guess |= _targets(old, solution, new) | _converted_targets(old, solution, new)
    if old.classes.name is new.classes.name:
        keeps = ((key, variable) for key, variable in new.keeps.items() if key in old.keeps)
        guess |= {variable.index: solution[old.keeps[key].index] for key, variable in keeps}
    for demand, was in zip(new.demands, old.demands, strict=True):
        parts = dict(_parts(old, was, solution))
        for column, variable in zip(demand.columns, new.chosen.get(demand.id, ()), strict=True):
            guess[variable.index] = int(dict(column.parts) == parts)
        if demand.id in new.mixes:
            guess |= {v.index: parts.get(shape, 0) for shape, v in new.mixes[demand.id].counts.items()}
    return guess


def _targets(old: Model, solution: list[int], new: Model) -> dict[int, int]:
    """Return how many members of each class become what: what they become in the old model.

    Classes may tell owners apart more finely than before: a target is known by the slices that it offers.
    """
    becomes: dict[tuple[str, ...], Target] = {}
    for group, counts in zip(old.classes.existing, old.counts, strict=True):
        times = ((target, solution[v.index]) for target, v in zip(group.targets, counts, strict=True))
        chosen = chain.from_iterable(repeat(target, n) for target, n in times)
        becomes |= dict(zip(group.members, chosen, strict=True))
    guess: dict[int, int] = {}
    for group, variables in zip(new.classes.existing, new.counts, strict=True):
        old_targets = Counter(_offered(becomes[ids]) for ids in group.members)
        for target, variable in zip(group.targets, variables, strict=True):
            guess[variable.index] = old_targets.pop(_offered(target), 0)
    return guess


def _converted_targets(old: Model, solution: list[int], new: Model) -> dict[int, int]:
    """Return how many GPUs that may leave MIG mode become what. Their classes may tell owners apart, too."""
    becomes: dict[tuple[GPUKind, Origin], Counter[tuple[object, ...]]] = {}
    for group, counts in zip(old.classes.converted, old.converted, strict=True):
        offered = becomes.setdefault((group.kind, group.origin.without_owners), Counter())
        for target, variable in zip(group.targets, counts, strict=True):
            offered[_offered(target)] += solution[variable.index]
    guess: dict[int, int] = {}
    for group, variables in zip(new.classes.converted, new.converted, strict=True):
        offered = becomes.get((group.kind, group.origin.without_owners), Counter())
        for target, variable in zip(group.targets, variables, strict=True):
            guess[variable.index] = offered.pop(_offered(target), 0)
    return guess


def _offered(target: Target) -> tuple[object, ...]:
    return (
        target.kind,
        target.supply,
        target.layout,
        target.free,
        sum(n for _, n in target.in_mig),
        sum(n for _, n in target.kept),
    )


def _parts(model: Model, demand: PreparedDemand, solution: list[int]) -> Iterable[tuple[ShapeKey, int]]:
    """Return the replicas that a solution has for a demand, by shape."""
    if demand.id in model.mixes:
        return ((shape, solution[v.index]) for shape, v in model.mixes[demand.id].counts.items())
    chosen = (solution[variable.index] for variable in model.chosen.get(demand.id, ()))
    return next((column.parts for column, value in zip(demand.columns, chosen, strict=True) if value), ())
