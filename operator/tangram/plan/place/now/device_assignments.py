"""What one LLMDeployment may get of the free devices, the best first, and what each gets in turn.

In: for each demand, in order of priority, the shapes that would serve it, and the free devices by group. Out:
an option, a number of replicas and new devices for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tangram.packing.geometry.gangs import GangCapacity

_COUNTS = 10  # numbers of replicas below what one option can have that are considered
UNMET_TOLERANCE = 1e-9  # of shares of a demand

GroupIndex = int
Capacities = tuple[GangCapacity, ...]  # free devices by group


class NewReplicas(NamedTuple):
    """Replicas that get devices of one group."""

    group: GroupIndex
    replicas: int
    gpus: int = 1  # devices of each


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
    gpus: int = 1  # devices of one replica

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
    devices: tuple[NewReplicas, ...] = ()
    unmet: float = 1.0
    price: float = 0.0  # USD per hour of all replicas
    crowded: bool = False  # it breaks the demand's spread, and another option would not
    failure: str = ""  # why there is no joint assignment: a bug

    @property
    def rank(self) -> tuple[float, bool, float, int]:
        """Order of preference: the unmet share, the spread, the price, the order of the options."""
        return self.unmet, self.crowded, self.price, -1 if self.option is None else self.option

    @property
    def new_devices(self) -> int:
        """How many devices are new to it."""
        return sum(new.replicas * new.gpus for new in self.devices)

    def fits(self, free: Sequence[GangCapacity]) -> bool:
        """Whether its new devices are among the `free` ones."""
        return all(free[new.group].fitting(new.gpus) >= new.replicas for new in self.devices)


RankedAssignments = list[DeviceAssignment]  # assignments of one demand, the best first


def ranked_assignments(options: tuple[ShapeOption, ...], free: Capacities) -> RankedAssignments:
    """Return the assignments of one demand, the best first; the last one takes no free device."""
    assignments = [DeviceAssignment()]
    any_can_spread = any(option.can_spread for option in options)
    for number, option in enumerate(options):
        choices = [
            (count, devices)
            for count in _counts(option, free)
            for devices in _device_choices(option, count - option.held, free)
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


def _counts(option: ShapeOption, free: Capacities) -> list[int]:
    """Numbers of replicas that need new devices: as many as fit, and some below that."""
    fitting = option.held + sum(free[group].fitting(option.gpus) for group in option.groups)
    highest = min(option.desired, option.max_replicas, fitting)
    lowest = max(option.held + 1, option.min_replicas, 1)
    if highest < lowest:
        return []
    step = -(-(highest - lowest + 1) // _COUNTS)
    return list(range(highest, lowest - 1, -step))


def _device_choices(option: ShapeOption, count: int, free: Capacities) -> list[tuple[NewReplicas, ...]]:
    """Choices of free devices for `count` replicas: from each group first, then from the others in order."""
    choices = []
    for first in option.groups:
        missing, devices = count, []
        for group in (first, *(other for other in option.groups if other != first)):
            replicas = min(missing, free[group].fitting(option.gpus))
            if replicas:
                devices.append(NewReplicas(group, replicas, option.gpus))
            missing -= replicas
        if not missing:
            choices.append(tuple(sorted(devices)))
    return list(dict.fromkeys(choices))


def greedy_assignments(
    ranked: Sequence[RankedAssignments], free: list[GangCapacity]
) -> list[DeviceAssignment]:
    """Return the best assignment that is left for each demand, in their order. Takes from `free`."""
    assignments = []
    for candidates in ranked:
        assignment = next(candidate for candidate in candidates if candidate.fits(free))
        take_devices([assignment], free)
        assignments.append(assignment)
    return assignments


def take_devices(assignments: Sequence[DeviceAssignment], free: list[GangCapacity]) -> None:
    """Take the new devices of assignments from `free`."""
    for assignment in assignments:
        for group, count, gpus in assignment.devices:
            free[group] = free[group].without(gpus, count)


def grown_assignments(
    demands: Sequence[DeviceDemand], assignments: list[DeviceAssignment], free: Capacities
) -> list[DeviceAssignment]:
    """Give the devices that are left to demands, in their order, until no demand can be served better.

    Needed because `ranked_assignments` enumerates only some counts and device choices.
    """
    left, grown, growing = list(free), list(assignments), True
    take_devices(grown, left)
    while growing:  # each round lowers the unmet share of a demand, so the loop ends
        growing = False
        for number, (demand, assignment) in enumerate(zip(demands, grown, strict=True)):
            usable = list(left)
            for group, count, gpus in assignment.devices:
                usable[group] = usable[group].without(gpus, -count)
            best = ranked_assignments(demand.options, tuple(usable))[0]
            if best.unmet < assignment.unmet - UNMET_TOLERANCE:
                take_devices([best], usable)
                left, grown[number], growing = usable, best, True
    return grown
