"""Where the search starts: what runs goes on as it is, the rest takes the cheapest. Usually near the best."""

from collections.abc import Iterable, Iterator
from itertools import chain

from tangram.packing.model.classes import StateClass
from tangram.packing.model.cp_model import IntVar
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import PreparedDemand
from tangram.packing.problem.statement import ShapeKey


def staying(demand: PreparedDemand) -> int | None:
    """Return which option is exactly what runs now, if that leaves as little unmet as any; of a mix, 0."""
    running, least = demand.running, demand.least_unmet
    if demand.mix is not None:
        return (
            0
            if running and demand.mix.unmet(running) == least and demand.mix.allows(running, running)
            else None
        )
    for number, option in enumerate(demand.options):
        if option.unmet == least and dict(option.parts) == running:
            return number
    return None


def as_it_is(group: StateClass) -> int:
    """Return the target that changes nothing: everybody stays, nobody comes."""
    kinds = [target.kind for target in group.targets]
    if group.is_node:
        return 0
    held = any(target.kept for target in group.targets)
    return kinds.index("same") if held or "idle" not in kinds else kinds.index("idle")


def first_guess(model: Model) -> dict[int, int]:
    """Return values of variables, by index: GPUs as they are, replicas and bundles as they run."""
    if not any_stays(model):
        return {}
    guess: dict[int, int] = {}
    for group, counts in zip(model.classes.existing, model.counts, strict=True):
        same = as_it_is(group)
        guess |= {v.index: len(group.members) * (t == same) for t, v in enumerate(counts)}
    for demand in model.demands:
        stays = staying(demand)
        if demand.is_divisible:
            pieces = pieces_as_they_run(demand)
            guess |= {model.pieces[demand.id, *key].index: n for key, n in pieces.items()}
        elif stays is not None and demand.mix is not None:
            running, mine = demand.running, model.mixes[demand.id].counts
            guess |= {v.index: running.get(shape, 0) for shape, v in mine.items()}
        elif stays is not None:
            chosen = model.chosen[demand.id]
            guess |= {v.index: int(number == stays) for number, v in enumerate(chosen)}
    return guess


def pieces_as_they_run(demand: PreparedDemand) -> dict[tuple[int, ShapeKey], int]:
    """Return how many of each part of a divisible demand run now and go on, by its number and shape."""
    found: dict[tuple[int, ShapeKey], int] = {}
    left = demand.running
    for number, (shapes, count) in enumerate(demand.divisible):
        for shape in shapes:
            n = min(count, left.get(shape, 0))
            left[shape] = left.get(shape, 0) - n
            count -= n  # noqa: PLW2901 - what is still wanted of this part
            found[number, shape] = n
    return found


def shortlist(demand: PreparedDemand) -> list[int]:
    """Return the options to look at first: what runs, else the cheapest of each SKU and the last resorts.

    One per SKU, because what is cheapest for everybody is what runs out.
    """
    stays = staying(demand)
    if stays is not None:
        return [stays]
    best: dict[tuple[str, int], int] = {}
    least = demand.least_unmet
    for number, option in enumerate(demand.options):
        skus = sorted({shape.sku for shape, _ in option.parts})
        whole = option.unmet == least
        key = (skus[0] if skus and whole else "", option.unmet)
        if key not in best or option.price < demand.options[best[key]].price:
            best[key] = number
    return sorted(best.values())


def any_stays(model: Model) -> bool:
    """Whether any demand is served by what runs."""
    return any(
        demand.held if demand.is_divisible else staying(demand) is not None for demand in model.demands
    )


def carried(old: Model, solution: list[int], new: Model) -> dict[int, int]:
    """Return the same solution for a model of the same columns and other bundles, as far as it has them."""
    pairs = [*_same_targets(old, new)]
    pairs += zip(chain(*old.converted), chain(*new.converted), strict=True)
    for before, after in zip(old.grown, new.grown, strict=True):
        pairs += zip((before.nodes, *before.counts), (after.nodes, *after.counts), strict=True)
    pairs += [(old.gangs[key], variable) for key, variable in new.gangs.items() if key in old.gangs]
    pairs += [(old.pieces[key], variable) for key, variable in new.pieces.items() if key in old.pieces]
    pairs += [(old.keeps[key], variable) for key, variable in new.keeps.items() if key in old.keeps]
    pairs += [(old.spots[key], variable) for key, variable in new.spots.items() if key in old.spots]
    guess = {after.index: solution[before.index] for before, after in pairs}
    for demand, was in zip(new.demands, old.demands, strict=True):
        parts = dict(_parts(old, was, solution))
        for option, variable in zip(demand.options, new.chosen.get(demand.id, ()), strict=True):
            guess[variable.index] = int(dict(option.parts) == parts)
        if demand.id in new.mixes:
            guess |= {v.index: parts.get(shape, 0) for shape, v in new.mixes[demand.id].counts.items()}
    return guess


def _same_targets(old: Model, new: Model) -> Iterator[tuple[IntVar, IntVar]]:
    """Yield the variables of one target of one class in both models: either may lack targets."""
    both = zip(old.classes.existing, old.counts, new.classes.existing, new.counts, strict=True)
    for before, counts, after, now in both:
        known = dict(zip(before.targets, counts, strict=True))
        yield from ((known[t], v) for t, v in zip(after.targets, now, strict=True) if t in known)


def _parts(model: Model, demand: PreparedDemand, solution: list[int]) -> Iterable[tuple[ShapeKey, int]]:
    """Return the replicas that a solution has for a demand, by shape."""
    if demand.id in model.mixes:
        return ((shape, solution[v.index]) for shape, v in model.mixes[demand.id].counts.items())
    chosen = (solution[variable.index] for variable in model.chosen.get(demand.id, ()))
    return next((option.parts for option, value in zip(demand.options, chosen, strict=True) if value), ())
