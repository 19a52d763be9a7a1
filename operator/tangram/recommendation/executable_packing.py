"""Choose the best packing with fewer changes where no step towards the best packing can be taken."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tangram.packing import GPUState, Packing, Problem
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
    """Return `packing`, or the best packing with fewer changes where no step leads to `packing`.

    Steps are blocked by replicas that wait for each other's devices. They rarely do where GPUs in use are not
    cut, and never without moves. A packing with fewer changes is taken only where it serves as much. One with
    some blocked steps is kept: the others save money already.
    """
    first = ExecutablePacking(packing, steps_of(packing))
    blocked = "stepsMissing" in first.steps and not first.steps["steps"]
    if not fleet.inputs.terms.reachable or not blocked or not packing.moves:
        return first
    problem = fleet.problem
    for smaller in (_uncut(problem), replace(problem, move_budget=0)):
        changed = solve(replace(fleet, problem=smaller))
        if changed.status == "FALLBACK" or _leaves_more_unmet(changed, packing):
            continue
        steps = steps_of(changed)
        if "stepsMissing" not in steps:
            note = f"another layout, for {packing.cost_per_hour:.2f} $/h, is left out: no step leads there: "
            return ExecutablePacking(changed, steps, (note + first.steps["stepsMissing"]["text"],))
    return first


def _uncut(problem: Problem) -> Problem:
    """Return the problem in which GPUs in use keep their slices."""
    gpus = (replace(gpu, cuttable=gpu.cuttable and not _is_in_use(gpu)) for gpu in problem.gpus)
    return replace(problem, gpus=tuple(gpus))


def _is_in_use(gpu: GPUState) -> bool:
    return any(instance.owner is not None for instance in gpu.instances)


def _leaves_more_unmet(changed: Packing, packing: Packing) -> bool:
    """Whether `changed` serves less than `packing`, the highest priority first."""
    priorities = sorted({item.priority for item in (*changed.unmet, *packing.unmet)}, reverse=True)

    def unmet_by_priority(candidate: Packing) -> list[float]:
        return [round(sum(i.share for i in candidate.unmet if i.priority == p), 6) for p in priorities]

    return unmet_by_priority(changed) > unmet_by_priority(packing)
