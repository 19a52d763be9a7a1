"""Counts of GPUs by target and of replicas by shape: from a solution, or of the fleet as it is."""

from collections.abc import Mapping
from dataclasses import dataclass

from tangram.fleet import ShapeKey
from tangram.packing.model.gpu_classes import GPUClasses, GPUKind
from tangram.packing.model.targets import OwnerTag
from tangram.packing.model.variables import Model
from tangram.packing.problem.prepared import MixColumn
from tangram.packing.search.hints import as_it_is, converted_as_they_are
from tangram.packing.search.stages import Run


@dataclass(frozen=True, slots=True)
class SolutionCounts:
    """A solution in numbers, before any GPU has a name."""

    classes: tuple[tuple[int, ...], ...]  # [class][target]
    converted: tuple[tuple[int, ...], ...]
    gangs: Mapping[tuple[GPUKind, int], int]  # new gangs by size
    grown: tuple[tuple[int, tuple[int, ...]], ...]  # [growable pool] (nodes, GPUs by target)
    taken: Mapping[str, Mapping[ShapeKey, int]]  # replicas by demand
    spots: Mapping[tuple[str, ShapeKey, str], int]  # replicas by demand, shape and place, where spread
    keeps: Mapping[OwnerTag, int] | None  # replicas that go on where they are; None: all that can


def counts_of(run: Run, chosen: Mapping[str, MixColumn]) -> SolutionCounts:
    """Return the counts of the last solution."""
    solution, model = run.solution, run.model
    assert solution is not None  # noqa: S101 - asked for only where there is one
    return SolutionCounts(
        classes=tuple(tuple(solution[v.index] for v in variables) for variables in model.counts),
        converted=tuple(tuple(solution[v.index] for v in variables) for variables in model.converted),
        gangs={key: solution[v.index] for key, v in model.gangs.items()},
        grown=tuple(
            (solution[g.nodes.index], tuple(solution[v.index] for v in g.counts)) for g in model.grown
        ),
        taken={demand: dict(column.parts) for demand, column in chosen.items()},
        spots={key: solution[v.index] for key, v in model.spots.items()},
        keeps=_keeps(model, solution),
    )


def _keeps(model: Model, solution: list[int]) -> dict[OwnerTag, int]:
    staying: dict[OwnerTag, int] = {}
    for (_, _, tag), variable in model.keeps.items():
        staying[tag] = staying.get(tag, 0) + solution[variable.index]
    return staying


def nothing_changes(grouped: GPUClasses, chosen: Mapping[str, MixColumn]) -> SolutionCounts:
    """Return every GPU as it is: the fallback when time is over before the first solution."""
    return SolutionCounts(
        classes=tuple(
            tuple(len(group.members) * (t == as_it_is(group)) for t in range(len(group.targets)))
            for group in grouped.existing
        ),
        converted=tuple(converted_as_they_are(grouped)),
        gangs={},
        grown=tuple((0, (0,) * len(added.targets)) for added in grouped.grown),
        taken={demand: dict(column.parts) for demand, column in chosen.items()},
        spots={},
        keeps=None,
    )
