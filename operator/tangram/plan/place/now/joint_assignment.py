"""Assign free devices to several LLMDeployments jointly.

In: for each demand, in order of priority, the shapes that would serve it, and the free devices by group. Out:
an option, a number of replicas and new devices for each. One device carries one replica. Where not every
demand can have the assignment that is best for it alone, the packing of the fleet decides, and neither cuts
nor moves anything. Results are cached.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from tangram.eligibility.isolation import RoundStep, StepsFailed, for_each
from tangram.fleet import WHOLE_GPU, describe
from tangram.packing import Allotment, Demand, GPUState, Part, Problem

_COUNTS = 10  # numbers of replicas below what one option can have that are considered
_WINDOW = 24  # under shortage, so many demands are assigned jointly, each in a stage of its own
_WINDOWS = 4  # demands after so many windows are assigned greedily
# Deterministic seconds of one core: equal problems end equal, well before a plan is overdue.
_EFFORT_S = 0.6
_RANK_USD = 1e-4  # one place in the order of preference: less than any difference of prices that matters
_EPSILON = 1e-9

GroupIndex = int


@dataclass(frozen=True, slots=True)
class ShapeOption:
    """A shape that would serve a demand. The options of a demand are in order of preference."""

    groups: tuple[GroupIndex, ...]  # that its replicas may use, in this order
    desired: int  # replicas that serve the whole demand
    max_replicas: int  # as budget and quota allow
    min_replicas: int  # fewer are of no use
    held: int  # replicas that have a device already
    price: float  # USD per hour of one replica
    can_spread: bool = True  # whether as many as fit would keep to the demand's spread

    def unmet(self, replicas: int) -> float:
        """Share of the demand that `replicas` leave unserved."""
        return max(0.0, 1 - replicas / self.desired)


@dataclass(frozen=True, slots=True)
class DeviceDemand:
    """The options of one LLMDeployment."""

    uid: str
    options: tuple[ShapeOption, ...]


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """What one demand gets: one of its options, a number of replicas, and the devices that are new to it."""

    option: int | None = None
    replicas: int = 0
    devices: tuple[tuple[GroupIndex, int], ...] = ()
    unmet: float = 1.0
    price: float = 0.0  # USD per hour of all replicas
    crowded: bool = False  # it breaks the demand's spread, and another option would not
    failure: str = ""  # why there is no joint assignment: a bug

    @property
    def rank(self) -> tuple[float, bool, float, int]:
        """Order of preference: the unmet share, the spread, the price, the order of the options."""
        return self.unmet, self.crowded, self.price, -1 if self.option is None else self.option

    def fits(self, free: Sequence[int]) -> bool:
        """Whether its new devices are among the `free` ones."""
        return all(free[group] >= count for group, count in self.devices)


_Ranked = list[DeviceAssignment]  # assignments of one demand, the best first


@lru_cache(maxsize=16)
def assign_devices(
    demands: tuple[DeviceDemand, ...], free: tuple[int, ...], prices: tuple[float, ...]
) -> tuple[DeviceAssignment, ...]:
    """Return one assignment per demand. `free` devices, and their `prices` in USD per hour, are by group.

    Minimises the unmet share, of earlier demands first, then the demands that break their spread, then USD.
    Raises `StepsFailed` for demands that raise by themselves.
    """
    ranked = for_each(RoundStep.TARGET, demands, lambda d: d.uid, lambda d: _assignments(d.options, free))
    greedy = _grown(demands, _greedy(ranked, list(free)), free)
    if all(a.rank == candidates[0].rank for a, candidates in zip(greedy, ranked, strict=True)):
        return tuple(greedy)  # each demand has the best assignment: no joint one is better
    try:
        joint = _without_shortage(ranked, free, prices)
        if joint is None:
            joint = _grown(demands, _by_windows(ranked, free, prices), free)
    except Exception as error:  # noqa: BLE001 - a bug must not stop the whole plan
        _raise_for_single_demands(demands, ranked, free, prices, error)
        return tuple(replace(assignment, failure=describe(error)) for assignment in greedy)
    return tuple(joint if _objective(joint) <= _objective(greedy) else greedy)


def _raise_for_single_demands(
    demands: Sequence[DeviceDemand],
    ranked: Sequence[_Ranked],
    free: tuple[int, ...],
    prices: tuple[float, ...],
    error: Exception,
) -> None:
    """Raise `StepsFailed` if some of the demands, but not all, fail when solved alone."""
    pairs = zip(demands, ranked, strict=True)
    try:
        for_each(RoundStep.TARGET, pairs, lambda p: p[0].uid, lambda p: _place([p[1]], free, prices))
    except StepsFailed as failed:
        if len(failed.faults) < len(demands):
            raise failed from error


def _objective(assignments: Sequence[DeviceAssignment]) -> tuple[tuple[float, ...], int, float]:
    unmet = tuple(round(assignment.unmet, 9) for assignment in assignments)
    crowded = sum(assignment.crowded for assignment in assignments)
    return unmet, crowded, round(sum(assignment.price for assignment in assignments), 6)


def _assignments(options: tuple[ShapeOption, ...], free: tuple[int, ...]) -> _Ranked:
    """Return the assignments of one demand, the best first; the last one takes no free device."""
    assignments = [DeviceAssignment()]
    any_can_spread = any(option.can_spread for option in options)
    for number, option in enumerate(options):
        choices = [
            (count, devices)
            for count in _counts(option, free)
            for devices in _device_choices(option.groups, count - option.held, free)
        ]
        staying = min(option.held, option.max_replicas, option.desired)
        if staying >= max(1, option.min_replicas):
            choices.append((staying, ()))
        crowded = any_can_spread and not option.can_spread
        assignments += (
            DeviceAssignment(number, count, devices, option.unmet(count), count * option.price, crowded)
            for count, devices in choices
        )
    assignments.sort(key=lambda assignment: (*assignment.rank, assignment.devices))
    last = next(i for i, assignment in enumerate(assignments) if not assignment.devices)
    return assignments[: last + 1]


def _counts(option: ShapeOption, free: tuple[int, ...]) -> list[int]:
    """Numbers of replicas that need new devices: as many as fit, and some below that."""
    fitting = option.held + sum(free[group] for group in option.groups)
    highest = min(option.desired, option.max_replicas, fitting)
    lowest = max(option.held + 1, option.min_replicas, 1)
    if highest < lowest:
        return []
    step = -(-(highest - lowest + 1) // _COUNTS)
    return list(range(highest, lowest - 1, -step))


def _device_choices(
    groups: tuple[GroupIndex, ...], count: int, free: tuple[int, ...]
) -> list[tuple[tuple[GroupIndex, int], ...]]:
    """Choices of `count` free devices: from each group first, then from the others in their order."""
    choices = []
    for first in groups:
        missing, devices = count, []
        for group in (first, *(other for other in groups if other != first)):
            taken_devices = min(missing, free[group])
            if taken_devices:
                devices.append((group, taken_devices))
            missing -= taken_devices
        if not missing:
            choices.append(tuple(sorted(devices)))
    return list(dict.fromkeys(choices))


def _greedy(ranked: Sequence[_Ranked], free: list[int]) -> list[DeviceAssignment]:
    """Return the best assignment that is left for each demand, in their order. Takes from `free`."""
    assignments = []
    for candidates in ranked:
        assignment = next(candidate for candidate in candidates if candidate.fits(free))
        _take([assignment], free)
        assignments.append(assignment)
    return assignments


def _take(assignments: Sequence[DeviceAssignment], free: list[int]) -> None:
    for assignment in assignments:
        for group, count in assignment.devices:
            free[group] -= count


def _grown(
    demands: Sequence[DeviceDemand], assignments: list[DeviceAssignment], free: tuple[int, ...]
) -> list[DeviceAssignment]:
    """Give the devices that are left to demands, in their order, until no demand can be served better.

    Needed because `_assignments` enumerates only some counts and device choices.
    """
    left, grown, growing = Counter(dict(enumerate(free))), list(assignments), True
    for assignment in grown:
        left.subtract(dict(assignment.devices))
    while growing:  # each round lowers the unmet share of a demand, so the loop ends
        growing = False
        for number, (demand, assignment) in enumerate(zip(demands, grown, strict=True)):
            usable = left + Counter(dict(assignment.devices))
            best = _assignments(demand.options, tuple(usable[group] for group in range(len(free))))[0]
            if best.unmet < assignment.unmet - _EPSILON:
                left = usable
                left.subtract(dict(best.devices))
                grown[number], growing = best, True
    return grown


def _without_shortage(
    ranked: Sequence[_Ranked], free: tuple[int, ...], prices: tuple[float, ...]
) -> list[DeviceAssignment] | None:
    """Serve every demand as well as alone. None: there is, or was found, no such joint assignment."""
    best = [[a for a in candidates if a.unmet <= candidates[0].unmet + _EPSILON] for candidates in ranked]
    fewest = sum(min(sum(count for _, count in a.devices) for a in candidates) for candidates in best)
    return None if fewest > sum(free) else _place(best, free, prices)  # shortage: no need to solve


def _by_windows(
    ranked: Sequence[_Ranked], free: tuple[int, ...], prices: tuple[float, ...]
) -> list[DeviceAssignment]:
    """Under shortage: place windows of demands, each demand before the next; assign the rest greedily."""
    left, assignments = list(free), list[DeviceAssignment]()
    jointly = min(len(ranked), _WINDOW * _WINDOWS)
    for start in range(0, jointly, _WINDOW):
        window = ranked[start : min(start + _WINDOW, jointly)]
        fitting = [[a for a in candidates if a.fits(left)] for candidates in window]
        placed = _place(fitting, tuple(left), prices, by_priority=True)
        if placed is None:
            placed = _greedy(fitting, left)
        else:
            _take(placed, left)
        assignments += placed
    return assignments + _greedy(ranked[jointly:], left)


def _place(
    ranked: Sequence[_Ranked], free: tuple[int, ...], prices: tuple[float, ...], *, by_priority: bool = False
) -> list[DeviceAssignment] | None:
    """Choose one assignment per demand by the packing of the fleet. None: infeasible, or none in time.

    `by_priority`: each demand is served before the next one.
    """
    from tangram.packing.solve import SolveLimits, solve  # noqa: PLC0415 - loads the solver

    by_parts = [{_parts(a): a for a in reversed(candidates)} for candidates in ranked]  # the best of equals
    packing = solve(
        _problem(ranked, free, prices, by_priority=by_priority),
        SolveLimits(deterministic_s=_EFFORT_S, gap=0.0),
    )
    pairs = zip(by_parts, packing.choices, strict=True)
    placed = [assignments[choice.parts] for assignments, choice in pairs if choice.parts in assignments]
    return placed if len(placed) == len(ranked) else None


def _problem(
    ranked: Sequence[_Ranked], free: tuple[int, ...], prices: tuple[float, ...], *, by_priority: bool
) -> Problem:
    """Return the problem of giving devices as they are, each of which is packed like a GPU that is not cut.

    The devices of one group are a GPU model of their own. A broken spread costs more than all devices.
    """
    wanted = Counter[GroupIndex]()
    for candidates in ranked:
        most = Counter[GroupIndex]()
        for assignment in candidates:
            most |= Counter(dict(assignment.devices))
        wanted += most
    above_all = 1.0 + sum(prices[group] * count for group, count in wanted.items())
    return Problem(
        gpus=tuple(
            GPUState(device, device, _model(group), cuttable=False)
            for group in range(len(free))
            for device in (f"{_model(group)}-{n:05}" for n in range(min(free[group], wanted[group])))
        ),
        demands=tuple(
            _demand(number, candidates, above_all, priority=-number if by_priority else 0)
            for number, candidates in enumerate(ranked)
        ),
        prices=tuple((_model(group), price) for group, price in enumerate(prices)),
    )


def _demand(number: int, candidates: _Ranked, spread_cost: float, *, priority: int) -> Demand:
    # By new devices; none, if no assignment is without one.
    allotments: dict[tuple[tuple[GroupIndex, int], ...], Allotment] = {(): Allotment((), 1.0)}
    for rank, a in reversed(tuple(enumerate(candidates))):  # the best of those with equal devices
        preference = a.price + _RANK_USD * rank
        allotments[a.devices] = Allotment(_parts(a), a.unmet, preference, spread_cost * a.crowded)
    return Demand(f"{number:05}", priority, allotments=tuple(allotments.values()))


def _parts(assignment: DeviceAssignment) -> tuple[Part, ...]:
    return tuple(Part(_model(group), WHOLE_GPU, 1, count) for group, count in assignment.devices)


def _model(group: GroupIndex) -> str:
    return f"group-{group:05}"
