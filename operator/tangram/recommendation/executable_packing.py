"""Choose the best packing without moves where no step towards the best packing can be taken."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tangram.packing import Packing
from tangram.recommendation.problem.packing_problem import FleetProblem

Steps = dict[str, Any]  # of the plan document: `steps` and, where they are incomplete, `stepsMissing`


@dataclass(frozen=True, slots=True)
class ExecutablePacking:
    """A packing with the steps that lead to it, and notes on why it was chosen."""

    packing: Packing
    steps: Steps
    notes: tuple[str, ...] = ()


def executable_packing(
    fleet: FleetProblem,
    packing: Packing,
    solve: Callable[[FleetProblem], Packing],
    steps_of: Callable[[Packing], Steps],
) -> ExecutablePacking:
    """Return `packing`, or the best packing without moves where no step leads to `packing`.

    Steps are blocked by replicas that wait for each other's devices: without moves none waits. The packing
    without moves is taken only where it serves as much. A packing with some blocked steps is kept: the others
    save money already.
    """
    first = ExecutablePacking(packing, steps_of(packing))
    blocked = "stepsMissing" in first.steps and not first.steps["steps"]
    if not fleet.inputs.terms.reachable or not blocked or not packing.moves:
        return first
    unmoved = solve(replace(fleet, problem=replace(fleet.problem, move_budget=0)))
    if unmoved.status == "FALLBACK" or _leaves_more_unmet(unmoved, packing):
        return first
    steps = steps_of(unmoved)
    if "stepsMissing" in steps:
        return first
    note = f"{packing.cost_per_hour:.2f} $/h would do, but no step leads there: "
    return ExecutablePacking(unmoved, steps, (note + first.steps["stepsMissing"]["text"],))


def _leaves_more_unmet(unmoved: Packing, packing: Packing) -> bool:
    """Whether `unmoved` serves less than `packing`, the highest priority first."""
    priorities = sorted({item.priority for item in (*unmoved.unmet, *packing.unmet)}, reverse=True)

    def unmet_by_priority(candidate: Packing) -> list[float]:
        return [round(sum(i.share for i in candidate.unmet if i.priority == p), 6) for p in priorities]

    return unmet_by_priority(unmoved) > unmet_by_priority(packing)
