"""No demand can have more of the devices that the assignment leaves, all else unchanged."""

import random

import pytest

from tangram.packing.geometry.gangs import GangCapacity
from tangram.plan.place.now.device_assignments import DeviceDemand, ShapeOption
from tangram.plan.place.now.joint_assignment import assign_devices

SIZES = (1, 2, 4, 8)


def fleet(seed, sizes=(1,)):
    """Random demands over groups of nodes; many of them short, some beyond what is assigned jointly.

    `sizes`: of replicas, in GPUs. Returns demands, free GPUs by group and node, and prices.
    """
    rng = random.Random(seed)
    groups = rng.randint(1, 4)
    nodes = [[rng.randint(0, 8) for _ in range(5)] for _ in range(groups)]
    demands = []
    for number in range(rng.choice((2, 5, 30, 110))):
        options = []
        for _ in range(rng.randint(1, 3)):
            usable = tuple(rng.sample(range(groups), rng.randint(1, groups)))
            desired, held = rng.choice((1, 2, 7, 30)), rng.choice((0, 0, 0, 1, 2))
            most = rng.choice((desired, desired, 10**9, rng.randint(0, desired)))
            least = rng.choice((0, 1, 1, min(2, desired)))
            price, spreads = rng.choice((0.5, 1.0, 2.0)), rng.random() < 0.8
            held, gpus = min(held, desired), rng.choice(sizes)
            options.append(ShapeOption(usable, desired, most, least, held, price, spreads, gpus))
        demands.append(DeviceDemand(f"u{number}", tuple(options)))
    return tuple(demands), nodes, tuple(rng.choice((0.5, 1.0, 2.0)) for _ in range(groups))


def assigned(seed, sizes):
    demands, nodes, prices = fleet(seed, sizes)
    free = tuple(map(GangCapacity.on_nodes, nodes))
    return demands, nodes, assign_devices(demands, free, prices)


def fit(nodes, gangs):
    """Whether gangs find places on nodes one by one, the largest first, each where the least is left."""
    left = list(nodes)
    for size in sorted(gangs, reverse=True):
        fits = [n for n, free in enumerate(left) if free >= size]
        if not fits:
            return False
        left[min(fits, key=left.__getitem__)] -= size
    return True


def gangs_of(assignments, group):
    return [
        new.gpus for a in assignments for new in a.devices if new.group == group for _ in range(new.replicas)
    ]


def better_options(demand, assignments, number, nodes):
    """The options of which the demand could have one replica more, all else unchanged."""
    assignment = assignments[number]
    others = [*assignments[:number], *assignments[number + 1 :]]
    unmet = 1.0
    if assignment.option is not None:
        unmet = max(0.0, 1 - assignment.replicas / demand.options[assignment.option].desired)
    for option in demand.options:
        fitting = option.held
        for group in option.groups:
            gangs = gangs_of(others, group)
            while fit(nodes[group], [*gangs, option.gpus]):
                gangs.append(option.gpus)
                fitting += 1
        count = min(option.desired, option.max_replicas, fitting)
        if count >= max(1, option.min_replicas) and max(0.0, 1 - count / option.desired) < unmet - 1e-9:
            yield option


@pytest.mark.parametrize("sizes", [(1,), SIZES])
@pytest.mark.parametrize("seed", range(20))
def test_no_demand_can_grow_on_the_devices_that_are_left(seed, sizes):
    demands, nodes, assignments = assigned(seed, sizes)

    assert all(fit(on_nodes, gangs_of(assignments, group)) for group, on_nodes in enumerate(nodes))
    assert [
        option
        for number, demand in enumerate(demands)
        for option in better_options(demand, assignments, number, nodes)
    ] == []
