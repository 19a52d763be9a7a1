"""A plan that nobody can carry out is of little use: of plans that serve as much, one to which steps lead."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tangram.packing import Packing
from tangram.recommendation.problem.problem import FleetProblem

Steps = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ExecutablePacking:
    """A plan, how to get there, and what is to be said of it."""

    packing: Packing
    steps: Steps
    notes: tuple[str, ...] = ()


def executable_packing(
    asked: FleetProblem,
    packing: Packing,
    solved: Callable[[FleetProblem], Packing],
    steps_of: Callable[[Packing], Steps],
) -> ExecutablePacking:
    """Return `packing` if some step leads there or somebody would go short, else the best without moves.

    Replicas that wait for each other's places are what blocks steps; where nobody moves, nobody waits. Where
    some steps can be taken, one that is blocked is no reason to give up what the others save.
    """
    first = ExecutablePacking(packing, steps_of(packing))
    blocked = "stepsMissing" in first.steps and not first.steps["steps"]
    if not asked.given.terms.reachable or not blocked or not packing.moves:
        return first
    still = replace(asked, problem=replace(asked.problem, move_budget=0))
    other = solved(still)
    if other.status == "FALLBACK" or _shorter(other, packing):  # no time to think is no reason to move nobody
        return first
    second = steps_of(other)
    if "stepsMissing" in second:
        return first
    cheaper = f"{packing.cost_per_hour:.2f} $/h would do, but no step leads there: "
    return ExecutablePacking(other, second, (cheaper + first.steps["stepsMissing"]["text"],))


def _shorter(other: Packing, packing: Packing) -> bool:
    """Whether `other` leaves more unserved, the highest priority first."""
    priorities = sorted({item.priority for each in (other, packing) for item in each.unmet}, reverse=True)
    missed = [
        [round(sum(i.share for i in each.unmet if i.priority == p), 6) for p in priorities]
        for each in (other, packing)
    ]
    return missed[0] > missed[1]
