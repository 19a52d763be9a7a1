"""From a solution to settled bundles, and on to counts of GPUs. Without a solution: nothing changes."""

from dataclasses import replace

from tangram.packing.columns import Columns
from tangram.packing.model import Model
from tangram.packing.problem import ShapeKey
from tangram.packing.search import Run
from tangram.packing.start import as_it_is, pieces_as_they_run
from tangram.packing.targets import Label
from tangram.packing.wants import Money, Option, Want, option_of
from tangram.packing.work import Counts


def loses(want: Want) -> bool:
    """Whether a settled want gives up replicas of any shape."""
    parts = dict(want.options[0].parts)
    return any(n > parts.get(shape, 0) for shape, n in want.running.items())


def chosen_options(
    everyone: tuple[Want, ...], run: Run, prices: Money
) -> tuple[dict[str, Option], tuple[Want, ...]]:
    """Return the option that each want gets, and the wants with nothing left to choose.

    Without a solution: what goes on without touching anything, as much of it as there is.
    """
    chosen, settled = dict[str, Option](), []
    for want in everyone:
        if want.is_divisible:
            option = _pieces(want, run)
        else:
            option = chosen[want.id] = chosen_option(want, run, prices)
        settled.append(replace(want, options=(option,), divisible=(), mix=None))
    return chosen, tuple(settled)


def chosen_option(want: Want, run: Run, prices: Money) -> Option:
    """Return what a solution has for a want; without one, what goes on without touching anything."""
    if run.solution is not None and want.id in run.model.mixes:
        counts = run.model.mixes[want.id].counts
        return option_of(want, prices, {shape: run.solution[v.index] for shape, v in counts.items()})
    if run.solution is not None:
        values = [run.solution[v.index] for v in run.model.chosen[want.id]]
        options = next(each.options for each in run.model.wants if each.id == want.id)
        return options[values.index(1)]
    running = want.running
    if want.mix is not None:
        possible = [option_of(want, prices, counts) for counts in want.mix.within(running)]
    else:
        possible = [o for o in want.options if all(n <= running.get(s, 0) for s, n in o.parts)]
    return min(possible, key=lambda option: (option.unmet, option.price, option.parts))


def _pieces(want: Want, run: Run) -> Option:
    counts: dict[ShapeKey, int] = {}
    for (number, shape), n in pieces_as_they_run(want).items():
        if run.solution is not None:
            n = run.solution[run.model.pieces[want.id, number, shape].index]  # noqa: PLW2901
        counts[shape] = counts.get(shape, 0) + n
    return Option(0, tuple(sorted((shape, n) for shape, n in counts.items() if n)), 0, 0)


def counts_of(run: Run, settled: tuple[Want, ...]) -> Counts:
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
        taken={want.id: dict(want.options[0].parts) for want in settled},
        spots={key: solution[v.index] for key, v in model.spots.items()},
        keeps=_keeps(model, solution),
    )


def _keeps(model: Model, solution: list[int]) -> dict[Label, int]:
    found: dict[Label, int] = {}
    for (_, _, label), variable in model.keeps.items():
        found[label] = found.get(label, 0) + solution[variable.index]
    return found


def nothing_changes(grouped: Columns, settled: tuple[Want, ...]) -> Counts:
    """Every GPU as it is: what there is to say when time ran out before anything was found."""
    return Counts(
        classes=tuple(
            tuple(len(group.members) * (t == as_it_is(group)) for t in range(len(group.targets)))
            for group in grouped.classes
        ),
        converted=tuple((0,) * len(made.targets) for made in grouped.converted),
        gangs={},
        grown=tuple((0, (0,) * len(made.targets)) for made in grouped.grown),
        taken={want.id: dict(want.options[0].parts) for want in settled},
        spots={},
        keeps=None,
    )
