"""The mix or bundle that a solution has for each demand: settled demands have nothing left to choose."""

from collections.abc import Mapping
from dataclasses import replace

from tangram.packing.problem.prepared import Option, PreparedDemand, ShapePrices, option_of
from tangram.packing.problem.statement import ShapeKey
from tangram.packing.search.hints import pieces_as_they_run
from tangram.packing.search.stages import Run


def chosen_options(demands: tuple[PreparedDemand, ...], run: Run, prices: ShapePrices) -> dict[str, Option]:
    """Return what each demand gets, by id. Without a solution: what goes on without touching anything."""
    return {demand.id: chosen_option(demand, run, prices) for demand in demands}


def settled_demands(
    demands: tuple[PreparedDemand, ...], chosen: Mapping[str, Option]
) -> tuple[PreparedDemand, ...]:
    """Return the demands with the one option that is chosen for each."""
    return tuple(replace(demand, options=(chosen[demand.id],), divisible=(), mix=None) for demand in demands)


def gives_up_replicas(demand: PreparedDemand, chosen: Option) -> bool:
    """Whether a demand has fewer replicas of some shape than run now."""
    parts = dict(chosen.parts)
    return any(n > parts.get(shape, 0) for shape, n in demand.running.items())


def chosen_option(demand: PreparedDemand, run: Run, prices: ShapePrices) -> Option:
    """Return what a solution has for a demand; without one, what goes on without touching anything."""
    if demand.is_divisible:
        return _pieces(demand, run)
    if run.solution is not None and demand.id in run.model.mixes:
        counts = run.model.mixes[demand.id].counts
        return option_of(demand, prices, {shape: run.solution[v.index] for shape, v in counts.items()})
    if run.solution is not None:
        values = [run.solution[v.index] for v in run.model.chosen[demand.id]]
        options = next(each.options for each in run.model.demands if each.id == demand.id)
        return options[values.index(1)]
    running = demand.running
    if demand.mix is not None:
        possible = [option_of(demand, prices, counts) for counts in demand.mix.within(running)]
    else:
        possible = [o for o in demand.options if all(n <= running.get(s, 0) for s, n in o.parts)]
    return min(possible, key=lambda option: (option.unmet, option.price, option.parts))


def _pieces(demand: PreparedDemand, run: Run) -> Option:
    counts: dict[ShapeKey, int] = {}
    for (number, shape), n in pieces_as_they_run(demand).items():
        if run.solution is not None:
            n = run.solution[run.model.pieces[demand.id, number, shape].index]  # noqa: PLW2901
        counts[shape] = counts.get(shape, 0) + n
    return Option(0, tuple(sorted((shape, n) for shape, n in counts.items() if n)), 0, 0)
