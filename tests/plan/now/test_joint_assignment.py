"""No demand can have more of the devices that the assignment leaves, all else unchanged."""

import random

import pytest

from tangram.plan.place.now.device_assignments import DeviceDemand, ShapeOption
from tangram.plan.place.now.joint_assignment import assign_devices


def fleet(seed):
    """Random demands over groups of devices; many of them short, some beyond what is assigned jointly."""
    rng = random.Random(seed)
    groups = rng.randint(1, 4)
    free = tuple(rng.randint(0, 40) for _ in range(groups))
    demands = []
    for number in range(rng.choice((2, 5, 30, 110))):
        options = []
        for _ in range(rng.randint(1, 3)):
            usable = tuple(rng.sample(range(groups), rng.randint(1, groups)))
            desired, held = rng.choice((1, 2, 7, 30)), rng.choice((0, 0, 0, 1, 2))
            most = rng.choice((desired, desired, 10**9, rng.randint(0, desired)))
            least = rng.choice((0, 1, 1, min(2, desired)))
            price = rng.choice((0.5, 1.0, 2.0))
            spreads = rng.random() < 0.8
            options.append(
                ShapeOption(usable, desired, most, least, min(held, desired), price, can_spread=spreads)
            )
        demands.append(DeviceDemand(f"u{number}", tuple(options)))
    return tuple(demands), free, tuple(rng.choice((0.5, 1.0, 2.0)) for _ in range(groups))


def better_options(demand, assignment, left):
    """The options of which the demand could have more replicas, all else unchanged."""
    own = dict(assignment.devices)
    unmet = 1.0
    if assignment.option is not None:
        unmet = max(0.0, 1 - assignment.replicas / demand.options[assignment.option].desired)
    for option in demand.options:
        fitting = option.held + sum(left[group] + own.get(group, 0) for group in option.groups)
        count = min(option.desired, option.max_replicas, fitting)
        if count >= max(1, option.min_replicas) and max(0.0, 1 - count / option.desired) < unmet - 1e-9:
            yield option


@pytest.mark.parametrize("seed", range(40))
def test_no_demand_can_grow_on_the_devices_that_are_left(seed):
    demands, free, prices = fleet(seed)

    assignments = assign_devices(demands, free, prices)

    left = list(free)
    for assignment in assignments:
        for group, count in assignment.devices:
            left[group] -= count
    assert min(left) >= 0
    pairs = zip(demands, assignments, strict=True)
    assert [option for demand, own in pairs for option in better_options(demand, own, left)] == []
