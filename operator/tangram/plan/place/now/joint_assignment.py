"""Assign free devices to several LLMDeployments jointly.

Where not every demand can have the assignment that is best for it alone, the packing of the fleet decides. It
neither cuts nor moves anything then. Results are cached.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from tangram.eligibility.isolation import RoundStep, StepsFailed, for_each
from tangram.fleet import WHOLE_GPU, describe
from tangram.packing import Allotment, Demand, GPUState, Part, Problem
from tangram.packing.geometry.gangs import GangCapacity
from tangram.plan.place.now.device_assignments import (
    UNMET_TOLERANCE,
    Capacities,
    DeviceAssignment,
    DeviceDemand,
    GroupIndex,
    NewReplicas,
    RankedAssignments,
    greedy_assignments,
    grown_assignments,
    ranked_assignments,
    take_devices,
)

_WINDOW = 24  # under shortage, so many demands are assigned jointly, each in a stage of its own
_WINDOWS = 4  # demands after so many windows are assigned greedily
# Deterministic seconds of one core: equal problems end equal, well before a plan is overdue.
_EFFORT_S = 0.6
_RANK_USD = 1e-4  # one place in the order of preference: less than any difference of prices that matters


@lru_cache(maxsize=16)
def assign_devices(
    demands: tuple[DeviceDemand, ...], free: Capacities, prices: tuple[float, ...]
) -> tuple[DeviceAssignment, ...]:
    """Return one assignment per demand. `free` devices, and their `prices` in USD per hour, are by group.

    Minimises the unmet share, of earlier demands first, then the demands that break their spread, then USD.
    Raises `StepsFailed` for demands that raise by themselves.
    """
    ranked = for_each(
        RoundStep.TARGET, demands, lambda d: d.uid, lambda d: ranked_assignments(d.options, free)
    )
    greedy = grown_assignments(demands, greedy_assignments(ranked, list(free)), free)
    if all(a.rank == candidates[0].rank for a, candidates in zip(greedy, ranked, strict=True)):
        return tuple(greedy)  # each demand has the best assignment: no joint one is better
    try:
        joint = _without_shortage(ranked, free, prices)
        if joint is None:
            joint = grown_assignments(demands, _by_windows(ranked, free, prices), free)
    except Exception as error:  # noqa: BLE001 - a bug must not stop the whole plan
        _raise_for_single_demands(demands, ranked, free, prices, error)
        return tuple(replace(assignment, failure=describe(error)) for assignment in greedy)
    return tuple(joint if _objective(joint) <= _objective(greedy) else greedy)


def _raise_for_single_demands(
    demands: Sequence[DeviceDemand],
    ranked: Sequence[RankedAssignments],
    free: Capacities,
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


def _without_shortage(
    ranked: Sequence[RankedAssignments], free: Capacities, prices: tuple[float, ...]
) -> list[DeviceAssignment] | None:
    """Serve every demand as well as alone. None: there is, or was found, no such joint assignment."""
    best = [
        [a for a in candidates if a.unmet <= candidates[0].unmet + UNMET_TOLERANCE] for candidates in ranked
    ]
    fewest = sum(min(a.new_devices for a in candidates) for candidates in best)
    if fewest > sum(group.devices for group in free):
        return None  # shortage: no need to solve
    return _place(best, free, prices)


def _by_windows(
    ranked: Sequence[RankedAssignments], free: Capacities, prices: tuple[float, ...]
) -> list[DeviceAssignment]:
    """Under shortage: place windows of demands, each demand before the next; assign the rest greedily."""
    left, assignments = list(free), list[DeviceAssignment]()
    jointly = min(len(ranked), _WINDOW * _WINDOWS)
    for start in range(0, jointly, _WINDOW):
        window = ranked[start : min(start + _WINDOW, jointly)]
        fitting = [[a for a in candidates if a.fits(left)] for candidates in window]
        placed = _place(fitting, tuple(left), prices, by_priority=True)
        placed = placed or greedy_assignments(fitting, list(left))
        take_devices(placed, left)
        assignments += placed
    return assignments + greedy_assignments(ranked[jointly:], left)


def _place(
    ranked: Sequence[RankedAssignments],
    free: Capacities,
    prices: tuple[float, ...],
    *,
    by_priority: bool = False,
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
    ranked: Sequence[RankedAssignments],
    free: Capacities,
    prices: tuple[float, ...],
    *,
    by_priority: bool,
) -> Problem:
    """Return the problem of giving devices as they are, each of which is packed like a GPU that is not cut.

    The devices of one group are a GPU model of their own. A broken spread costs more than all devices.
    """
    wanted = Counter[tuple[GroupIndex, int]]()  # replicas by group and size
    for candidates in ranked:
        most = Counter[tuple[GroupIndex, int]]()
        for assignment in candidates:
            most |= Counter({(new.group, new.gpus): new.replicas for new in assignment.devices})
        wanted += most
    above_all = 1.0 + sum(prices[group] * gpus * count for (group, gpus), count in wanted.items())
    return Problem(
        gpus=tuple(gpu for group, capacity in enumerate(free) for gpu in _gpus(group, capacity, wanted)),
        demands=tuple(
            _demand(number, candidates, above_all, priority=-number if by_priority else 0)
            for number, candidates in enumerate(ranked)
        ),
        prices=tuple((_model(group), price) for group, price in enumerate(prices)),
    )


def _gpus(
    group: GroupIndex, capacity: GangCapacity, wanted: Mapping[tuple[GroupIndex, int], int]
) -> Iterator[GPUState]:
    """Yield the devices of a group that some demand may get, on nodes with as much capacity as there is."""
    replicas = {gpus: count for (other, gpus), count in wanted.items() if other == group}
    number = 0
    for node, size in enumerate(capacity.at_most(replicas).nodes()):
        for _ in range(size):
            device, number = f"{_model(group)}-{number:05}", number + 1
            name = device if size == 1 else f"{_model(group)}-node-{node:05}"
            yield GPUState(device, name, _model(group), cuttable=False)


def _demand(number: int, candidates: RankedAssignments, spread_cost: float, *, priority: int) -> Demand:
    # By new devices; none, if no assignment is without one.
    allotments: dict[tuple[NewReplicas, ...], Allotment] = {(): Allotment((), 1.0)}
    for rank, a in reversed(tuple(enumerate(candidates))):  # the best of those with equal devices
        preference = a.price + _RANK_USD * rank
        allotments[a.devices] = Allotment(_parts(a), a.unmet, preference, spread_cost * a.crowded)
    return Demand(f"{number:05}", priority, allotments=tuple(allotments.values()))


def _parts(assignment: DeviceAssignment) -> tuple[Part, ...]:
    return tuple(Part(_model(group), WHOLE_GPU, gpus, count) for group, count, gpus in assignment.devices)


def _model(group: GroupIndex) -> str:
    return f"group-{group:05}"
