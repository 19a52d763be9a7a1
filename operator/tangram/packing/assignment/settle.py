"""From a solution to settled bundles, and on to counts of GPUs. Without a solution: nothing changes."""

from dataclasses import replace

from tangram.packing.assignment.sites import Counts
from tangram.packing.model.classes import GPUClasses
from tangram.packing.model.targets import Label
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import Option, PreparedDemand, Prices, option_of
from tangram.packing.problem.statement import ShapeKey
from tangram.packing.search.hints import as_it_is, pieces_as_they_run
from tangram.packing.search.stages import Run


def loses(demand: PreparedDemand) -> bool:
    """Whether a settled demand gives up replicas of any shape."""
    parts = dict(demand.options[0].parts)
    return any(n > parts.get(shape, 0) for shape, n in demand.running.items())


def chosen_options(
    everyone: tuple[PreparedDemand, ...], run: Run, prices: Prices
) -> tuple[dict[str, Option], tuple[PreparedDemand, ...]]:
    """Return the option that each demand gets, and the demands with nothing left to choose.

    Without a solution: what goes on without touching anything, as much of it as there is.
    """
    chosen, settled = dict[str, Option](), []
    for demand in everyone:
        if demand.is_divisible:
            option = _pieces(demand, run)
        else:
            option = chosen[demand.id] = chosen_option(demand, run, prices)
        settled.append(replace(demand, options=(option,), divisible=(), mix=None))
    return chosen, tuple(settled)


def chosen_option(demand: PreparedDemand, run: Run, prices: Prices) -> Option:
    """Return what a solution has for a demand; without one, what goes on without touching anything."""
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


def counts_of(run: Run, settled: tuple[PreparedDemand, ...]) -> Counts:
    """Return what the last solution says, in numbers of GPUs and replicas."""
    solution, model = run.solution, run.model
    assert solution is not None  # noqa: S101 - asked for only where there is one
    return Counts(
        classes=tuple(tuple(solution[v.index] for v in mine) for mine in model.counts),
        converted=tuple(tuple(solution[v.index] for v in mine) for mine in model.converted),
        gangs={key: solution[v.index] for key, v in model.gangs.items()},
        grown=tuple(
            (solution[g.nodes.index], tuple(solution[v.index] for v in g.counts)) for g in model.grown
        ),
        taken={demand.id: dict(demand.options[0].parts) for demand in settled},
        spots={key: solution[v.index] for key, v in model.spots.items()},
        keeps=_keeps(model, solution),
    )


def _keeps(model: Model, solution: list[int]) -> dict[Label, int]:
    found: dict[Label, int] = {}
    for (_, _, label), variable in model.keeps.items():
        found[label] = found.get(label, 0) + solution[variable.index]
    return found


def nothing_changes(grouped: GPUClasses, settled: tuple[PreparedDemand, ...]) -> Counts:
    """Every GPU as it is: what there is to say when time ran out before anything was found."""
    return Counts(
        classes=tuple(
            tuple(len(group.members) * (t == as_it_is(group)) for t in range(len(group.targets)))
            for group in grouped.existing
        ),
        converted=tuple((0,) * len(made.targets) for made in grouped.converted),
        gangs={},
        grown=tuple((0, (0,) * len(made.targets)) for made in grouped.grown),
        taken={demand.id: dict(demand.options[0].parts) for demand in settled},
        spots={},
        keeps=None,
    )
