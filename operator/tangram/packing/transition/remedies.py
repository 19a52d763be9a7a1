"""The steps of a transition, or what is missing for them. Both remedies that a `Missing` names were tried.

Which slice of its node a pod really gets, the scheduler and the device plugin decide; the steps are exact
about counts per node and profile, and about slices wherever the node agent picks the pod to remove.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tangram.fleet import WHOLE_GPU, ShapeKey
from tangram.packing.geometry.layouts import Placement
from tangram.packing.problem.result import Packing
from tangram.packing.problem.statement import Problem, with_free_places
from tangram.packing.transition.attempt import TransitionAttempt
from tangram.packing.transition.end_states import ReplicaPlacement
from tangram.packing.transition.fleet_state import MOST_EFFORT, Effort
from tangram.packing.transition.steps import Missing, Pace, Spare, Transition
from tangram.packing.transition.unroll import Scenario, check_pace

_DEFAULT = Pace()
_MOST_SPARES = 4  # of one shape: a transition that needs more room needs another plan
_MOST_LOWER = 8  # minima that are tried one by one
_WHERE = ("\0", "\U0010ffff")  # before all other names, and after them: places are tried in order
_GAVE_UP = "so many replicas wait for each other's places that the search for an order was given up"


def transition(
    problem: Problem,
    packing: Packing,
    pace: Pace = _DEFAULT,
    effort: int = MOST_EFFORT,
    late: Callable[[], bool] | None = None,
) -> Transition:
    """Return the ordered steps from `problem` as it is to what `packing` wants. Deterministic.

    Where they cannot end there, `missing` has the reason; the steps then go as far as they can, and drain no
    replica early that does not come back. Raises `InputError` for a pace at which nothing could move.
    `effort`: most GPUs and replicas looked at for spare places, a count that bounds the time; from then on
    replicas are restarted instead, as minima permit, and where that leads nowhere, `missing` has it.
    `late`: whether the time limit is over, a guard beside `effort`.
    """
    check_pace(pace)
    scenario = Scenario(problem, packing, pace, effort=Effort(effort, late))
    attempt = scenario.best_attempt()
    missing = missing_for(scenario, attempt)
    return Transition(scenario.safe_steps(attempt, Effort(effort, late)), missing)


def missing_for(scenario: Scenario, attempt: TransitionAttempt) -> Missing | None:
    """Return what keeps the first attempt of a scenario from arriving. None: it arrives."""
    if attempt.has_arrived:
        return None
    missing = Missing(_blocked(attempt)) if scenario.effort.over else _missing(scenario, attempt)
    if scenario.effort.over:  # nothing is proved: there may be an order, or a remedy, that was not found
        missing = replace(missing, reasons=(*missing.reasons, _GAVE_UP))
    return missing


def _blocked(attempt: TransitionAttempt) -> tuple[str, ...]:
    return tuple(str(goal) for goal in attempt.backlog.pending)


def _missing(scenario: Scenario, attempt: TransitionAttempt) -> Missing:
    goals = {goal: attempt.fleet.blockers(goal) for goal in attempt.backlog.pending}
    blockers = sorted({b for blockers in goals.values() for b in blockers if b in attempt.backlog.leaving})
    half = Effort(scenario.effort.left // 2, scenario.effort.late)
    scenario.effort.left -= half.left
    return Missing(
        blocked=_blocked(attempt),
        spares=_spares(replace(scenario, effort=half), attempt, blockers),
        min_available=_lower_minima(scenario, attempt, blockers),
        reasons=tuple(dict.fromkeys(reason for goal in goals for reason in _reasons(attempt, goal))),
    )


def _spares(
    scenario: Scenario, attempt: TransitionAttempt, blockers: list[ReplicaPlacement]
) -> tuple[Spare, ...]:
    """Return free places that suffice: as few as possible of one shape, else one of each."""
    shapes = {ShapeKey(*attempt.fleet.shape(b)) for b in blockers if b not in attempt.pinned}
    order = sorted(shapes, key=lambda shape: (_size(attempt, shape), shape))
    for many in range(1, _MOST_SPARES + 1):
        for shape in order:
            if _works_with(scenario, {shape: many}):
                return (_spare(shape, many),)
    together = len(order) > 1 and _works_with(scenario, dict.fromkeys(order, 1))
    return tuple(_spare(shape, 1) for shape in order) if together else ()


def _spare(shape: ShapeKey, many: int) -> Spare:
    return Spare(shape.sku, shape.profile, many * shape.tensor_parallel)


def _size(attempt: TransitionAttempt, shape: ShapeKey) -> int:
    if shape.profile == WHOLE_GPU:
        return 1000 * shape.tensor_parallel
    board = attempt.fleet.problem.board(shape.sku)
    masks = (o.mask.bit_count() for o in (board.options if board else ()) if o.profile == shape.profile)
    return next(masks, 0)


def _works_with(scenario: Scenario, shapes: Mapping[ShapeKey, int]) -> bool:
    """Whether free places suffice, wherever among the others they are."""
    for where in _WHERE:
        problem = with_free_places(scenario.problem, shapes, prefix=where)
        if not replace(scenario, problem=problem).works():
            return False
    return True


def _lower_minima(
    scenario: Scenario, attempt: TransitionAttempt, blockers: list[ReplicaPlacement]
) -> tuple[tuple[str, int], ...]:
    """Return minima that suffice: of one demand if there is such a one, as high as possible."""
    minima = {owner: attempt.progress[owner].budget.min_available for owner in {b.owner for b in blockers}}
    owners = sorted(owner for owner, least in minima.items() if least)
    choices = [{owner: 0} for owner in owners[:_MOST_LOWER]]
    if len(owners) > 1:
        choices.append(dict.fromkeys(owners, 0))
    for lowered in choices:
        if _works_above(scenario, lowered):
            return _highest(scenario, minima, lowered)
    return ()


def _highest(
    scenario: Scenario, minima: Mapping[str, int], lowered: Mapping[str, int]
) -> tuple[tuple[str, int], ...]:
    """Raise minima again, one after the other, as far as the steps still arrive."""
    best = dict(lowered)
    for owner in sorted(best):
        candidates = range(minima[owner], max(0, minima[owner] - _MOST_LOWER - 1), -1)
        best[owner] = next((n for n in candidates if _works_above(scenario, best | {owner: n})), best[owner])
    return tuple((owner, n) for owner, n in sorted(best.items()) if n < minima[owner])


def _works_above(scenario: Scenario, minima: Mapping[str, int]) -> bool:
    declared = tuple(sorted((dict(scenario.pace.min_available) | dict(minima)).items()))
    return replace(scenario, pace=replace(scenario.pace, min_available=declared)).works()


def _reasons(attempt: TransitionAttempt, goal: ReplicaPlacement) -> Iterator[str]:
    """Yield what neither remedy helps against."""
    fleet = attempt.fleet
    for gpu in goal.gpus:
        if gpu in fleet.ends.impossible:
            yield fleet.ends.impossible[gpu]
        stay = ", ".join(sorted({str(b) for b in fleet.blockers(goal) if b not in attempt.backlog.leaving}))
        if stay and fleet.mig_on[gpu] != (goal.profile != WHOLE_GPU):
            yield f"MIG mode of {gpu} changes only while nothing runs on {fleet.gpu(gpu).node}: {stay}"
        elif stay:
            yield f"{goal} has to wait for {stay}, which stays"
    gpu, place = goal.gpus[0], Placement(goal.start, goal.profile)
    if goal.profile != WHOLE_GPU and not fleet.gpu(gpu).cuttable and place not in fleet.slices[gpu]:
        yield f"{place} does not exist on {gpu}, which must not be cut"
