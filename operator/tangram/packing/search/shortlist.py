"""Few columns of each demand and few targets of each class of GPUs: those near the master's solution."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from tangram.packing.column_generation.master import FINE, Bounded
from tangram.packing.model.gpu_classes import GPUClasses, PreparedFleet
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import MixColumn, PreparedDemand, column_of
from tangram.packing.search.hints import as_it_is

_TARGETS = 6  # of each class of GPUs: of 1,000 scattered GPUs 1,350 of 6,161 are left
_NEAR = 0.05  # of a GPU's price: what targets nearby cost more than those in use
COLUMNS = 16  # of a fractional demand of the master: with 8, 100 GPUs had twice the gap
_SURE = 1  # of the others: with 3 and 8 the search took longer and found less


def near_classes(
    model: Model, bounded: Bounded, horizon_h: float, guess: Mapping[int, int], few: int = _TARGETS
) -> GPUClasses:
    """Leave the targets that the master uses, a `few` of the nearest to them, and those of a `guess`."""
    near_targets = list[set[int]]()
    for group, variables in zip(model.classes.existing, model.counts, strict=True):
        costs = [(v.index not in bounded.used, bounded.priced[v.index]) for v in variables]
        order = sorted(range(len(costs)), key=lambda n: (costs[n], n))
        near = _NEAR * FINE * group.kind.price * horizon_h
        numbers = {n for n in order[:few] if costs[n][1] <= near}
        numbers |= {n for n, (unused, _) in enumerate(costs) if not unused}
        numbers |= {n for n, variable in enumerate(variables) if guess.get(variable.index)}
        near_targets.append(numbers | {as_it_is(group)})
    return model.classes.restricted(near_targets)


def near_columns(
    fleet: PreparedFleet,
    bounded: Bounded,
    chosen: Mapping[str, MixColumn],
    free: Collection[str] = (),
    sure: int = _SURE,
) -> tuple[PreparedDemand, ...]:
    """Leave all demands but the `free` ones few columns: the master's, the nearest, the `chosen` one.

    `sure`: as many of those that the master serves by one column.
    """
    most = {d.id: sure for d in fleet.demands} | dict.fromkeys(bounded.fractional_demands, COLUMNS)
    return tuple(
        d if d.limits is None or d.id in free else _with_columns(fleet, d, bounded, chosen, most[d.id])
        for d in fleet.demands
    )


def furthest(bounded: Bounded, chosen: Mapping[str, MixColumn]) -> list[str]:
    """Return the demands, those first whose chosen column is the furthest from the master's."""
    far = dict[str, int]()
    for demand, costs in bounded.costs.items():
        far[demand] = costs.get(chosen[demand].parts, max(costs.values()))
    return sorted(far, key=lambda demand: (-far[demand], demand))


def columns_around(
    fleet: PreparedFleet, bounded: Bounded, chosen: Mapping[str, MixColumn], around: Collection[str]
) -> tuple[PreparedDemand, ...]:
    """Leave the demands `around` few columns, and all others the chosen one."""
    few = list[PreparedDemand]()
    for demand in fleet.demands:
        if demand.limits is None:
            few.append(demand)
        elif demand.id in around:
            few.append(_with_columns(fleet, demand, bounded, chosen, COLUMNS))
        else:
            few.append(replace(demand, columns=(chosen[demand.id],), limits=None))
    return tuple(few)


def _with_columns(
    fleet: PreparedFleet, demand: PreparedDemand, bounded: Bounded, chosen: Mapping[str, MixColumn], few: int
) -> PreparedDemand:
    costs, weights = bounded.costs[demand.id], bounded.weights.get(demand.id, {})
    order = sorted(costs, key=lambda counts: (counts not in weights, costs[counts], counts))
    running = tuple(sorted(demand.running.items()))
    shortlisted = dict.fromkeys((*order[:few], *(counts for counts in costs if counts in {(), running})))
    columns = [column_of(demand, fleet.prices, dict(counts)) for counts in shortlisted]
    columns += [chosen[demand.id]] if demand.id in chosen else []
    return replace(demand, columns=tuple(dict.fromkeys(columns)), limits=None)
