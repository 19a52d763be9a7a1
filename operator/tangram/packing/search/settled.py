"""The mix that a solution has for each demand: settled demands have nothing left to choose."""

from collections.abc import Mapping
from dataclasses import replace

from tangram.catalog.prices import Prices
from tangram.fleet import ShapeKey
from tangram.packing.model.gpu_classes import PreparedFleet
from tangram.packing.problem.prepared import MixColumn, PreparedDemand, column_of
from tangram.packing.search.hints import pieces_as_they_run
from tangram.packing.search.stages import Run


def chosen_columns(fleet: PreparedFleet, run: Run) -> dict[str, MixColumn]:
    """Return what each demand gets, by id. Without a solution: what goes on without touching anything."""
    columns = {demand.id: demand.columns for demand in run.model.demands}
    return {d.id: _chosen(d, run, fleet.prices, columns[d.id]) for d in fleet.demands}


def settled_demands(
    demands: tuple[PreparedDemand, ...], chosen: Mapping[str, MixColumn]
) -> tuple[PreparedDemand, ...]:
    """Return the demands with the one mix that is chosen for each."""
    return tuple(replace(demand, columns=(chosen[demand.id],), slices=(), limits=None) for demand in demands)


def gives_up_replicas(demand: PreparedDemand, chosen: MixColumn) -> bool:
    """Whether a demand has fewer replicas of some shape than run now."""
    parts = dict(chosen.parts)
    return any(n > parts.get(shape, 0) for shape, n in demand.running.items())


def _chosen(demand: PreparedDemand, run: Run, prices: Prices, columns: tuple[MixColumn, ...]) -> MixColumn:
    """Return what a solution has for a demand; without one, what goes on without touching anything."""
    if demand.is_request:
        return _pieces(demand, run)
    if run.solution is not None and demand.id in run.model.mixes:
        counts = run.model.mixes[demand.id].counts
        return column_of(demand, prices, {shape: run.solution[v.index] for shape, v in counts.items()})
    if run.solution is not None:
        values = [run.solution[v.index] for v in run.model.chosen[demand.id]]
        return columns[values.index(1)]
    running, mixes = demand.running, [] if demand.limits is None else demand.limits.within(demand.running)
    possible = [c for c in demand.columns if all(n <= running.get(shape, 0) for shape, n in c.parts)]
    possible += [column_of(demand, prices, counts) for counts in mixes]
    return min(possible, key=lambda column: (column.unmet, column.price, column.parts))


def _pieces(demand: PreparedDemand, run: Run) -> MixColumn:
    counts: dict[ShapeKey, int] = {}
    for (number, shape), n in pieces_as_they_run(demand).items():
        if run.solution is not None:
            n = run.solution[run.model.pieces[demand.id, number, shape].index]  # noqa: PLW2901
        counts[shape] = counts.get(shape, 0) + n
    return MixColumn(tuple(sorted((shape, n) for shape, n in counts.items() if n)), 0, 0)
