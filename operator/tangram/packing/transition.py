"""From the fleet as it is to the layout that is wanted: ordered steps, or what is missing for them.

Both remedies that a `Missing` names have been tried: with either, the same transition ends where it should.
Which slice of its node a pod really gets, the scheduler and the device plugin decide; the steps are exact
about counts per node and profile, and about slices wherever the node agent picks the pod to remove.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from tangram.catalog import InputError
from tangram.fleet import WHOLE_GPU
from tangram.packing.course import Course, course
from tangram.packing.geometry import Placement
from tangram.packing.problem import GPUState, Instance, Problem, ShapeKey
from tangram.packing.result import Packing
from tangram.packing.seats import Seat, ends
from tangram.packing.steps import Missing, Pace, Spare, Transition
from tangram.packing.world import Effort

_DEFAULT = Pace()
_MOST_SPARES = 4  # of one shape: who needs more room than that needs another plan
_MOST_LOWER = 8  # minima that are tried one by one
_WHERE = ("\0", "\U0010ffff")  # before all other names, and after them: places are tried in order
_GAVE_UP = "so many replicas wait for each other's places that the search for an order was given up"


def transition(
    problem: Problem,
    packing: Packing,
    pace: Pace = _DEFAULT,
    effort: int | None = None,
    late: Callable[[], bool] | None = None,
) -> Transition:
    """Return the ordered steps from `problem` as it is to what `packing` wants. Deterministic.

    Where they cannot end there, `missing` says why; the steps then go as far as they can, with nothing taken
    down early that does not come back. Raises `InputError` for a pace at which nothing could move.
    `effort`: most GPUs and replicas looked at for spare places, a count that bounds the time; from then on
    replicas are taken down instead, as minima permit, and where that leads nowhere, `missing` says so.
    `late` says when time is over: a guard, not part of the plan.
    """
    _check(pace)
    thinking = _effort(effort, late)
    case = _Case(problem, packing, pace, thinking)
    found = case.run()
    if _arrived(found):
        return Transition(tuple(found.script.steps))
    missing = Missing(_blocked(found)) if thinking.over else _missing(case, found)
    if thinking.over:  # nothing is proved: there may be an order, or a remedy, that was not found
        missing = replace(missing, reasons=(*missing.reasons, _GAVE_UP))
    safe = course(problem, ends(problem, packing), pace, restarts=False, effort=_effort(effort, late))
    further = found if found.sound[0] > safe.sound[0] else safe
    return Transition(tuple(further.script.steps[: further.sound[1]]), missing)


def _effort(effort: int | None, late: Callable[[], bool] | None) -> Effort:
    return Effort(late=late) if effort is None else Effort(effort, late)


def _check(pace: Pace) -> None:
    for name, least in (("per_demand", pace.per_demand), ("per_node", pace.per_node)):
        if least < 1:
            raise InputError(f"pace.{name}", f"must be at least 1, is {least}")
    for demand, n in pace.min_available:
        if n < 0:
            raise InputError(f"pace.min_available.{demand}", f"must be zero or more, is {n}")


@dataclass(frozen=True, slots=True)
class _Case:
    """A transition that may be tried under other circumstances."""

    problem: Problem
    packing: Packing
    pace: Pace
    effort: Effort = field(default_factory=Effort)

    def run(self) -> Course:
        """Return an attempt that arrives, if one does: growth at once, or only when there is room for all."""
        both = ends(self.problem, self.packing)
        found = course(self.problem, both, self.pace, effort=self.effort)
        if _arrived(found) or self.effort.over:
            return found
        for returning in (False, True):
            other = course(
                self.problem, both, self.pace, patient=True, returning=returning, effort=self.effort
            )
            if _arrived(other):
                return other
        return found

    def works(self) -> bool:
        return not self.effort.over and _arrived(self.run())

    def with_minimum(self, minimum: dict[str, int]) -> "_Case":
        lowered = {**dict(self.pace.min_available), **minimum}
        return replace(self, pace=replace(self.pace, min_available=tuple(sorted(lowered.items()))))

    def works_with(self, shapes: Mapping[ShapeKey, int]) -> bool:
        """Whether free places suffice, wherever among the others they are."""
        for where in _WHERE:
            roomy = self
            for shape, many in shapes.items():
                roomy = roomy._with_room(shape, many, where)
            if not roomy.works():
                return False
        return True

    def _with_room(self, shape: ShapeKey, many: int, where: str) -> "_Case":
        """Add free places that are there, on nodes of their own."""
        extra: list[GPUState] = []
        for number in range(many):
            node = f"{where}spare-{shape}-{number}"
            gpu = GPUState(node, node, shape.sku, cuttable=False)
            if shape.profile == WHOLE_GPU:
                extra += [replace(gpu, id=f"{node}/{i}") for i in range(shape.tensor_parallel)]
            else:
                start = self._start(shape)
                extra.append(replace(gpu, mig_enabled=True, instances=(Instance(shape.profile, start),)))
        gpus = tuple(sorted((*self.problem.gpus, *extra), key=lambda g: g.id))
        return replace(self, problem=replace(self.problem, gpus=gpus))

    def _start(self, shape: ShapeKey) -> int:
        board = self.problem.board(shape.sku)
        starts = (o.start for o in (board.options if board else ()) if o.profile == shape.profile)
        return max(starts, default=0)


def _arrived(found: Course) -> bool:
    return not found.pending and not found.leaving


def _blocked(found: Course) -> tuple[str, ...]:
    return tuple(str(goal) for goal in found.pending)


def _missing(case: _Case, found: Course) -> Missing:
    world = found.world
    waiting = [(goal, world.blockers(goal)) for goal in found.pending]
    blockers = sorted({seat for _, seats in waiting for seat in seats if seat in found.leaving})
    half = Effort(case.effort.left // 2, case.effort.late)
    case.effort.left -= half.left
    return Missing(
        blocked=_blocked(found),
        spares=_room(replace(case, effort=half), found, blockers),
        min_available=_lower(case, found, blockers),
        reasons=tuple(dict.fromkeys(reason for goal, _ in waiting for reason in _why(found, goal))),
    )


def _room(case: _Case, found: Course, blockers: list[Seat]) -> tuple[Spare, ...]:
    """Free places with which it works: as few as possible of one shape, else one of each."""
    shapes = {
        ShapeKey(found.world.gpu(seat.gpus[0]).sku, seat.profile, len(seat.gpus))
        for seat in blockers
        if seat not in found.fixed
    }
    order = sorted(shapes, key=lambda shape: (_size(found, shape), shape))
    for many in range(1, _MOST_SPARES + 1):
        for shape in order:
            if case.works_with({shape: many}):
                return (_spare(shape, many),)
    together = len(order) > 1 and case.works_with(dict.fromkeys(order, 1))
    return tuple(_spare(shape, 1) for shape in order) if together else ()


def _spare(shape: ShapeKey, many: int) -> Spare:
    return Spare(shape.sku, shape.profile, many * shape.tensor_parallel)


def _size(found: Course, shape: ShapeKey) -> int:
    if shape.profile == WHOLE_GPU:
        return 1000 * shape.tensor_parallel
    board = found.world.problem.board(shape.sku)
    masks = (o.mask.bit_count() for o in (board.options if board else ()) if o.profile == shape.profile)
    return next(masks, 0)


def _lower(case: _Case, found: Course, blockers: list[Seat]) -> tuple[tuple[str, int], ...]:
    """Minima with which it works: of one demand if that suffices, as high as possible."""
    owners = sorted({seat.owner for seat in blockers if found.crews[seat.owner].minimum > 0})
    for owner in owners[:_MOST_LOWER]:
        if case.with_minimum({owner: 0}).works():
            return _highest(case, found, {owner: 0})
    everyone = dict.fromkeys(owners, 0)
    if len(owners) < 2 or not case.with_minimum(everyone).works():
        return ()
    return _highest(case, found, everyone)


def _highest(case: _Case, found: Course, minimum: dict[str, int]) -> tuple[tuple[str, int], ...]:
    """Raise minima again, one after the other, as far as it still works."""
    best = dict(minimum)
    for owner in sorted(best):
        top = found.crews[owner].minimum
        for n in _downwards(top):
            if case.with_minimum({**best, owner: n}).works():
                best[owner] = n
                break
    return tuple((owner, n) for owner, n in sorted(best.items()) if n < found.crews[owner].minimum)


def _downwards(top: int) -> Iterator[int]:
    for tried in count():
        if tried > _MOST_LOWER or top - tried <= 0:
            return
        yield top - tried


def _why(found: Course, goal: Seat) -> Iterator[str]:
    """What no remedy helps against."""
    world = found.world
    for gpu in goal.gpus:
        state = world.gpu(gpu)
        if gpu in world.ends.impossible:
            yield world.ends.impossible[gpu]
        toggles = world.mig_on[gpu] != (goal.profile != WHOLE_GPU)
        stay = sorted({str(s) for s in world.blockers(goal) if s not in found.leaving})
        if toggles and stay:
            yield f"MIG mode of {gpu} changes only while nothing runs on {state.node}: {', '.join(stay)}"
        elif stay:
            yield f"{goal} has to wait for {', '.join(stay)}, which stays"
    gpu, place = goal.gpus[0], Placement(goal.start, goal.profile)
    state = world.gpu(gpu)
    if goal.profile != WHOLE_GPU and not state.cuttable and place not in world.slices[gpu]:
        yield f"{place} does not exist on {gpu}, which must not be cut"
