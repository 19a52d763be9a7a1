"""The step function: the actions that may begin now, computed from what is observed alone.

`next_actions` keeps nothing between two calls: killed at any point, also in the middle of an operation, the
next call goes on from the next observation. An action that is half done is observed as not done and
begins again; every action is idempotent.

Progress: the triple (rank of the first policy that arrives, steps that it leaves once all that is underway is
done, actions underway) falls lexicographically. An action begins only where the first two fall with it. Once
it is done, the third falls and the first two stay, as its effect was counted when it began. All three are
finite: the transition ends.
"""

from dataclasses import dataclass, replace

from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import Problem
from tangram.packing.transition.disruption import Budgets, budgets_of
from tangram.packing.transition.end_states import (
    NewNode,
    ReplicaPlacement,
    as_layout,
    end_states,
    nodes_of_growth,
)
from tangram.packing.transition.fleet_state import MOST_EFFORT, Effort, FleetState
from tangram.packing.transition.legality import Underway
from tangram.packing.transition.observed import ObservedFleet
from tangram.packing.transition.remedies import missing_for
from tangram.packing.transition.steps import Missing, Pace, Step
from tangram.packing.transition.unroll import POLICIES_WITHOUT_MEMORY, Scenario, check_pace

_NO_NEARER = "each of these steps leads to a fleet that is no nearer to what is wanted: plan anew"


@dataclass(frozen=True, slots=True)
class TransitionGoal:
    """What is wanted, and the budgets on the way: fixed when the transition begins, kept beside the plan."""

    packing: Packing  # with a layout of every GPU
    new_nodes: tuple[NewNode, ...]
    budgets: Budgets


def transition_goal(problem: Problem, packing: Packing, pace: Pace) -> TransitionGoal:
    """Return the goal of the transition that begins with `problem`. Raises `InputError` for a bad pace."""
    check_pace(pace)
    named = {layout.id for layout in packing.layouts}
    others = tuple(as_layout(gpu) for gpu in problem.gpus if gpu.id not in named)
    packing = replace(packing, layouts=tuple(sorted((*packing.layouts, *others))))
    budgets = budgets_of(end_states(problem, packing), pace)
    return TransitionGoal(packing, nodes_of_growth(problem, packing), budgets)


def next_actions(fleet: ObservedFleet, goal: TransitionGoal, effort: int = MOST_EFFORT) -> tuple[Step, ...]:
    """Return the actions that may begin now, in this order; none: all is done, underway or out of reach.

    Actions are steps without a number; equal inputs give equal actions. `effort` as of `transition`.
    """
    left, steps = remaining(fleet, goal, effort)
    underway, next_steps = Underway.of(fleet, goal.budgets), list[Step]()
    for step in steps:
        if step.after or step.kind == "wait-available" or not underway.permits(step):
            continue
        begun = fleet.begin(step)
        then, _ = remaining(begun, goal, effort)
        if then < left:
            fleet, left, underway = begun, then, Underway.of(begun, goal.budgets)
            next_steps.append(replace(step, number=0))
    return tuple(next_steps)


def remaining(
    fleet: ObservedFleet, goal: TransitionGoal, effort: int = MOST_EFFORT
) -> tuple[tuple[int, int], tuple[Step, ...]]:
    """Return how far the fleet is from its goal, and the steps that are left once all underway is done."""
    scenario = _scenario(fleet, goal, effort)
    attempt = scenario.best_attempt()
    steps = scenario.safe_steps(attempt, Effort(effort))
    return (scenario.rank(attempt), len(steps)), steps


def blocking(fleet: ObservedFleet, goal: TransitionGoal, effort: int = MOST_EFFORT) -> Missing | None:
    """Return what keeps a fleet from its goal in which nothing is underway and no action may begin.

    None: the fleet is as wanted.
    """
    scenario = _scenario(fleet, goal, effort)
    attempt = scenario.best_attempt()
    missing = missing_for(scenario, attempt)
    if missing is None and attempt.recorder.steps:
        return Missing(tuple(map(str, attempt.recorder.steps)), reasons=(_NO_NEARER,))
    return missing or _unmade_slices(attempt.fleet)


def _scenario(fleet: ObservedFleet, goal: TransitionGoal, effort: int) -> Scenario:
    problem = fleet.settled(goal.new_nodes)
    attached = {gpu.id for gpu in problem.gpus}
    missing = tuple(new for new in goal.new_nodes if not attached >= {gpu.id for gpu in new.gpus})
    policies = POLICIES_WITHOUT_MEMORY
    return Scenario(problem, goal.packing, Pace(), goal.budgets, missing, Effort(effort), policies)


def _unmade_slices(arrived: FleetState) -> Missing | None:
    """Return the free slices that cannot be made though every replica is where it is wanted."""
    missing, reasons = [], dict[str, None]()
    for name, slices in arrived.ends.slices.items():
        for place in set(slices) - arrived.slices[name]:
            missing.append(f"{place} of {name}")
            stay = arrived.blockers(ReplicaPlacement("", place.profile, (name,), place.start))
            reasons |= {f"{place} of {name} has to wait for {replica}, which stays": None for replica in stay}
    return Missing(tuple(sorted(missing)), reasons=tuple(sorted(reasons))) if missing else None
